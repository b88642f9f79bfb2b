"""Processes that hold memory of a GPU, and which of them lost the process that started them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence

from mcpd.shm.leaks.census import age_s, resident_nbytes
from mcpd.shm.leaks.entry import IN_USE, ORPHANED, UNKNOWN, Entry
from mcpd.shm.leaks.orphans import user_name
from mcpd.shm.leaks.processes import Process

_MIB = 1 << 20


def count_gpu_processes(
    processes: Sequence[Process], used_nbytes: dict[int, int] | None = None
) -> list[Entry]:
    """Each process with a GPU's device file open.

    Orphaned is one whose parent is gone and whose process group's leader is too: a service that
    was started on its own leads its group.

    Args:
        used_nbytes: Memory on GPUs by process; as nvidia-smi tells if None.
    """
    having = [process for process in processes if process.gpus and not process.part]
    if not having:
        return []
    if used_nbytes is None:
        used_nbytes = read_used_nbytes()
    pids = {process.pid for process in processes}
    entries = []
    for process in having:
        verdict, reason, settle = IN_USE, f"its parent {process.parent} lives", ""
        if process.parent == 1 and process.group != process.pid:
            if process.group not in pids:
                verdict = ORPHANED
                reason = f"its parent and its group's leader {process.group} are gone"
            else:
                verdict, reason = UNKNOWN, "its parent is gone, its process group is not"
                settle = f"whether process {process.group} still wants it"
        entries.append(
            Entry(
                kind="process",
                name=f"{process.comm} {process.pid}",
                verdict=verdict,
                reason=reason,
                settle=settle,
                program="GPU",
                owner_pid=process.pid,
                owner_alive=True,
                owner=process.comm,
                uid=process.uid,
                user=user_name(process.uid),
                nbytes=used_nbytes.get(process.pid, 0),
                resident_nbytes=resident_nbytes(process.pid),
                age_s=age_s(process),
                held_by=[process.pid],
                details={"devices": sorted(process.gpus), "arguments": process.arguments},
            )
        )
    return entries


def read_used_nbytes() -> dict[int, int]:
    """Memory on GPUs by process, as nvidia-smi tells; empty where there is none."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return {}
    query = ["--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run([command, *query], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    used: dict[int, int] = {}
    for line in done.stdout.splitlines():
        pid, _, mib = line.partition(",")
        if pid.strip().isdigit() and mib.strip().isdigit():
            used[int(pid)] = used.get(int(pid), 0) + int(mib) * _MIB
    return used
