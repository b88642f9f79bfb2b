"""A reader's end of a stream: pins frames, one after the other, in whatever memory they are."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn, Self

from mcpd.native import _core
from mcpd.shm.attachment import Attachment
from mcpd.shm.errors import (
    DaemonUnavailable,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    ProtocolError,
    StreamClosed,
    shown,
)
from mcpd.shm.frame import Frame
from mcpd.shm.messages import DetachReader, StreamGrant
from mcpd.shm.reader_generation import ReaderGeneration
from mcpd.shm.reader_moves import ReaderMoves, time_left
from mcpd.shm.reading import Reading
from mcpd.shm.session_streams import detach_later
from mcpd.shm.stream_end import (
    END_REASONS,
    check_timeout,
    raise_closed,
    raise_none,
)

if TYPE_CHECKING:
    from mcpd.shm.connection import Connection


TOLD_S = 0.25


class ReaderStream:
    """A reader's end of a stream. A context manager that closes; an iterator of frames.

    When the writer resizes its stream, or with `follow` dies or closes it and another takes its
    name, this goes on in the new memory by itself, after the last frame in the old one.

    Args:
        connection: Where the reader was attached.
        grant: The daemon's grant to this reader.
        fds: As ReaderGeneration takes them; closed here, mapped or not.
        reading: How it reads; by default as the grant says.

    Attributes:
        name: Of the stream.
        policy: Which frames it is given.
        on_ended: Called when nothing more will come than is there, on the connection's I/O thread
            or by whoever closes: must not block.
    """

    def __init__(
        self,
        connection: Connection,
        grant: StreamGrant,
        fds: Sequence[int],
        reading: Reading | None = None,
    ) -> None:
        reading = reading or Reading(
            policy=grant.policy or "latest", max_pins=grant.max_pins or 1, depth=grant.depth
        )
        self._moves = self._make_moves(connection, grant, fds, reading)
        self._connection = connection
        self.name = grant.name
        self.policy = grant.policy
        self.on_ended: Callable[[], None] | None = None
        self._detail = ""
        self._told = threading.Event()
        connection.streams.add_reader(Attachment(self, connection, grant.stream), grant.reader)

    def _make_moves(
        self, connection: Connection, grant: StreamGrant, fds: Sequence[int], reading: Reading
    ) -> ReaderMoves:
        return ReaderMoves(connection, grant, fds, reading)

    @property
    def stream_id(self) -> int:
        """The stream's number, as in Result.source_stream."""
        return self._moves.now.grant.stream

    @property
    def grant(self) -> StreamGrant:
        """Numbers of the generation that is read now, from the daemon."""
        return self._moves.now.grant

    @property
    def reader_id(self) -> int:
        """The daemon's number of this reader; another one in each generation."""
        return self._moves.now.reader_id

    @property
    def generation(self) -> int:
        """The generation that is read now; a frame may be of an earlier one."""
        return self._moves.now.grant.generation

    @property
    def slot_nbytes(self) -> int:
        """Bytes of a slot of that generation."""
        return self._moves.now.slot_nbytes

    def next(self, timeout_s: float | None = None) -> Frame:
        """Pins the next frame by the reader's policy.

        Args:
            timeout_s: None waits for ever, 0 not at all.

        Raises:
            WouldBlock: Nothing new, with timeout_s 0.
            TimedOut: Nothing came in time.
            LimitExceeded: All `max_pins` pins are in use.
            InvalidRequest: timeout_s is below 0, or not a number.
            StreamClosed: The stream has ended and everything owed was read.
            ProtocolError: The writer's control object holds nonsense.
        """
        moves = self._moves
        try:
            deadline = time.monotonic() + timeout_s if timeout_s else None
        except (TypeError, OverflowError):
            check_timeout(timeout_s)
            raise
        left_s = timeout_s
        while True:
            now = moves.now
            try:
                frame: Frame | None = now.core.next(left_s)
            except BufferError as error:
                raise self._no_pins(now) from error
            except _core.StreamEnded as error:
                moves.go_on(now, error.args[0], deadline, timeout_s)
                left_s = time_left(deadline, timeout_s)
                continue
            except ValueError:
                if now is not moves.now:
                    continue
                check_timeout(timeout_s)
                if not moves.waits():
                    self._raise_closed()
                moves.go_on(now, _core.END_SHUTDOWN, deadline, timeout_s)
                left_s = time_left(deadline, timeout_s)
                continue
            except TypeError:
                check_timeout(timeout_s)
                raise
            except OSError as error:
                if error.errno != errno.EBADMSG:
                    raise
                if self.policy == "lossless" and moves.was_evicted():
                    self._raise_closed()
                raise ProtocolError(
                    f"stream {self.name!r}: its control object is damaged"
                ) from error
            if frame is not None:
                if moves.left:
                    moves.let_go()
                if not moves.floor:
                    return frame
                if frame.seq > moves.floor:
                    moves.floor = 0
                    return frame
                frame.close()  # it was given before, in another session
                left_s = time_left(deadline, timeout_s)
                continue
            if now is moves.now and not moves.rearm(now):
                raise_none(self.name, timeout_s, "no frame came", moves.hint)

    def recent(self, count: int) -> list[Frame]:
        """Pins those of the `count` newest frames that still stand, seen or not, oldest first.

        How many stand, says the stream's `history`; after a resize only those of the new
        generation do. They count as seen. Empty if there is none.

        Raises:
            InvalidRequest: This is not a `latest` reader of its own, or count is below 1.
            LimitExceeded: Fewer than `count` pins are free.
            StreamClosed: This end was closed.
        """
        if self.policy != "latest" or self._moves.now.grant.group:
            raise InvalidRequest(
                f"recent frames of stream {self.name!r} for a {self.policy} reader"
                + (" of a group" if self._moves.now.grant.group else ""),
                "Attach with policy='latest' and without a group.",
            )
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise InvalidRequest(f"count is {shown(count)}", "Ask for 1 frame or more.")
        try:
            self._moves.catch_up()
        except ValueError:
            self._raise_closed()
        now = self._moves.now
        try:
            frames: list[Frame] = now.core.recent(min(count, _core.MAX_PINS + 1))
        except BufferError as error:
            raise self._no_pins(now, count) from error
        except ValueError:
            if not self._moves.waits():
                self._raise_closed()
            return []
        return frames

    def __iter__(self) -> Iterator[Frame]:
        """Frames until the stream is closed by its writer; each is closed when the next is asked
        for, though views taken of it keep its pin.

        Raises:
            StreamClosed: The stream ended in another way: `reason` says how.
        """
        while True:
            try:
                frame = self.next()
            except StreamClosed as error:
                if error.reason == "closed":
                    return
                raise
            with frame:
                yield frame

    @property
    def ended(self) -> str:
        """Why the stream ended, "" while it lives or this reader is to go on in other memory.
        There may still be frames to read."""
        try:
            code = self._moves.now.core.ended()
        except ValueError:  # unmapped
            if self._moves.waits():
                return ""
            lost = self._moves.now.connection.lost
            return self._moves.end_reason or ("shutdown" if lost else "closed")
        return "" if self._moves.goes_on(code) else END_REASONS.get(code, "")

    def why_ended(self) -> str:
        """Why the daemon ended the writer of a stream that has ended, "" if it did not.

        Its word comes a moment after the end; waits for that, a quarter of a second at most.
        """
        self._told.wait(TOLD_S)
        return self._detail

    # ---- event loops ---------------------------------------------------------------------------

    def fileno(self) -> int:
        """Becomes readable when something is there after `arm` returned False.

        The same descriptor for as long as this end is open, whatever generation is read.
        """
        try:
            return self._moves.watch.fileno()
        except ValueError:
            self._raise_closed()

    def watch(self) -> tuple[int, ...]:
        """Descriptors of which one becomes readable as `fileno` does, and stays so when this end
        is closed meanwhile. The caller's to close."""
        try:
            return self._moves.watch.duplicates()
        except ValueError:
            self._raise_closed()

    def arm(self) -> bool:
        """For event loops: True if something is there now, else fileno() will become readable.

        Unless `look_again_s` says so: then look again after that time, too.
        """
        try:
            return self._moves.arm()
        except ValueError:
            self._raise_closed()

    def disarm(self) -> None:
        """After fileno() became readable: drains it and is awake again."""
        try:
            self._moves.disarm()
        except ValueError:
            self._raise_closed()

    @property
    def look_again_s(self) -> float | None:
        """Seconds after which something may be there that fileno() does not tell; None: nothing.

        A member has that at the end, while other members still work on the last frames.
        """
        return self._moves.look_again_s

    def stats(self) -> dict[str, int]:
        """Counters: cursor, received, skipped, dropped, passed, expired, wakeups, spurious,
        retries, longest_pin_ns; and asleep, pinned, pinned_since_ns of now. Of all generations
        together."""
        try:
            return self._moves.stats()
        except ValueError:
            self._raise_closed()

    # ---- the end -------------------------------------------------------------------------------

    def close(self) -> None:
        """Detaches. Idempotent. Frames and views still held stay valid for this process.

        Does nothing in a forked child: the reader is its parent's.
        """
        if self._connection.inherited:
            return
        for connection, reader_id in self._moves.close():
            with suppress(DaemonUnavailable, NotFound):  # nobody counts its pins any more
                connection.request(DetachReader(reader=reader_id))
            moved = connection.streams.drop_move(reader_id)
            if moved:
                detach_later(connection, moved)

    def retire(self) -> None:
        """Detaches from a stream that has ended, so that it is freed; `next` goes on saying why."""
        self._moves.end_reason = self.ended
        self.close()

    def retire_soon(self) -> None:
        """As `retire`, without waiting for the daemon; for the I/O thread."""
        self._moves.end_reason = self.ended
        for connection, reader_id in self._moves.close():
            detach_later(connection, reader_id)

    def _no_pins(self, now: ReaderGeneration, wanted: int = 1) -> LimitExceeded:
        pins = f"{now.grant.max_pins} pins"
        what = (
            f"all {pins} are in use"
            if wanted == 1
            else f"fewer than {shown(wanted)} of {pins} are free"
        )
        return LimitExceeded(
            f"stream {self.name!r}: {what}",
            "Close frames and drop their views, or attach with more max_pins.",
        )

    def _raise_closed(self) -> NoReturn:
        moves = self._moves
        raise_closed(self.name, moves.now.connection, moves.end_reason, moves.evicted)

    # The connection's I/O thread calls these.

    def move(
        self, grant: StreamGrant, fds: Sequence[int], connection: Connection | None = None
    ) -> bool:
        """It is to go on there, and owns `fds`, unless this returns False: it is closed."""
        return self._moves.add(connection or self._connection, grant, fds)

    def mark_ended(
        self,
        reason: str,
        generation: int = 0,
        detail: str = "",
        connection: Connection | None = None,
    ) -> None:
        """A generation, or the one read now, is over: a next that waits returns at once.

        If its control object says so as well, what is left may be read first; else there is nobody
        who could mark it any more, and this end is closed.
        """
        if reason == "moved":  # where to, is told by itself
            return
        self._detail = detail or self._detail
        self._moves.end(reason, generation, connection)
        self._tell_ended()

    def mark_lost(self, connection: Connection | None = None) -> None:
        """The session is over: unmaps, but lets a lossless reader read what it is owed first."""
        self._moves.lose(connection or self._connection)
        self._tell_ended()

    def _tell_ended(self) -> None:
        self._told.set()
        if self.on_ended is not None and self.ended:
            self.on_ended()

    def mark_evicted(self, why: str) -> None:
        """The daemon took this reader's place away: next says so at once, frames held stay valid
        until they are closed."""
        self._moves.evict(why)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
