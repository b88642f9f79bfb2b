"""The sole authority on who holds what: sessions, streams, readers, and their end.

A session's end-of-file revokes: its streams end, its readers are owed nothing more. What its
process may still be touching stays listed, quarantined, until the process is gone.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable

from mcpd.daemon.leases import REASONS, Reader, Stream
from mcpd.daemon.limits import MemoryLedger
from mcpd.daemon.reaper import Reaper
from mcpd.daemon.session import Session
from mcpd.native import _core
from mcpd.shm.errors import AlreadyExists, NotFound, NotPermitted
from mcpd.shm.messages import ReaderLeave, StreamEndedNote

log = logging.getLogger("mcpd.daemon")

BIG_NBYTES = 64 << 20
"""Freeing more than this takes long enough (0.15 s a GiB) to be done off the event loop."""


class Registry:
    """Tables of everything handed out. Belongs to the event loop's thread.

    Attributes:
        sessions: Those with a connection, and those whose process still holds something.
        names: Streams that can be found: neither ended nor reserved only.
        on_readers_gone: Called with a live stream that has just lost its last reader.
        on_stream_ended: Called with a stream that has just ended.
    """

    def __init__(self, ledger: MemoryLedger, reaper: Reaper) -> None:
        self.ledger = ledger
        self.reaper = reaper
        self.sessions: dict[int, Session] = {}
        self.streams: dict[int, Stream] = {}
        self.names: dict[str, Stream] = {}
        self.readers: dict[int, Reader] = {}
        self.on_readers_gone: Callable[[Stream], None] = lambda stream: None
        self.on_stream_ended: Callable[[Stream], None] = lambda stream: None
        self._numbers = itertools.count(1)
        self._reserved: set[str] = set()
        self._freeing: set[asyncio.Task[None]] = set()

    def next_id(self) -> int:
        """A number for a stream, reader or binding; never given twice."""
        return next(self._numbers)

    def reserve_name(self, name: str) -> None:
        """Keeps a name for a stream that is being made; AlreadyExists if it is taken."""
        if name in self.names or name in self._reserved:
            raise AlreadyExists(
                f"stream {name!r} exists",
                "Choose another name, or stop its writer (`mcpd status` names it).",
            )
        self._reserved.add(name)

    def release_name(self, name: str) -> None:
        """Gives a reserved name back."""
        self._reserved.discard(name)

    def forget_name(self, stream: Stream) -> None:
        """The stream cannot be found any more, and its name is free. Idempotent."""
        if self.names.get(stream.name) is stream:
            del self.names[stream.name]

    def add_stream(self, stream: Stream) -> None:
        """Lists a new stream under its reserved name."""
        self._reserved.discard(stream.name)
        self.names[stream.name] = stream
        self.streams[stream.id] = stream

    def stream_of(self, session: Session, number: int) -> Stream:
        """The stream that this session writes; NotFound or NotPermitted if it does not."""
        stream = self.streams.get(number)
        if stream is None:
            raise NotFound(f"stream {number} does not exist")
        if stream.session is not session:
            raise NotPermitted(f"stream {number} is written by another session")
        return stream

    def reader_of(self, session: Session, number: int) -> Reader:
        """The reader that this session has; NotFound or NotPermitted if it has not."""
        reader = self.readers.get(number)
        if reader is None:
            raise NotFound(f"reader {number} does not exist")
        if reader.session is not session:
            raise NotPermitted(f"reader {number} belongs to another session")
        return reader

    def find_stream(self, name: str) -> Stream:
        """The live stream of that name.

        Raises:
            NotFound: There is none, or its writer has not sealed it yet.
        """
        stream = self.names.get(name)
        if stream is None or stream.state != "live":
            listed = sorted(s.name for s in self.names.values() if not s.hidden)
            known = ", ".join(listed[:20]) or "none yet"
            raise NotFound(
                f"no stream {name[:80]!r}",
                f"Streams: {known}. Start one with `mcpd push` or create_stream.",
            )
        return stream

    # ---- the end of a stream --------------------------------------------------------------------

    def end_stream(self, stream: Stream, reason: int) -> None:
        """Ends it for every reader, wakes them, and frees its name and descriptors. Idempotent."""
        if stream.state == "ended":
            return
        stream.counters.end(reason)
        told = stream.counters.stats()["ended"]
        stream.reason = told if told in REASONS else reason  # its writer's word, or anything
        stream.state = "ended"
        self.forget_name(stream)
        for reader in stream.readers.values():
            reader.wake()
            reader.session.send(StreamEndedNote(stream=stream.id, reason=REASONS[stream.reason]))
        if stream.payload.shm_name:
            stream.payload.unlink()
            self.reaper.disown(stream.payload.name)
        descriptors = stream.release_descriptors
        if stream.payload.nbytes > BIG_NBYTES:
            self._off_loop(descriptors)
        else:
            descriptors()
        log.info(
            "stream=%d name=%s ended reason=%s", stream.id, stream.name, REASONS[stream.reason]
        )
        self.on_stream_ended(stream)

    def unmap_stream(self, stream: Stream) -> None:
        """Its writer has no mapping of it any more; it goes with its last reader."""
        stream.mapped = False
        self._free_stream(stream)

    def _free_stream(self, stream: Stream) -> None:
        if stream.mapped or stream.readers or stream.id not in self.streams:
            return
        del self.streams[stream.id]
        stream.counters.close()
        self.ledger.release(stream.nbytes)
        log.debug("stream=%d name=%s freed bytes=%d", stream.id, stream.name, stream.nbytes)

    # ---- the end of a reader --------------------------------------------------------------------

    def add_reader(self, reader: Reader) -> None:
        """Lists a new reader with its stream."""
        self.readers[reader.id] = reader
        reader.stream.readers[reader.id] = reader

    def release_reader(self, reader: Reader) -> None:
        """It is owed nothing more, but its pins stand: its process may still be looking."""
        if reader.state == "quarantined":
            return
        reader.state = "quarantined"
        reader.release_descriptors()
        self._tell_writer(reader, "keep")
        self._check_readers(reader.stream)

    def remove_reader(self, reader: Reader) -> None:
        """It and its pins are no more. Idempotent."""
        if self.readers.pop(reader.id, None) is None:
            return
        stream = reader.stream
        del stream.readers[reader.id]
        self._tell_writer(reader, "drop")
        reader.close()
        self.ledger.release(reader.control.nbytes)
        self._check_readers(stream)
        self._free_stream(stream)

    def _tell_writer(self, reader: Reader, pins: str) -> None:
        stream = reader.stream
        if stream.state != "ended":
            stream.session.send(ReaderLeave(stream=stream.id, reader=reader.id, pins=pins))

    def _check_readers(self, stream: Stream) -> None:
        if stream.state == "live" and all(
            reader.state == "quarantined" for reader in stream.readers.values()
        ):
            self.on_readers_gone(stream)

    # ---- the end of a session -------------------------------------------------------------------

    def revoke(self, session: Session) -> None:
        """The connection is gone: streams end, readers are owed nothing. Idempotent."""
        for stream in [s for s in self.streams.values() if s.session is session]:
            self.end_stream(stream, _core.END_WRITER_DIED)
        for reader in [r for r in self.readers.values() if r.session is session]:
            if reader.state == "joining":
                self.remove_reader(reader)  # it never had a descriptor
            else:
                self.release_reader(reader)

    def free(self, session: Session) -> None:
        """The process is gone: nothing that it held is touched by anybody. After revoke."""
        for reader in [r for r in self.readers.values() if r.session is session]:
            self.remove_reader(reader)
        for stream in [s for s in self.streams.values() if s.session is session]:
            self.unmap_stream(stream)

    def holds_anything(self, session: Session) -> bool:
        """Whether any lease of the session is left."""
        return any(s.session is session and s.mapped for s in self.streams.values()) or any(
            r.session is session for r in self.readers.values()
        )

    def shut_down(self) -> None:
        """Ends every stream because the daemon stops, and tells writers as well as readers."""
        for stream in list(self.streams.values()):
            if stream.state != "ended":
                self.end_stream(stream, _core.END_SHUTDOWN)
                stream.session.send(StreamEndedNote(stream=stream.id, reason="shutdown"))

    def _off_loop(self, work: Callable[[], None]) -> None:
        task = asyncio.get_running_loop().create_task(asyncio.to_thread(work))
        self._freeing.add(task)
        task.add_done_callback(self._freeing.discard)
