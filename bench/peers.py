"""The transports that a program could use instead of ours, each as its documentation advises.

posix_ipc comes with mcpd, the others with the `bench` extra. A peer whose package is missing raises
ImportError when it is made; a benchmark reports it as missing.
"""

from __future__ import annotations

import ctypes
import importlib
import multiprocessing as mp
import os
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.shared_memory import SharedMemory
from time import monotonic_ns
from typing import Any

import numpy as np
import posix_ipc

from bench.transports import (
    FRAME_NBYTES,
    HEIGHT,
    SLOTS,
    STAMP,
    WIDTH,
    Arrived,
    Pixels,
    Ring,
    Transport,
)


class PosixIpc(Transport):
    """posix_ipc: a ring in shared memory, one semaphore of its free slots, one of its full ones."""

    name = "posix_ipc shm + semaphores"

    def __init__(self) -> None:
        memory = posix_ipc.SharedMemory(
            None, posix_ipc.O_CREX, size=SLOTS * FRAME_NBYTES, mode=0o600
        )
        memory.unlink()
        self._fd = memory.fd
        self._full = posix_ipc.Semaphore(None, posix_ipc.O_CREX, mode=0o600)
        self._full.unlink()
        self._free = posix_ipc.Semaphore(None, posix_ipc.O_CREX, 0o600, SLOTS)
        self._free.unlink()
        self._ring: Ring | None = None
        self._index = 0

    def open_writer(self, socket: str) -> None:
        self._ring = Ring(self._fd)

    def open_reader(self, socket: str) -> None:
        self._ring = Ring(self._fd)

    def send(self, index: int, pixels: Pixels | None) -> None:
        assert self._ring is not None
        self._free.acquire()
        self._ring.put(index, pixels)
        self._full.release()

    def receive(self) -> Arrived:
        assert self._ring is not None
        self._full.acquire()
        return self._ring.get(self._index)

    def pixels(self) -> Pixels:
        assert self._ring is not None
        return self._ring.views[self._index % SLOTS]

    def release(self) -> None:
        self._index += 1
        self._free.release()

    def read(self, frames: int, look: Callable[[Pixels], object] | None) -> list[int]:
        self._index = 0
        return super().read(frames, look)

    def close(self) -> None:
        if self._ring is not None:
            self._ring.close()
        with suppress(OSError):
            os.close(self._fd)


class SharedMemoryPipe(Transport):
    """multiprocessing.shared_memory, a Pipe that says which slot is full, one which is free."""

    name = "shared_memory + Pipe"

    def __init__(self) -> None:
        self._memory = SharedMemory(create=True, size=SLOTS * FRAME_NBYTES)
        assert self._memory.buf is not None
        self._buffer = self._memory.buf
        self._owner = os.getpid()
        self._full, self._tell_full = mp.Pipe(duplex=False)
        self._free, self._tell_free = mp.Pipe(duplex=False)
        self._views: list[Pixels] = []
        self._slot = 0

    def open_writer(self, socket: str) -> None:
        self._open()
        for slot in range(SLOTS):
            self._tell_free.send(slot)

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
        slot = self._free.recv()
        if pixels is not None:
            np.copyto(self._views[slot], pixels)
        STAMP.pack_into(self._buffer, slot * FRAME_NBYTES, monotonic_ns(), index)
        self._tell_full.send(slot)

    def receive(self) -> Arrived:
        self._slot = self._full.recv()
        awake_ns = monotonic_ns()
        return Arrived(awake_ns, *STAMP.unpack_from(self._buffer, self._slot * FRAME_NBYTES))

    def pixels(self) -> Pixels:
        return self._views[self._slot]

    def release(self) -> None:
        self._tell_free.send(self._slot)

    def close(self) -> None:
        self._views.clear()
        for end in (self._full, self._tell_full, self._free, self._tell_free):
            end.close()
        with suppress(BufferError):
            self._memory.close()
        if os.getpid() == self._owner:
            with suppress(FileNotFoundError):
                self._memory.unlink()


