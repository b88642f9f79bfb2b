"""The sole authority on who holds what: sessions, streams, readers, and their end.

A session's end-of-file revokes: its streams end, its readers are owed nothing more. What its
process may still be touching stays listed, quarantined, until the process is gone.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterator

from mcpd.daemon.leases import REASONS, Group, Reader, Stream
from mcpd.daemon.names import Names
from mcpd.daemon.quotas import Quotas
from mcpd.daemon.reaper import Reaper
from mcpd.daemon.session import Session
from mcpd.native import _core
from mcpd.shm.errors import NotFound, NotPermitted
from mcpd.shm.messages import GroupLeave, ReaderLeave, StreamEndedNote

log = logging.getLogger("mcpd.daemon")

BIG_NBYTES = 64 << 20
"""Freeing more than this takes long enough (0.15 s a GiB) to be done off the event loop."""


class Registry:
    """Tables of everything handed out. Belongs to the event loop's thread.

    Attributes:
        sessions: Those with a connection, and those whose process still holds something.
        streams: Every generation that is not freed, by its number and generation.
        names: Who has which name.
        on_readers_gone: Called with a live stream that has just lost its last reader.
        on_stream_ended: Called with a generation that has just ended.
        on_stream_moved: Called with a generation and the next, which is live from now on.
        on_reader_added: Called with a reader that has just been listed.
        on_reader_removed: Called with a reader that has just been removed.
    """

    def __init__(self, quotas: Quotas, reaper: Reaper) -> None:
        self.quotas = quotas
        self.reaper = reaper
        self.sessions: dict[int, Session] = {}
        self.streams: dict[tuple[int, int], Stream] = {}
        self.names = Names(self._followed)
        self.readers: dict[int, Reader] = {}
        self.on_readers_gone: Callable[[Stream], None] = lambda stream: None
        self.on_stream_ended: Callable[[Stream], None] = lambda stream: None
        self.on_stream_moved: Callable[[Stream, Stream], None] = lambda old, new: None
        self.on_reader_added: Callable[[Reader], None] = lambda reader: None
        self.on_reader_removed: Callable[[Reader], None] = lambda reader: None
        self._numbers = itertools.count(1)
        self._freeing: set[asyncio.Task[None]] = set()

    def next_id(self) -> int:
        """A number for a stream, reader or binding; never given twice."""
        return next(self._numbers)

    def add_stream(self, stream: Stream) -> None:
        """Lists a new generation, not to be found by its name yet."""
        self.streams[stream.key] = stream

    def stream_of(self, session: Session, number: int, generation: int) -> Stream:
        """The generation that this session writes; NotFound or NotPermitted if it does not.

        Args:
            generation: 0: the newest there is.
        """
        if generation == 0:
            generation = max((known[1] for known in self.streams if known[0] == number), default=0)
        stream = self.streams.get((number, generation))
        if stream is None:
            which = f" of generation {generation}" if generation else ""
            raise NotFound(f"stream {number}{which} does not exist")
        if stream.session is not session:
            raise NotPermitted(f"stream {number} is written by another session")
        return stream

    def live_stream_of(self, session: Session, number: int) -> Stream:
        """The generation of a stream that this session writes now.

        Raises:
            NotFound, NotPermitted: As `stream_of`; NotFound also when it is not sealed.
        """
        for stream in self.streams.values():
            if stream.id == number and stream.state == "live":
                return self.stream_of(session, *stream.key)
        raise NotFound(f"stream {number} is not live")

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
        stream = self.names.live.get(name)
        if stream is None or stream.state != "live":
            listed = sorted(s.name for s in self.names.live.values() if not s.hidden)
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
        self.names.end(stream)
        if stream.pending is not None:
            self.end_stream(stream.pending, _core.END_REVOKED)
        for before in self.streams.values():
            if before.pending is stream:
                before.pending = None  # it was not resized after all
        for reader in stream.readers.values():
            reader.wake()
            if reader.told:
                reader.session.send(ended_note(stream))
        if stream.payload.shm_name:
            stream.payload.unlink()
            self.reaper.disown(stream.payload.name)
        descriptors = stream.release_descriptors
        if stream.payload.nbytes > BIG_NBYTES:
            self._off_loop(descriptors)
        else:
            descriptors()
        log.info(
            "stream=%d generation=%d name=%s ended reason=%s",
            *(*stream.key, stream.name, REASONS[stream.reason]),
        )
        self.on_stream_ended(stream)

    def unmap_stream(self, stream: Stream) -> None:
        """Its writer has no mapping of it any more; it goes with its last reader."""
        stream.mapped = False
        self._free_stream(stream)

    def _free_stream(self, stream: Stream) -> None:
        if stream.mapped or stream.readers or stream.key not in self.streams:
            return
        del self.streams[stream.key]
        stream.counters.close()
        stream.share.give_back()
        log.debug("stream=%d generation=%d freed bytes=%d", *stream.key, stream.nbytes)

    # ---- the end of a reader --------------------------------------------------------------------

    def add_reader(self, reader: Reader) -> None:
        """Lists a new reader with its stream."""
        self.readers[reader.id] = reader
        reader.stream.readers[reader.id] = reader
        self.on_reader_added(reader)

    def release_reader(self, reader: Reader) -> None:
        """It is owed nothing more, but its pins stand: its process may still be looking."""
        if reader.state == "quarantined":
            return
        reader.state = "quarantined"
        reader.release_descriptors()
        self._tell_writer(reader, "keep")
        if reader.group is not None:
            reader.group.check()
        self._check_readers(reader.stream)

    def remove_reader(self, reader: Reader) -> None:
        """It and its pins are no more. Idempotent."""
        if self.readers.pop(reader.id, None) is None:
            return
        stream = reader.stream
        del stream.readers[reader.id]
        self._tell_writer(reader, "drop")
        reader.close()
        reader.share.give_back()
        if reader.group is not None:
            self._leave_group(reader.group, reader)
        if reader.successor is not None:
            reader.successor.predecessor = None
        self.on_reader_removed(reader)
        self._check_readers(stream)
        self._free_stream(stream)

    def _leave_group(self, group: Group, reader: Reader) -> None:
        count = group.leave(reader)
        if count:
            log.info(
                "stream=%d group=%s member=%d left with frames=%d",
                *(group.stream.id, group.name, reader.member, count),
            )
        self.check_group(group)

    def check_group(self, group: Group) -> None:
        """A group without members is no more. Idempotent."""
        stream = group.stream
        if group.members or stream.groups.pop(group.id, None) is None:
            return
        group.left = True
        group.close()
        group.share.give_back()
        if stream.state != "ended":
            stream.session.send(GroupLeave(stream=stream.id, group=group.id))

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
                stream.session.send(ended_note(stream))

    def _followed(self, number: int) -> bool:
        return any(True for _ in self.followers(number))

    def followers(self, number: int) -> Iterator[Reader]:
        """Readers that wait for the next writer of a stream."""
        for reader in self.readers.values():
            waits = reader.follow and reader.state == "live" and reader.successor is None
            if waits and reader.stream.id == number and reader.stream.state == "ended":
                yield reader

    def _off_loop(self, work: Callable[[], None]) -> None:
        task = asyncio.get_running_loop().create_task(asyncio.to_thread(work))
        self._freeing.add(task)
        task.add_done_callback(self._freeing.discard)


def ended_note(stream: Stream) -> StreamEndedNote:
    """What is told to who has to do with a generation that has ended."""
    reason = REASONS[stream.reason]
    return StreamEndedNote(
        stream=stream.id,
        generation=stream.generation,
        reason=reason,
        detail=stream.session.cause if stream.reason == _core.END_WRITER_DIED else "",
    )
