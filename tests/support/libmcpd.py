"""libmcpd as a user has it: installed from a fresh copy of its sources, called through ctypes."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from ctypes import (
    POINTER,
    byref,
    c_char,
    c_char_p,
    c_float,
    c_int,
    c_int32,
    c_int64,
    c_uint8,
    c_uint32,
    c_uint64,
    c_void_p,
)
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_NS = 20_000_000_000
POLICIES = {"latest": 1, "fifo": 2, "lossless": 3}
FORMATS = {"gray8": 5, "i420": 7, "rgb24": 1, "jpeg": 64}


class McpdErrorStruct(ctypes.Structure):
    """struct mcpd_error."""

    _fields_ = (
        ("number", c_int32),
        ("code", c_char * 28),
        ("message", c_char * 480),
        ("hint", c_char * 256),
    )


class FrameStruct(ctypes.Structure):
    """struct mcpd_frame."""

    _fields_ = (
        *((name, c_uint32) for name in ("kind", "format", "width", "height")),
        *((name, c_uint32) for name in ("rotation", "matrix", "range", "nplanes")),
        *((name, c_uint64 * 4) for name in ("offset", "stride", "rows", "row_nbytes")),
        ("nbytes", c_uint64),
    )


class TensorStruct(ctypes.Structure):
    """struct mcpd_tensor_view."""

    _fields_ = (
        ("name", c_char * 32),
        ("dtype", c_uint32),
        ("ndim", c_uint32),
        ("shape", c_uint64 * 8),
        ("strides", c_int64 * 8),
        ("offset", c_uint64),
        ("nbytes", c_uint64),
        ("scale", c_float),
        ("zero_point", c_int32),
    )


class StreamOptions(ctypes.Structure):
    """struct mcpd_stream_options."""

    _fields_ = (
        ("frame", FrameStruct),
        ("tensors", POINTER(TensorStruct)),
        *((name, c_uint32) for name in ("ntensors", "slots", "holds", "history")),
        ("slot_nbytes", c_uint64),
        ("posix", c_uint32),
        ("reserved", c_uint32 * 15),
    )


class ReaderOptions(ctypes.Structure):
    """struct mcpd_reader_options."""

    _fields_ = (
        *((name, c_uint32) for name in ("policy", "max_pins", "depth", "follow")),
        *((name, c_uint32) for name in ("every_n", "skip_expired")),  # struct mcpd_thinning
        ("interval_ns", c_int64),
        ("group", c_char_p),
        ("reserved", c_uint32 * 14),
    )


class Meta(ctypes.Structure):
    """struct mcpd_meta."""

    _fields_ = (
        *((name, c_uint64) for name in ("generation", "seq", "nbytes")),
        *((name, c_int64) for name in ("pts_ns", "capture_ns", "publish_ns", "deadline_ns")),
        ("trace_id", c_uint8 * 16),
        *((name, c_uint64) for name in ("source_seq", "source_stream")),
        *((name, c_int64) for name in ("source_publish_ns", "awake_ns", "finish_ns")),
        *((name, c_uint32) for name in ("model_version", "flags", "status")),
        ("device_event", c_int32),
    )


class CError(Exception):
    """What a call of libmcpd failed with."""

    def __init__(self, number: int, error: McpdErrorStruct) -> None:
        self.number = number
        self.code = error.code.decode()
        self.hint = error.hint.decode()
        super().__init__(f"{number} {self.code}: {error.message.decode()}")


class LibMcpd:
    """libmcpd.so, loaded as any FFI would; the functions are its attributes.

    Args:
        path: Of the shared library.
    """

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        for name in ("stream_writer", "stream_reader", "writer_slot", "reader_slot"):
            self[name].restype = c_void_p
        for name in ("stream_end", "attach", "create_stream", "lost", "connect", "connect_fd"):
            self[name].restype = c_int
        self["writer_publish"].restype = c_int64
        self["writer_acquire"].argtypes = (c_void_p, c_int64)
        self["reader_next"].argtypes = (c_void_p, c_int64, c_void_p)
        self["version"].restype = c_char_p
        self["session"].restype = c_uint64
        for name in ("close", "stream_close", "stream_writer", "stream_reader", "stream_ended"):
            self[name].argtypes = (c_void_p,)
        self["session"].argtypes = self["daemon_pid"].argtypes = (c_void_p,)
        self["stream_nreaders"].argtypes = (c_void_p,)

    def __getitem__(self, name: str) -> Any:
        return getattr(self._library, f"mcpd_{name}")

    def connect(
        self, socket: str | int, *, name: str = "ffi", timeout_ns: int = PATIENCE_NS
    ) -> c_void_p:
        """A client: to a path, or over a descriptor that is taken over. Raises CError."""
        client, error = c_void_p(), McpdErrorStruct()
        call = self["connect_fd"] if isinstance(socket, int) else self["connect"]
        given = c_int(socket) if isinstance(socket, int) else socket.encode()
        self.check(
            call(given, name.encode(), c_int64(timeout_ns), byref(client), byref(error)), error
        )
        return client

    def create_stream(self, client: c_void_p, name: str, options: StreamOptions) -> c_void_p:
        """A writer's end. Raises CError."""
        stream, error = c_void_p(), McpdErrorStruct()
        call = self["create_stream"]
        self.check(call(client, name.encode(), byref(options), byref(stream), byref(error)), error)
        return stream

    def attach(
        self, client: c_void_p, name: str, policy: str = "latest", **fields: Any
    ) -> c_void_p:
        """A reader's end. Raises CError."""
        stream, error = c_void_p(), McpdErrorStruct()
        options = ReaderOptions(policy=POLICIES[policy], **fields)
        call = self["attach"]
        self.check(call(client, name.encode(), byref(options), byref(stream), byref(error)), error)
        return stream

    def publish(self, stream: c_void_p, data: bytes, pts_ns: int = 0) -> int:
        """Publishes bytes from the start of a slot, described as the stream's; the number."""
        writer = c_void_p(self["stream_writer"](stream))
        slot = self["writer_acquire"](writer, PATIENCE_NS)
        assert slot >= 0, os.strerror(-slot)
        assert self["stream_describe"](stream, c_uint32(slot)) == 0
        ctypes.memmove(self["writer_slot"](writer, c_uint32(slot)), data, len(data))
        meta = Meta()
        self["meta_init"](byref(meta))
        meta.nbytes, meta.pts_ns = len(data), pts_ns
        seq: int = self["writer_publish"](writer, c_uint32(slot), byref(meta), c_int(0))
        assert seq > 0, os.strerror(-seq)
        return seq

    def next(self, stream: c_void_p, timeout_ns: int = PATIENCE_NS) -> tuple[int, Meta]:
        """The pin of the next frame, or a negative errno, and its metadata."""
        meta = Meta()
        reader = c_void_p(self["stream_reader"](stream))
        pin: int = self["reader_next"](reader, timeout_ns, byref(meta))
        return pin, meta

    def unpin(self, stream: c_void_p, pin: int) -> None:
        """Lets go of a frame."""
        reader = c_void_p(self["stream_reader"](stream))
        assert self["reader_unpin"](reader, c_uint32(pin)) == 0

    def bytes_at(self, stream: c_void_p, pin: int, offset: int, nbytes: int) -> bytes:
        """Bytes of a pinned slot."""
        reader = c_void_p(self["stream_reader"](stream))
        return ctypes.string_at(self["reader_slot"](reader, c_uint32(pin)) + offset, nbytes)

    def frame(self, stream: c_void_p, pin: int) -> FrameStruct:
        """The image in a pinned slot."""
        frame = FrameStruct()
        status = self["pinned_frame"](stream, c_uint32(pin), byref(frame))
        assert status == 0, os.strerror(-status)
        return frame

    @staticmethod
    def check(result: int, error: McpdErrorStruct) -> None:
        """CError if a call failed."""
        if result < 0:
            raise CError(result, error)


