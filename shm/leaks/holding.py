"""Asks the kernel whether anybody at all has a file open or mapped.

A write lease (fcntl F_SETLEASE) is given only for a file that nobody else has open. A mapping keeps
its file open, and so does a descriptor on its way through a socket, so this sees what /proc cannot:
processes of other users, of other containers, descriptors in flight.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
from collections.abc import Iterator
from contextlib import contextmanager

FREE = "free"
HELD = "held"
NOT_TOLD = "not told"


class Lease:
    """What the kernel said about one file.

    Attributes:
        answer: FREE, HELD, or NOT_TOLD: the file is another user's, or its file system does not
            say.
    """

    def __init__(self, answer: str, fd: int = -1) -> None:
        self.answer = answer
        self._fd = fd

    def stands(self) -> bool:
        """Whether still nobody has asked to open it since the lease was given."""
        return self.answer == FREE and fcntl.fcntl(self._fd, fcntl.F_GETLEASE) == fcntl.F_WRLCK


@contextmanager
def lease(dir_fd: int, name: bytes, key: tuple[int, int]) -> Iterator[Lease]:
    """Whether anybody has that file; who opens it meanwhile waits until this is left.

    Args:
        dir_fd: Its folder.
        key: Its device and inode: another file of that name counts as not told.
    """
    try:
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, dir_fd=dir_fd)
    except OSError as error:
        # With O_NONBLOCK: somebody else has a lease on it, and so has it open.
        yield Lease(HELD if error.errno == errno.EWOULDBLOCK else NOT_TOLD)
        return
    try:
        status = os.fstat(fd)
        if (status.st_dev, status.st_ino) != key or not stat.S_ISREG(status.st_mode):
            yield Lease(NOT_TOLD)
            return
        try:
            # The signal of somebody who wants to open it would end this process, if it were SIGIO.
            fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except OSError as error:
            yield Lease(HELD if error.errno == errno.EAGAIN else NOT_TOLD)
            return
        yield Lease(FREE, fd)
    finally:
        os.close(fd)


def ask(dir_fd: int, name: bytes, key: tuple[int, int]) -> str:
    """FREE, HELD or NOT_TOLD."""
    with lease(dir_fd, name, key) as answer:
        return answer.answer
