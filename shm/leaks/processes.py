"""What /proc tells of every process: who it is, and which shared objects it maps or has open.

One pass over /proc. A process may end while it is read: then it is left out. One that may not be
read is listed as not readable, because then its silence proves nothing.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mcpd.shm.leaks.entry import escape

Key = tuple[int, int]
"""An object: device and inode; of a System V segment, SYSV and its number."""
SYSV = -1

PROC = Path("/proc")
_PARTS = ("worker", "source", "reaper")
_MEMFD = b"/memfd:"
_SYSV = b"/SYSV"
_SHM = b"/dev/shm/"
_DELETED = b" (deleted)"
_GPUS = (b"/dev/nvidia", b"/dev/kfd")
_LINE = re.compile(rb"([0-9a-f]+)-([0-9a-f]+) \S+ \S+ ([0-9a-f]+):([0-9a-f]+) (\d+) +(.*)")


@dataclass
class Hold:
    """An object as one process has it.

    Attributes:
        name: As in /proc: a path, or `/memfd:` and a name; without " (deleted)".
        nbytes: Its size, or as much of it as is mapped.
        resident_nbytes: What of it takes memory; None if that could not be read.
        deleted: Whether its name is gone.
    """

    name: bytes
    nbytes: int = 0
    resident_nbytes: int | None = None
    mapped: bool = False
    opened: bool = False
    deleted: bool = False


@dataclass
class Process:
    """One process.

    Attributes:
        arguments: Its command line, escaped.
        part: "daemon", "worker", "source" or "reaper" of mcpd; "" of any other program.
        group: Its process group.
        start_ticks: When it started, in clock ticks since boot.
        ns_pids: Its number in our pid namespace and in each below.
        mount_ns: Its mount namespace, as /proc/PID/ns/mnt reads.
        holds: The shared objects that it maps or has open.
        gpus: Device files of GPUs that it has open or mapped.
        readable: Whether all that could be read.
    """

    pid: int
    arguments: list[str] = field(default_factory=list)
    part: str = ""
    comm: str = ""
    parent: int = 0
    group: int = 0
    uid: int = -1
    start_ticks: int = 0
    ns_pids: tuple[int, ...] = ()
    mount_ns: str = ""
    holds: dict[Key, Hold] = field(default_factory=dict)
    gpus: set[str] = field(default_factory=set)
    readable: bool = True


def read_processes(
    devices: Iterable[int] = (),
    names: Collection[bytes] = (),
    prefixes: Iterable[bytes] = (),
    *,
    proc: Path = PROC,
) -> list[Process]:
    """Every process that is not hidden from this user, and what it holds.

    Args:
        devices: Of file systems all of whose files count, under whatever path: those mounted at
            /dev/shm.
        names: File names that may be such objects, where a path of another mount namespace does
            not begin with /dev/shm.
        prefixes: Of paths that count as well.
    """
    wanted = [_MEMFD, _SYSV, _SHM, *_GPUS, *prefixes]
    wanted += [b" %02x:%02x " % (os.major(dev), os.minor(dev)) for dev in set(devices)]
    interesting = re.compile(b"|".join(map(re.escape, wanted)))
    found = []
    for pid in list_pids(proc):
        process = read_process(pid, interesting, names, proc)
        if process is not None:
            found.append(process)
    return found


def list_pids(proc: Path = PROC) -> list[int]:
    """The numbers of all processes that are not hidden from this user."""
    return sorted(int(name) for name in os.listdir(proc) if name.isdigit())


def read_process(
    pid: int, interesting: re.Pattern[bytes], names: Collection[bytes], proc: Path = PROC
) -> Process | None:
    """One process; None if it has ended, or is the kernel's."""
    path = f"{proc}/{pid}"
    process = Process(pid)
    try:
        alive = _read_stat(path, process)
        if not alive:
            path = _living_thread(path)
            if not path:
                return None
        process.arguments = _arguments(path)
        process.part = _part(process.arguments)
        _read_status(path, process)
        try:
            process.mount_ns = os.readlink(f"{path}/ns/mnt")
            _read_maps(path, process, interesting)
            _read_fds(path, process, names)
        except PermissionError:
            process.readable = False
        if not process.arguments and process.readable and not process.holds:
            return None  # a kernel thread
    except (FileNotFoundError, ProcessLookupError):
        return None
    return process


