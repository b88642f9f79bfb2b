"""Ways to move one 1080p frame from a Python process to another, all with the same interface.

The frame begins with a 16-byte stamp: when it was published, and its number. Everything that a
transport allocates, it allocates before the first frame. Here: the floor and ours; peers.py has the
others, native.py floor and ours in C.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from time import monotonic_ns
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

WIDTH, HEIGHT = 1920, 1080
FRAME_NBYTES = WIDTH * HEIGHT * 3
STAMP = struct.Struct("<qq")
SLOTS = 2
"""Of the ring that the plain transports write in turn: the fewest, which keeps the cache warm."""

Pixels = NDArray[np.uint8]


class Arrived(NamedTuple):
    """A frame that the reader has: when it had it, the writer's stamp, and the frame's number."""

    awake_ns: int
    stamp_ns: int
    number: int


class Transport:
    """One frame at a time from a writer process to a reader process.

    A reader that is late may miss a frame only where the writer pauses between frames. Made before
    the processes fork, so that they share what it made; opened in each of them after.
    """

    name: str

    def open_writer(self, socket: str) -> None:
        """Connects the writer; `socket` is the daemon's."""
        raise NotImplementedError

    def open_reader(self, socket: str) -> None:
        """Connects the reader, after the writer."""
        raise NotImplementedError

    def send(self, index: int, pixels: Pixels | None) -> None:
        """Takes a slot, copies `pixels` into it if given, stamps it and wakes the reader."""
        raise NotImplementedError

    def receive(self) -> Arrived:
        """Sleeps until a frame is there, and has it until `release`."""
        raise NotImplementedError

    def pixels(self) -> Pixels:
        """The bytes of the frame that the reader has."""
        raise NotImplementedError

    def release(self) -> None:
        """Gives the frame's slot back."""

    def close(self) -> None:
        """Lets go, in each process that opened it and in the one that made it. Idempotent."""
        raise NotImplementedError

    def write(self, frames: int, pixels: Pixels | None, pause_s: float) -> None:
        """Sends that many frames, with a pause before each."""
        for index in range(frames):
            if pause_s:
                time.sleep(pause_s)
            self.send(index, pixels)

    def read(self, frames: int, look: Callable[[Pixels], object] | None) -> list[int]:
        """Receives frames up to the number `frames - 1`, and has `look` read each.

        Returns:
            Nanoseconds from stamp to awake of each frame received.

        Raises:
            ValueError: A frame comes twice or out of order.
        """
        wakes_ns, index = [], -1
        while index < frames - 1:
            frame = self.receive()
            if frame.number <= index:
                raise ValueError(f"{self.name}: frame {frame.number} came after {index}")
            index = frame.number
            if look is not None:
                look(self.pixels())
            self.release()
            wakes_ns.append(frame.awake_ns - frame.stamp_ns)
        return wakes_ns


class McpdStream(Transport):
    """Ours: a stream of the daemon and one reader.

    Args:
        policy: Of the reader: `latest`, or `lossless` where the writer does not pause. That one
            has a depth of 1: like the rings', the writer fills a slot while the other is read.
    """

    name = "mcpd"

    def __init__(self, policy: str = "latest") -> None:
        self._policy = policy
        self._stack = ExitStack()
        self._stream: Any = None
        self._frame: Any = None

    def open_writer(self, socket: str) -> None:
        from mcpd.shm import connect

        client = self._stack.enter_context(connect(socket, name="bench-writer"))
        self._stream = self._stack.enter_context(
            client.create_stream(
                f"bench-{self._policy}",
                width=WIDTH,
                height=HEIGHT,
                format="rgb24",
                slots=4,
                holds=1,
            )
        )

    def open_reader(self, socket: str) -> None:
        from mcpd.shm import connect

        client = self._stack.enter_context(connect(socket, name="bench-reader"))
        self._stream = self._stack.enter_context(
            client.open_stream(
                f"bench-{self._policy}",
                policy=self._policy,
                depth=1 if self._policy == "lossless" else 0,
                max_pins=1,
            )
        )

    def send(self, index: int, pixels: Pixels | None) -> None:
        with self._stream.acquire() as slot:
            if pixels is not None:
                np.copyto(slot.planes[0], pixels)
            STAMP.pack_into(slot.buffer, 0, monotonic_ns(), index)

    def receive(self) -> Arrived:
        self._frame = frame = self._stream.next()
        awake_ns = monotonic_ns()
        return Arrived(awake_ns, *STAMP.unpack_from(frame.buffer))

    def pixels(self) -> Pixels:
        plane: Pixels = self._frame.planes[0]
        return plane

    def release(self) -> None:
        self._frame.close()

    def close(self) -> None:
        self._stack.close()


class Ring:
    """SLOTS frames in a mapping, written in turn; every page is mapped before the first frame."""

    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, SLOTS * FRAME_NBYTES)
        self.views = [
            np.frombuffer(self._map, np.uint8, FRAME_NBYTES, slot * FRAME_NBYTES).reshape(
                HEIGHT, WIDTH, 3
            )
            for slot in range(SLOTS)
        ]
        for view in self.views:
            view.max()

    def put(self, index: int, pixels: Pixels | None) -> None:
        """Fills and stamps the slot whose turn it is."""
        slot = index % SLOTS
        if pixels is not None:
            np.copyto(self.views[slot], pixels)
        STAMP.pack_into(self._map, slot * FRAME_NBYTES, monotonic_ns(), index)

    def get(self, index: int) -> Arrived:
        """The stamp of the slot whose turn it is."""
        awake_ns = monotonic_ns()
        return Arrived(awake_ns, *STAMP.unpack_from(self._map, index % SLOTS * FRAME_NBYTES))

    def close(self) -> None:
        """Unmaps."""
        self.views.clear()
        with suppress(BufferError):
            self._map.close()


class PlainEventfd(Transport):
    """The floor: os.eventfd and a mapped memfd, and not a line of library between them.

    Nobody tells the writer that a slot is free: it relies on its pauses.
    """

    name = "eventfd floor"

    def __init__(self) -> None:
        self._memory = os.memfd_create("bench", os.MFD_CLOEXEC)
        os.ftruncate(self._memory, SLOTS * FRAME_NBYTES)
        self.wake = os.eventfd(0, os.EFD_CLOEXEC)
        self.ring: Ring
        self._index, self._last = 0, -1

    def open_writer(self, socket: str) -> None:
        self.ring = Ring(self._memory)

    def open_reader(self, socket: str) -> None:
        self.ring = Ring(self._memory)

    def send(self, index: int, pixels: Pixels | None) -> None:
        self.ring.put(index, pixels)
        os.eventfd_write(self.wake, 1)

    def receive(self) -> Arrived:
        while True:
            self._index += os.eventfd_read(self.wake)
            frame = self.ring.get(self._index - 1)
            if frame.number > self._last:  # it was not read before it was its turn
                self._last = frame.number
                return frame

    def read(self, frames: int, look: Callable[[Pixels], object] | None) -> list[int]:
        self._index, self._last = 0, -1
        return super().read(frames, look)

    def close(self) -> None:
        if hasattr(self, "ring"):
            self.ring.close()
        for fd in (self._memory, self.wake):
            with suppress(OSError):
                os.close(fd)
