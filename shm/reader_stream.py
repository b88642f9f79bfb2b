"""A reader's end of a stream: pins frames, one after the other."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from mcpd.native import _core
from mcpd.shm.errors import (
    DaemonUnavailable,
    LimitExceeded,
    NotFound,
    ProtocolError,
    StreamClosed,
)
from mcpd.shm.frame import Frame
from mcpd.shm.messages import DetachReader, StreamGrant
from mcpd.shm.stream_end import (
    END_CODES,
    END_REASONS,
    POLICY_CODES,
    check_timeout,
    raise_closed,
    raise_ended,
    raise_none,
    read_grant,
)
from mcpd.shm.transport import close_fds

if TYPE_CHECKING:
    from mcpd.shm.connection import Connection


class ReaderStream:
    """A reader's end of a stream. A context manager that closes; an iterator of frames.

    Args:
        connection: Where the reader was attached.
        grant: The daemon's grant to this reader.
        fds: Writer control, payload, reader control, wake and, if lossless, the writer's wake;
            closed here, mapped or not.

    Attributes:
        grant: Numbers of the stream, from the daemon.
        name: Of the stream.
        stream_id: Its number.
        reader_id: The daemon's number of this reader.
    """

    def __init__(self, connection: Connection, grant: StreamGrant, fds: Sequence[int]) -> None:
        lossless = grant.policy == "lossless"
        try:
            if len(fds) != 4 + lossless or grant.policy not in POLICY_CODES:
                raise ProtocolError(
                    f"reader of {grant.name!r} came with {len(fds)} descriptors and policy "
                    f"{grant.policy!r}"
                )
            self._core = _core.Reader(
                fds[0],
                fds[1],
                fds[2],
                fds[3],
                fds[4] if lossless else -1,
                stream_id=grant.stream,
                generation=grant.generation,
                nslots=grant.slots,
                slot_nbytes=grant.slot_nbytes,
                max_pins=grant.max_pins,
                policy=POLICY_CODES[grant.policy],
                start_seq=grant.start_seq,
            )
            self._core.presents(Frame, grant)
        finally:
            close_fds(fds)
        self._connection = connection
        self.grant = grant
        self.name = grant.name
        self.stream_id = grant.stream
        self.reader_id = grant.reader
        self.generation = grant.generation
        self.slot_nbytes = grant.slot_nbytes
        self.policy = grant.policy
        self._closed = False
        self._end_reason = ""  # of an end that its control object does not tell
        connection.streams.add_reader(self)

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
        try:
            frame: Frame | None = self._core.next(timeout_s)
        except BufferError as error:
            raise LimitExceeded(
                f"stream {self.name!r}: all {self.grant.max_pins} pins are in use",
                "Close frames and drop their views, or attach with more max_pins.",
            ) from error
        except _core.StreamEnded as error:
            if self._connection.lost:
                self._core.close()
            raise_ended(self.name, error.args[0])
        except ValueError:
            check_timeout(timeout_s)
            raise_closed(self.name, self._connection, self._end_reason)
        except OSError as error:
            if error.errno != errno.EBADMSG:
                raise
            raise ProtocolError(f"stream {self.name!r}: its control object is damaged") from error
        if frame is None:
            raise_none(self.name, timeout_s, "no frame came", "")
        return frame

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
        """Why the stream ended, "" while it lives. There may still be frames to read."""
        try:
            return END_REASONS.get(self._core.ended(), "")
        except ValueError:  # unmapped
            return self._end_reason or ("shutdown" if self._connection.lost else "closed")

    def fileno(self) -> int:
        """Becomes readable when something is there after `arm` returned False."""
        try:
            return self._core.fileno()
        except ValueError:
            raise_closed(self.name, self._connection, self._end_reason)

    def arm(self) -> bool:
        """For event loops: True if something is there now, else fileno() will become readable."""
        try:
            return self._core.arm()
        except ValueError:
            raise_closed(self.name, self._connection, self._end_reason)

    def disarm(self) -> None:
        """After fileno() became readable: drains it and is awake again."""
        try:
            self._core.disarm()
        except ValueError:
            raise_closed(self.name, self._connection, self._end_reason)

    def stats(self) -> dict[str, int]:
        """Counters: cursor, received, skipped, wakeups, spurious, retries, longest_pin_ns."""
        try:
            return self._core.stats()
        except ValueError:
            raise_closed(self.name, self._connection, self._end_reason)

    def close(self) -> None:
        """Detaches. Idempotent. Frames and views still held stay valid for this process.

        Does nothing in a forked child: the reader is its parent's.
        """
        if not self._detach():
            return
        try:
            self._connection.request(DetachReader(reader=self.reader_id))
        except (DaemonUnavailable, NotFound):
            return  # nobody counts its pins any more

    def retire(self) -> None:
        """Detaches from a stream that has ended, so that it is freed; `next` goes on saying why."""
        self._end_reason = self.ended
        self.close()

    def _detach(self) -> bool:
        """Closes this side alone; False if that was done before."""
        if self._closed or self._connection.inherited:
            return False
        self._closed = True
        self._connection.streams.remove_reader(self)
        self._core.close()
        return True

    def mark_ended(self, reason: str) -> None:
        """The stream is over for this reader: a next that waits returns at once.

        If its control object says so as well, what is left may be read first; else there is nobody
        who could mark it any more, and this end is closed.
        """
        with suppress(ValueError):  # closed meanwhile
            if self._core.ended() == _core.END_LIVE:
                self._end_reason = reason if reason in END_CODES else "revoked"
                self._core.close()

    def mark_lost(self) -> None:
        """The session is over: unmaps, but lets a lossless reader read what it is owed first."""
        self.mark_ended("shutdown")
        if self.policy != "lossless":
            self._core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def map_reader(connection: Connection, result: Any, fds: Sequence[int]) -> ReaderStream:
    """The reader that a reply grants, mapped. Owns `fds`. On failure the reader is given back.

    Raises:
        ProtocolError: The reply is not readable.
        OSError: It cannot be mapped.
    """
    grant = read_grant(result, fds)
    try:
        return ReaderStream(connection, grant, fds)
    except BaseException:
        connection.submit(DetachReader(reader=grant.reader))
        raise
