"""A reader's end of a stream that attaches again in each session with a daemon."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from mcpd.native import _core
from mcpd.shm.attachment import Attachment
from mcpd.shm.errors import DaemonUnavailable, McpdError
from mcpd.shm.messages import StreamGrant
from mcpd.shm.reader_generation import ReaderGeneration
from mcpd.shm.reader_moves import ReaderMoves
from mcpd.shm.reader_stream import ReaderStream
from mcpd.shm.reading import Reading
from mcpd.shm.session_streams import detach_later
from mcpd.shm.sessions import Trouble
from mcpd.shm.stream_end import add_counters, raise_ended, raise_none, read_grant
from mcpd.shm.transport import close_fds

if TYPE_CHECKING:
    from mcpd.shm.connection import Connection
    from mcpd.shm.reconnection import Reconnection

SETTLE_S, LOOK_S = 0.2, 0.005
"""How long a lossless reader waits for the writer, which has lost the daemon as well, to end this
session's stream; and how often it looks."""


class KeptReaderStream(ReaderStream):
    """As ReaderStream; when the daemon was lost, attaches by the same name and in the same way as
    soon as the stream is there again.

    No frame comes twice. What was published while this was not attached is counted as missed, as
    far as the writer went on counting. While the stream is not there, `next` raises WouldBlock or
    TimedOut; if it cannot attach for another reason, that error: at the end of the time given or,
    without one, when it has been so for PATIENCE_S.
    """

    _moves: KeptMoves

    def __init__(
        self,
        keeper: Reconnection,
        connection: Connection,
        grant: StreamGrant,
        fds: Sequence[int],
        reading: Reading,
    ) -> None:
        self._keeper = keeper
        self._reading = reading
        super().__init__(connection, grant, fds, reading)

    def _make_moves(
        self, connection: Connection, grant: StreamGrant, fds: Sequence[int], reading: Reading
    ) -> ReaderMoves:
        return KeptMoves(self._keeper, self, connection, grant, fds, reading)

    @property
    def session(self) -> Connection:
        """The session that it is in."""
        return self._moves.now.connection

    def close(self) -> None:
        """As ReaderStream.close."""
        if not self._connection.inherited:
            self._keeper.drop(self)
        super().close()

    # ---- the next session: the reconnecting thread calls these ---------------------------------

    @property
    def writes(self) -> bool:
        """Readers attach after streams are made."""
        return False

    def settle(self) -> None:
        """Returns when this session's stream has ended, or is not read any more."""
        self._moves.settle(SETTLE_S)

    def restore(self, connection: Connection) -> bool:
        """Attaches in this session. False: there is nothing to attach to yet."""
        if self._moves.closed or self._moves.evicted:
            return True
        try:
            result, fds = connection.request(self._reading.attach(self.name))
            grant = read_grant(result, fds)
        except DaemonUnavailable:
            raise
        except McpdError as error:
            self._moves.fail(error)
            return False
        attachment = Attachment(self, connection, grant.stream)
        if self._moves.add(connection, grant, fds):
            connection.streams.add_reader(attachment, grant.reader)
        else:
            close_fds(fds)
        if self._moves.closed:
            connection.streams.remove_reader([grant.reader])
            detach_later(connection, grant.reader)
        return True

    def wake(self) -> None:
        """Whoever waits looks again."""
        self._moves.wake()


