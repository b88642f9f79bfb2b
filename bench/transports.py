"""Ways to move one 1080p frame from a Python process to another, all with the same interface.

The frame begins with a 16-byte stamp: when it was published, and its number. Everything that a
transport allocates, it allocates before the first frame.
"""

from __future__ import annotations

import mmap
import multiprocessing as mp
import os
import struct
from collections.abc import Callable
from contextlib import ExitStack, suppress
from multiprocessing.shared_memory import SharedMemory
from time import monotonic_ns
from typing import Any, Protocol

import numpy as np
import posix_ipc
from numpy.typing import NDArray

WIDTH, HEIGHT = 1920, 1080
FRAME_NBYTES = WIDTH * HEIGHT * 3
STAMP = struct.Struct("<qq")
SLOTS = 2
"""Of the ring that the plain transports write in turn: the fewest, which keeps the cache warm."""

Pixels = NDArray[np.uint8]


class Transport(Protocol):
    """One frame at a time from a writer process to a reader process.

    Made before the processes fork, so that they share what it made; opened in each of them after.
    """

    name: str

    def open_writer(self, socket: str) -> None: ...
    def open_reader(self, socket: str) -> None: ...
    def send(self, index: int, pixels: Pixels | None) -> None:
        """Takes a slot, copies `pixels` into it if given, stamps it and wakes the reader."""

    def receive(self) -> tuple[int, int, int]:
        """Sleeps until a frame is there: (time awake, time stamped, index)."""
        ...

    def close(self) -> None:
        """Lets go, in each process that opened it and in the one that made it. Idempotent."""


class McpdStream:
    """Ours: a stream of the daemon, one reader with policy `latest`."""

    name = "mcpd"

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._stream: Any = None

    def open_writer(self, socket: str) -> None:
        from mcpd.shm import connect

        client = self._stack.enter_context(connect(socket, name="bench-writer"))
        self._stream = self._stack.enter_context(
            client.create_stream("bench", width=WIDTH, height=HEIGHT, format="rgb24")
        )

    def open_reader(self, socket: str) -> None:
        from mcpd.shm import connect

        client = self._stack.enter_context(connect(socket, name="bench-reader"))
        self._stream = self._stack.enter_context(client.open_stream("bench"))

    def send(self, index: int, pixels: Pixels | None) -> None:
        with self._stream.acquire() as slot:
            if pixels is not None:
                np.copyto(slot.planes[0], pixels)
            STAMP.pack_into(slot.buffer, 0, monotonic_ns(), index)

    def receive(self) -> tuple[int, int, int]:
        with self._stream.next() as frame:
            awake_ns = monotonic_ns()
            stamp_ns, index = STAMP.unpack_from(frame.buffer)
        return awake_ns, stamp_ns, index

    def close(self) -> None:
        self._stack.close()


class _Ring:
    """SLOTS frames in a mapping, and a word that says which is the newest."""

    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, 4096 + SLOTS * FRAME_NBYTES)
        self._views = [
            np.frombuffer(self._map, np.uint8, FRAME_NBYTES, 4096 + slot * FRAME_NBYTES).reshape(
                HEIGHT, WIDTH, 3
            )
            for slot in range(SLOTS)
        ]
        for view in self._views:
            view.max()  # every page mapped before the first frame

    def put(self, index: int, pixels: Pixels | None) -> None:
        slot = index % SLOTS
        if pixels is not None:
            np.copyto(self._views[slot], pixels)
        STAMP.pack_into(self._map, 4096 + slot * FRAME_NBYTES, monotonic_ns(), index)
        self._map[0] = slot

    def get(self) -> tuple[int, int, int]:
        awake_ns = monotonic_ns()
        stamp_ns, index = STAMP.unpack_from(self._map, 4096 + self._map[0] * FRAME_NBYTES)
        return awake_ns, stamp_ns, index

    def close(self) -> None:
        self._views.clear()
        with suppress(BufferError):
            self._map.close()


