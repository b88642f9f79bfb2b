"""Makes streams, generation by generation, and takes them back."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Coroutine, Sequence
from typing import Any, NamedTuple

import msgspec

from mcpd.daemon import limits, quotas
from mcpd.daemon.handover import Handover, check_next
from mcpd.daemon.leases import MAX_SEQ, Stream
from mcpd.daemon.quotas import Share
from mcpd.daemon.registry import Registry
from mcpd.daemon.session import Answer, Session
from mcpd.native import _core
from mcpd.shm import foreign, segment
from mcpd.shm.call_site import clean_site
from mcpd.shm.errors import DaemonUnavailable, InvalidRequest, StreamClosed
from mcpd.shm.messages import CloseStream, CreateStream, ResizeStream, SealStream, StreamSpec
from mcpd.shm.segment import Segment

log = logging.getLogger("mcpd.daemon")


class _Plan(NamedTuple):
    """A generation to be made."""

    session: Session
    name: str
    spec: StreamSpec
    slot_nbytes: int
    number: int
    generation: int
    first_seq: int
    site: str
    brought: int | None = None
    """A descriptor of the segment that its writer brought; the session's, until it is answered."""
    offset: int = 0

    @property
    def payload_nbytes(self) -> int:
        return _core.payload_nbytes(self.spec.slots, self.slot_nbytes)

    @property
    def nbytes(self) -> int:
        """What is reserved for it: a payload that was brought is not the daemon's."""
        own_nbytes = self.payload_nbytes if self.brought is None else 0
        return own_nbytes + _core.writer_control_nbytes(self.spec.slots)


