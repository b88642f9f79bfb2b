"""What a stream may be: its name, its geometry, and whether the machine has the memory for it.

Everything is decided before anything is allocated, in numbers that cannot overflow, so that too
much is an error reply and never a SIGBUS, a full /dev/shm or a killed process.
"""

from __future__ import annotations

import re
from pathlib import Path

from mcpd.native import _core
from mcpd.shm import formats
from mcpd.shm.errors import InvalidRequest, LimitExceeded, OutOfMemory
from mcpd.shm.limits import size
from mcpd.shm.messages import StreamSpec

MIN_SLOTS = 2
PAGE_NBYTES = 4096
HEADROOM_NBYTES = 64 << 20
"""Left free on the machine, so that the last stream does not starve the programs around it."""

KINDS = ("frames", "tensors", "requests", "results")
MEMORIES = ("memfd", "posix", "foreign")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_RESULTS_NAME = re.compile(r"~?[A-Za-z0-9][A-Za-z0-9._~@-]{0,190}")
_REQUESTS_NAME = re.compile(r"~[0-9]+-[0-9]+")


class MemoryLedger:
    """Bytes that mcpd has handed out or is about to, against what the machine allows.

    Args:
        limit_nbytes: The configured total of all streams together; 0: only the machine's limits.
        root: Where /proc and /sys are; for tests.
    """

    def __init__(self, limit_nbytes: int = 0, root: Path = Path("/")) -> None:
        self.limit_nbytes = limit_nbytes
        self.used_nbytes = 0
        self._pending_nbytes = 0
        self._root = root

    def admit(self, nbytes: int, what: str) -> None:
        """Counts nbytes as promised; `settle` or `release` follows.

        Raises:
            LimitExceeded: The configured total would be exceeded.
            OutOfMemory: The machine, or a cgroup around the daemon, has not that much left.
        """
        if self.limit_nbytes and self.used_nbytes + nbytes > self.limit_nbytes:
            raise LimitExceeded(
                f"{what} asks for {size(nbytes)}; {size(self.used_nbytes)} of the configured "
                f"{size(self.limit_nbytes)} are used",
                "Use fewer or smaller slots, close a stream, or raise --memory-limit",
            )
        for limit, available in available_memory(self._root):
            allowed = max(0, available - HEADROOM_NBYTES - self._pending_nbytes)
            if nbytes > allowed:
                raise OutOfMemory(
                    f"{what} asks for {size(nbytes)}; {size(allowed)} are allowed by {limit}, "
                    f"and mcpd uses {size(self.used_nbytes)}",
                    "Use fewer or smaller slots, or close a stream",
                )
        self.used_nbytes += nbytes
        self._pending_nbytes += nbytes

    def settle(self, nbytes: int) -> None:
        """The promised memory is reserved now, so the machine's own numbers show it."""
        self._pending_nbytes -= nbytes

    def release(self, nbytes: int) -> None:
        """Settled memory is free again."""
        self.used_nbytes -= nbytes


def available_memory(root: Path = Path("/")) -> list[tuple[str, int]]:
    """What bounds the daemon's memory now: (name of the limit, bytes still available).

    The machine's MemAvailable, then memory.max of the daemon's cgroup and each ancestor (cgroup
    v2), or memory.limit_in_bytes (v1). Cached file pages that the kernel can drop count as free.
    """
    found = []
    for line in (root / "proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            found.append(("MemAvailable", int(line.split()[1]) * 1024))
    for line in (root / "proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            mount, names = root / "sys/fs/cgroup", ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            mount = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        folder = mount / path.strip("/")
        for group in (folder, *folder.parents):
            if not group.is_relative_to(mount):
                break
            left = _cgroup_left(group, *names)
            if left is not None:
                found.append((str(group / names[0]), left))
    return found


def check_name(name: str, kind: str, *, worker: bool) -> None:
    """InvalidRequest unless a session may give this name to a stream of this kind."""
    if kind == "results":
        pattern, rule = _RESULTS_NAME, "<stream>@<model>"
        if not worker:
            raise InvalidRequest(
                f"stream {name!r}: only a worker makes streams of kind 'results'",
                "Use kind 'frames' or 'tensors'",
            )
    elif kind == "requests":
        pattern, rule = _REQUESTS_NAME, "'~<session>-<number>'"
    else:
        pattern = _NAME
        rule = "1 to 63 letters, digits, '.', '_' or '-', the first a letter or digit"
    if not pattern.fullmatch(name):
        raise InvalidRequest(f"stream name {name[:80]!r} is not valid", f"A name is {rule}")


def check_spec(name: str, spec: StreamSpec) -> int:
    """The slot size in whole pages; InvalidRequest or LimitExceeded with the value and limit."""
    if spec.kind not in KINDS:
        raise InvalidRequest(f"stream {name!r}: kind {spec.kind!r} is not one of {KINDS}")
    if spec.memory not in MEMORIES:
        raise InvalidRequest(f"stream {name!r}: memory {spec.memory!r} is not one of {MEMORIES}")
    _within(name, "slots", spec.slots, MIN_SLOTS, _core.MAX_SLOTS)
    _within(name, "slot_nbytes", spec.slot_nbytes, 1, formats.MAX_NBYTES)
    _within(name, "history", spec.history, 1, _core.MAX_SLOTS)
    _within(name, "holds", spec.holds, 1, _core.MAX_SLOTS)
    if spec.format:
        _check_frame(name, spec)
    check_room(name, spec, pins=1)
    return (spec.slot_nbytes + PAGE_NBYTES - 1) // PAGE_NBYTES * PAGE_NBYTES


def check_room(name: str, spec: StreamSpec, pins: int, depth: int = 0) -> None:
    """LimitExceeded unless the slots cover what is kept, the writer's holds, these pins and one.

    Args:
        depth: Of the fifo reader or group that has the most kept.
    """
    needed = max(spec.history, depth) + spec.holds + pins + 1
    if spec.slots < needed:
        raise LimitExceeded(
            f"stream {name!r} has {spec.slots} slots and would need {needed}: kept "
            f"{max(spec.history, depth)} (history {spec.history}, fifo depth {depth}), held by the "
            f"writer {spec.holds}, pinned by readers {pins}, free 1",
            f"Create the stream with slots={needed} or more, or let readers pin fewer frames",
        )


def _check_frame(name: str, spec: StreamSpec) -> None:
    formats.check_frame(spec.format, spec.width, spec.height)
    if spec.format in formats.ENCODED:
        return
    planes = formats.plane_shapes(spec.format, spec.width, spec.height)
    needed = sum(shape[0] * row_nbytes for shape, row_nbytes in planes)
    if spec.slot_nbytes < needed:
        raise InvalidRequest(
            f"stream {name!r}: a {spec.width}x{spec.height} {spec.format} frame has {needed} "
            f"bytes, slot_nbytes is {spec.slot_nbytes}",
            f"Create the stream with slot_nbytes={needed} or more.",
        )


def _within(name: str, what: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise InvalidRequest(f"stream {name!r}: {what} is {value}; it must be {low} to {high}")


def _cgroup_left(group: Path, limit_name: str, used_name: str) -> int | None:
    try:
        limit = (group / limit_name).read_text().strip()
        used = int((group / used_name).read_text())
        statistics = (group / "memory.stat").read_text().split()
    except OSError:
        return None  # the root group has no limit, and a group may be hidden by a namespace
    if limit == "max":
        return None
    counts = dict(zip(statistics[::2], statistics[1::2], strict=False))
    reclaimable = int(counts.get("total_inactive_file", counts.get("inactive_file", "0")))
    return int(limit) - used + reclaimable
