"""The streams whose ends are in this process and belong to one session."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol

from mcpd.shm.errors import DaemonUnavailable, NotFound
from mcpd.shm.messages import DetachReader, ReaderEvicted, ReaderJoin, ReaderLeave, StreamEndedNote
from mcpd.shm.transport import close_fds

if TYPE_CHECKING:
    from mcpd.shm.messages import (
        GroupJoin,
        GroupLeave,
        Message,
        StreamGrant,
        StreamMoved,
    )


OPEN: weakref.WeakSet[Any] = weakref.WeakSet()
"""This process's Connections, for those who look for leaks; some may be closed."""


class Closable(Protocol):
    """Either end of a stream."""

    def close(self) -> None: ...


class WriterEnd(Protocol):
    """A WriterGeneration."""

    stream_id: int
    generation: int

    @property
    def stream(self) -> Closable: ...
    def join_group(self, message: GroupJoin, fds: Sequence[int]) -> int: ...
    def leave_group(self, group: int) -> None: ...
    def join_reader(self, message: ReaderJoin, fds: Sequence[int]) -> int: ...
    def leave_reader(self, reader_id: int, pins: str) -> None: ...
    def mark_ended(self, reason: str) -> None: ...
    def mark_lost(self) -> None: ...


class ReaderEnd(Closable, Protocol):
    """A ReaderStream."""

    stream_id: int

    def move(self, grant: StreamGrant, fds: Sequence[int]) -> bool: ...
    def mark_ended(self, reason: str, generation: int = 0, detail: str = "") -> None: ...
    def mark_evicted(self, why: str) -> None: ...
    def mark_lost(self) -> None: ...


class Submitter(Protocol):
    """A Connection, as far as giving back a reader goes."""

    streams: SessionStreams

    def submit(self, message: Message) -> Future[Any]: ...


class SessionStreams:
    """Passes what the daemon says about a stream on to its writer or readers here.

    Safe for threads. The connection's I/O thread calls what takes a message, and `end_all`; streams
    add and remove themselves.

    Attributes:
        closing: Whether their client closes them all, of its own accord.
    """

    def __init__(self) -> None:
        self.closing = False
        self._lock = threading.Lock()
        self._writers: dict[tuple[int, int], WriterEnd] = {}
        self._readers: dict[int, ReaderEnd] = {}
        self._early: dict[int, tuple[StreamGrant, Sequence[int]]] = {}
        self._evicted: dict[int, str] = {}  # that nobody knew yet
        self._over = False

    def add_writer(self, generation: WriterEnd) -> None:
        """From now on readers join and leave this writer, and it ends with the session."""
        with self._lock:
            self._writers[generation.stream_id, generation.generation] = generation
            over = self._over
        if over:
            generation.mark_lost()

    def remove_writer(self, generation: WriterEnd) -> None:
        """Undoes add_writer."""
        with self._lock:
            self._writers.pop((generation.stream_id, generation.generation), None)

    def add_reader(self, stream: ReaderEnd, reader_id: int) -> None:
        """From now on this reader is told of moves and ends, and ends with the session."""
        with self._lock:
            self._readers[reader_id] = stream
            over = self._over
            early = self._early.pop(reader_id, None)
            evicted = self._evicted.pop(reader_id, "")
        if over:
            stream.mark_lost()
        if evicted:
            stream.mark_evicted(evicted)
        if early is not None:
            grant, fds = early
            self.add_reader(stream, grant.reader)
            stream.move(grant, fds)

    def remove_reader(self, reader_ids: Iterable[int]) -> None:
        """Undoes add_reader."""
        with self._lock:
            for reader_id in reader_ids:
                self._readers.pop(reader_id, None)

    def all(self) -> list[Closable]:
        """Every stream end that is open, once: writers first."""
        with self._lock:
            ends = [*(writer.stream for writer in self._writers.values()), *self._readers.values()]
        return list({id(end): end for end in ends}.values())

    def join(self, message: GroupJoin | ReaderJoin, fds: Sequence[int]) -> int:
        """A writer here admits a reader or a group: the first sequence number that it is owed."""
        key = message.stream, message.generation
        with self._lock:
            writer = self._writers.get(key)
        if writer is None:
            raise NotFound("this session writes no stream {} of generation {}".format(*key))
        if isinstance(message, ReaderJoin):
            return writer.join_reader(message, fds)
        return writer.join_group(message, fds)

    def tell(self, message: GroupLeave | ReaderLeave | ReaderEvicted | StreamEndedNote) -> None:
        """Tells those ends that are still here: somebody has left, or it is over."""
        if isinstance(message, ReaderEvicted):
            self._evict(message)
            return
        if isinstance(message, StreamEndedNote):
            self._end(message)
            return
        for writer in self._generations(message.stream):
            if isinstance(message, ReaderLeave):
                writer.leave_reader(message.reader, message.pins)
            else:
                writer.leave_group(message.group)

    def move_reader(self, message: StreamMoved, fds: Sequence[int]) -> bool:
        """A reader goes on in another generation; it owns copies of `fds` from now on.

        Returns whether it is closed already, so that nobody wants them. One that is not known yet
        is about to be made, or about to be given back: see `drop_move`.
        """
        grant, mine = message.grant, list(fds)
        with self._lock:
            stream = self._readers.get(message.reader)
            if stream is None and not self._over:
                self._early[message.reader] = grant, mine
                return False
            if stream is not None:
                self._readers[grant.reader] = stream
        if stream is None or not stream.move(grant, mine):
            close_fds(mine)
            self.remove_reader([grant.reader])
            return True
        return False

    def drop_move(self, reader_id: int) -> int:
        """The daemon will not move this reader any more: the number it was moved to while nobody
        knew it, 0 if it was not. That one is to be detached as well."""
        with self._lock:
            early = self._early.pop(reader_id, None)
            self._evicted.pop(reader_id, None)
        if early is None:
            return 0
        grant, fds = early
        close_fds(fds)
        return grant.reader

    def end_all(self) -> None:
        """The session is over: everybody who waits on a stream of it is woken, now and later."""
        with self._lock:
            self._over = True
            early, self._early = self._early, {}
            ends: list[WriterEnd | ReaderEnd] = [*self._writers.values(), *self._readers.values()]
        for _, fds in early.values():
            close_fds(fds)
        for end in {id(end): end for end in ends}.values():
            end.mark_lost()

    def _evict(self, message: ReaderEvicted) -> None:
        with self._lock:
            reader = self._readers.get(message.reader)
            if reader is None:  # about to be made, or given back: see `drop_move`
                self._evicted[message.reader] = message.reason
        if reader is not None:
            reader.mark_evicted(message.reason)

    def _end(self, message: StreamEndedNote) -> None:
        with self._lock:
            writer = self._writers.get((message.stream, message.generation))
            readers = {id(r): r for r in self._readers.values() if r.stream_id == message.stream}
        if writer is not None:
            writer.mark_ended(message.reason)
        for reader in readers.values():
            reader.mark_ended(message.reason, message.generation, message.detail)

    def _generations(self, number: int) -> list[WriterEnd]:
        with self._lock:
            return [writer for key, writer in self._writers.items() if key[0] == number]


def detach_later(connection: Submitter, reader_id: int) -> None:
    """Gives a reader back without waiting, and what it was moved to meanwhile."""

    def done(_: Future[Any]) -> None:
        moved = connection.streams.drop_move(reader_id)
        if moved:
            detach_later(connection, moved)

    try:
        connection.submit(DetachReader(reader=reader_id)).add_done_callback(done)
    except DaemonUnavailable:
        return  # the session ended, and the reader with it
