"""How a reader goes from one generation of its stream to the next, and who waits for it is told."""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from mcpd.native import _core
from mcpd.shm.errors import McpdError
from mcpd.shm.messages import Status
from mcpd.shm.reader_generation import ReaderGeneration
from mcpd.shm.session_streams import detach_later
from mcpd.shm.stream_end import END_CODES, add_counters, raise_ended, raise_none
from mcpd.shm.transport import close_fds
from mcpd.shm.watch import Watch

if TYPE_CHECKING:
    from mcpd.shm.connection import Connection
    from mcpd.shm.messages import StreamGrant
    from mcpd.shm.reading import Reading

HEAR_S = 2.0
LOOK_AGAIN_S = 0.02
"""How long a member waits, at the end of a generation, before it looks whether the others are done;
nobody tells it."""


class Coming(NamedTuple):
    """A generation that a reader is to go on in, not mapped yet."""

    connection: Connection
    grant: StreamGrant
    fds: Sequence[int]


class ReaderMoves:
    """The generations of one reader: what is read now, what it is to go on in, what it has left.

    Safe for threads. `now` is replaced, never changed, when it has nothing more to give.

    Attributes:
        now: What is read.
        closed: Whether the reader was closed.
        armed: Whether an event loop waits.
        end_reason: Of an end that the control object does not tell.
        evicted: Why the daemon took its place away.
        left: Generations that are read to the end, but a member has frames of them in work.
        floor: Frames up to this one were there before, and are not given again; 0: none.
    """

    def __init__(
        self, connection: Connection, grant: StreamGrant, fds: Sequence[int], reading: Reading
    ) -> None:
        self.now = ReaderGeneration(connection, grant, fds, reading)
        self.closed = False
        self.armed = False
        self.end_reason = ""
        self.evicted = ""
        self.left: list[ReaderGeneration] = []
        self.floor = 0
        self._name = grant.name
        self._reading = reading
        self._changed = threading.Condition()
        self._coming: deque[Coming] = deque()
        self._idle: ReaderGeneration | None = None  # it has nothing more; waits for another
        # Generations of a session after which it is not brought over.
        self._refused: set[tuple[Connection, int]] = set()
        self._watch: Watch | None = None
        self._past: dict[str, int] = {}  # counters of earlier generations

    def go_on(
        self, now: ReaderGeneration, code: int, deadline: float | None, timeout_s: float | None
    ) -> None:
        """`now` has nothing more. Returns when it is worth looking again, there or in the next.

        Raises:
            StreamClosed: Nothing more will come.
            WouldBlock, TimedOut: Nothing came in time.
        """
        with self._changed:
            self._let_go()
            while self.now is now and not self.closed and not self.evicted:
                busy = now.others_busy
                if self._coming and not busy:
                    self._advance()
                    return
                if not busy and not self._goes_on(now, code):
                    if now.connection.lost:
                        self._unmap(now)
                    self._raise_over(code)
                self._look_out(now, code, timeout_s)
                self._idle = now
                if now.connection.lost:
                    self._unmap(
                        now
                    )  # nobody looks at it, and what comes next may be long in coming
                left_s = time_left(deadline, timeout_s)
                if left_s == 0:
                    self._raise_none(timeout_s)
                if busy:
                    left_s = LOOK_AGAIN_S if left_s is None else min(left_s, LOOK_AGAIN_S)
                self._changed.wait(left_s)
                if busy:
                    return

    def catch_up(self) -> None:
        """Leaves generations that have ended for those that have come, read to the end or not."""
        with self._changed:
            while self._coming and self.now.ended() != _core.END_LIVE:
                self._advance()

    def let_go(self) -> None:
        """Detaches from generations in which nothing is in work any more."""
        with self._changed:
            self._let_go()

    def goes_on(self, code: int) -> bool:
        """Whether more is to come than the generation read now, which has ended with `code`."""
        with self._changed:
            return self._goes_on(self.now, code)

    def waits(self) -> bool:
        """Whether this is unmapped and is to go on, in another session."""
        return False

    @property
    def hint(self) -> str:
        """What to say when no frame came."""
        return ""

    def stats(self) -> dict[str, int]:
        """Counters of all generations together; ValueError when closed."""
        return add_counters(self._past, self.now.core.stats())

    # ---- event loops ---------------------------------------------------------------------------

    @property
    def watch(self) -> Watch:
        """What an event loop waits for; ValueError when closed."""
        with self._changed:
            fd = self.now.fd if self.waits() else self.now.core.fileno()
            if self._watch is None:
                self._watch = Watch(fd)
            return self._watch

    def arm(self) -> bool:
        """As ReaderStream.arm; ValueError when closed."""
        with self._changed:
            now = self.now
            if self._idle is not now or self.closed:
                ready = now.core.arm()
            else:
                self._drain()  # of what told of the end
                waits = now.others_busy or self._goes_on(now, now.ended())
                ready = bool(self._coming) or not waits
            self.armed = not ready
            return ready

    def disarm(self) -> None:
        """As ReaderStream.disarm; ValueError when closed."""
        self.armed = False
        self._drain()

    def rearm(self, now: ReaderGeneration) -> bool:
        """Whether to look again: an event loop that is armed is so in a new generation, too."""
        if not self.armed or not self._past:
            return False
        with suppress(ValueError):
            return now.core.arm()
        return False

    @property
    def look_again_s(self) -> float | None:
        """As ReaderStream.look_again_s."""
        return LOOK_AGAIN_S if self._idle is self.now and self.now.others_busy else None

    # ---- what comes, and the end ---------------------------------------------------------------

    def add(self, connection: Connection, grant: StreamGrant, fds: Sequence[int]) -> bool:
        """There it is to go on; owns `fds`, unless this returns False: it is closed."""
        with self._changed:
            if self.closed:
                return False
            self._coming.append(Coming(connection, grant, fds))
            self._wake()
            return True

    def end(self, reason: str, generation: int, connection: Connection | None) -> None:
        """A generation of a session is over (0: the one read now), as ReaderStream.mark_ended."""
        with self._changed, suppress(ValueError):  # closed meanwhile
            now = self.now
            current = now.connection, now.grant.generation
            over = (connection or now.connection, generation or now.grant.generation)
            coming = {(one.connection, one.grant.generation) for one in self._coming}
            if reason == "revoked" and over in {current, *coming}:
                self._refused.add(over)
            if over == current and now.core.ended() == _core.END_LIVE:
                self.end_reason = reason if reason in END_CODES else "revoked"
                now.close()
            self._wake()

    def evict(self, why: str) -> None:
        """As ReaderStream.mark_evicted."""
        with self._changed:
            if self.closed:
                return
            self.end_reason, self.evicted = "evicted", why
            self.now.close()
            self._wake()

    def was_evicted(self) -> bool:
        """Whether a frame that was owed may be gone because the daemon took this reader's place
        away: a process that was stopped meanwhile may look before it has heard of that."""
        if not self.evicted:
            with suppress(McpdError):
                # The answer comes after whatever the daemon has said before.
                _, fds = self.now.connection.request(Status(), timeout_s=HEAR_S)
                close_fds(fds)
        return bool(self.evicted)

    def lose(self, connection: Connection) -> None:
        """The session is over: nobody is brought over any more, and only who is lossless reads on.

        Leaves nothing mapped for the others.
        """
        self.end("shutdown", 0, connection)
        with self._changed:
            if self._reading.policy != "lossless":
                self.now.close()
                if self._watch is not None:
                    self._watch.close()
                    self._watch = None
            self._wake()

    def close(self) -> list[tuple[Connection, int]]:
        """Unmaps everything; the readers that the daemon is to be told of, by session and number,
        none if that was done before."""
        with self._changed:
            if self.closed:
                return []
            self.closed = True
            left = [self.now, *self.left]
            readers = [(one.connection, one.reader_id) for one in left]
            readers += [(one.connection, one.grant.reader) for one in self._coming]
            for connection, reader_id in readers:
                connection.streams.remove_reader([reader_id])
            for generation in left:
                generation.close()
            for one in self._coming:
                close_fds(one.fds)
            self._coming.clear()
            self.left.clear()
            self._wake()
            if self._watch is not None:
                self._watch.close()
                self._watch = None
        return readers

    # ---- under the lock ------------------------------------------------------------------------

    def _goes_on(self, now: ReaderGeneration, code: int) -> bool:
        if self._coming:
            return True
        if now.connection.lost or (now.connection, now.grant.generation) in self._refused:
            return False
        # "shutdown" while this session stands: the writer has lost its own.
        left = code in (_core.END_CLOSED, _core.END_WRITER_DIED, _core.END_SHUTDOWN)
        return code == _core.END_MOVED or (self._reading.follow and left)

    def _look_out(self, now: ReaderGeneration, code: int, timeout_s: float | None) -> None:
        """`now` has ended with `code`, and the reader is to go on. Raises what stands in the way,
        when that is not to be waited out."""

    def _raise_over(self, code: int) -> NoReturn:
        raise_ended(self._name, code)

    def _raise_none(self, timeout_s: float | None) -> NoReturn:
        raise_none(self._name, timeout_s, "no frame came", "")

    def _advance(self) -> None:
        connection, grant, fds = self._coming.popleft()
        before = self.now
        try:
            after = ReaderGeneration(connection, grant, fds, self._reading)
        except (OSError, McpdError):
            self._refused.add((before.connection, before.grant.generation))
            connection.streams.remove_reader([grant.reader])
            detach_later(connection, grant.reader)
            raise
        if self._watch is not None:
            self._watch.add(after.core.fileno())
            if not self._coming:
                self._watch.drain()
        self._past = add_counters(self._past, before.counters())
        if before.connection is not connection:
            self._enter_session(before, after)
        self.left.append(before)
        self.now = after
        self._let_go()

    def _enter_session(self, before: ReaderGeneration, after: ReaderGeneration) -> None:
        """`after` is of another session than `before`."""

    def _let_go(self) -> None:
        """Of earlier generations. What a member has in work there would go back to its group."""
        for generation in self.left[:]:
            connection = generation.connection
            alone = generation.grant.group == 0 or connection.lost
            if alone or generation.core.stats()["pinned"] == 0:
                self.left.remove(generation)
                connection.streams.remove_reader([generation.reader_id])
                self._unmap(generation)
                detach_later(connection, generation.reader_id)

    def _unmap(self, generation: ReaderGeneration) -> None:
        if self._watch is not None and generation.fd >= 0:
            self._watch.remove(generation.fd)
        generation.close()

    def _drain(self) -> None:
        if self._watch is not None:
            self._watch.drain()
        if self.waits():
            return
        self.now.core.disarm()
        if self._idle is self.now:
            # Nobody sleeps in a generation that has ended, so the core leaves its signals alone.
            poll = select.poll()  # a writer can have made it blocking
            poll.register(self.now.core.fileno(), select.POLLIN)
            with suppress(BlockingIOError):
                if poll.poll(0):
                    os.eventfd_read(self.now.core.fileno())

    def _wake(self) -> None:
        self._changed.notify_all()
        if self._watch is not None and self._idle is self.now:
            self._watch.signal()


def time_left(deadline: float | None, timeout_s: float | None) -> float | None:
    """What is left of a timeout; 0 when it is over, and if it was 0."""
    return timeout_s if deadline is None else max(0.0, deadline - time.monotonic())
