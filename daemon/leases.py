"""What the daemon has handed out: streams, readers, groups and bindings, each with its owner."""

from __future__ import annotations

import asyncio
import os
import select
import time
from dataclasses import dataclass, field
from typing import NamedTuple

from mcpd.daemon.quotas import Share
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
    _core.END_MOVED: "moved",
}


MAX_SEQ = (1 << 48) - 1
"""Largest sequence number there is; see docs/protocol.md."""


class Wanted(NamedTuple):
    """How a reader asks to read a stream."""

    policy: str
    max_pins: int
    depth: int = 0
    group: str = ""
    follow: bool = False
    site: str = ""
    stall_limit_s: float = 0.0

    @property
    def kept(self) -> int:
        """Newest frames that the stream keeps for it, read or not."""
        return self.depth if self.policy == "fifo" else 0


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
    """One generation of a stream; owns its descriptors until it ends and its memory until nobody
    maps it.

    Attributes:
        share: What was admitted for it; given back when its memory is free.
        first_seq: Sequence number of its first frame.
        control, payload: Its objects; closed once it has ended.
        read_only: Descriptors for readers (control, payload); made when it is sealed.
        counters: The daemon's mapping of the control object.
        state: "new", "sealed" while readers of the generation before are brought over, "live",
            "moved" once the next one is live, "ended".
        pending: The next generation while its writer makes it.
        successor: The next generation once it is live.
        given: The highest generation that was given to the stream, by the newest that is live.
        mapped: Whether the writer's process may still have it mapped.
        hidden: Private to the two ends of a binding: not listed, not found by name.
        site: Where in its writer's program it was asked for, if that is told.
    """

    id: int
    name: str
    spec: StreamSpec
    slot_nbytes: int
    session: Session
    share: Share
    control: Segment
    payload: Segment
    wake_fd: int
    counters: _core.WriterControl
    hidden: bool = False
    site: str = ""
    generation: int = 1
    first_seq: int = 1
    state: str = "new"
    reason: int = 0
    mapped: bool = True
    read_only: tuple[int, ...] = ()
    readers: dict[int, Reader] = field(default_factory=dict)
    groups: dict[int, Group] = field(default_factory=dict)
    pending: Stream | None = None
    successor: Stream | None = None
    given: int = 0
    binding: Binding | None = None
    since_s: float = field(default_factory=time.time)
    seen_head: int = 0
    seen_ns: int = field(default_factory=time.monotonic_ns)
    fps: float = 0.0

    def __post_init__(self) -> None:
        self.seen_head = self.first_seq - 1
        self.given = self.generation

    def next_generation(self) -> int:
        """A number for the next generation; never given twice, whatever becomes of that."""
        self.given += 1
        return self.given

    @property
    def key(self) -> tuple[int, int]:
        """Number and generation."""
        return self.id, self.generation

    @property
    def newest(self) -> Stream:
        """The generation that its writer writes now."""
        stream = self
        while stream.successor is not None:
            stream = stream.successor
        return stream

    @property
    def nbytes(self) -> int:
        """Bytes of both objects."""
        return self.control.nbytes + self.payload.nbytes

    @property
    def pins(self) -> int:
        """Frames that its readers may pin, all together."""
        return sum(reader.max_pins for reader in self.readers.values())

    @property
    def depth(self) -> int:
        """Newest frames that its fifo readers and groups have it keep; 0: none."""
        ends: tuple[Reader | Group, ...] = (*self.readers.values(), *self.groups.values())
        return max((end.depth for end in ends if end.policy == "fifo"), default=0)

    def find_group(self, name: str) -> Group | None:
        """The group of that name that may be joined."""
        for group in self.groups.values():
            if group.name == name and not group.left:
                return group
        return None

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
        self.state = "sealed"

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
            payload_offset=self.payload.offset,
            first_seq=self.first_seq,
        )
        if reader is not None:
            grant.reader = reader.id
            grant.max_pins = reader.max_pins
            grant.policy = reader.policy
            grant.depth = reader.depth
            grant.start_seq = reader.start_seq
            if reader.group is not None:
                grant.group = reader.group.id
                grant.member = reader.member
        return grant

    def head(self) -> int:
        """Number of the newest frame as the writer says, within what it can be."""
        told = self.counters.stats()["head"]
        return min(max(told, self.first_seq - 1), MAX_SEQ - 1)

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
    """One reader of a generation, with the objects that only it, the writer and the daemon share.

    Attributes:
        follow: Whether it waits for the next writer when this one is gone.
        group, member: The group it shares frames with, and its number in it.
        predecessor, successor: Itself in the generation that it came from and goes on in.
        state: "joining" until the writer knows it, then "live"; "quarantined" when its session is
            gone but its process may still look at what it pinned.
        told: Whether its session has been granted it, or is about to be.
        asked_limit_s: How long it asks to be let hold its writer up; 0: as the daemon has it.
        stall_limit_s: After how long it is evicted; 0: never.
        stalled_since_s: On the loop's clock; None: it does not hold its writer up.
        evicted: Why its place was taken away; "": it was not.
    """

    id: int
    stream: Stream
    session: Session
    share: Share
    policy: str
    max_pins: int
    control: Segment
    counters: _core.ReaderControl
    wake_fd: int
    depth: int = 0
    follow: bool = False
    site: str = ""
    group: Group | None = None
    member: int = 0
    predecessor: Reader | None = None
    successor: Reader | None = None
    state: str = "joining"
    told: bool = False
    asked_limit_s: float = 0.0
    stall_limit_s: float = 0.0
    stalled_since_s: float | None = None
    evicted: str = ""
    start_seq: int = 0
    since_s: float = field(default_factory=time.time)

    @property
    def wanted(self) -> Wanted:
        """What it asked for."""
        name = self.group.name if self.group is not None else ""
        return Wanted(
            *(self.policy, self.max_pins, self.depth, name, self.follow, self.site),
            stall_limit_s=self.asked_limit_s,
        )

    @property
    def fds(self) -> tuple[int, ...]:
        """What it maps the stream and its own objects by; the daemon's."""
        fds = (*self.stream.read_only, self.control.fd, self.wake_fd)
        if self.policy == "lossless" or self.group is not None:
            fds = (*fds, self.stream.wake_fd)
        return fds if self.group is None else (*fds, self.group.control.fd)

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
class Group:
    """Readers of a generation that share its frames, with the object of their claims.

    Attributes:
        members: By their number in the group. A number is free again when nothing in its process
            can look at what it claimed.
        ready: Resolves when the writer knows the group.
        left: All its members have gone, and those still there only may look at what they claimed.
            It is owed nothing more and cannot be joined.
    """

    id: int
    name: str
    stream: Stream
    policy: str
    depth: int
    share: Share
    control: Segment
    counters: _core.GroupControl
    ready: asyncio.Future[None]
    members: dict[int, Reader] = field(default_factory=dict)
    left: bool = False
    since_s: float = field(default_factory=time.time)

    def join(self, reader: Reader) -> None:
        """Gives a new member the lowest number that is free; there are as many as readers."""
        reader.group = self
        reader.member = next(n for n in range(_core.MAX_READERS) if n not in self.members)
        self.members[reader.member] = reader

    def leave(self, reader: Reader) -> int:
        """Nothing looks for this member any more: what it had claimed goes back to the others,
        who are signalled. Returns how many frames that were."""
        del self.members[reader.member]
        self.check()
        count = self.counters.sweep(reader.member, not self.left)
        for member in self.members.values():
            member.wake()
        return count

    def check(self) -> None:
        """Finds out whether anybody is left who could go on."""
        if all(member.state == "quarantined" for member in self.members.values()):
            self.left = True

    def close(self) -> None:
        """Lets go of its object. Idempotent."""
        self.control.close()
        self.counters.close()


@dataclass(eq=False, kw_only=True)
class Binding:
    """A model at work on a stream, for everybody who reads its results.

    Attributes:
        key: What callers who may share it have in common; None: it is not shared.
        results: Resolves to the results stream once the worker serves.
        callers: Those who are about to read the results.
        asked: How often a `once` binding was asked to run.
        start_seq: The first frame that its worker is owed.
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
    asked: int = 0
    start_seq: int = 0
    since_s: float = field(default_factory=time.time)
