"""A writer's end of a stream that is made again in each session with a daemon."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

from mcpd.shm.connection import REQUEST_TIMEOUT_S
from mcpd.shm.errors import DaemonUnavailable, Internal, InvalidRequest, McpdError, StreamClosed
from mcpd.shm.messages import CreateStream, StreamGrant
from mcpd.shm.reader_moves import time_left
from mcpd.shm.segment import Segment
from mcpd.shm.sessions import Trouble
from mcpd.shm.slot import Slot
from mcpd.shm.stream_end import add_counters, raise_none
from mcpd.shm.transport import close_fds
from mcpd.shm.writer_generation import WriterGeneration, lossless_in
from mcpd.shm.writer_stream import WriterStream

if TYPE_CHECKING:
    from mcpd.shm.bundle import Description
    from mcpd.shm.connection import Connection
    from mcpd.shm.reconnection import Reconnection

GRACE_S = 1.5
"""How long a stream that was made again waits for the lossless readers that it had: they connect
again as well, and are to miss nothing."""
_LOSSES = ("shutdown", "writer_died")
"""Why a stream has ended whose writer lives: its session did."""


class KeptSlot(Slot):
    """A slot of a stream that is made again: publishing it when its session is over loses the
    frame, and is no error."""

    __slots__ = ()

    def publish(self) -> int:
        """As Slot.publish; 0 when the daemon was lost while it was filled: the frame is lost."""
        try:
            return super().publish()
        except StreamClosed as error:
            if error.reason not in _LOSSES:
                raise
        except InvalidRequest as error:
            if str(error.__cause__) != "the writer is closed":  # as it is at the session's end
                raise
        self.abandon()
        return 0


class KeptWriterStream(WriterStream):
    """As WriterStream; goes on after the daemon was lost, under the same name and with the same
    memory layout, from the next sequence number on.

    Raises what WriterStream does, and while the stream is not there WouldBlock or TimedOut; if it
    cannot be had again, such as because another took its name, that error: at the end of the time
    given or, without one, when it has been so for PATIENCE_S.
    """

    slot_type = KeptSlot

    def __init__(
        self,
        keeper: Reconnection,
        connection: Connection,
        grant: StreamGrant,
        fds: Sequence[int],
        description: Description | None,
    ) -> None:
        # What a caller brought is brought to the next daemon as well.
        foreign = grant.spec.memory == "foreign" and len(fds) > 1
        self._segment = Segment(os.dup(fds[1]), 0, "", "foreign") if foreign else None
        try:
            super().__init__(connection, grant, fds, description)
        except BaseException:
            self._drop_segment()
            raise
        self._keeper = keeper
        self._changed = threading.Condition()
        self._ended = False  # by its user
        self._waits_until_s = 0.0  # for lossless readers
        self._trouble = Trouble(f"stream {grant.name!r}")
        self._away_fd = -1  # readable when the stream is there again

    @property
    def session(self) -> Connection:
        """The session that it is in."""
        return self._now.connection

    @property
    def writes(self) -> bool:
        """Streams are made before their readers."""
        return True

    def acquire(self, timeout_s: float | None = None) -> Slot:
        """As WriterStream.acquire; waits for the daemon as well."""
        began_s, left_s = time.monotonic(), timeout_s
        while True:
            now = self._now
            try:
                return super().acquire(left_s)
            except StreamClosed as error:
                if not self._comes_back(now, error):
                    self._raise(error)
            deadline = began_s + timeout_s if timeout_s else None
            self._wait(now, deadline, timeout_s)
            left_s = time_left(deadline, timeout_s)

    def resize(self, **changes: Any) -> None:
        """As WriterStream.resize; asks the next daemon if this one is lost meanwhile."""
        deadline = time.monotonic() + REQUEST_TIMEOUT_S
        while True:
            now = self._now
            try:
                return super().resize(**changes)
            except DaemonUnavailable:
                if not now.connection.lost:
                    raise
            except StreamClosed as error:
                if not self._comes_back(now, error):
                    self._raise(error)
            self._wait(now, deadline, REQUEST_TIMEOUT_S)

    def stats(self) -> dict[str, int]:
        """As WriterStream.stats, of all sessions together."""
        try:
            return super().stats()
        except StreamClosed:
            with suppress(ValueError):
                return add_counters(self._past, self._now.counters())
            raise

    # ---- event loops ---------------------------------------------------------------------------

    def fileno(self) -> int:
        """As WriterStream.fileno; another one while the daemon is away, and after that: ask again
        after each WouldBlock."""
        while True:
            now = self._now
            try:
                return super().fileno()
            except StreamClosed as error:
                with self._changed:
                    if now is self._now and not self._comes_back(now, error):
                        self._raise(error)
                    if now is self._now:
                        if self._away_fd < 0:
                            self._away_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
                        return self._away_fd

    def watch(self) -> tuple[int, ...]:
        """As WriterStream.watch."""
        with self._changed:
            return super().watch()

    def arm(self) -> bool:
        """As WriterStream.arm."""
        now = self._now
        try:
            return super().arm()
        except StreamClosed as error:
            if not self._comes_back(now, error):
                self._raise(error)
            with self._changed:
                # Nobody signals what was watched before the session was lost: look again.
                return now is not self._now or self._away_fd < 0

    def disarm(self) -> None:
        """As WriterStream.disarm."""
        now = self._now
        try:
            super().disarm()
        except StreamClosed as error:
            if not self._comes_back(now, error):
                self._raise(error)

    # ---- the end -------------------------------------------------------------------------------

    def end(self, reason: str = "closed") -> None:
        """As WriterStream.end; an ended stream is not made again."""
        with self._changed:
            super().end(reason)
            self._ended = True
        self._keeper.drop(self)

    def _detach(self) -> bool:
        self._keeper.drop(self)
        with self._changed:
            detached = super()._detach()
            self._drop_segment()
        self.wake()
        return detached

    # ---- the next session: the reconnecting thread calls these ---------------------------------

    def settle(self) -> None:
        """Nothing: its readers see the end of the session's stream by themselves."""

    def restore(self, connection: Connection) -> bool:
        """Has the stream made in this session. False: somebody is in the way, or not back yet."""
        old = self._now
        if old.connection is connection:
            return self._readers_are_back(old)
        with self._resizing:
            if self._closed or self._ended:
                return True
            try:
                new = self._make(connection, old)
            except DaemonUnavailable:
                raise
            except McpdError as error:
                self._fail(error)
                return False
            except OSError as error:
                self._fail(Internal(f"it cannot be mapped: {error}"))
                return False
            with self._changed:
                unwanted = self._closed or self._ended
                if not unwanted:
                    self._past = add_counters(self._past, old.counters())
                    self._now, self._connection = new, connection
                    self.stream_id = new.stream_id
                    self._trouble.clear()
                    self._tell()
        if unwanted:
            self._give_back(new)
            return True
        return self._readers_are_back(new)

    def wake(self) -> None:
        """Whoever waits looks again."""
        with self._changed:
            self._tell()

    def _make(self, connection: Connection, old: WriterGeneration) -> WriterGeneration:
        first_seq = old.counters()["head"] + 1
        spec = old.grant.spec
        request = CreateStream(name=self.name, spec=spec, first_seq=first_seq)
        fds: list[int] = []
        if spec.memory == "foreign":
            request.segment_offset = old.grant.payload_offset
            with self._changed:  # closed meanwhile: refused without one
                fds = [os.dup(self._segment.fd)] if self._segment is not None else []
        try:
            answer = connection.request(request, fds)
        finally:
            close_fds(fds)
        new = self._map_next(connection, *answer, old.description)
        had = lossless_in(old.last_readers or {})
        if had:
            new.await_lossless(had)
            self._waits_until_s = time.monotonic() + GRACE_S
        self._seal(new)
        return new

    def _drop_segment(self) -> None:
        if self._segment is not None:
            self._segment.close()
            self._segment = None

    def _readers_are_back(self, now: WriterGeneration) -> bool:
        if now.awaits and time.monotonic() >= self._waits_until_s:
            now.let_go()
        return not now.awaits

    def _fail(self, error: McpdError) -> None:
        with self._changed:
            self._trouble.note(error)
            self._changed.notify_all()

    # ---- waiting -------------------------------------------------------------------------------

    def _comes_back(self, now: WriterGeneration, error: StreamClosed) -> bool:
        """Whether the stream is to be there again, or is by now."""
        if self._closed or self._ended or self._keeper.over or self._connection.inherited:
            return False
        return now is not self._now or error.reason in _LOSSES

    def _raise(self, error: StreamClosed) -> NoReturn:
        if self._keeper.over and not (self._closed or self._ended) and error.reason in _LOSSES:
            raise self._keeper.unavailable() from error
        raise error

    def _wait(self, now: WriterGeneration, deadline: float | None, timeout_s: float | None) -> None:
        """Until the stream is there again, or nobody will make it."""
        with self._changed:
            while self._now is now and not (self._closed or self._ended or self._keeper.over):
                if timeout_s is None:
                    self._trouble.raise_if_old()
                left_s = time_left(deadline, timeout_s)
                if left_s == 0:
                    if not self._trouble.expected and timeout_s:
                        raise self._trouble.error()
                    hint = self._keeper.hint
                    raise_none(self.name, timeout_s, "it was not there again", hint)
                self._changed.wait(left_s)

    def _tell(self) -> None:
        self._changed.notify_all()
        if self._away_fd >= 0:
            os.eventfd_write(self._away_fd, 1)  # who watches a duplicate sees it
            os.close(self._away_fd)
            self._away_fd = -1
