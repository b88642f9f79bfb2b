"""What a failure of the system means to who asked: which limit it is, and what raises it."""

from __future__ import annotations

import errno
import resource

from mcpd.shm.errors import LimitExceeded, McpdError, OutOfMemory
from mcpd.shm.limits import size


def no_descriptors(error: OSError) -> LimitExceeded:
    """EMFILE or ENFILE."""
    return LimitExceeded(
        f"the daemon has no file descriptors left ({error.strerror})",
        "Close streams or readers, or raise its limit of open files (ulimit -n, LimitNOFILE=).",
    )


def no_memory(what: str) -> OutOfMemory:
    """ENOMEM, or a thread that does not start: the daemon's own memory, not a stream's."""
    names = ("AS", "DATA", "NPROC")
    bounds = ", ".join(f"RLIMIT_{name} {_bound(name)}" for name in names)
    return OutOfMemory(
        f"the daemon {what}; its limits: {bounds}",
        "Raise them (ulimit -v, -d, -u), or vm.max_map_count if it maps very many streams.",
    )


def translated(error: BaseException) -> McpdError | None:
    """The error to tell; None if it is nothing that the system's limits explain."""
    if isinstance(error, McpdError):
        return error
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return no_descriptors(error)
    if isinstance(error, MemoryError) or (
        isinstance(error, OSError) and error.errno == errno.ENOMEM
    ):
        return no_memory("cannot map more memory")
    if isinstance(error, RuntimeError) and "start new thread" in str(error):
        return no_memory("cannot start a thread")
    return None


def _bound(name: str) -> str:
    soft = resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[0]
    if soft == resource.RLIM_INFINITY:
        return "unlimited"
    return str(soft) if name == "NPROC" else size(soft)