class Streams:
    """The requests of streams' writers. Belongs to the event loop's thread."""

    def __init__(self, registry: Registry, handover: Handover) -> None:
        self._registry = registry
        self._handover = handover
        self._owner = segment.current_owner()
        self._resizing: set[Stream] = set()  # those whose next generation is being reserved

    def create(self, session: Session, message: CreateStream) -> Coroutine[Any, Any, Answer]:
        """Admits and reserves a stream's memory and hands it to its writer; not to be found yet.

        A name that is remembered is continued.
        """
        return self._create(session, message, session.brought)

    async def _create(
        self, session: Session, message: CreateStream, brought: Sequence[int]
    ) -> Answer:
        name, spec = message.name, message.spec
        limits.check_name(name, spec.kind, worker=session.is_worker)
        if spec.kind == "requests" and not name.startswith(f"~{session.number}-"):
            raise InvalidRequest(
                f"request stream {name!r} is not of session {session.number}",
                f"Name it '~{session.number}-<number>'.",
            )
        slot_nbytes = limits.check_spec(name, spec)
        _check_first(name, message.first_seq)
        if spec.memory == "foreign" and len(brought) != 1:
            raise InvalidRequest(
                f"stream {name!r} has memory 'foreign' and brings {len(brought)} descriptors",
                "Send one with the request: of the segment that the slots are to be in.",
            )
        names = self._registry.names
        names.reserve(name)
        try:
            past = names.past(name)
            if past is None:
                number, generation, first_seq = self._registry.next_id(), 1, 1
            else:
                number, generation, first_seq = past.id, past.generation + 1, past.next_seq
            first_seq = max(first_seq, message.first_seq)
            site = clean_site(message.site)
            plan = _Plan(session, name, spec, slot_nbytes, number, generation, first_seq, site)
            if spec.memory == "foreign":
                plan = plan._replace(brought=brought[0], offset=message.segment_offset)
            stream = await self._make(plan)
        except BaseException:
            names.release(name)
            raise
        names.add(stream)
        return self._hand_over(stream)

    async def resize(self, session: Session, message: ResizeStream) -> Answer:
        """As `create`, for the next generation of a stream that goes on until that is sealed."""
        old = self._registry.live_stream_of(session, message.stream)
        spec = message.spec
        if old.pending is not None or old in self._resizing:
            raise InvalidRequest(
                f"stream {old.name!r} is being resized already", "Wait until that is done."
            )
        if spec.kind != old.spec.kind and {spec.kind, old.spec.kind} != {"frames", "tensors"}:
            raise InvalidRequest(
                f"stream {old.name!r} is of kind {old.spec.kind!r} and cannot become {spec.kind!r}"
            )
        slot_nbytes = limits.check_spec(old.name, spec)
        if spec.memory == "foreign":
            raise InvalidRequest(
                f"stream {old.name!r} cannot be resized within memory 'foreign'",
                "Resize it into memory 'memfd', or create the stream again with another segment.",
            )
        limits.check_room(old.name, spec, old.pins, old.depth)
        check_next(old, message.first_seq)
        generation = old.next_generation()
        plan = _Plan(
            *(session, old.name, spec, slot_nbytes, old.id, generation, message.first_seq),
            site=old.site,
        )
        self._resizing.add(old)
        try:
            new = await self._make(plan)
        finally:
            self._resizing.discard(old)
        if old.state != "live":
            self._registry.end_stream(new, _core.END_REVOKED)
            self._registry.unmap_stream(new)
            raise StreamClosed(f"stream {old.name!r} has ended")
        old.pending = new
        return self._hand_over(new)

    def seal(self, session: Session, message: SealStream) -> Answer | Coroutine[Any, Any, Answer]:
        """The writer has mapped it: sealed against further writing, and open to readers."""
        stream = self._registry.stream_of(session, message.stream, message.generation)
        if stream.state != "new":
            raise InvalidRequest(f"stream {stream.name!r} is {stream.state} already")
        stream.seal()
        old = next((s for s in self._registry.streams.values() if s.pending is stream), None)
        if old is not None or any(self._registry.followers(stream.id)):
            return self._open(old, stream)
        self._handover.open(stream)
        return Answer()

    def close(self, session: Session, message: CloseStream) -> Answer:
        """The writer has ended and unmapped a generation."""
        stream = self._registry.stream_of(session, message.stream, message.generation)
        reason = _core.END_MOVED if stream.state == "moved" else _core.END_CLOSED
        self._registry.end_stream(stream, reason)
        self._registry.unmap_stream(stream)
        return Answer()

    async def _open(self, old: Stream | None, stream: Stream) -> Answer:
        """Brings readers over, and lets others in."""
        try:
            if old is None:
                await self._handover.succeed(stream)
            else:
                await self._handover.resize(old, stream)
        except BaseException:
            self._registry.end_stream(stream, _core.END_REVOKED)
            raise
        if stream.state != "live":
            raise StreamClosed(f"stream {stream.name!r} has ended")
        return Answer()

    def _hand_over(self, stream: Stream) -> Answer:
        fds = (stream.control.fd, stream.payload.fd, stream.wake_fd)
        return Answer(msgspec.to_builtins(stream.grant()), fds)

    async def _make(self, plan: _Plan) -> Stream:
        """Listed, with its memory reserved."""
        share = self._registry.quotas.take(
            plan.session,
            f"stream {plan.name!r}",
            streams=1,
            fds=quotas.STREAM_FDS,
            memory=plan.nbytes,
        )
        try:
            stream = await self._reserve(plan, share)
        except BaseException:
            share.give_back()
            raise
        share.settle()
        self._registry.add_stream(stream)
        if not plan.session.open:
            self._registry.end_stream(stream, _core.END_WRITER_DIED)
            self._registry.unmap_stream(stream)
            raise DaemonUnavailable("the session ended")
        log.info(
            "stream=%d generation=%d name=%s created %s bytes=%d",
            *(*stream.key, plan.name, plan.session, plan.nbytes),
        )
        return stream

    async def _reserve(self, plan: _Plan, share: Share) -> Stream:
        # A generation's posix name is not that of the one before, which may still be there.
        segment_number = plan.number if plan.generation == 1 else self._registry.next_id()
        shm_name = segment.posix_name(self._owner, segment_number)
        wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        try:
            if plan.spec.memory == "posix":
                self._registry.reaper.own(shm_name)
            control, payload, counters = await asyncio.to_thread(
                self._make_objects, plan, segment_number
            )
        except BaseException:
            os.close(wake_fd)
            self._registry.reaper.disown(shm_name)
            raise
        return Stream(
            id=plan.number,
            name=plan.name,
            spec=plan.spec,
            slot_nbytes=plan.slot_nbytes,
            session=plan.session,
            share=share,
            generation=plan.generation,
            first_seq=plan.first_seq,
            control=control,
            payload=payload,
            counters=counters,
            wake_fd=wake_fd,
            hidden=plan.name.startswith("~"),
            site=plan.site,
        )

    def _make_objects(
        self, plan: _Plan, segment_number: int
    ) -> tuple[Segment, Segment, _core.WriterControl]:
        """Reserves the memory: 0.4 s a GiB, so in a thread."""
        name, spec = plan.name, plan.spec
        control = segment.create_memfd(f"mcpd:wctl:{name}", _core.writer_control_nbytes(spec.slots))
        try:
            if plan.brought is not None:
                payload = foreign.adopt(plan.brought, plan.offset, plan.payload_nbytes)
            elif spec.memory == "posix":
                payload = segment.create_posix(self._owner, segment_number, plan.payload_nbytes)
            else:
                payload = segment.create_memfd(f"mcpd:payload:{name}", plan.payload_nbytes)
            try:
                counters = _core.WriterControl(control.fd, spec.slots)
                counters.initialise(plan.number, plan.generation, plan.slot_nbytes, plan.first_seq)
            except BaseException:
                payload.unlink()
                payload.close()
                raise
        except BaseException:
            control.close()
            raise
        return control, payload, counters


def _check_first(name: str, first_seq: int) -> None:
    most = (MAX_SEQ + 1) // 2  # who comes after under the name has numbers left
    if not 0 <= first_seq <= most:
        raise InvalidRequest(f"stream {name!r}: first_seq is {first_seq}, it must be 0 to {most}")
