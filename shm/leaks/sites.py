"""Where in a program things are made, as far as Python's audit events tell.

An audit hook cannot be taken away again: ours is put in when it is first asked for, and costs a
look at one list while nobody asks. Starts of threads have no such event before Python 3.12:
`Thread.start` is wrapped meanwhile.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from typing import Any

from mcpd.shm.call_site import call_site
from mcpd.shm.leaks.belongings import Thing

MAX_SITES = 10_000
"""Of each kind that are kept; the oldest go."""


class Sites:
    """Call sites seen while it is in use; see `record`."""

    def __init__(self) -> None:
        self._paths: dict[str, str] = {}
        self._inodes: dict[int, str] = {}
        self._threads: list[tuple[weakref.ref[threading.Thread], str]] = []
        self._sockets: list[tuple[weakref.ref[Any], str]] = []
        self._commands: dict[str, str] = {}

    def note(self, event: str, arguments: tuple[Any, ...]) -> None:
        """One audit event."""
        if event == "open" and isinstance(arguments[0], (str, bytes, os.PathLike)):
            _keep(self._paths, os.path.abspath(os.fsdecode(arguments[0])))
        elif event == "mmap.__new__" and arguments[0] >= 0:
            _keep(self._inodes, os.fstat(arguments[0]).st_ino)
        elif event == "socket.__new__":
            self._sockets.append((weakref.ref(arguments[0]), call_site()))
        elif event == "subprocess.Popen":
            words = arguments[1]
            text = words if isinstance(words, str) else " ".join(map(os.fsdecode, words))
            _keep(self._commands, text[:100])

    def note_thread(self, thread: threading.Thread) -> None:
        """One that is about to start."""
        self._threads.append((weakref.ref(thread), call_site()))

    def of(self, thing: Thing) -> str:
        """Where a thing was made, "" if that was not seen."""
        if thing.kind == "thread":
            return next(
                (
                    site
                    for thread, site in self._threads
                    if (alive := thread()) is not None and str(alive.native_id) == thing.key[0]
                ),
                "",
            )
        if thing.kind == "process":
            return self._commands.get(thing.name.partition(": ")[2], "")
        if thing.kind == "descriptor":
            number, _, inode, target = thing.key
            for socket, site in self._sockets:
                living = socket()
                if living is not None and str(living.fileno()) == number:
                    return site
            return self._paths.get(str(target), "") or self._inodes.get(int(str(inode)), "")
        if thing.kind in ("mapping", "name", "semaphore"):
            raw = thing.key[1]
            inode = int(raw if isinstance(raw, (bytes, int)) else str(raw))
            return self._inodes.get(inode, "") or self._paths.get(thing.name, "")
        return ""


def _keep(kept: dict[Any, str], key: Any) -> None:
    kept.pop(key, None)
    kept[key] = call_site()
    if len(kept) > MAX_SITES:
        del kept[next(iter(kept))]


_recording: list[Sites] = []
_hooked = False
_WANTED = frozenset(("open", "mmap.__new__", "socket.__new__", "subprocess.Popen"))
_start = threading.Thread.start


def record(sites: Sites) -> None:
    """Has `sites` told of what is made, until `forget`."""
    global _hooked, _start
    if not _hooked:
        sys.addaudithook(_hook)
        _hooked = True
    if not _recording:
        _start = threading.Thread.start
        setattr(threading.Thread, "start", _noted_start)  # noqa: B010  (a method, to type checkers)
    _recording.append(sites)


def forget(sites: Sites) -> None:
    """Ends that."""
    _recording.remove(sites)
    if not _recording:
        setattr(threading.Thread, "start", _start)  # noqa: B010


def _noted_start(thread: threading.Thread) -> None:
    for sites in _recording:
        sites.note_thread(thread)
    _start(thread)


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if not _recording or event not in _WANTED:
        return
    for sites in _recording:
        try:
            sites.note(event, arguments)
        except (OSError, TypeError, ValueError):
            continue  # a program's own strange arguments: what it does goes on
