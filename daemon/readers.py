"""Introduces readers to the writers of streams; then steps out of the way."""

from __future__ import annotations

import os

import msgspec

from mcpd.daemon import limits, quotas
from mcpd.daemon.groups import Groups
from mcpd.daemon.introduction import ask_writer, closed
from mcpd.daemon.leases import Group, Reader, Stream, Wanted
from mcpd.daemon.registry import Registry
from mcpd.daemon.session import Answer, Session
from mcpd.native import _core
from mcpd.shm import segment
from mcpd.shm.call_site import clean_site
from mcpd.shm.errors import LimitExceeded, McpdError, NotFound
from mcpd.shm.messages import AttachReader, DetachReader, ReaderJoin
from mcpd.shm.reading import check_reading, check_stall_limit


class Readers:
    """The requests about readers. Belongs to the event loop's thread."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._groups = Groups(registry)

    async def attach(self, session: Session, message: AttachReader) -> Answer:
        """A reader of a stream that anybody may read, or of one made for this worker."""
        stream = self._registry.find_stream(message.stream)
        if stream.hidden and not session.is_worker:
            raise NotFound(f"no stream {message.stream[:80]!r}")
        wanted = Wanted(
            message.policy,
            message.max_pins,
            message.depth,
            message.group,
            message.follow,
            clean_site(message.site),
            message.stall_limit_s,
        )
        return self.answer(await self.join(session, stream, wanted))

    def answer(self, reader: Reader) -> Answer:
        """What the reader maps its objects by."""
        return Answer(msgspec.to_builtins(reader.stream.grant(reader)), reader.fds)

    def detach(self, session: Session, message: DetachReader) -> Answer:
        """The reader has unmapped; it and its pins are free."""
        self._registry.remove_reader(self._registry.reader_of(session, message.reader))
        return Answer()

    async def join(self, session: Session, stream: Stream, wanted: Wanted) -> Reader:
        """Makes a reader and introduces it to the writer; it is live when this returns.

        Raises:
            InvalidRequest: A value out of its limits, or not as the group's.
            LimitExceeded: Too few slots for it, or too many readers.
            TimedOut: The writer does not answer.
            StreamClosed: The writer went away meanwhile.
        """
        check_reading(wanted.policy, wanted.max_pins, wanted.depth, wanted.group)
        check_stall_limit(wanted.policy, wanted.stall_limit_s)
        while True:
            stream = stream.newest
            try:
                reader = await self.introduce(session, stream, wanted)
            except McpdError:
                if stream.successor is None or not session.open:
                    raise
                continue  # it was resized while its writer answered
            if stream.successor is None:
                reader.told = True
                return reader
            self._registry.remove_reader(reader)

    async def introduce(self, session: Session, stream: Stream, wanted: Wanted) -> Reader:
        """As `join`, to this generation, which may have a successor when this returns."""
        group: Group | None = None
        if wanted.group:
            group = await self._groups.find(session, stream, wanted)
        try:
            reader = self._make(session, stream, wanted, group)
        except BaseException:
            if group is not None:
                self._registry.check_group(group)
            raise
        try:
            reader.start_seq = await self._ask_writer(reader)
        except BaseException:
            self._registry.remove_reader(reader)
            raise
        if not session.open or stream.state not in ("sealed", "live", "moved"):
            self._registry.remove_reader(reader)
            raise closed(stream)
        reader.state = "live"
        return reader

    def _make(
        self, session: Session, stream: Stream, wanted: Wanted, group: Group | None
    ) -> Reader:
        if stream.state == "ended" or not stream.read_only:
            raise closed(stream)
        pins = stream.pins + wanted.max_pins
        limits.check_room(stream.name, stream.spec, pins, max(stream.depth, wanted.kept))
        if len(stream.readers) >= _core.MAX_READERS:
            raise LimitExceeded(
                f"stream {stream.name!r} has {len(stream.readers)} readers, the most there can be",
                "Close one of them.",
            )
        number = self._registry.next_id()
        nbytes = _core.reader_control_nbytes(wanted.max_pins)
        share = self._registry.quotas.take(
            session,
            f"reader of {stream.name!r}",
            readers=1,
            fds=quotas.READER_FDS,
            memory=nbytes,
        )
        try:
            # One page: not worth a thread.
            control = segment.create_memfd(f"mcpd:rctl:{stream.name}", nbytes)
            try:
                counters = _core.ReaderControl(control.fd, wanted.max_pins)
                counters.initialise(*stream.key, number)
                wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            except BaseException:
                control.close()
                raise
        except BaseException:
            share.give_back()
            raise
        share.settle()
        reader = Reader(
            id=number,
            stream=stream,
            session=session,
            share=share,
            policy=wanted.policy,
            max_pins=wanted.max_pins,
            depth=wanted.depth,
            follow=wanted.follow,
            asked_limit_s=wanted.stall_limit_s,
            site=wanted.site,
            control=control,
            counters=counters,
            wake_fd=wake_fd,
        )
        self._registry.add_reader(reader)
        if group is not None:
            group.join(reader)
        return reader

    async def _ask_writer(self, reader: Reader) -> int:
        """The first sequence number that the writer owes the reader."""
        stream = reader.stream
        join = ReaderJoin(
            stream=stream.id,
            generation=stream.generation,
            reader=reader.id,
            max_pins=reader.max_pins,
            policy=reader.policy,
            depth=reader.depth,
            group=reader.group.id if reader.group is not None else 0,
            member=reader.member,
        )
        read_only = reader.control.open_read_only()
        try:
            return await ask_writer(stream, join, (read_only, reader.wake_fd), "reader")
        finally:
            os.close(read_only)
