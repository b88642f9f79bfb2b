"""What mcpd itself has: leases with their pins, memory objects without a name, processes.

The daemon's own table of leases, where it can be had, completes what /proc tells.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mcpd.shm.leaks.entry import IN_USE, ORPHANED, UNKNOWN, Entry, escape
from mcpd.shm.leaks.orphans import user_name
from mcpd.shm.leaks.processes import PROC, Process, option, read_comm
from mcpd.shm.segment import process_start_ticks

MAX_PIN_AGE_S = 60.0
"""A frame held for longer is asked about: to look at one takes milliseconds."""
_PREFIX = b"/memfd:mcpd:"
_LISTENING = 0x10000  # of the flags column in /proc/net/unix

Rows = Sequence[Mapping[str, Any]]


def count_leases(rows: Rows, *, max_pin_age_s: float = MAX_PIN_AGE_S) -> list[Entry]:
    """Each lease, and for each reader that holds frames its pins; orphaned is a dead process's."""
    entries = []
    for row in rows:
        entries.append(_lease(row))
        if row.get("kind") == "reader" and row.get("pins"):
            entries.append(_pin(row, max_pin_age_s))
    return entries


def count_memfds(processes: Sequence[Process], leases: Rows | None = None) -> list[Entry]:
    """Memfds of mcpd that some process maps or has open; orphaned is what no daemon knows of."""
    leased = {row.get("name") for row in leases or () if row.get("kind") == "segment"}
    hidden = any(process.part == "daemon" and not process.readable for process in processes)
    daemons = {process.pid for process in processes if process.part == "daemon"}
    holders: dict[tuple[int, int], list[Process]] = {}
    for process in processes:
        for key, hold in process.holds.items():
            if hold.name.startswith(_PREFIX):
                holders.setdefault(key, []).append(process)
    entries = []
    for key, having in sorted(holders.items(), key=lambda item: _name(item[0], item[1])):
        name = _name(key, having)
        pids = [process.pid for process in having]
        owners = daemons.intersection(pids)
        verdict, reason, settle = IN_USE, "", ""
        if owners:
            reason = f"daemon {min(owners)} has it in its table"
        elif name in leased:
            reason = "the daemon has it in its table"
        elif hidden and leases is None:
            verdict, reason = UNKNOWN, "a daemon runs whose table could not be read"
            settle = "run this as root, or with --socket of that daemon"
        else:
            verdict, reason = ORPHANED, "no daemon has it in its table; these processes keep it"
        holds = [process.holds[key] for process in having]
        resident = [h.resident_nbytes for h in holds if h.resident_nbytes is not None]
        uid = having[0].uid
        entries.append(
            Entry(
                kind="memfd",
                name=name,
                verdict=verdict,
                reason=reason,
                settle=settle,
                program="mcpd",
                owner_pid=min(owners, default=0),
                owner_alive=bool(owners),
                owner=read_comm(min(owners)) if owners else "",
                uid=uid,
                user=user_name(uid),
                nbytes=max(hold.nbytes for hold in holds),
                resident_nbytes=max(resident, default=None),
                held_by=pids,
                mapped_by=[p.pid for p in having if p.holds[key].mapped],
                details={"inode": key[1]},
            )
        )
    return entries


def count_processes(processes: Sequence[Process]) -> list[Entry]:
    """Processes of mcpd; orphaned is a worker, source or reaper that outlived its daemon."""
    daemons = {process.pid for process in processes if process.part == "daemon"}
    listening = _listening_sockets()
    entries = []
    for process in processes:
        if not process.part:
            continue
        used, reason, owner = _judge(process, daemons, listening)
        resident = resident_nbytes(process.pid)
        entries.append(
            Entry(
                kind="process",
                name=f"{process.part} {process.pid}",
                verdict=IN_USE if used else ORPHANED,
                reason=reason,
                program="mcpd",
                owner_pid=owner,
                owner_alive=owner in daemons,
                owner=read_comm(owner) if owner in daemons else "",
                uid=process.uid,
                user=user_name(process.uid),
                nbytes=resident,
                resident_nbytes=resident,
                age_s=age_s(process),
                details={"arguments": process.arguments},
            )
        )
    return entries


def age_s(process: Process) -> float:
    """Seconds since a process started."""
    started_s = process.start_ticks / os.sysconf("SC_CLK_TCK")
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started_s)


