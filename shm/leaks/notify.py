"""Who makes names in a folder, told by the kernel as it happens.

As root by fanotify, which names the process. Others have inotify, which does not: then the maker is
whoever has the new file open, looked for at once.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import struct
from pathlib import Path
from typing import NamedTuple, Protocol

from mcpd.shm.segment import process_start_ticks

_FAN_CREATE, _FAN_MOVED_TO, _FAN_OVERFLOW = 0x100, 0x80, 0x4000
_FAN_ONDIR = 0x40000000
_FAN_CLOEXEC, _FAN_NONBLOCK, _FAN_REPORT_PIDFD, _FAN_REPORT_DFID_NAME = 0x1, 0x2, 0x80, 0xC00
_FAN_MARK_ADD, _FAN_MARK_FILESYSTEM = 0x1, 0x100
_INFO_DFID_NAME, _INFO_PIDFD = 2, 4
_METADATA = struct.Struct("=IBBHQii")
_INFO = struct.Struct("=BBH")
_IN_CREATE, _IN_MOVED_TO, _IN_CLOSE_WRITE, _IN_OVERFLOW = 0x100, 0x80, 0x8, 0x4000
_IN_EVENT = struct.Struct("=iIII")
_AT_FDCWD = -100
_READ_NBYTES = 64 * 1024


class Event(NamedTuple):
    """A name that has come to be.

    Attributes:
        pid: Its maker, 0 if the kernel does not say.
        start_ticks: Of the maker; 0 if it is dead already.
        closed: Not made, but closed after it was open for writing.
        lost: Not a name: events were lost, as too many came at once.
    """

    name: bytes
    pid: int = 0
    start_ticks: int = 0
    closed: bool = False
    lost: bool = False


class Notifier(Protocol):
    """Either way to be told."""

    how: str
    fd: int

    def read(self) -> list[Event]:
        """What has happened since; does not wait."""
        ...

    def close(self) -> None: ...


class Fanotify:
    """Of a whole file system, with the maker of each name. Needs root.

    Raises:
        OSError: Not permitted, or the kernel or the file system cannot.
    """

    how = "fanotify"

    def __init__(self, directory: Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        flags = _FAN_CLOEXEC | _FAN_NONBLOCK | _FAN_REPORT_DFID_NAME
        self.fd = libc.fanotify_init(flags | _FAN_REPORT_PIDFD, os.O_RDONLY)
        if self.fd < 0 and ctypes.get_errno() == errno.EINVAL:  # before Linux 5.15
            self.fd = libc.fanotify_init(flags, os.O_RDONLY)
        if self.fd < 0:
            raise _last_error("fanotify_init")
        marked = libc.fanotify_mark(
            self.fd,
            _FAN_MARK_ADD | _FAN_MARK_FILESYSTEM,
            ctypes.c_uint64(_FAN_CREATE | _FAN_MOVED_TO | _FAN_ONDIR),
            _AT_FDCWD,
            os.fsencode(directory),
        )
        if marked < 0:
            error = _last_error("fanotify_mark")
            os.close(self.fd)
            raise error

    def read(self) -> list[Event]:
        """What has happened since; does not wait."""
        found = []
        while data := _read(self.fd):
            offset = 0
            while offset < len(data):
                length, _, _, start, mask, _, pid = _METADATA.unpack_from(data, offset)
                if mask & _FAN_OVERFLOW:
                    found.append(Event(b"", lost=True))
                else:
                    found.append(_fanotify_event(data[offset + start : offset + length], pid))
                offset += length
        return found

    def close(self) -> None:
        """Ends it."""
        os.close(self.fd)


class Inotify:
    """Of one folder, without the makers. For everybody."""

    how = "inotify"

    def __init__(self, directory: Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self.fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            raise _last_error("inotify_init1")
        mask = _IN_CREATE | _IN_MOVED_TO | _IN_CLOSE_WRITE
        if libc.inotify_add_watch(self.fd, os.fsencode(directory), mask) < 0:
            error = _last_error("inotify_add_watch")
            os.close(self.fd)
            raise error

    def read(self) -> list[Event]:
        """What has happened since; does not wait."""
        found = []
        while data := _read(self.fd):
            offset = 0
            while offset < len(data):
                _, mask, _, length = _IN_EVENT.unpack_from(data, offset)
                offset += _IN_EVENT.size
                name = data[offset : offset + length].rstrip(b"\0")
                offset += length
                lost, closed = bool(mask & _IN_OVERFLOW), bool(mask & _IN_CLOSE_WRITE)
                found.append(Event(name, closed=closed, lost=lost))
        return found

    def close(self) -> None:
        """Ends it."""
        os.close(self.fd)


def open_notifier(directory: Path, how: str = "") -> Notifier:
    """The better way there is, or the one named."""
    if how == "inotify":
        return Inotify(directory)
    try:
        return Fanotify(directory)
    except OSError:
        if how:
            raise
        return Inotify(directory)


def _fanotify_event(infos: bytes, pid: int) -> Event:
    name, pidfd = b"", -1
    offset = 0
    while offset + _INFO.size <= len(infos):
        kind, _, length = _INFO.unpack_from(infos, offset)
        body = infos[offset + _INFO.size : offset + length]
        if kind == _INFO_DFID_NAME:
            (handle_nbytes,) = struct.unpack_from("=I", body, 8)
            name = body[16 + handle_nbytes :].split(b"\0", 1)[0]
        elif kind == _INFO_PIDFD:
            (pidfd,) = struct.unpack_from("=i", body, 0)
        offset += length
    if pidfd < 0:
        return Event(name, pid, 0 if pid else -1)
    try:
        ticks = process_start_ticks(pid) or 0
        # It lives still, so what was read was its own and not that of a later one of its number.
        alive = not select.select([pidfd], [], [], 0)[0]
    finally:
        os.close(pidfd)
    return Event(name, pid, ticks if alive else 0)


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, _READ_NBYTES)
    except BlockingIOError:
        return b""


def _last_error(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")
