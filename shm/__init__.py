"""mcpd's client library: streams in shared memory, and models that run on them.

Its parts are loaded when they are used: importing this loads no numpy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcpd.shm.bundle import TensorSpec
    from mcpd.shm.client import Client, connect
    from mcpd.shm.errors import (
        AlreadyExists,
        DaemonUnavailable,
        Internal,
        InvalidRequest,
        LimitExceeded,
        McpdError,
        ModelFailed,
        NotFound,
        NotPermitted,
        OutOfMemory,
        ProtocolError,
        SegmentLost,
        StreamClosed,
        TimedOut,
        UnsupportedVersion,
        WorkerDied,
        WouldBlock,
    )
    from mcpd.shm.frame import NO_TIME, Frame
    from mcpd.shm.paths import default_models, default_socket
    from mcpd.shm.repeats import Repeats
    from mcpd.shm.requests import Pending, Requests
    from mcpd.shm.result import Detection, Result
    from mcpd.shm.results import Results
    from mcpd.shm.slot import Slot
    from mcpd.shm.stream import ReaderStream, WriterStream

__all__ = [
    "NO_TIME",
    "AlreadyExists",
    "Client",
    "DaemonUnavailable",
    "Detection",
    "Frame",
    "Internal",
    "InvalidRequest",
    "LimitExceeded",
    "McpdError",
    "ModelFailed",
    "NotFound",
    "NotPermitted",
    "OutOfMemory",
    "Pending",
    "ProtocolError",
    "ReaderStream",
    "Repeats",
    "Requests",
    "Result",
    "Results",
    "SegmentLost",
    "Slot",
    "StreamClosed",
    "TensorSpec",
    "TimedOut",
    "UnsupportedVersion",
    "WorkerDied",
    "WouldBlock",
    "WriterStream",
    "connect",
    "default_models",
    "default_socket",
]

_HOMES = {
    "NO_TIME": "frame",
    "Client": "client",
    "Detection": "result",
    "Frame": "frame",
    "Pending": "requests",
    "ReaderStream": "stream",
    "Repeats": "repeats",
    "Requests": "requests",
    "Result": "result",
    "Results": "results",
    "Slot": "slot",
    "TensorSpec": "bundle",
    "WriterStream": "stream",
    "connect": "client",
    "default_models": "paths",
    "default_socket": "paths",
}
"""Where each public name lives; those that are not here are errors."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES.get(name, 'errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
