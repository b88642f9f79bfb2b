"""A stream as the daemon makes it, for tests of the binding: objects, controls, writer, readers."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable
from types import TracebackType

from mcpd.native import _core

SLOT_NBYTES = 8192
PATIENCE_S = 20.0
"""What takes this long has hung."""


def new_object(name: str, nbytes: int) -> int:
    """A memfd of nbytes zero bytes; the caller closes it."""
    fd = os.memfd_create(f"test:{name}")
    os.ftruncate(fd, nbytes)
    return fd


class TestReader:
    """One attached reader with the daemon's view of it."""

    __test__ = False

    def __init__(
        self,
        stream: TestStream,
        policy: int,
        max_pins: int,
        depth: int = 0,
        group: TestGroup | None = None,
        **thinning: int,
    ) -> None:
        self.reader_id = len(stream.readers) + 1
        self.member = group.join() if group else 0
        admitted_to = {"group": group.group_id, "member": self.member} if group else {}
        self.control_fd = new_object("rctl", _core.reader_control_nbytes(max_pins))
        self.wake_fd = os.eventfd(0, os.EFD_NONBLOCK)
        self.control = _core.ReaderControl(self.control_fd, max_pins)
        self.control.initialise(stream.stream_id, stream.generation, self.reader_id)
        self.start = stream.writer.add_reader(
            self.reader_id, self.control_fd, self.wake_fd, max_pins, policy, depth, **admitted_to
        )
        self.reader = _core.Reader(
            stream.control_fd,
            stream.payload_fd,
            self.control_fd,
            self.wake_fd,
            stream.wake_fd if group or policy == _core.POLICY_LOSSLESS else -1,
            group.control_fd if group else -1,
            stream_id=stream.stream_id,
            generation=stream.generation,
            nslots=stream.nslots,
            slot_nbytes=SLOT_NBYTES,
            max_pins=max_pins,
            policy=policy,
            start_seq=self.start,
            first_seq=stream.first_seq,
            depth=depth,
            every_n=thinning.get("every_n", 0),
            interval_ns=thinning.get("interval_ns", 0),
            skip_expired=bool(thinning.get("skip_expired")),
            **admitted_to,
        )

    def close(self) -> None:
        self.reader.close()
        self.control.close()
        os.close(self.control_fd)
        os.close(self.wake_fd)


class TestGroup:
    """A group of readers with the daemon's view of it."""

    __test__ = False
    group_id = 77

    def __init__(self, stream: TestStream, policy: int, depth: int = 0) -> None:
        self.policy, self.depth, self._members = policy, depth, 0
        self.control_fd = new_object("gctl", _core.group_control_nbytes(stream.nslots))
        self.control = _core.GroupControl(self.control_fd, stream.nslots)
        self.control.initialise(stream.stream_id, stream.generation, self.group_id)
        self.start = stream.writer.add_group(self.group_id, self.control_fd, policy, depth)
        newest = max(stream.control.stats()["head"], stream.first_seq)
        self.control.start(self.start or newest)

    def join(self) -> int:
        self._members += 1
        return self._members - 1

    def close(self) -> None:
        self.control.close()
        os.close(self.control_fd)


class TestStream:
    """The three kinds of object, a writer, and the readers attached so far."""

    __test__ = False
    stream_id = 5
    generation = 9

    def __init__(
        self, nslots: int = 8, *, history: int = 1, holds: int = 2, first_seq: int = 1
    ) -> None:
        self.nslots = nslots
        self.first_seq = first_seq
        self.groups: list[TestGroup] = []
        self.control_fd = new_object("wctl", _core.writer_control_nbytes(nslots))
        self.payload_fd = new_object("payload", _core.payload_nbytes(nslots, SLOT_NBYTES))
        self.wake_fd = os.eventfd(0, os.EFD_NONBLOCK)
        self.readers: list[TestReader] = []
        self.control = _core.WriterControl(self.control_fd, nslots)
        self.control.initialise(self.stream_id, self.generation, SLOT_NBYTES, first_seq)
        self.writer = _core.Writer(
            self.control_fd,
            self.payload_fd,
            self.wake_fd,
            stream_id=self.stream_id,
            generation=self.generation,
            nslots=nslots,
            slot_nbytes=SLOT_NBYTES,
            first_seq=first_seq,
            history=history,
            holds=holds,
        )

    def attach(
        self,
        policy: int = _core.POLICY_LATEST,
        max_pins: int = 2,
        *,
        depth: int = 0,
        **thinning: int,
    ) -> TestReader:
        self.readers.append(TestReader(self, policy, max_pins, depth, None, **thinning))
        return self.readers[-1]

    def add_group(self, policy: int, depth: int = 0) -> TestGroup:
        self.groups.append(TestGroup(self, policy, depth))
        return self.groups[-1]

    def join(self, group: TestGroup, max_pins: int = 2) -> TestReader:
        self.readers.append(TestReader(self, group.policy, max_pins, group.depth, group))
        return self.readers[-1]

    def acquire(self) -> _core.WriteSlot:
        slot: _core.WriteSlot | None = self.writer.acquire(0)
        assert slot is not None
        return slot

    def publish(self, payload: bytes = b"") -> int:
        slot = self.acquire()
        with memoryview(slot) as view:
            view[: len(payload)] = payload
        if payload:
            slot.nbytes = len(payload)
        return slot.publish()

    def __enter__(self) -> TestStream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for reader in self.readers:
            reader.close()
        for group in self.groups:
            group.close()
        self.writer.close()
        self.control.close()
        for fd in (self.control_fd, self.payload_fd, self.wake_fd):
            os.close(fd)


def next_slot(reader: TestReader, timeout_s: float = 0) -> _core.PinnedSlot:
    slot: _core.PinnedSlot | None = reader.reader.next(timeout_s)
    assert slot is not None
    return slot


def mappings(name: str) -> list[str]:
    """Permissions of every mapping that this process has of the test objects of that name."""
    with open("/proc/self/maps") as lines:
        return [line.split()[1] for line in lines if f"/memfd:test:{name} " in line]


def description(ntensors: int = 0, width: int = 0) -> bytes:
    """A slot's description with so many empty tensors."""
    head = struct.pack("<IIIIIBB2xII", 1, 0, width, 0, 0, 0, 0, 0, ntensors)
    return head.ljust(128, b"\0") + bytes(192 * ntensors)


def wait_until(condition: Callable[[], object]) -> None:
    """Gives way until the condition holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        os.sched_yield()
