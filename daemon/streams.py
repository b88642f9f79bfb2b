"""Makes streams and introduces readers to their writers; then steps out of the way."""

from __future__ import annotations

import asyncio
import logging
import os

import msgspec

from mcpd.daemon import limits
from mcpd.daemon.leases import Reader, Stream
from mcpd.daemon.registry import Registry
from mcpd.daemon.session import Answer, Session, SessionEnded
from mcpd.native import _core
from mcpd.shm import segment
from mcpd.shm.errors import (
    DaemonUnavailable,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    StreamClosed,
    TimedOut,
)
from mcpd.shm.messages import (
    AttachReader,
    CloseStream,
    CreateStream,
    DetachReader,
    ReaderJoin,
    SealStream,
    StreamSpec,
)
from mcpd.shm.segment import Segment

log = logging.getLogger("mcpd.daemon")

JOIN_TIMEOUT_S = 5.0
"""How long a writer may take to admit a reader: its I/O thread has nothing else to do."""


class Streams:
    """The requests about streams and readers. Belongs to the event loop's thread."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._owner = segment.current_owner()

    async def create(self, session: Session, message: CreateStream) -> Answer:
        """Admits and reserves a stream's memory and hands it to its writer; not to be found yet."""
        name, spec = message.name, message.spec
        limits.check_name(name, spec.kind, worker=session.is_worker)
        if spec.kind == "requests" and not name.startswith(f"~{session.number}-"):
            raise InvalidRequest(
                f"request stream {name!r} is not of session {session.number}",
                f"Name it '~{session.number}-<number>'.",
            )
        slot_nbytes = limits.check_spec(name, spec)
        nbytes = spec.slots * slot_nbytes + _core.writer_control_nbytes(spec.slots)
        self._registry.reserve_name(name)
        try:
            self._registry.ledger.admit(nbytes, f"stream {name!r}")
            try:
                stream = await self._reserve(session, name, spec, slot_nbytes)
            except BaseException:
                self._registry.ledger.release(nbytes)
                raise
            finally:
                self._registry.ledger.settle(nbytes)
        except BaseException:
            self._registry.release_name(name)
            raise
        self._registry.add_stream(stream)
        if not session.open:
            self._registry.revoke(session)
            self._registry.unmap_stream(stream)
            raise DaemonUnavailable("the session ended")
        log.info("stream=%d name=%s created %s bytes=%d", stream.id, name, session, nbytes)
        fds = (stream.control.fd, stream.payload.fd, stream.wake_fd)
        return Answer(msgspec.to_builtins(stream.grant()), fds)

    def seal(self, session: Session, message: SealStream) -> Answer:
        """The writer has mapped it: sealed against further writing, and open to readers."""
        stream = self._registry.stream_of(session, message.stream)
        if stream.state != "new":
            raise InvalidRequest(f"stream {stream.name!r} is {stream.state} already")
        stream.seal()
        return Answer()

    def close(self, session: Session, message: CloseStream) -> Answer:
        """The writer has ended and unmapped it."""
        stream = self._registry.stream_of(session, message.stream)
        self._registry.end_stream(stream, _core.END_CLOSED)
        self._registry.unmap_stream(stream)
        return Answer()

    async def attach(self, session: Session, message: AttachReader) -> Answer:
        """A reader of a stream that anybody may read, or of one made for this worker."""
        stream = self._registry.find_stream(message.stream)
        if stream.hidden and not session.is_worker:
            raise NotFound(f"no stream {message.stream[:80]!r}")
        reader = await self.join(session, stream, message.policy, message.max_pins)
        return self.reader_answer(reader)

    async def join(self, session: Session, stream: Stream, policy: str, max_pins: int) -> Reader:
        """Makes a reader and introduces it to the writer; it is live when this returns.

        Raises:
            InvalidRequest: The policy or max_pins is out of its limits.
            LimitExceeded: Too few slots for so many pins, or too many readers.
            TimedOut: The writer does not answer.
            StreamClosed: The writer went away meanwhile.
        """
        limits.check_policy(policy, max_pins)
        limits.check_room(stream.name, stream.spec, stream.pins + max_pins)
        if len(stream.readers) >= _core.MAX_READERS:
            raise LimitExceeded(
                f"stream {stream.name!r} has {len(stream.readers)} readers, the most there can be",
                "Close one of them.",
            )
        reader = self._make_reader(session, stream, policy, max_pins)
        try:
            reader.start_seq = await self._introduce(reader)
        except BaseException:
            self._registry.remove_reader(reader)
            raise
        if not session.open or stream.state != "live":
            self._registry.remove_reader(reader)
            raise _closed(stream)
        reader.state = "live"
        return reader

    def reader_answer(self, reader: Reader) -> Answer:
        """What the reader maps its objects by."""
        stream = reader.stream
        fds = (*stream.read_only, reader.control.fd, reader.wake_fd)
        if reader.policy == "lossless":
            fds = (*fds, stream.wake_fd)
        return Answer(msgspec.to_builtins(stream.grant(reader)), fds)

    def detach(self, session: Session, message: DetachReader) -> Answer:
        """The reader has unmapped; it and its pins are free."""
        self._registry.remove_reader(self._registry.reader_of(session, message.reader))
        return Answer()

    async def _reserve(
        self, session: Session, name: str, spec: StreamSpec, slot_nbytes: int
    ) -> Stream:
        number = self._registry.next_id()
        shm_name = segment.posix_name(self._owner, number)
        wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        try:
            if spec.memory == "posix":
                self._registry.reaper.own(shm_name)
            control, payload, counters = await asyncio.to_thread(
                self._make_objects, number, name, spec, slot_nbytes
            )
        except BaseException:
            os.close(wake_fd)
            self._registry.reaper.disown(shm_name)
            raise
        return Stream(
            id=number,
            name=name,
            spec=spec,
            slot_nbytes=slot_nbytes,
            session=session,
            control=control,
            payload=payload,
            counters=counters,
            wake_fd=wake_fd,
            hidden=name.startswith("~"),
        )

    def _make_objects(
        self, number: int, name: str, spec: StreamSpec, slot_nbytes: int
    ) -> tuple[Segment, Segment, _core.WriterControl]:
        """Reserves the memory: 0.4 s a GiB, so in a thread."""
        control = segment.create_memfd(f"mcpd:wctl:{name}", _core.writer_control_nbytes(spec.slots))
        try:
            payload_nbytes = _core.payload_nbytes(spec.slots, slot_nbytes)
            if spec.memory == "posix":
                payload = segment.create_posix(self._owner, number, payload_nbytes)
            else:
                payload = segment.create_memfd(f"mcpd:payload:{name}", payload_nbytes)
            try:
                counters = _core.WriterControl(control.fd, spec.slots)
                counters.initialise(number, 1, slot_nbytes)
            except BaseException:
                payload.unlink()
                payload.close()
                raise
        except BaseException:
            control.close()
            raise
        return control, payload, counters

    def _make_reader(self, session: Session, stream: Stream, policy: str, max_pins: int) -> Reader:
        number = self._registry.next_id()
        nbytes = _core.reader_control_nbytes(max_pins)
        self._registry.ledger.admit(nbytes, f"reader of {stream.name!r}")
        try:
            # One page: not worth a thread.
            control = segment.create_memfd(f"mcpd:rctl:{stream.name}", nbytes)
            try:
                counters = _core.ReaderControl(control.fd, max_pins)
                counters.initialise(stream.id, stream.generation, number)
                wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            except BaseException:
                control.close()
                raise
        except BaseException:
            self._registry.ledger.release(nbytes)
            raise
        finally:
            self._registry.ledger.settle(nbytes)
        reader = Reader(
            id=number,
            stream=stream,
            session=session,
            policy=policy,
            max_pins=max_pins,
            control=control,
            counters=counters,
            wake_fd=wake_fd,
        )
        self._registry.add_reader(reader)
        return reader

    async def _introduce(self, reader: Reader) -> int:
        """The first sequence number that the writer owes the reader."""
        stream = reader.stream
        join = ReaderJoin(
            stream=stream.id, reader=reader.id, max_pins=reader.max_pins, policy=reader.policy
        )
        read_only = reader.control.open_read_only()
        try:
            answer = stream.session.request(
                join, (read_only, reader.wake_fd), timeout_s=JOIN_TIMEOUT_S
            )
            result = await answer
        except SessionEnded:
            raise _closed(stream) from None
        except TimedOut as error:
            raise TimedOut(
                f"the writer of stream {stream.name!r} (pid {stream.session.peer.pid}) did not "
                f"admit the reader within {JOIN_TIMEOUT_S:g} s",
                "It may be stopped; try again, or restart it.",
            ) from error
        finally:
            os.close(read_only)
        start_seq = result.get("start_seq")
        if not isinstance(start_seq, int) or start_seq < 0:
            raise InvalidRequest(f"the writer of {stream.name!r} answered start_seq={start_seq!r}")
        return start_seq


def _closed(stream: Stream) -> StreamClosed:
    return StreamClosed(
        f"stream {stream.name!r} has ended", "Open it again when its writer is back.", "writer_died"
    )
