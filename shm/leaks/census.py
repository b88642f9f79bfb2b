"""A census of what mcpd has on this machine, and what of it nobody owns any more.

Needs no daemon: /dev/shm and /proc tell. The daemon's own table of leases, where it can be had,
completes it. Every entry gets a verdict, "in use" or "orphaned", with the reason. Processes of
other users may be hidden: what cannot be seen is not called orphaned.
"""

from __future__ import annotations

import itertools
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mcpd.shm.segment import SHM_DIRECTORY, list_segments, owner_alive, process_start_ticks

IN_USE = "in use"
ORPHANED = "orphaned"

_MEMFD = re.compile(r"/memfd:(mcpd:\S+)")
_PARTS = ("worker", "source", "reaper")
_PROC = Path("/proc")
_LISTENING = 0x10000  # of the flags column in /proc/net/unix


@dataclass(kw_only=True)
class Entry:
    """One thing that mcpd has.

    Attributes:
        kind: "segment" (a name under /dev/shm), "memfd", "process" or "lease".
        name: Of it; of a process, its part and pid.
        verdict: IN_USE or ORPHANED.
        reason: Why, in a few words.
        owner_pid: The process it belongs to, 0 if that is not known.
        nbytes: Its size; of a process, what is resident.
        age_s: Seconds since it was made, or None.
        held_by: Processes that have it mapped or open.
        details: What else is known: the daemon's row of a lease.
    """

    kind: str
    name: str
    verdict: str
    reason: str
    owner_pid: int = 0
    owner_alive: bool = False
    nbytes: int = 0
    age_s: float | None = None
    held_by: list[int] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@dataclass
class ProcessView:
    """What /proc tells of one process, as far as it may be read."""

    pid: int
    arguments: list[str]
    part: str = ""
    """"daemon", "worker", "source" or "reaper"; "" for any other program."""
    memfds: dict[int, str] = field(default_factory=dict)
    """Names by inode of the memfds of mcpd that it maps or has open."""
    nbytes: dict[int, int] = field(default_factory=dict)
    """Their sizes by inode."""
    segments: set[str] = field(default_factory=set)
    """Names under /dev/shm that it maps or has open."""
    readable: bool = True


def scan(
    leases: Sequence[Mapping[str, Any]] | None = None,
    *,
    directory: Path = SHM_DIRECTORY,
) -> list[Entry]:
    """Everything of mcpd on this machine.

    Args:
        leases: Rows of the daemon's table "leases"; None if no daemon answers.
        directory: Where named segments are.
    """
    processes = read_processes()
    entries = scan_segments(processes, directory)
    entries += scan_memfds(processes, leases)
    entries += scan_processes(processes)
    if leases is not None:
        entries += [_lease(row) for row in leases]
    return entries


def scan_segments(processes: Sequence[ProcessView], directory: Path = SHM_DIRECTORY) -> list[Entry]:
    """Names under /dev/shm; orphaned is what a dead process made."""
    entries = []
    for path, owner, stream_id in list_segments(directory):
        try:
            status = path.stat()
        except FileNotFoundError:
            continue  # unlinked meanwhile
        alive = owner_alive(owner)
        entries.append(
            Entry(
                kind="segment",
                name=path.name,
                verdict=IN_USE if alive else ORPHANED,
                reason=f"daemon {owner.pid} lives" if alive else f"daemon {owner.pid} is dead",
                owner_pid=owner.pid,
                owner_alive=alive,
                nbytes=status.st_size,
                age_s=max(0.0, time.time() - status.st_ctime),
                held_by=[process.pid for process in processes if path.name in process.segments],
                details={"uid": owner.uid, "stream": stream_id},
            )
        )
    return entries


def scan_memfds(
    processes: Sequence[ProcessView],
    leases: Sequence[Mapping[str, Any]] | None = None,
) -> list[Entry]:
    """Memfds of mcpd that some process maps or has open; orphaned is what no daemon knows of."""
    leased = {row.get("name") for row in leases or () if row.get("kind") == "segment"}
    hidden = any(process.part == "daemon" and not process.readable for process in processes)
    daemons = {process.pid for process in processes if process.part == "daemon"}
    names: dict[int, str] = {}
    for process in processes:
        names.update(process.memfds)
    entries = []
    for inode, name in sorted(names.items(), key=lambda item: item[1]):
        holders = [process for process in processes if inode in process.memfds]
        pids = [process.pid for process in holders]
        owners = daemons.intersection(pids)
        used, reason = True, ""
        if owners:
            reason = f"daemon {min(owners)} has it in its table"
        elif name in leased:
            reason = "the daemon has it in its table"
        elif hidden and leases is None:
            reason = "a daemon runs whose table could not be read"
        else:
            used, reason = False, "no daemon has it in its table; these processes keep it"
        entries.append(
            Entry(
                kind="memfd",
                name=name,
                verdict=IN_USE if used else ORPHANED,
                reason=reason,
                owner_pid=min(owners, default=0),
                owner_alive=bool(owners),
                nbytes=max(process.nbytes.get(inode, 0) for process in holders),
                held_by=pids,
                details={"inode": inode},
            )
        )
    return entries