def read_comm(pid: int) -> str:
    """The name of a process, "" if it is gone."""
    try:
        return escape((PROC / str(pid) / "comm").read_bytes().rstrip(b"\n"))
    except OSError:
        return ""


def option(arguments: Sequence[str], name: str) -> str:
    """The value of an option on a command line, "" if it is not there."""
    for word, value in zip(arguments, [*arguments[1:], ""], strict=True):
        if word == name:
            return value
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
    return ""


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while part := os.read(fd, 1 << 20):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(fd)


def _read_stat(path: str, process: Process) -> bool:
    """False if its main thread is dead."""
    stat = _read(f"{path}/stat")
    end = stat.rindex(b")")
    fields = stat[end + 2 :].split()
    process.comm = escape(stat[stat.index(b"(") + 1 : end])
    process.parent, process.group = int(fields[1]), int(fields[2])
    process.start_ticks = int(fields[19])
    return fields[0] not in (b"Z", b"X")


def _living_thread(path: str) -> str:
    """A process whose main thread has ended lives on in its others, which hold what it held."""
    for name in os.listdir(f"{path}/task"):
        stat = _read(f"{path}/task/{name}/stat")
        if stat[stat.rindex(b")") + 2 :].split()[0] not in (b"Z", b"X"):
            return f"{path}/task/{name}"
    return ""


def _read_status(path: str, process: Process) -> None:
    for line in _read(f"{path}/status").splitlines():
        if line.startswith(b"Uid:"):
            process.uid = int(line.split()[2])  # the effective one
        elif line.startswith(b"NSpid:"):
            process.ns_pids = tuple(map(int, line.split()[1:]))
            break


def _arguments(path: str) -> list[str]:
    return [escape(part) for part in _read(f"{path}/cmdline").split(b"\0")[:-1]]


def _part(arguments: Sequence[str]) -> str:
    for flag, module in itertools.pairwise(arguments):
        if flag == "-m" and module == "mcpd.daemon":
            return "daemon"
        if flag == "-m" and module.startswith("mcpd.daemon."):
            part = module.removeprefix("mcpd.daemon.")
            return part if part in _PARTS else ""
    return ""


def _read_maps(path: str, process: Process, interesting: re.Pattern[bytes]) -> None:
    for line in _lines(_read(f"{path}/maps"), interesting):
        matched = _LINE.match(line)
        if matched is None:
            continue
        start, end, major, minor, inode, name = matched.groups()
        if name.startswith(_GPUS):
            process.gpus.add(escape(name))
            continue
        key = os.makedev(int(major, 16), int(minor, 16)), int(inode)
        if name.startswith(_SYSV):
            key = SYSV, int(inode)
        hold = process.holds.setdefault(key, _hold(name))
        hold.mapped = True
        hold.nbytes = max(hold.nbytes, int(end, 16) - int(start, 16))
        if hold.deleted and hold.resident_nbytes is None:
            try:  # root's alone; others learn it from a descriptor, if there is one
                status = os.stat(f"{path}/map_files/{start.decode()}-{end.decode()}")
            except OSError:
                continue
            hold.nbytes, hold.resident_nbytes = status.st_size, status.st_blocks * 512


def _lines(text: bytes, interesting: re.Pattern[bytes]) -> Iterator[bytes]:
    """The lines in which the pattern is found, each once; most lines are never cut out."""
    position = 0
    while found := interesting.search(text, position):
        start = text.rfind(b"\n", 0, found.start()) + 1
        end = text.find(b"\n", found.end())
        position = end if end >= 0 else len(text)
        yield text[start:position]


def _read_fds(path: str, process: Process, names: Collection[bytes]) -> None:
    folder = f"{path}/fd".encode()
    for number in os.listdir(folder):
        link = folder + b"/" + number
        try:
            name = os.readlink(link)
            if name.startswith(_GPUS):
                process.gpus.add(escape(name))
                continue
            if not name.startswith((_MEMFD, _SHM)) and _last(name) not in names:
                continue
            status = os.stat(link)
        except FileNotFoundError:
            continue  # closed meanwhile
        hold = process.holds.setdefault((status.st_dev, status.st_ino), _hold(name))
        hold.opened = True
        hold.nbytes, hold.resident_nbytes = status.st_size, status.st_blocks * 512


def _hold(name: bytes) -> Hold:
    return Hold(name.removesuffix(_DELETED), deleted=name.endswith(_DELETED))


def _last(name: bytes) -> bytes:
    return name.removesuffix(_DELETED).rpartition(b"/")[2]
