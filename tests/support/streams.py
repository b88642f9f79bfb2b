"""A stream without a daemon: the objects are made here, as the daemon would make them."""

from __future__ import annotations

import os
from concurrent.futures import Future
from typing import Any, Self, cast

from mcpd.native import _core
from mcpd.shm.bundle import Description
from mcpd.shm.connection import Connection
from mcpd.shm.messages import Message, ReaderJoin, StreamGrant, StreamSpec
from mcpd.shm.reading import Reading
from mcpd.shm.replies import Answer
from mcpd.shm.segment import Segment, create_memfd
from mcpd.shm.session_streams import SessionStreams
from mcpd.shm.stream import POLICY_CODES, ReaderStream, WriterStream


class LoneSession:
    """What the two ends of a stream need of a connection; every request is granted.

    Attributes:
        asked: The requests that were made.
        lost: To be set by a test that plays the daemon's death.
    """

    def __init__(self) -> None:
        self.streams = SessionStreams()
        self.asked: list[Message] = []
        self.lost = False
        self.inherited = False

    def request(self, message: Message) -> Answer:
        self.asked.append(message)
        return {}, []

    def submit(self, message: Message) -> Future[Answer]:
        self.asked.append(message)
        future: Future[Answer] = Future()
        future.set_result(({}, []))
        return future

    def as_connection(self) -> Connection:
        """Itself, for a parameter that is a Connection."""
        return cast(Connection, self)


class LocalStream:
    """A writer and as many readers as asked for, all in this process. A context manager.

    Attributes:
        session: Plays the connection of all of them.
        writer: The writer's end.
        control: The daemon's view of the writer's control object.
        payload: The memory that frames are in.
    """

    def __init__(
        self,
        description: Description | None = None,
        *,
        slots: int = 8,
        slot_nbytes: int = 0,
        holds: int = 2,
        history: int = 1,
    ) -> None:
        needed = slot_nbytes or (description.extent if description is not None else 0)
        self.slots = slots
        self.slot_nbytes = -(-max(needed, 1) // 4096) * 4096
        self.session = LoneSession()
        self._last_reader = 0
        self._segments: list[Segment] = []
        self._fds: list[int] = []
        self._readers: list[ReaderStream] = []
        self.payload = self._segment("payload", _core.payload_nbytes(slots, self.slot_nbytes))
        self._control = self._segment("wctl", _core.writer_control_nbytes(slots))
        self._wake = self._eventfd()
        self.control = _core.WriterControl(self._control.fd, slots)
        self.control.initialise(1, 1, self.slot_nbytes)
        self._spec = StreamSpec(
            slots=slots, slot_nbytes=self.slot_nbytes, history=history, holds=holds
        )
        grant = self._grant()
        fds = [os.dup(fd) for fd in (self._control.fd, self.payload.fd, self._wake)]
        self.writer = WriterStream(self.session.as_connection(), grant, fds, description)

    def attach(self, policy: str = "latest", max_pins: int = 2, **reading: Any) -> ReaderStream:
        """Another reader, introduced to the writer; closed with the stream. Not of a group."""
        wanted = Reading(policy=policy, max_pins=max_pins, **reading)
        self._last_reader += 1
        reader = self._last_reader
        control = self._segment("rctl", _core.reader_control_nbytes(max_pins))
        view = _core.ReaderControl(control.fd, max_pins)
        view.initialise(1, 1, reader)
        view.close()
        wake = self._eventfd()
        join = ReaderJoin(
            stream=1, reader=reader, max_pins=max_pins, policy=policy, depth=wanted.depth
        )
        start_seq = self.session.streams.join(join, [control.fd, wake])
        fds = [self._control.fd, self.payload.fd, control.fd, wake]
        if policy == "lossless":
            fds.append(self._wake)
        grant = self._grant(
            reader=reader,
            max_pins=max_pins,
            policy=policy,
            depth=wanted.depth,
            start_seq=start_seq,
        )
        assert policy in POLICY_CODES
        stream = ReaderStream(
            self.session.as_connection(), grant, [os.dup(fd) for fd in fds], wanted
        )
        self._readers.append(stream)
        return stream

    def close(self) -> None:
        """Closes every end and the memory."""
        for reader in self._readers:
            reader.close()
        self.writer.close()
        self.control.close()
        for segment in self._segments:
            segment.close()
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _segment(self, what: str, nbytes: int) -> Segment:
        segment = create_memfd(f"mcpd:{what}:local", nbytes)
        self._segments.append(segment)
        return segment

    def _eventfd(self) -> int:
        fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._fds.append(fd)
        return fd

    def _grant(self, **of_reader: Any) -> StreamGrant:
        return StreamGrant(
            stream=1,
            name="local",
            generation=1,
            slots=self.slots,
            slot_nbytes=self.slot_nbytes,
            spec=self._spec,
            **of_reader,
        )
