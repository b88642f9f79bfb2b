"""Whether the process that made something is known, and whether it lives.

A number alone names no process: it is given again, and each pid namespace counts for itself. A
maker is called dead only if that cannot be wrong by either.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mcpd.shm.leaks.processes import Process
from mcpd.shm.leaks.record import Made

ALIVE = "alive"
DEAD = "dead"
UNSURE = "unsure"
_FIRST_PID_NS = "pid:[4026531836]"  # PROC_PID_INIT_INO of include/linux/proc_ns.h
_CLOCK_MARGIN_S = 60.0


@dataclass(frozen=True)
class Creator:
    """Who made something.

    Attributes:
        state: ALIVE, DEAD or UNSURE.
        reason: Of that state, in a few words.
        settle: Of UNSURE: what would tell.
    """

    pid: int
    name: str
    state: str
    reason: str
    settle: str = ""


class Living:
    """The processes there are, asked by what a name or a record says of one.

    Args:
        alone: Nothing outside this pid namespace shares what is judged; believed.
        all_seen: Whether every process is listed, its maps or not.
    """

    def __init__(
        self, processes: Sequence[Process], *, alone: bool = False, all_seen: bool | None = None
    ) -> None:
        self.processes = processes
        self.namespace = os.readlink("/proc/self/ns/pid")
        self.first = self.namespace == _FIRST_PID_NS or alone
        self.all_seen = os.path.exists("/proc/1") if all_seen is None else all_seen
        self._boot_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        self._tick_s = 1 / os.sysconf("SC_CLK_TCK")

    def by_name(self, pid: int, made_before_s: float, marker: str = "") -> Creator:
        """The maker whose number is part of a name.

        Args:
            pid: As the maker saw itself.
            made_before_s: When the thing existed already; seconds since 1970.
            marker: See Program.
        """
        candidates = [p for p in self.processes if pid == p.pid or pid in p.ns_pids]
        for process in candidates:
            if self._is_later(process, made_before_s) and not _looks_like(process, marker):
                continue
            if process.pid == pid and not self._is_later(process, made_before_s):
                return Creator(pid, process.comm, ALIVE, f"its maker {process.comm} {pid} lives")
            reason = f"process {process.pid} ({process.comm}) may be its maker {pid}"
            settle = f"the end of process {process.pid}, or `mcpd leaks record` from now on"
            return Creator(pid, process.comm, UNSURE, reason, settle)
        return self._dead(pid, "")

    def by_start(self, pid: int, start_ticks: int, name: str = "") -> Creator:
        """The maker whose number and start are known; its number may be a container's."""
        for process in self.processes:
            if process.start_ticks == start_ticks and pid in (process.pid, *process.ns_pids):
                reason = f"its maker {process.comm} {process.pid} lives"
                return Creator(process.pid, process.comm, ALIVE, reason)
        return self._dead(pid, name)

    def by_record(self, made: Made) -> Creator:
        """The maker that the recorder saw."""
        if made.pid_ns != self.namespace:
            reason = f"its maker {made.comm} {made.pid} was of another pid namespace"
            return Creator(made.pid, made.comm, UNSURE, reason, f"run this in {made.pid_ns}")
        if not made.sure:
            reason = f"its maker may have been {made.comm} {made.pid}"
            return Creator(made.pid, made.comm, UNSURE, reason, "run the recorder as root")
        creator = self.by_start(made.pid, made.start_ticks, made.comm)
        if creator.state != DEAD:
            return creator
        for process in self.processes:
            if made.group and process.group == made.group:
                reason = f"its maker {made.pid} is dead, but {process.comm} {process.pid} of the"
                return Creator(
                    *(made.pid, made.comm, UNSURE),
                    f"{reason} same process group lives and may know its name",
                    f"the end of process {process.pid}",
                )
        return creator

    def _dead(self, pid: int, name: str) -> Creator:
        who = f"{name} {pid}".strip()
        if not self.all_seen:
            reason = f"its maker {who} is not seen, but /proc hides processes of other users"
            return Creator(pid, name, UNSURE, reason, "run this as root")
        if not self.first:
            reason = f"its maker {who} is not seen, but may be outside this container"
            settle = "run this on the host, or say --alone if nothing outside shares this /dev/shm"
            return Creator(pid, name, UNSURE, reason, settle)
        return Creator(pid, name, DEAD, f"its maker {who} is dead")

    def _is_later(self, process: Process, moment_s: float) -> bool:
        """Whether a process started after a moment, by a clock that may have been set meanwhile."""
        started_s = self._boot_s + process.start_ticks * self._tick_s
        return self._boot_s <= moment_s < started_s - _CLOCK_MARGIN_S


def _looks_like(process: Process, marker: str) -> bool:
    """Whether a process may be of the program; yes where that cannot be told."""
    if not marker:
        return True
    path = Path(f"/proc/{process.pid}")
    try:
        text = os.readlink(path / "exe") + (path / "maps").read_text(errors="replace")
    except OSError:
        return True
    return marker in text