def resident_nbytes(pid: int) -> int:
    """What a process has in memory; 0 if it is gone."""
    try:
        pages = int((PROC / str(pid) / "statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _name(key: tuple[int, int], having: Sequence[Process]) -> str:
    return escape(having[0].holds[key].name.removeprefix(b"/memfd:"))


def _judge(process: Process, daemons: set[int], listening: set[str]) -> tuple[bool, str, int]:
    """Whether a process of mcpd still has its daemon, why, and which that is."""
    if process.part == "daemon":
        return True, "it is a daemon", process.pid
    if process.part == "source":
        socket = option(process.arguments, "--socket") or _default_socket(process.pid)
        if socket in listening:
            return True, f"a daemon listens on {socket}", 0
        return False, f"no daemon listens on {socket}", 0
    # A worker's parent is its daemon; so is a reaper's, which however outlives it for a moment.
    parent = int(option(process.arguments, "--parent") or process.parent)
    if parent in daemons:
        return True, f"its daemon {parent} lives", parent
    return False, f"its daemon {parent} is gone", parent


def _lease(row: Mapping[str, Any]) -> Entry:
    pid = int(row.get("pid", 0))
    alive = pid > 0 and process_start_ticks(pid) is not None
    since = row.get("since")
    state = row.get("state", "")
    return Entry(
        kind="lease",
        name=f"{row.get('kind', '')} {row.get('name', '')}",
        verdict=IN_USE if alive else ORPHANED,
        reason=f"{state}: process {pid} lives" if alive else f"{state}: process {pid} is dead",
        program="mcpd",
        owner_pid=pid,
        owner_alive=alive,
        owner=escape(str(row.get("client") or "")) or read_comm(pid),
        nbytes=int(row.get("bytes", 0)),
        age_s=max(0.0, time.time() - since) if isinstance(since, (int, float)) else None,
        held_by=[pid] if alive else [],
        site=escape(str(row.get("site") or "")),
        details=dict(row),
    )


def _pin(row: Mapping[str, Any], max_age_s: float) -> Entry:
    entry = _lease(row)
    since_ns = int(row.get("pinned_since_ns") or 0)
    pins = list(row["pins"])
    entry.kind, entry.nbytes, entry.details = "pin", 0, {"pins": pins, "reader": row.get("id")}
    entry.name = f"{len(pins)} of {row.get('name', '')}, reader {row.get('id', 0)}"
    entry.age_s = max(0, time.monotonic_ns() - since_ns) / 1e9 if since_ns else None
    if not entry.owner_alive:
        entry.reason = f"process {entry.owner_pid} is dead and its pins stand"
        return entry
    entry.reason = f"process {entry.owner_pid} holds them"
    if row.get("state") == "quarantined":
        entry.verdict = UNKNOWN
        entry.reason = f"process {entry.owner_pid} has left and still holds them"
        entry.settle = f"the end of process {entry.owner_pid}, or of its views of those frames"
    elif entry.age_s is not None and entry.age_s > max_age_s:
        entry.verdict = UNKNOWN
        entry.reason += f" for {entry.age_s:.0f} s, long for a look at a frame"
        entry.settle = "whether that program forgot to close a frame" + (
            f" it got at {entry.site}" if entry.site else "; MCPD_TRACE=1 names the line"
        )
    return entry


def _default_socket(pid: int) -> str:
    """Where a process looks for its daemon that was not told; of our own user alone."""
    try:
        raw = (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        raw = b""
    environment = dict(
        part.decode(errors="replace").split("=", 1) for part in raw.split(b"\0") if b"=" in part
    )
    if "MCPD_SOCKET" in environment:
        return environment["MCPD_SOCKET"]
    if "XDG_RUNTIME_DIR" in environment:
        return f"{environment['XDG_RUNTIME_DIR']}/mcpd/mcpd.sock"
    return "/run/mcpd/mcpd.sock" if os.getuid() == 0 else f"/tmp/mcpd-{os.getuid()}/mcpd.sock"


def _listening_sockets() -> set[str]:
    found = set()
    for line in Path("/proc/net/unix").read_text(errors="replace").splitlines()[1:]:
        fields = line.split(maxsplit=7)
        if len(fields) == 8 and int(fields[3], 16) & _LISTENING:
            found.add(fields[7])
    return found