class KeptMoves(ReaderMoves):
    """As ReaderMoves, through sessions."""

    def __init__(
        self,
        keeper: Reconnection,
        end: KeptReaderStream,
        connection: Connection,
        grant: StreamGrant,
        fds: Sequence[int],
        reading: Reading,
    ) -> None:
        super().__init__(connection, grant, fds, reading)
        self._keeper = keeper
        self._end = end
        self._trouble = Trouble(f"stream {grant.name!r}")

    def waits(self) -> bool:
        """As ReaderMoves.waits."""
        return self.now.fd < 0 and self._comes_back(self.now, _core.END_SHUTDOWN)

    @property
    def hint(self) -> str:
        """As ReaderMoves.hint."""
        return self._keeper.hint

    def stats(self) -> dict[str, int]:
        """As ReaderMoves.stats; also while the daemon is away."""
        if self.waits():
            return add_counters(self._past, self.now.counters())
        return super().stats()

    def add(self, connection: Connection, grant: StreamGrant, fds: Sequence[int]) -> bool:
        """As ReaderMoves.add; what nobody has come to in an earlier session is given up."""
        with self._changed:
            for one in [one for one in self._coming if one.connection.lost]:
                self._coming.remove(one)
                close_fds(one.fds)
            self._trouble.clear()
            return super().add(connection, grant, fds)

    def lose(self, connection: Connection) -> None:
        """As ReaderMoves.lose, but that it goes on."""
        with self._changed:
            now = self.now
            if now.connection is connection and self._reading.policy != "lossless":
                self._rest(now)
            self._wake()

    def settle(self, most_s: float) -> None:
        """Waits for the writer's word on a stream that is still read; after that, it is not."""
        deadline = time.monotonic() + most_s
        now = self.now
        while now.connection.lost and now.fd >= 0 and now.ended() == _core.END_LIVE:
            if time.monotonic() >= deadline:
                with self._changed:
                    self._rest(now)
                    self._wake()
            else:
                time.sleep(LOOK_S)

    def fail(self, error: McpdError) -> None:
        """It could not be attached."""
        with self._changed:
            self._trouble.note(error)
            self._changed.notify_all()

    def wake(self) -> None:
        """Whoever waits looks again."""
        with self._changed:
            self._wake()

    # ---- under the lock ------------------------------------------------------------------------

    def _rest(self, now: ReaderGeneration) -> None:
        """Unmaps what is not read any more, until there is something else."""
        self._unmap(now)
        if now is self.now:
            self._idle = now

    def _comes_back(self, now: ReaderGeneration, code: int) -> bool:
        if self.closed or self.evicted or self._keeper.over or now.connection.inherited:
            return False
        if code == _core.END_SHUTDOWN or not now.connection.lost:
            return code == _core.END_SHUTDOWN
        # Of a writer whose session was lost as well, the daemon may have said that it died.
        return code in (_core.END_LIVE, _core.END_MOVED, _core.END_WRITER_DIED) or (
            code == _core.END_CLOSED and self._reading.follow
        )

    def _goes_on(self, now: ReaderGeneration, code: int) -> bool:
        return self._comes_back(now, code) or super()._goes_on(now, code)

    def _look_out(self, now: ReaderGeneration, code: int, timeout_s: float | None) -> None:
        if timeout_s is None:
            self._trouble.raise_if_old()
        if code == _core.END_SHUTDOWN and not now.connection.lost and self._idle is not now:
            self._keeper.miss(self._end)

    def _raise_over(self, code: int) -> NoReturn:
        if code == _core.END_SHUTDOWN and self._keeper.over and not self.closed:
            raise self._keeper.unavailable()
        raise_ended(self._name, code)

    def _raise_none(self, timeout_s: float | None) -> NoReturn:
        if timeout_s and not self._trouble.expected:
            raise self._trouble.error()
        raise_none(self._name, timeout_s, "no frame came", self._keeper.hint)

    def _enter_session(self, before: ReaderGeneration, after: ReaderGeneration) -> None:
        """What was published in between is missed, and what was read is not read again."""
        if after.grant.group != 0:
            return  # its frames are the group's, in no order that one member knows
        wanted = before.counters().get("cursor", 0)
        same_daemon = before.connection.daemon_instance == after.connection.daemon_instance
        if same_daemon and before.grant.stream == after.grant.stream:
            self.floor = max(0, wanted - 1)
        missed = (after.grant.start_seq or after.counters()["cursor"]) - wanted
        if wanted and missed > 0:
            counter = "skipped" if after.grant.policy == "latest" else "dropped"
            self._past[counter] = self._past.get(counter, 0) + missed
