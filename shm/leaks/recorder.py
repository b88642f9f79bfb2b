"""`mcpd leaks record`: notes who makes what in /dev/shm, for as long as it runs."""

from __future__ import annotations

import fcntl
import os
import re
import select
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Self

from mcpd.shm.errors import AlreadyExists
from mcpd.shm.leaks.entry import escape
from mcpd.shm.leaks.notify import Event, Notifier, open_notifier
from mcpd.shm.leaks.places import mounted_device
from mcpd.shm.leaks.processes import Process, read_process, read_processes
from mcpd.shm.leaks.record import MAX_NBYTES, Made, boot_id, read_lines
from mcpd.shm.segment import SHM_DIRECTORY

CHECK_AFTER_S = (0.05, 1.0, 10.0)
"""When a new file's maker is looked at again: it maps the file after making it."""
MAX_CHECKS = 10_000


class Recorder:
    """Writes one line for each name that is made. A context manager that closes.

    Args:
        file: The record; its folder is made if it is missing.
        directory: What to watch.
        how: "fanotify" or "inotify"; the better one there is if "".
        max_nbytes: Size of the file at which it is written anew.

    Raises:
        AlreadyExists: Another recorder writes that file.
        OSError: The folder cannot be watched or the file not written.
    """

    def __init__(
        self,
        file: Path,
        directory: Path = SHM_DIRECTORY,
        *,
        how: str = "",
        max_nbytes: int = MAX_NBYTES,
    ) -> None:
        self.file = file
        self.directory = directory
        self.lost = 0
        self._max_nbytes = max_nbytes
        self._boot = boot_id()
        self._pid_ns = os.readlink("/proc/self/ns/pid")
        self._checks: list[tuple[float, int, Made]] = []
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        self._lock_fd = os.open(f"{file}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise AlreadyExists(
                    f"another recorder writes {file}", "Give this one --file, or end that one."
                ) from None
            self._notifier: Notifier = open_notifier(directory, how)
        except BaseException:
            os.close(self._lock_fd)
            raise
        self._fd = self._open()
        self.compact()

    @property
    def how(self) -> str:
        """How it is told: "fanotify" or "inotify"."""
        return self._notifier.how

    def run(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Until `stop` says so, asked at least once a second."""
        while not stop():
            self.step(1.0)

    def step(self, timeout_s: float) -> None:
        """Waits for something to happen or fall due, and notes it."""
        if self._checks:
            timeout_s = min(timeout_s, max(0.0, self._checks[0][0] - time.monotonic()))
        ready, _, _ = select.select([self._notifier.fd], [], [], timeout_s)
        if ready:
            self._note(self._notifier.read())
        while self._checks and self._checks[0][0] <= time.monotonic():
            self._check(*self._checks.pop(0)[1:])

    def compact(self) -> None:
        """Leaves out what no longer exists and what is of an earlier boot, if it has grown."""
        if os.fstat(self._fd).st_size <= self._max_nbytes:
            return
        existing = {entry.inode() for entry in os.scandir(self.directory)}
        kept = {
            (made.device, made.inode): made.line()
            for made in read_lines(self.file)
            if made.boot == self._boot and made.inode in existing
        }
        lines = list(kept.values())
        while lines and sum(map(len, lines)) > self._max_nbytes // 2:
            lines = lines[len(lines) // 2 :]
        new = Path(f"{self.file}.new")
        new.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        os.replace(new, self.file)
        os.close(self._fd)
        self._fd = self._open()

    def close(self) -> None:
        """Ends it; the record stays."""
        self._notifier.close()
        os.close(self._fd)
        os.close(self._lock_fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        return os.open(self.file, flags, 0o644)

    def _note(self, events: list[Event]) -> None:
        self.lost += sum(event.lost for event in events)
        for event in events:
            if event.closed or event.lost or not event.name or event.start_ticks < 0:
                continue
            try:
                status = os.lstat(os.path.join(os.fsencode(self.directory), event.name))
            except FileNotFoundError:
                continue  # gone again, or in a folder below
            made = self._made(event, status)
            if made is not None:
                self._write(made)
                self._plan(0, made)

    def _made(self, event: Event, status: os.stat_result) -> Made | None:
        key = status.st_dev, status.st_ino
        process: Process | None = None
        pid, ticks, sure = event.pid, event.start_ticks, True
        if not pid:
            holders = self._holders(event.name, key)
            if not holders:
                return None
            process = min(holders, key=lambda p: p.start_ticks)
            pid, ticks = process.pid, process.start_ticks
            # Nobody has closed it yet: then its maker is among those who have it.
            later = self._notifier.read()
            sure = len(holders) == 1 and not any(e.closed and e.name == event.name for e in later)
            self._note(later)
        elif ticks:
            process = _read_one(pid, ticks)
        return Made(
            boot=self._boot,
            name=escape(event.name),
            device=status.st_dev,
            inode=status.st_ino,
            time_s=round(time.time(), 3),
            pid=pid,
            start_ticks=ticks,
            group=process.group if process is not None else 0,
            pid_ns=self._pid_ns,
            comm=process.comm if process is not None else "",
            uid=process.uid if process is not None else -1,
            sure=sure,
            mapped=process is not None and key in process.holds and process.holds[key].mapped,
            how=self.how,
        )

    def _holders(self, name: bytes, key: tuple[int, int]) -> list[Process]:
        device = mounted_device(os.getpid(), str(self.directory))
        prefix = os.fsencode(self.directory) + b"/"
        processes = read_processes([device] if device else [], {name}, [prefix])
        return [process for process in processes if key in process.holds]

    def _plan(self, count: int, made: Made) -> None:
        if count < len(CHECK_AFTER_S) and not made.mapped and len(self._checks) < MAX_CHECKS:
            self._checks.append((time.monotonic() + CHECK_AFTER_S[count], count, made))
            self._checks.sort(key=lambda check: check[0])

    def _check(self, count: int, made: Made) -> None:
        """Whether the maker has mapped it by now."""
        try:
            with open(f"/proc/{made.pid}/maps", "rb") as maps:
                device = f"{os.major(made.device):02x}:{os.minor(made.device):02x}"
                mark = f" {device} {made.inode} ".encode()
                mapped = any(mark in line for line in maps)
        except OSError:
            return  # it has ended
        if mapped:
            self._write(replace(made, mapped=True))
        else:
            self._plan(count + 1, made)

    def _write(self, made: Made) -> None:
        os.write(self._fd, f"{made.line()}\n".encode())
        self.compact()


def _read_one(pid: int, start_ticks: int) -> Process | None:
    process = read_process(pid, re.compile(rb"/dev/shm/"), ())
    return process if process is not None and process.start_ticks == start_ticks else None
