"""The streams whose ends are in this process and belong to one session."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from mcpd.shm.errors import NotFound

if TYPE_CHECKING:
    from mcpd.shm.messages import ReaderJoin, ReaderLeave, StreamEndedNote


class StreamEnd(Protocol):
    """Either end of a stream, as far as its session goes."""

    stream_id: int

    def mark_ended(self, reason: str) -> None: ...
    def mark_lost(self) -> None: ...
    def close(self) -> None: ...


class WriterEnd(StreamEnd, Protocol):
    """A WriterStream."""

    def join_reader(
        self, reader_id: int, fds: Sequence[int], max_pins: int, policy: str
    ) -> int: ...
    def leave_reader(self, reader_id: int, pins: str) -> None: ...


class ReaderEnd(StreamEnd, Protocol):
    """A ReaderStream."""

    reader_id: int


class SessionStreams:
    """Passes what the daemon says about a stream on to its writer or readers here.

    Safe for threads. The connection's I/O thread calls `join_reader`, `leave_reader`, `end` and
    `end_all`; streams add and remove themselves.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._writers: dict[int, WriterEnd] = {}
        self._readers: dict[int, ReaderEnd] = {}
        self._over = False

    def add_writer(self, stream: WriterEnd) -> None:
        """From now on readers join and leave this writer, and it ends with the session."""
        with self._lock:
            self._writers[stream.stream_id] = stream
            over = self._over
        if over:
            stream.mark_lost()

    def remove_writer(self, stream: WriterEnd) -> None:
        """Undoes add_writer."""
        with self._lock:
            self._writers.pop(stream.stream_id, None)

    def add_reader(self, stream: ReaderEnd) -> None:
        """From now on this reader ends with the session."""
        with self._lock:
            self._readers[stream.reader_id] = stream
            over = self._over
        if over:
            stream.mark_lost()

    def remove_reader(self, stream: ReaderEnd) -> None:
        """Undoes add_reader."""
        with self._lock:
            self._readers.pop(stream.reader_id, None)

    def all(self) -> list[StreamEnd]:
        """Every stream end that is open: writers first."""
        with self._lock:
            return [*self._writers.values(), *self._readers.values()]

    def join_reader(self, message: ReaderJoin, fds: Sequence[int]) -> int:
        """Admits a reader to a writer of this session: the first sequence number it is owed."""
        with self._lock:
            writer = self._writers.get(message.stream)
        if writer is None:
            raise NotFound(f"this session writes no stream {message.stream}")
        return writer.join_reader(message.reader, fds, message.max_pins, message.policy)

    def leave_reader(self, message: ReaderLeave) -> None:
        """Tells the writer that a reader is gone, unless it is gone itself."""
        with self._lock:
            writer = self._writers.get(message.stream)
        if writer is not None:
            writer.leave_reader(message.reader, message.pins)

    def end(self, message: StreamEndedNote) -> None:
        """Ends one stream's ends here."""
        for stream in self.all():
            if stream.stream_id == message.stream:
                stream.mark_ended(message.reason)

    def end_all(self) -> None:
        """The session is over: everybody who waits on a stream of it is woken, now and later."""
        with self._lock:
            self._over = True
        for stream in self.all():
            stream.mark_lost()