def scan_processes(processes: Sequence[ProcessView]) -> list[Entry]:
    """Processes of mcpd; orphaned is a worker, source or reaper that outlived its daemon."""
    daemons = {process.pid for process in processes if process.part == "daemon"}
    listening = _listening_sockets()
    entries = []
    for process in processes:
        if not process.part:
            continue
        used, reason, owner = _judge(process, daemons, listening)
        entries.append(
            Entry(
                kind="process",
                name=f"{process.part} {process.pid}",
                verdict=IN_USE if used else ORPHANED,
                reason=reason,
                owner_pid=owner,
                owner_alive=owner in daemons,
                nbytes=_resident_nbytes(process.pid),
                age_s=_age_s(process.pid),
                details={"arguments": process.arguments},
            )
        )
    return entries


def _judge(process: ProcessView, daemons: set[int], listening: set[str]) -> tuple[bool, str, int]:
    """Whether a process of mcpd still has its daemon, why, and which that is."""
    if process.part == "daemon":
        return True, "it is a daemon", process.pid
    if process.part == "source":
        socket = _option(process.arguments, "--socket") or _default_socket(process.pid)
        if socket in listening:
            return True, f"a daemon listens on {socket}", 0
        return False, f"no daemon listens on {socket}", 0
    # A worker's parent is its daemon; so is a reaper's, which however outlives it for a moment.
    parent = int(_option(process.arguments, "--parent") or _parent(process.pid))
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
        owner_pid=pid,
        owner_alive=alive,
        nbytes=int(row.get("bytes", 0)),
        age_s=max(0.0, time.time() - since) if isinstance(since, (int, float)) else None,
        held_by=[pid] if alive else [],
        details=dict(row),
    )


def read_processes() -> list[ProcessView]:
    """Every process that is not hidden from this user."""
    found = []
    for path in _PROC.iterdir():
        if not path.name.isdigit():
            continue
        try:
            raw = (path / "cmdline").read_bytes()
        except OSError:
            continue  # gone, or hidden from us
        arguments = [part.decode(errors="replace") for part in raw.split(b"\0")[:-1]]
        if not arguments:
            continue  # a kernel thread, or dead
        process = ProcessView(int(path.name), arguments, _part(arguments))
        try:
            _read_maps(path, process)
            _read_fds(path, process)
        except PermissionError:
            process.readable = False
        except OSError:
            continue  # gone
        found.append(process)
    return found


def _part(arguments: Sequence[str]) -> str:
    for flag, module in itertools.pairwise(arguments):
        if flag == "-m" and module == "mcpd.daemon":
            return "daemon"
        if flag == "-m" and module.startswith("mcpd.daemon."):
            part = module.removeprefix("mcpd.daemon.")
            return part if part in _PARTS else ""
    return ""


def _read_maps(path: Path, process: ProcessView) -> None:
    for line in (path / "maps").read_text(errors="replace").splitlines():
        if "mcpd" not in line:
            continue
        span, _, _, _, inode, *rest = line.split(maxsplit=5)
        name = rest[0] if rest else ""
        start, _, end = span.partition("-")
        nbytes = int(end, 16) - int(start, 16)
        _note(process, name, int(inode), nbytes)


def _read_fds(path: Path, process: ProcessView) -> None:
    for link in (path / "fd").iterdir():
        try:
            name = os.readlink(link)
            if "mcpd" in name:
                status = link.stat()
                _note(process, name, status.st_ino, status.st_size)
        except FileNotFoundError:
            continue  # closed meanwhile


def _note(process: ProcessView, name: str, inode: int, nbytes: int) -> None:
    memfd = _MEMFD.match(name)
    if memfd is not None:
        process.memfds[inode] = memfd[1]
        process.nbytes[inode] = max(nbytes, process.nbytes.get(inode, 0))
    elif name.startswith(f"{SHM_DIRECTORY}/mcpd."):
        process.segments.add(Path(name.removesuffix(" (deleted)")).name)


def _option(arguments: Sequence[str], name: str) -> str:
    for option, value in zip(arguments, [*arguments[1:], ""], strict=True):
        if option == name:
            return value
        if option.startswith(f"{name}="):
            return option.partition("=")[2]
    return ""


def _default_socket(pid: int) -> str:
    """Where a process looks for its daemon that was not told; of our own user alone."""
    try:
        raw = (_PROC / str(pid) / "environ").read_bytes()
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
    for line in (_PROC / "net" / "unix").read_text(errors="replace").splitlines()[1:]:
        fields = line.split(maxsplit=7)
        if len(fields) == 8 and int(fields[3], 16) & _LISTENING:
            found.add(fields[7])
    return found


def _parent(pid: int) -> int:
    try:
        stat = (_PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return 0
    return int(stat[stat.rindex(b")") + 2 :].split()[1])


def _resident_nbytes(pid: int) -> int:
    try:
        pages = int((_PROC / str(pid) / "statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _age_s(pid: int) -> float | None:
    ticks = process_start_ticks(pid)
    if ticks is None:
        return None
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))