class PlainEventfd:
    """The floor: os.eventfd and a mapped memfd, and not a line of library between them."""

    name = "eventfd floor"

    def __init__(self) -> None:
        self._memory = os.memfd_create("bench", os.MFD_CLOEXEC)
        os.ftruncate(self._memory, 4096 + SLOTS * FRAME_NBYTES)
        self._wake = os.eventfd(0, os.EFD_CLOEXEC)
        self._ring: _Ring | None = None

    def open_writer(self, socket: str) -> None:
        self._ring = _Ring(self._memory)
        self._put = self._ring.put

    def open_reader(self, socket: str) -> None:
        self._ring = _Ring(self._memory)
        self._get = self._ring.get

    def send(self, index: int, pixels: Pixels | None) -> None:
        self._put(index, pixels)
        os.eventfd_write(self._wake, 1)

    def receive(self) -> tuple[int, int, int]:
        os.eventfd_read(self._wake)
        return self._get()

    def close(self) -> None:
        if self._ring is not None:
            self._ring.close()
        for fd in (self._memory, self._wake):
            with suppress(OSError):
                os.close(fd)


class PosixIpc:
    """A peer: posix_ipc, shared memory by name and a semaphore."""

    name = "posix_ipc shm + semaphore"

    def __init__(self) -> None:
        memory = posix_ipc.SharedMemory(
            None, posix_ipc.O_CREX, size=4096 + SLOTS * FRAME_NBYTES, mode=0o600
        )
        memory.unlink()
        self._fd = memory.fd
        self._semaphore = posix_ipc.Semaphore(None, posix_ipc.O_CREX, mode=0o600)
        self._semaphore.unlink()
        self._ring: _Ring | None = None

    def open_writer(self, socket: str) -> None:
        self._ring = _Ring(self._fd)
        self._put = self._ring.put

    def open_reader(self, socket: str) -> None:
        self._ring = _Ring(self._fd)
        self._get = self._ring.get

    def send(self, index: int, pixels: Pixels | None) -> None:
        self._put(index, pixels)
        self._semaphore.release()

    def receive(self) -> tuple[int, int, int]:
        self._semaphore.acquire()
        return self._get()

    def close(self) -> None:
        if self._ring is not None:
            self._ring.close()
        with suppress(OSError):
            os.close(self._fd)


class SharedMemoryPipe:
    """A peer: multiprocessing.shared_memory, with a Pipe that says which slot is filled."""

    name = "shared_memory + Pipe"

    def __init__(self) -> None:
        self._memory = SharedMemory(create=True, size=SLOTS * FRAME_NBYTES)
        assert self._memory.buf is not None
        self._buffer = self._memory.buf
        self._owner = os.getpid()
        self._receiving, self._sending = mp.Pipe(duplex=False)
        self._views: list[Pixels] = []

    def open_writer(self, socket: str) -> None:
        self._open()

    def open_reader(self, socket: str) -> None:
        self._open()

    def _open(self) -> None:
        for slot in range(SLOTS):
            view: Pixels = np.frombuffer(
                self._buffer, np.uint8, FRAME_NBYTES, slot * FRAME_NBYTES
            ).reshape(HEIGHT, WIDTH, 3)
            view.max()
            self._views.append(view)

    def send(self, index: int, pixels: Pixels | None) -> None:
        slot = index % SLOTS
        if pixels is not None:
            np.copyto(self._views[slot], pixels)
        STAMP.pack_into(self._buffer, slot * FRAME_NBYTES, monotonic_ns(), index)
        self._sending.send(slot)

    def receive(self) -> tuple[int, int, int]:
        slot = self._receiving.recv()
        awake_ns = monotonic_ns()
        stamp_ns, index = STAMP.unpack_from(self._buffer, slot * FRAME_NBYTES)
        return awake_ns, stamp_ns, index

    def close(self) -> None:
        self._views.clear()
        self._receiving.close()
        self._sending.close()
        with suppress(BufferError):
            self._memory.close()
        if os.getpid() == self._owner:
            with suppress(FileNotFoundError):
                self._memory.unlink()


TRANSPORTS: tuple[Callable[[], Transport], ...] = (
    PlainEventfd,
    McpdStream,
    PosixIpc,
    SharedMemoryPipe,
)
"""The floor first, then ours, then those that are installed beside it."""