def image_options(format: str, width: int, height: int, **fields: int) -> StreamOptions:
    """Options of a stream of images."""
    options = StreamOptions(**fields)
    options.frame.format = FORMATS[format]
    options.frame.width, options.frame.height = width, height
    options.frame.matrix = options.frame.range = 1
    return options


def copy_sources(folder: Path) -> Path:
    """The sources as a fresh clone has them, without anything that was built."""
    ignored = shutil.ignore_patterns("build", "*.so", "*.o", "__pycache__")
    shutil.copytree(ROOT / "native", folder / "native", ignore=ignored)
    shutil.copy2(ROOT / "pyproject.toml", folder)
    return folder / "native"


def make(native: Path, *arguments: str) -> None:
    """Runs make in a copy of the sources; AssertionError with its output when it fails."""
    command = ["make", "-s", "-j2", "-C", str(native), *arguments]
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def pkg_config(prefix: Path, *arguments: str) -> list[str]:
    """What pkg-config says of packages with the prefix before the system's."""
    env = {**os.environ, "PKG_CONFIG_PATH": str(prefix / "lib/pkgconfig")}
    command = ["pkg-config", *arguments]
    return subprocess.run(
        command, env=env, check=True, capture_output=True, text=True
    ).stdout.split()


def compile_program(prefix: Path, binary: Path, *arguments: str, compiler: str = "gcc") -> Path:
    """Compiles and links against an installed libmcpd alone, as pkg-config says."""
    flags = pkg_config(prefix, "--cflags", "--libs", "mcpd")
    rpath = f"-Wl,-rpath,{prefix / 'lib'}"
    command = [compiler, "-Wall", "-Wextra", "-Werror", *arguments, *flags, rpath]
    done = subprocess.run(
        [*command, "-o", str(binary)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr}"
    return binary
