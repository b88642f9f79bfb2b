"""Readings of what processes use, one after the other: the series that growth is told from."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from mcpd.shm.leaks.processes import PROC
from mcpd.shm.leaks.smaps import sum_kinds

WALK_SHARE = 0.01
"""Of one core, at most, goes into each walk through a process's page tables: a large one is looked
into less often, because meanwhile it waits if it maps memory."""


class Figure(NamedTuple):
    """One thing that is read of a process.

    Attributes:
        judged: Whether its growth is a leak: the others rise and fall with what others do, or with
            files that are looked at. "private" is anonymous memory, in RAM or swapped out.
        unit: The smallest rise that means anything.
        limit_per_h: What rises less than this surely does not leak.
    """

    text: str
    unit: float
    limit_per_h: float
    judged: bool = True

    @property
    def is_bytes(self) -> bool:
        """Whether it is memory."""
        return self.unit > 1


_MEMORY_UNIT = float(64 << 10)
MEMORY_LIMIT = 4e6
FIGURES: dict[str, Figure] = {
    "private": Figure("private memory", _MEMORY_UNIT, MEMORY_LIMIT),
    "shared": Figure("shared memory mapped", _MEMORY_UNIT, MEMORY_LIMIT),
    "lent": Figure("memory handed out", _MEMORY_UNIT, MEMORY_LIMIT),
    "gpu": Figure("GPU memory", float(1 << 20), MEMORY_LIMIT),
    "fds": Figure("descriptors", 1.0, 6.0),
    "mappings": Figure("mappings", 1.0, 12.0),
    "threads": Figure("threads", 1.0, 6.0),
    "leases": Figure("leases", 1.0, 6.0),
    "shm_used": Figure("used in /dev/shm", _MEMORY_UNIT, MEMORY_LIMIT),
    "rss": Figure("RSS", _MEMORY_UNIT, MEMORY_LIMIT, judged=False),
    "pss": Figure("PSS", _MEMORY_UNIT, MEMORY_LIMIT, judged=False),
    "private_dirty": Figure("private dirty", _MEMORY_UNIT, MEMORY_LIMIT, judged=False),
}
"""By name, in the order shown."""


@dataclass
class Series:
    """Readings of one process, or of the machine (pid 0).

    Attributes:
        label: Who it is, as `worker yolo/1 (4123)`.
        start_ticks: When it started, which tells it from another that is given its number.
        times_s: Of each reading, since the first of all.
        values: By figure; None where that could not be read.
        kinds: Kinds of memory, read less often: (time, bytes by kind).
        ended_s: When it was found gone.
        notes: What could not be read, and why.
    """

    label: str
    pid: int
    start_ticks: int = 0
    times_s: list[float] = field(default_factory=list)
    values: dict[str, list[float | None]] = field(default_factory=dict)
    kinds: list[tuple[float, dict[str, int]]] = field(default_factory=list)
    ended_s: float | None = None
    notes: list[str] = field(default_factory=list)

    def add(self, time_s: float, figures: dict[str, float]) -> None:
        """One reading; a figure that is not in it could not be read."""
        for name in figures:
            self.values.setdefault(name, [None] * len(self.times_s))
        self.times_s.append(time_s)
        for name, values in self.values.items():
            values.append(figures.get(name))

    def known(self, name: str, since_s: float = 0.0) -> tuple[list[float], list[float]]:
        """Times and values of one figure, without the gaps."""
        pairs = [
            (time, value)
            for time, value in zip(self.times_s, self.values.get(name, ()), strict=False)
            if value is not None and time >= since_s
        ]
        return [time for time, _ in pairs], [value for _, value in pairs]

    def note(self, text: str) -> None:
        """Notes something once."""
        if text not in self.notes:
            self.notes.append(text)


class Sampler:
    """Reads processes, and knows what that costs.

    Attributes:
        spent_s: Processor time of this process that the readings took.
        readings: How many there were.
    """

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._due_s: dict[tuple[int, str], float] = {}
        self.spent_s = 0.0
        self.readings = 0

    def read(self, series: Series, time_s: float, more: dict[str, float]) -> bool:
        """One reading of a process; False if it is gone.

        Args:
            more: Figures that others know, as leases.
        """
        began_s = time.thread_time()
        try:
            if start_ticks(series.pid, self._proc) != series.start_ticks:
                return False
            figures = self._figures(series)
            series.add(time_s, {**figures, **more})
            self._read_kinds(series, time_s)
        except (FileNotFoundError, ProcessLookupError):
            return False
        finally:
            self.spent_s += time.thread_time() - began_s
            self.readings += 1
        return True

    def _figures(self, series: Series) -> dict[str, float]:
        path = self._proc / str(series.pid)
        status = _fields((path / "status").read_bytes())
        figures: dict[str, float] = {
            "rss": status.get("VmRSS", 0),
            "shared": status.get("RssShmem", 0),
            "threads": status.get("Threads", 0),
        }
        try:
            rollup = self._walk(series.pid, "smaps_rollup")
            if rollup:
                fields = _fields(rollup)
                figures["pss"] = fields.get("Pss", 0)
                figures["private_dirty"] = fields.get("Private_Dirty", 0)
                figures["private"] = fields.get("Anonymous", 0) + fields.get("Swap", 0)
            figures["fds"] = len(os.listdir(path / "fd"))
            figures["mappings"] = (path / "maps").read_bytes().count(b"\n")
        except PermissionError:
            figures["private"] = status.get("RssAnon", 0) + status.get("VmSwap", 0)
            series.note("its PSS, mappings and kinds of memory are for root alone to read")
        return figures

    def _read_kinds(self, series: Series, time_s: float) -> None:
        try:
            smaps = self._walk(series.pid, "smaps")
        except PermissionError:
            return
        if smaps:
            series.kinds.append((time_s, sum_kinds(smaps)))

    def _walk(self, pid: int, name: str) -> bytes:
        """Reads a file that the kernel walks page tables for; b"" if it is too soon for that."""
        now_s = time.monotonic()
        if now_s < self._due_s.get((pid, name), 0.0):
            return b""
        began_s = time.thread_time()
        text = (self._proc / str(pid) / name).read_bytes()
        self._due_s[pid, name] = now_s + (time.thread_time() - began_s) / WALK_SHARE
        return text


def start_ticks(pid: int, proc: Path = PROC) -> int:
    """When a process started, in clock ticks since boot; 0 if it is gone or a zombie."""
    try:
        stat = (proc / str(pid) / "stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    fields = stat[stat.rindex(b")") + 2 :].split()
    return 0 if fields[0] in (b"Z", b"X") else int(fields[19])


def children_of(pids: set[int], proc: Path = PROC) -> set[int]:
    """All processes that descend from these."""
    parents: dict[int, int] = {}
    for name in os.listdir(proc):
        if name.isdigit():
            try:
                stat = (proc / name / "stat").read_bytes()
            except (FileNotFoundError, ProcessLookupError):
                continue
            parents[int(name)] = int(stat[stat.rindex(b")") + 2 :].split()[1])
    found: set[int] = set()
    waiting = set(pids)
    while waiting:
        waiting = {pid for pid, parent in parents.items() if parent in waiting} - found - pids
        found |= waiting
    return found


def shm_used_nbytes(directory: str = "/dev/shm") -> int:
    """What all programs together have in /dev/shm."""
    status = os.statvfs(directory)
    return (status.f_blocks - status.f_bfree) * status.f_frsize


def _fields(text: bytes) -> dict[str, int]:
    """`Name:  123 kB` in bytes, `Name: 123` as it is; other lines are left out."""
    found = {}
    for line in text.splitlines():
        key, _, rest = line.partition(b":")
        words = rest.split()
        if words and words[0].isdigit() and len(words) <= 2:
            found[key.decode()] = int(words[0]) * (1024 if words[-1] == b"kB" else 1)
    return found
