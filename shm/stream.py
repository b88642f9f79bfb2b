"""The two ends of a stream: WriterStream acquires and publishes slots, ReaderStream pins frames.

Both are made by a Client. Per frame only shared memory is touched; the connection is used when they
are made and closed. They may be used from several threads; every blocking call releases the GIL.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn, Self

import msgspec

from mcpd.native import _core
from mcpd.shm.bundle import Description
from mcpd.shm.errors import (
    DaemonUnavailable,
    InvalidRequest,
    LimitExceeded,
    McpdError,
    ProtocolError,
    StreamClosed,
    TimedOut,
    WouldBlock,
)
from mcpd.shm.frame import Frame, Slot
from mcpd.shm.messages import CloseStream, DetachReader, StreamGrant
from mcpd.shm.transport import close_fds

if TYPE_CHECKING:
    from mcpd.shm.connection import Connection

POLICY_CODES: dict[str, int] = {
    "latest": _core.POLICY_LATEST,
    "fifo": _core.POLICY_FIFO,
    "lossless": _core.POLICY_LOSSLESS,
}
END_CODES: dict[str, int] = {
    "closed": _core.END_CLOSED,
    "writer_died": _core.END_WRITER_DIED,
    "revoked": _core.END_REVOKED,
    "shutdown": _core.END_SHUTDOWN,
}
END_REASONS = {code: reason for reason, code in END_CODES.items()}

_END_TEXTS = {
    "closed": "its writer closed it",
    "writer_died": "its writer died",
    "revoked": "the daemon took it away",
    "shutdown": "the daemon stopped or was lost",
}


class WriterStream:
    """The writer's end of a stream. A context manager that closes.

    Args:
        connection: Where the stream was created; it passes on readers that join and leave.
        grant: The daemon's reply to CreateStream.
        fds: Writer control, payload, wake; closed here, mapped or not.
        description: What every slot holds, None if that varies.

    Attributes:
        grant: Numbers of the stream, from the daemon.
        name: Of the stream.
        stream_id: Its number, as in Result.source_stream.
        readers: Policy of every reader attached now, by its number; replaced, never changed.
    """

    def __init__(
        self,
        connection: Connection,
        grant: StreamGrant,
        fds: Sequence[int],
        description: Description | None,
    ) -> None:
        try:
            if len(fds) != 3:
                raise ProtocolError(
                    f"stream {grant.name!r} came with {len(fds)} descriptors, not 3"
                )
            self._core = _core.Writer(
                fds[0],
                fds[1],
                fds[2],
                stream_id=grant.stream,
                generation=grant.generation,
                nslots=grant.slots,
                slot_nbytes=grant.slot_nbytes,
                history=grant.spec.history,
                holds=grant.spec.holds,
            )
        finally:
            close_fds(fds)
        self._connection = connection
        self.grant = grant
        self.name = grant.name
        self.stream_id = grant.stream
        self.generation = grant.generation
        self.slots = grant.slots
        self.slot_nbytes = grant.slot_nbytes
        self.description = description
        self.readers: Mapping[int, str] = {}
        self._closed = False
        connection.streams.add_writer(self)

    def acquire(self, timeout_s: float | None = None) -> Slot:
        """A free slot to fill, the most recently freed; waits while lossless readers are behind.

        Args:
            timeout_s: None waits for ever, 0 not at all.

        Raises:
            WouldBlock: No slot is free, with timeout_s 0.
            TimedOut: No slot came free in time.
            LimitExceeded: The writer holds as many slots as it declared (`holds`).
            StreamClosed: The stream has ended.
        """
        try:
            core = self._core.acquire(timeout_s)
        except BufferError as error:
            raise LimitExceeded(
                f"stream {self.name!r}: {self.grant.spec.holds} slots are held already",
                "Publish or abandon one, drop views of published ones, or create the stream with "
                "more `holds`.",
            ) from error
        except _core.StreamEnded as error:
            _raise_ended(self.name, error.args[0])
        except ValueError:
            _raise_closed(self.name, self._connection)
        if core is None:
            _raise_none(self.name, timeout_s, "no slot came free", "A lossless reader is behind.")
        return Slot(core, self.slot_nbytes, self.description)

    def fileno(self) -> int:
        """Readable when a lossless reader made room after an acquire that would have blocked."""
        try:
            return self._core.fileno()
        except ValueError:
            _raise_closed(self.name, self._connection)

    def arm(self) -> bool:
        """For event loops: True if a slot is free now, else fileno() will become readable."""
        try:
            return self._core.arm()
        except ValueError:
            _raise_closed(self.name, self._connection)

    def disarm(self) -> None:
        """After fileno() became readable: drains it."""
        try:
            self._core.disarm()
        except ValueError:
            _raise_closed(self.name, self._connection)

    def stats(self) -> dict[str, int]:
        """Counters: head, published, abandoned, would_block, blocked_ns, wakes, nbytes, held."""
        try:
            return self._core.stats()
        except ValueError:
            _raise_closed(self.name, self._connection)

    def end(self, reason: str = "closed") -> None:
        """Ends the stream: readers get what is left, then its end. Idempotent."""
        if reason not in END_CODES:
            raise InvalidRequest(f"reason {reason!r} is not one of {', '.join(END_CODES)}")
        self.mark_ended(reason)

    def close(self) -> None:
        """Ends and unmaps the stream; its name is free again on return. Idempotent.

        Slots and views still held stay valid, but are published nowhere.
        """
        if not self._detach():
            return
        try:
            self._connection.request(CloseStream(stream=self.stream_id))
        except DaemonUnavailable:
            return  # it took the stream away by itself

    def _detach(self) -> bool:
        """Closes this side alone; False if that was done before."""
        if self._closed:
            return False
        self._closed = True
        self._connection.streams.remove_writer(self)
        self.mark_ended("closed")
        self._core.close()
        return True

    # The connection's I/O thread calls these.

    def join_reader(self, reader_id: int, fds: Sequence[int], max_pins: int, policy: str) -> int:
        """Admits a reader: the first sequence number it is owed. The descriptors stay the caller's.

        Raises:
            ProtocolError: Not two descriptors, or no such policy.
            LimitExceeded: Too few slots for its pins, or too many readers.
        """
        if len(fds) != 2 or policy not in POLICY_CODES:
            raise ProtocolError(f"reader_join with {len(fds)} descriptors and policy {policy!r}")
        try:
            owed = self._core.add_reader(reader_id, fds[0], fds[1], max_pins, POLICY_CODES[policy])
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise LimitExceeded(
                    f"stream {self.name!r} has {self.slots} slots, too few for another {max_pins} "
                    "pins",
                    "Attach with fewer max_pins, or create the stream with more slots.",
                ) from error
            if error.errno == errno.EUSERS:
                raise LimitExceeded(
                    f"stream {self.name!r} has {_core.MAX_READERS} readers, the most there can be"
                ) from error
            raise
        except ValueError:
            _raise_closed(self.name, self._connection)
        self.readers = {**self.readers, reader_id: policy}
        return owed

    def leave_reader(self, reader_id: int, pins: str) -> None:
        """A reader is gone: what it was owed is free; its pins too unless they are to be kept."""
        self.readers = {key: value for key, value in self.readers.items() if key != reader_id}
        with suppress(ValueError):  # closed meanwhile
            if pins == "keep":
                self._core.release_reader(reader_id)
            else:
                self._core.remove_reader(reader_id)

    def mark_ended(self, reason: str) -> None:
        """The stream was taken away: acquire raises from now on, one that waits at once."""
        with suppress(ValueError):  # closed meanwhile
            self._core.end(END_CODES.get(reason, _core.END_REVOKED))

    def mark_lost(self) -> None:
        """The session is over: ends the stream and unmaps it; slots still held stay valid."""
        self.mark_ended("shutdown")
        self._core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


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
            StreamClosed: The stream has ended and everything owed was read.
            ProtocolError: The writer's control object holds nonsense.
        """
        try:
            core = self._core.next(timeout_s)
        except BufferError as error:
            raise LimitExceeded(
                f"stream {self.name!r}: all {self.grant.max_pins} pins are in use",
                "Close frames and drop their views, or attach with more max_pins.",
            ) from error
        except _core.StreamEnded as error:
            if self._connection.lost:
                self._core.close()
            _raise_ended(self.name, error.args[0])
        except ValueError:
            _raise_closed(self.name, self._connection, self._end_reason)
        except OSError as error:
            if error.errno != errno.EBADMSG:
                raise
            raise ProtocolError(f"stream {self.name!r}: its control object is damaged") from error
        if core is None:
            _raise_none(self.name, timeout_s, "no frame came", "")
        return Frame(core, self.stream_id, self.slot_nbytes)

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
            _raise_closed(self.name, self._connection, self._end_reason)

    def arm(self) -> bool:
        """For event loops: True if something is there now, else fileno() will become readable."""
        try:
            return self._core.arm()
        except ValueError:
            _raise_closed(self.name, self._connection, self._end_reason)

    def disarm(self) -> None:
        """After fileno() became readable: drains it and is awake again."""
        try:
            self._core.disarm()
        except ValueError:
            _raise_closed(self.name, self._connection, self._end_reason)

    def stats(self) -> dict[str, int]:
        """Counters: cursor, received, skipped, wakeups, spurious, retries, longest_pin_ns."""
        try:
            return self._core.stats()
        except ValueError:
            _raise_closed(self.name, self._connection, self._end_reason)

    def close(self) -> None:
        """Detaches. Idempotent. Frames and views still held stay valid for this process."""
        if not self._detach():
            return
        try:
            self._connection.request(DetachReader(reader=self.reader_id))
        except DaemonUnavailable:
            return  # nobody counts its pins any more

    def _detach(self) -> bool:
        """Closes this side alone; False if that was done before."""
        if self._closed:
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


