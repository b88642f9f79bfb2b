"""What a process has: descriptors, mappings, threads, children, names in /dev/shm, leases."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mcpd.shm.leaks.entry import escape
from mcpd.shm.leaks.sampling import children_of

if TYPE_CHECKING:
    from mcpd.shm.connection import Connection

SHM = "/dev/shm"
_HELPERS = (b"multiprocessing.resource_tracker", b"multiprocessing.forkserver")
"""Processes that Python starts once and keeps."""
_LINE = re.compile(rb"[0-9a-f]+-[0-9a-f]+ (\S+) \S+ ([0-9a-f]+:[0-9a-f]+) (\d+) +(.*)")
_SHARED = (b"/memfd:", b"/dev/shm/", b"/SYSV")


@dataclass(frozen=True)
class Thing:
    """One thing a process has.

    Attributes:
        kind: "descriptor", "mapping", "thread", "process", "name", "semaphore", "sysv" or "lease".
        key: What tells it from others of its kind.
        name: As it is shown.
        owner: Whose it is.
        site: Where it was asked for, if that is known.
    """

    kind: str
    key: tuple[object, ...]
    name: str = field(compare=False)
    owner: str = field(default="", compare=False)
    site: str = field(default="", compare=False)

    def __str__(self) -> str:
        parts = [f"{self.kind} {self.name}"]
        parts += [f"of {self.owner}"] * bool(self.owner)
        parts += [f"made at {self.site}"] * bool(self.site)
        return ", ".join(parts)


def look(*, leases: bool = True) -> Counter[Thing]:
    """Everything this process has now, as far as it is counted as such."""
    me = os.getpid()
    children = children_of({me})
    found: list[Thing] = [*_descriptors(), *_mappings(), *_threads(), *_processes(children)]
    found += [*_names(), *_sysv(me)]
    if leases:
        found += _leases()
    return Counter(found)


def _descriptors() -> Iterator[Thing]:
    for number in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
            status = os.fstat(int(number))
        except OSError:
            continue  # that of the listing itself
        key = (number, status.st_dev, status.st_ino, target)
        yield Thing("descriptor", key, f"{number} -> {escape(target)}", f"process {os.getpid()}")


def _mappings() -> Iterator[Thing]:
    """Of files and shared objects. Libraries stay mapped once they are loaded, and do not count."""
    with open("/proc/self/maps", "rb") as maps:
        lines = [matched.groups() for line in maps if (matched := _LINE.match(line))]
    code = {(device, inode) for access, device, inode, _ in lines if b"x" in access}
    for _, device, inode, name in lines:
        if name.startswith(_SHARED) or (name.startswith(b"/") and (device, inode) not in code):
            kind = "semaphore" if name.startswith(b"/dev/shm/sem.") else "mapping"
            yield Thing(kind, (device, inode), escape(name), f"process {os.getpid()}")


def _threads() -> Iterator[Thing]:
    known = {thread.native_id: thread.name for thread in threading.enumerate()}
    for number in os.listdir("/proc/self/task"):
        name = known.get(int(number))
        if name is None:
            try:
                with open(f"/proc/self/task/{number}/comm", "rb") as comm:
                    name = escape(comm.read().rstrip(b"\n"))
            except OSError:
                continue
        yield Thing("thread", (number,), f"{name} ({number})", f"process {os.getpid()}")


def _processes(children: set[int]) -> Iterator[Thing]:
    for pid in children:
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                arguments = file.read().replace(b"\0", b" ").strip()
        except OSError:
            continue
        if any(helper in arguments for helper in _HELPERS):
            continue
        shown = escape(arguments)[:100] or "ended, and not waited for"
        yield Thing("process", (pid,), f"{pid}: {shown}", f"process {os.getpid()}")


def _names() -> Iterator[Thing]:
    """This user's names in /dev/shm."""
    for entry in os.scandir(SHM):
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError:
            continue
        if status.st_uid != os.geteuid():
            continue
        kind = "semaphore" if entry.name.startswith("sem.") else "name"
        key = (entry.name, status.st_ino, status.st_dev)
        yield Thing(kind, key, f"{SHM}/{escape(entry.name)}", f"user {status.st_uid}")


def without_others(things: list[Thing]) -> list[Thing]:
    """Leaves out names that only processes other than this one and its children have open."""
    if not any(thing.kind in ("name", "semaphore") and len(thing.key) == 3 for thing in things):
        return things
    from mcpd.shm.leaks.places import own_place
    from mcpd.shm.leaks.processes import read_processes

    pids = {os.getpid(), *children_of({os.getpid()})}
    device = own_place().device
    ours: set[tuple[int, int]] = set()
    others: set[tuple[int, int]] = set()
    for process in read_processes([device] if device else []):
        (ours if process.pid in pids else others).update(process.holds)
    foreign = others - ours
    return [
        thing
        for thing in things
        if len(thing.key) != 3 or (thing.key[2], thing.key[1]) not in foreign
    ]


def _sysv(me: int) -> Iterator[Thing]:
    """System V segments that this process made."""
    try:
        with open("/proc/sysvipc/shm") as table:
            rows = [line.split() for line in table][1:]
    except OSError:
        return
    for row in rows:
        if int(row[4]) == me:
            yield Thing("sysv", (row[1],), f"segment {row[1]} of {row[3]} bytes", f"process {me}")


def _leases() -> Iterator[Thing]:
    """Those of this process's sessions that are open."""
    module = sys.modules.get("mcpd.shm.session_streams")
    if module is None:
        return
    for connection in list(module.OPEN):
        if connection.lost or connection.inherited:
            continue
        for row in _rows(connection):
            if row.get("session") == connection.session:
                key = (connection.session, row["kind"], row["id"], row.get("generation"))
                name = f"{row['kind']} {row['name']}"
                owner = f"session {connection.session} with daemon {connection.daemon_pid}"
                yield Thing("lease", key, name, owner, str(row.get("site") or ""))


def _rows(connection: Connection) -> Iterator[dict[str, Any]]:
    """The daemon's table of leases; nothing if the daemon is gone."""
    from mcpd.shm.errors import DaemonUnavailable
    from mcpd.shm.messages import List

    cursor = ""
    while True:
        try:
            answer, _ = connection.request(List(what="leases", cursor=cursor))
        except DaemonUnavailable:
            return
        yield from answer["items"]
        cursor = answer["cursor"]
        if not cursor:
            return


def matches(thing: Thing, patterns: Sequence[re.Pattern[str]]) -> bool:
    """Whether one of them is found in how it is shown."""
    return any(pattern.search(str(thing)) for pattern in patterns)
