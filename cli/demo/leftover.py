"""What a daemon and everything it started leave behind; to be found before it is claimed absent."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

_GONE_S = 5.0
"""The reaper outlives the daemon by a moment, to do its work."""


class Census:
    """Notes who belongs to a daemon while it runs, and looks for all of it once it has ended.

    Args:
        daemon_pid: The daemon, whose descendants are noted and whose pid is in its names.
    """

    def __init__(self, daemon_pid: int) -> None:
        self._daemon = psutil.Process(daemon_pid)
        self._noted: set[psutil.Process] = {self._daemon}

    def note(self, pids: Iterable[int] = ()) -> dict[int, str]:
        """Notes the daemon's descendants of now and `pids`.

        Returns:
            The part each descendant plays ("worker", "reaper"), by pid.
        """
        for pid in pids:
            with contextlib.suppress(psutil.NoSuchProcess):
                self._noted.add(psutil.Process(pid))
        parts: dict[int, str] = {}
        for process in self._daemon.children(recursive=True):
            self._noted.add(process)
            parts[process.pid] = _part(process)
        return parts

    def left(self) -> list[str]:
        """Each thing still there, in words; empty when nothing is. Waits up to 5 s for processes.

        Looks for the processes noted, names of the daemon's in /dev/shm, and memory of a daemon's
        streams that this process or one of those has open or mapped.
        """
        deadline = time.monotonic() + _GONE_S
        while (alive := [p for p in self._noted if _runs(p)]) and time.monotonic() < deadline:
            time.sleep(0.02)
        found = [f"process {process.pid} ({_part(process)})" for process in alive]
        mark = f"mcpd.{os.getuid()}.{self._daemon.pid}."
        found += [f"/dev/shm/{name}" for name in os.listdir("/dev/shm") if name.startswith(mark)]
        for pid in (os.getpid(), *(process.pid for process in alive)):
            found += [f"{name} in process {pid}" for name in open_segments(pid)]
        return found


def open_segments(pid: int) -> list[str]:
    """The memfds of streams that a process has open or mapped, each name once."""
    names: set[str] = set()
    folder = Path(f"/proc/{pid}")
    # A process may end meanwhile; one that may not be looked into is reported as a process.
    with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
        for line in (folder / "maps").read_text().splitlines():
            names.add(line.partition("/")[2])
        for entry in (folder / "fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                names.add(os.readlink(entry).removeprefix("/"))
    return sorted({n.removesuffix(" (deleted)") for n in names if n.startswith("memfd:mcpd:")})


def _runs(process: psutil.Process) -> bool:
    """Whether it still does something; one that waits for its parent's notice has ended."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _part(process: psutil.Process) -> str:
    try:
        words = process.cmdline()
    except psutil.Error:
        return "ended"
    module = next((word for word in words if word.startswith("mcpd.")), words[0] if words else "?")
    return module.rpartition(".")[2]