def map_writer(
    connection: Connection, result: Any, fds: Sequence[int], description: Description | None
) -> WriterStream:
    """The stream that a reply to CreateStream grants, mapped and every page touched; not sealed.

    Owns `fds`. On failure the stream is given back.

    Raises:
        ProtocolError: The reply is not readable.
        OSError: It cannot be mapped.
    """
    grant = _read_grant(result, fds)
    try:
        return WriterStream(connection, grant, fds, description)
    except BaseException:
        connection.submit(CloseStream(stream=grant.stream))
        raise


def map_reader(connection: Connection, result: Any, fds: Sequence[int]) -> ReaderStream:
    """The reader that a reply grants, mapped. Owns `fds`. On failure the reader is given back.

    Raises:
        ProtocolError: The reply is not readable.
        OSError: It cannot be mapped.
    """
    grant = _read_grant(result, fds)
    try:
        return ReaderStream(connection, grant, fds)
    except BaseException:
        connection.submit(DetachReader(reader=grant.reader))
        raise


def _read_grant(result: Any, fds: Sequence[int]) -> StreamGrant:
    try:
        return msgspec.convert(result, StreamGrant)
    except msgspec.ValidationError as error:
        close_fds(fds)
        raise ProtocolError(f"the daemon's grant is not readable: {error}") from error


def _raise_ended(name: str, code: int) -> NoReturn:
    reason = END_REASONS.get(code, "closed")
    raise StreamClosed(f"stream {name!r} has ended: {_END_TEXTS[reason]}", reason=reason) from None


def _raise_closed(name: str, connection: Connection, reason: str = "") -> NoReturn:
    """This end was unmapped: by the caller, or because the session is over."""
    if reason or connection.lost:
        _raise_ended(name, END_CODES[reason or "shutdown"])
    raise StreamClosed(f"this end of stream {name!r} was closed") from None


def _raise_none(name: str, timeout_s: float | None, what: str, hint: str) -> NoReturn:
    kind: type[McpdError] = WouldBlock if timeout_s == 0 else TimedOut
    when = "without waiting" if timeout_s == 0 else f"in {timeout_s} s"
    raise kind(f"stream {name!r}: {what} {when}", hint)
