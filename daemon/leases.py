"""What the daemon has handed out: streams, readers and bindings, each with its owner."""

from __future__ import annotations

import asyncio
import os
import select
import time
from dataclasses import dataclass, field

from mcpd.daemon.session import Session
from mcpd.native import _core
from mcpd.shm.messages import StreamGrant, StreamSpec
from mcpd.shm.segment import Segment
from mcpd.shm.transport import close_fds

REASONS = {
    _core.END_CLOSED: "closed",
    _core.END_WRITER_DIED: "writer_died",
    _core.END_REVOKED: "revoked",
    _core.END_SHUTDOWN: "shutdown",
}


def signal_fd(fd: int) -> None:
    """Adds 1 to an eventfd, unless that would wait: full means signalled already.

    A peer can make an eventfd blocking, so O_NONBLOCK alone does not protect the event loop.
    """
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    if poll.poll(0):
        os.eventfd_write(fd, 1)


@dataclass(eq=False, kw_only=True)
class Stream:
    """One stream; owns its descriptors until it ends and its memory until nobody maps it.

    Attributes:
        control, payload: Its objects; closed once it has ended.
        read_only: Descriptors for readers (control, payload); made when it is sealed.
        counters: The daemon's mapping of the control object.
        state: "new" until sealed, then "live", then "ended".
        mapped: Whether the writer's process may still have it mapped.
        hidden: Private to the two ends of a binding: not listed, not found by name.
    """

    id: int
    name: str
    spec: StreamSpec
    slot_nbytes: int
    session: Session
    control: Segment
    payload: Segment
    wake_fd: int
    counters: _core.WriterControl
    hidden: bool = False
    generation: int = 1
    state: str = "new"
    reason: int = 0
    mapped: bool = True
    read_only: tuple[int, ...] = ()
    readers: dict[int, Reader] = field(default_factory=dict)
    binding: Binding | None = None
    since_s: float = field(default_factory=time.time)
    seen_head: int = 0
    seen_ns: int = field(default_factory=time.monotonic_ns)
    fps: float = 0.0

    @property
    def nbytes(self) -> int:
        """Bytes of both objects."""
        return self.control.nbytes + self.payload.nbytes

    @property
    def pins(self) -> int:
        """Frames that its readers may pin, all together."""
        return sum(reader.max_pins for reader in self.readers.values())

    def seal(self) -> None:
        """From now on nobody can map its memfds writable; keeps read-only descriptors."""
        read_only: list[int] = []
        try:
            for segment in (self.control, self.payload):
                if segment.memory == "memfd":
                    segment.seal_future_write()
                read_only.append(segment.open_read_only())
        except BaseException:
            close_fds(read_only)
            raise
        self.read_only = tuple(read_only)
        self.control.close()
        self.payload.close()
        self.state = "live"

    def release_descriptors(self) -> None:
        """Lets go of everything but the counters: nobody can attach any more. Idempotent."""
        close_fds(self.read_only)
        self.read_only = ()
        self.control.close()
        self.payload.close()
        if self.wake_fd >= 0:
            os.close(self.wake_fd)
            self.wake_fd = -1

    def grant(self, reader: Reader | None = None) -> StreamGrant:
        """The numbers to map it by, for its writer or a reader."""
        grant = StreamGrant(
            stream=self.id,
            name=self.name,
            generation=self.generation,
            slots=self.spec.slots,
            slot_nbytes=self.slot_nbytes,
            spec=self.spec,
            shm_name=self.payload.shm_name,
        )
        if reader is not None:
            grant.reader = reader.id
            grant.max_pins = reader.max_pins
            grant.policy = reader.policy
            grant.start_seq = reader.start_seq
        return grant

    def read_fps(self, head: int) -> float:
        """Frames a second since the last question; asked again within half a second, as then."""
        now_ns = time.monotonic_ns()
        elapsed_ns = now_ns - self.seen_ns
        if elapsed_ns >= 500_000_000:
            self.fps = (head - self.seen_head) * 1e9 / elapsed_ns
            self.seen_head, self.seen_ns = head, now_ns
        return self.fps


@dataclass(eq=False, kw_only=True)
class Reader:
    """One reader of a stream, with the objects that only it, the writer and the daemon share.

    Attributes:
        state: "joining" until the writer knows it, then "live"; "quarantined" when its session is
            gone but its process may still look at what it pinned.
    """

    id: int
    stream: Stream
    session: Session
    policy: str
    max_pins: int
    control: Segment
    counters: _core.ReaderControl
    wake_fd: int
    state: str = "joining"
    start_seq: int = 0
    since_s: float = field(default_factory=time.time)

    def wake(self) -> None:
        """Signals it, whatever it waits for."""
        if self.wake_fd >= 0:
            signal_fd(self.wake_fd)

    def release_descriptors(self) -> None:
        """Lets go of everything but the counters, which show its pins. Idempotent."""
        self.control.close()
        if self.wake_fd >= 0:
            os.close(self.wake_fd)
            self.wake_fd = -1

    def close(self) -> None:
        """Lets go of its objects. Idempotent."""
        self.release_descriptors()
        self.counters.close()


@dataclass(eq=False, kw_only=True)
class Binding:
    """A model at work on a stream, for everybody who reads its results.

    Attributes:
        key: What callers who may share it have in common; None: it is not shared.
        results: Resolves to the results stream once the worker serves.
        callers: Those who are about to read the results.
    """

    id: int
    key: tuple[int, str, int, str] | None
    stream: Stream
    session: Session
    model: str
    version: int
    frames: str
    once: bool
    results: asyncio.Future[Stream]
    results_name: str
    callers: int = 0
    since_s: float = field(default_factory=time.time)
