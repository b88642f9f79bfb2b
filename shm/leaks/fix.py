"""Removes what is orphaned, each looked at once more right before.

The kernel is asked for a write lease first: as long as that stands nobody has the file open, and
whoever opens it waits. The name goes only if it still stands for that very file; another file of
the same name, made meanwhile, survives.
"""

from __future__ import annotations

import ctypes
import os
import stat
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from mcpd.shm.leaks.entry import ORPHANED, Entry
from mcpd.shm.leaks.holding import FREE, HELD, lease
from mcpd.shm.leaks.places import Name
from mcpd.shm.leaks.scanning import Look, Options
from mcpd.shm.leaks.sysv import list_sysv

REMOVED = "removed"
KEPT = "kept"
WOULD_REMOVE = "would remove"
MAX_LOOK_AGE_S = 1.0
"""For how long a look at all processes is good enough to remove by."""
_IPC_RMID = 0


@dataclass(frozen=True)
class Action:
    """What became of one entry.

    Attributes:
        outcome: REMOVED, KEPT or WOULD_REMOVE.
        reason: Of KEPT.
    """

    entry: Entry
    outcome: str
    reason: str = ""


def remove(
    entries: Sequence[Entry],
    options: Options,
    *,
    names: Collection[str] = (),
    dry_run: bool = False,
) -> list[Action]:
    """Removes the orphaned that can be removed.

    Args:
        entries: As a scan with these options found them.
        names: Only these, as `Entry.name` has them; another user's only as root and if it is here.
        dry_run: Only say what would be removed.
    """
    actions = []
    look: Look | None = None
    taken_s = 0.0
    for entry in entries:
        if entry.verdict != ORPHANED or (names and entry.name not in names):
            continue
        why = _refusal(entry, names)
        if why:
            actions.append(Action(entry, KEPT, why))
            continue
        if look is None or time.monotonic() - taken_s > MAX_LOOK_AGE_S:
            look, taken_s = Look.take(options), time.monotonic()
        why = _remove(entry, look, dry_run)
        outcome = KEPT if why else WOULD_REMOVE if dry_run else REMOVED
        actions.append(Action(entry, outcome, why))
    return actions


def unlink_file(dir_fd: int, name: bytes, key: tuple[int, int]) -> str:
    """Takes a name away, if it stands for that file and nobody has it; "" or why not."""
    with lease(dir_fd, name, key) as answer:
        if answer.answer == HELD:
            return "somebody has it open"
        try:
            status = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
        except FileNotFoundError:
            return "it is gone already"
        if (status.st_dev, status.st_ino) != key or status.st_nlink == 0:
            return "the name stands for another file now"
        if answer.answer == FREE and not answer.stands():
            return "somebody is opening it"
        try:
            os.unlink(name, dir_fd=dir_fd)
        except OSError as error:
            return f"it cannot be removed: {error.strerror}"
    return ""


def _refusal(entry: Entry, names: Collection[str]) -> str:
    if not entry.fixable:
        return "it goes when the processes that keep it end"
    if entry.uid == os.getuid():
        return ""
    if os.getuid() != 0:
        return f"it is user {entry.user}'s: only that user or root may remove it"
    if entry.name not in names:
        return f"it is user {entry.user}'s: name it with --name to have it removed"
    return ""


def _remove(entry: Entry, look: Look, dry_run: bool) -> str:
    if entry.kind == "sysv":
        return _remove_sysv(entry, look, dry_run)
    name = _find(entry, look)
    if name is None:
        return "it is gone already, or another of the same name is there"
    again = look.judge.name(name)
    if again.verdict != ORPHANED:
        return again.reason
    if dry_run:
        return ""
    try:
        dir_fd = os.open(name.place.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        return f"its folder cannot be opened: {error.strerror}"
    try:
        if name.kind == "folder":
            return _remove_folder(dir_fd, name)
        return unlink_file(dir_fd, name.name, (name.status.st_dev, name.status.st_ino))
    finally:
        os.close(dir_fd)


def _find(entry: Entry, look: Look) -> Name | None:
    key = entry.details.get("device"), entry.details.get("inode")
    for name in look.names:
        if (name.status.st_dev, name.status.st_ino) == key:
            again = look.judge.name(name)
            if (again.name, again.place) == (entry.name, entry.place):
                return name
    return None


def _remove_folder(dir_fd: int, name: Name) -> str:
    known = name.keys
    try:
        for _, folders, files, fd in os.fwalk(name.name, topdown=False, dir_fd=dir_fd):
            for file in files:
                status = os.stat(file, dir_fd=fd, follow_symlinks=False)
                key = status.st_dev, status.st_ino
                if key not in known:
                    return "somebody has put something into it"
                if stat.S_ISREG(status.st_mode):
                    why = unlink_file(fd, file, key)
                    if why:
                        return f"of a file in it: {why}"
                else:
                    os.unlink(file, dir_fd=fd)
            for folder in folders:
                os.rmdir(folder, dir_fd=fd)
        os.rmdir(name.name, dir_fd=dir_fd)
    except OSError as error:
        return f"it cannot be removed: {error.strerror}"
    return ""


def _remove_sysv(entry: Entry, look: Look, dry_run: bool) -> str:
    shmid = int(entry.details["shmid"])
    found = [segment for segment in list_sysv() if segment.shmid == shmid]
    if not found:
        return "it is gone already"
    again = look.judge.sysv(found[0])
    if again.verdict != ORPHANED or again.name != entry.name:
        return again.reason
    if dry_run:
        return ""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.shmctl(shmid, _IPC_RMID, None) != 0:
        return f"it cannot be removed: {os.strerror(ctypes.get_errno())}"
    return ""
