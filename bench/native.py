"""The floor and ours once more, with each frame handled in C (bench/c/wake.c, compiled here).

Ours is the stream of a real daemon, opened by the Python client; then C takes its handle and calls
the very functions that the client's extension module has.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

from bench.transports import FRAME_NBYTES, HEIGHT, SLOTS, WIDTH, Pixels, PlainEventfd, Transport
from mcpd.native import _core
from mcpd.shm import connect

_SOURCES = Path(__file__).resolve().parent
_INCLUDE = _SOURCES.parent / "native" / "include"


@cache
def library() -> ctypes.CDLL:
    """wake.c, compiled and loaded; what it calls of ours is the extension module's.

    Raises:
        RuntimeError: The compiler is missing, or found an error.
    """
    ctypes.CDLL(_core.__file__, mode=ctypes.RTLD_GLOBAL)
    with tempfile.TemporaryDirectory(prefix="mcpd-bench-") as folder:
        output = f"{folder}/wake.so"
        command = [
            *(os.environ.get("CC", "gcc"), "-std=c11", "-O3", "-Wall", "-Wextra", "-Werror"),
            *("-D_GNU_SOURCE", "-shared", "-fPIC", f"-I{_INCLUDE}"),
            *(str(_SOURCES / "c" / "wake.c"), "-o", output),
        ]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
        except FileNotFoundError:
            raise RuntimeError(f"the C compiler {command[0]} is missing") from None
        except subprocess.CalledProcessError as error:
            raise RuntimeError(f"{command[0]} failed:\n{error.stderr}") from None
        return ctypes.CDLL(output)


def handle(core: _core.Writer | _core.Reader) -> ctypes.c_void_p:
    """The C handle of an open end: the first thing behind its object's head."""
    return ctypes.c_void_p.from_address(id(core) + object.__basicsize__)


class _Native(Transport):
    """Moves frames in C; the loops of `send` and `receive` are not used."""

    def write(self, frames: int, pixels: Pixels | None, pause_s: float) -> None:
        source = None if pixels is None else pixels.ctypes.data_as(ctypes.c_void_p)
        between = ctypes.c_int64(round(pause_s * 1e9))
        self._check(self._write(source, ctypes.c_size_t(FRAME_NBYTES), frames, between))

    def read(self, frames: int, look: Callable[[Pixels], object] | None) -> list[int]:
        if look is not None:
            raise ValueError(f"{self.name}: the C reader does not look at pixels")
        wakes_ns = (ctypes.c_int64 * frames)()
        received = self._read(frames, wakes_ns)
        self._check(received)
        return wakes_ns[:received]

    def _write(self, *arguments: Any) -> int:
        raise NotImplementedError

    def _read(self, frames: int, wakes_ns: Any) -> int:
        raise NotImplementedError

    def _check(self, result: int) -> None:
        if result < 0:
            raise OSError(-result, f"{self.name}: {os.strerror(-result)}")


class NativeEventfd(_Native):
    """The floor in C: read and write of an eventfd, and a mapped memfd."""

    name = "eventfd floor, C"

    def __init__(self) -> None:
        self._library = library()
        self._plain = PlainEventfd()
        self._memory: Any = None

    def open_writer(self, socket: str) -> None:
        self._plain.open_writer(socket)
        self._memory = ctypes.c_void_p(self._plain.ring.views[0].ctypes.data)

    def open_reader(self, socket: str) -> None:
        self.open_writer(socket)

    def _write(self, *arguments: Any) -> int:
        wake = self._plain.wake
        return int(self._library.bench_floor_write(self._memory, SLOTS, wake, *arguments))

    def _read(self, frames: int, wakes_ns: Any) -> int:
        wake, nbytes = self._plain.wake, ctypes.c_size_t(FRAME_NBYTES)
        return int(
            self._library.bench_floor_read(self._memory, SLOTS, wake, nbytes, frames, wakes_ns)
        )

    def close(self) -> None:
        self._plain.close()


class NativeStream(_Native):
    """Ours in C."""

    name = "mcpd, C"

    def __init__(self) -> None:
        self._library = library()
        self._stack = ExitStack()
        self._stream: Any = None

    def open_writer(self, socket: str) -> None:
        client = self._stack.enter_context(connect(socket, name="bench-writer"))
        self._stream = self._stack.enter_context(
            client.create_stream(
                "bench-c", width=WIDTH, height=HEIGHT, format="rgb24", slots=4, holds=1
            )
        )

    def open_reader(self, socket: str) -> None:
        client = self._stack.enter_context(connect(socket, name="bench-reader"))
        self._stream = self._stack.enter_context(client.open_stream("bench-c", max_pins=1))

    def _write(self, *arguments: Any) -> int:
        return int(self._library.bench_stream_write(handle(self._stream._now.core), *arguments))

    def _read(self, frames: int, wakes_ns: Any) -> int:
        core = self._stream._moves.now.core
        return int(self._library.bench_stream_read(handle(core), frames, wakes_ns))

    def close(self) -> None:
        self._stack.close()