class Iceoryx2(Transport):
    """iceoryx2: a sample is loaned, written in place and sent, and a notifier wakes a listener.

    The subscriber's buffer holds as many samples as the plain rings, and a full one makes the
    publisher wait. A sample is at the same address whenever it comes back: its views are kept.
    """

    name = "iceoryx2"

    def __init__(self) -> None:
        self._iox2: Any = importlib.import_module("iceoryx2")
        self._service_name = f"mcpd-bench-{os.getpid()}-{id(self)}"
        self._views: dict[int, tuple[Any, Pixels]] = {}
        self._ports: list[Any] = []
        self._sample: Any = None

    def _services(self) -> tuple[Any, Any]:
        iox2 = self._iox2
        iox2.set_log_level(iox2.LogLevel.Error)
        builder = iox2.NodeBuilder.new().signal_handling_mode(iox2.SignalHandlingMode.Disabled)
        self._node = builder.create(iox2.ServiceType.Ipc)
        name = iox2.ServiceName.new(self._service_name)
        frames = (
            self._node.service_builder(name)
            .publish_subscribe(iox2.Slice[ctypes.c_uint8])
            .payload_alignment(iox2.Alignment.new(64))
            .max_publishers(1)
            .max_subscribers(1)
            .history_size(0)
            .subscriber_max_buffer_size(SLOTS)
            .subscriber_max_borrowed_samples(1)
            .enable_safe_overflow(False)
            .open_or_create()
        )
        return frames, self._node.service_builder(name).event().open_or_create()

    def open_writer(self, socket: str) -> None:
        frames, events = self._services()
        self._publisher = (
            frames.publisher_builder()
            .initial_max_slice_len(FRAME_NBYTES)
            .max_loaned_samples(1)
            .backpressure_strategy(self._iox2.BackpressureStrategy.RetryUntilDelivered)
            .create()
        )
        self._notifier = events.notifier_builder().create()
        self._ports = [self._notifier, self._publisher]

    def open_reader(self, socket: str) -> None:
        frames, events = self._services()
        self._subscriber = frames.subscriber_builder().create()
        self._listener = events.listener_builder().create()
        self._ports = [self._listener, self._subscriber]

    def _at(self, address: int) -> tuple[Any, Pixels]:
        views = self._views.get(address)
        if views is None:
            whole = (ctypes.c_uint8 * FRAME_NBYTES).from_address(address)
            pixels = np.ctypeslib.as_array(whole).reshape(HEIGHT, WIDTH, 3)
            views = self._views[address] = (whole, pixels)
        return views

    def send(self, index: int, pixels: Pixels | None) -> None:
        sample = self._publisher.loan_slice_uninit(FRAME_NBYTES)
        whole, view = self._at(sample.payload_ptr)
        if pixels is not None:
            np.copyto(view, pixels)
        STAMP.pack_into(whole, 0, monotonic_ns(), index)
        sample.assume_init().send()
        self._notifier.notify()

    def receive(self) -> Arrived:
        while (sample := self._subscriber.receive()) is None:
            self._listener.blocking_wait()
        awake_ns = monotonic_ns()
        self._sample = sample
        return Arrived(awake_ns, *STAMP.unpack_from(self._at(sample.payload_ptr)[0]))

    def pixels(self) -> Pixels:
        return self._at(self._sample.payload_ptr)[1]

    def release(self) -> None:
        self._sample.delete()

    def close(self) -> None:
        for port in self._ports:
            port.delete()
        self._ports = []
        self._node = None


class PyzmqIpc(Transport):
    """pyzmq: a PUSH and a PULL socket over ipc://, neither side copying in Python.

    The writer waits until ZeroMQ has let go of the buffer that it fills next.
    """

    name = "pyzmq ipc, no copy"

    def __init__(self) -> None:
        self._zmq: Any = importlib.import_module("zmq")
        self._address = f"ipc://@mcpd-bench-{os.getpid()}-{id(self)}"
        self._context: Any = None
        self._socket: Any = None
        self._message: Any = None
        self._buffers: list[Pixels] = []
        self._trackers: list[Any] = [None] * SLOTS

    def open_writer(self, socket: str) -> None:
        self._open(self._zmq.PUSH).bind(self._address)
        self._buffers = [np.zeros((HEIGHT, WIDTH, 3), np.uint8) for _ in range(SLOTS)]

    def open_reader(self, socket: str) -> None:
        self._open(self._zmq.PULL).connect(self._address)

    def _open(self, kind: int) -> Any:
        self._context = self._zmq.Context()
        self._socket = self._context.socket(kind)
        self._socket.set_hwm(SLOTS)
        self._socket.setsockopt(self._zmq.LINGER, 0)
        return self._socket

    def send(self, index: int, pixels: Pixels | None) -> None:
        slot = index % SLOTS
        if self._trackers[slot] is not None:
            self._trackers[slot].wait()
        buffer = self._buffers[slot]
        if pixels is not None:
            np.copyto(buffer, pixels)
        STAMP.pack_into(buffer.data.cast("B"), 0, monotonic_ns(), index)
        self._trackers[slot] = self._socket.send(buffer, copy=False, track=True)

    def receive(self) -> Arrived:
        self._message = self._socket.recv(copy=False)
        awake_ns = monotonic_ns()
        return Arrived(awake_ns, *STAMP.unpack_from(self._message.buffer))

    def pixels(self) -> Pixels:
        return np.frombuffer(self._message.buffer, np.uint8).reshape(HEIGHT, WIDTH, 3)

    def release(self) -> None:
        self._message = None

    def close(self) -> None:
        self._message = None
        if self._socket is not None:
            self._socket.close()
            self._context.term()
            self._socket = None


PEERS: tuple[type[Transport], ...] = (Iceoryx2, PosixIpc, SharedMemoryPipe, PyzmqIpc)
