"""One descriptor that an event loop can watch for as long as a reader lives, whatever it reads."""

from __future__ import annotations

import os
import select
from contextlib import suppress


class Watch:
    """An epoll descriptor around the descriptor of the generation that is read now, -1 for none.

    Readable when that is, or when `signal` was called and `drain` not since.
    """

    def __init__(self, fd: int) -> None:
        self._news_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        try:
            self._epoll = select.epoll()
            self._epoll.register(self._news_fd, select.EPOLLIN)
            if fd >= 0:
                self._epoll.register(fd, select.EPOLLIN)
        except BaseException:
            os.close(self._news_fd)
            raise

    def fileno(self) -> int:
        """The descriptor; the same until `close`."""
        return self._epoll.fileno()

    def duplicates(self) -> tuple[int, int]:
        """The descriptor, and one that keeps it readable after `close`; the caller's to close."""
        first = os.dup(self._epoll.fileno())
        try:
            return first, os.dup(self._news_fd)
        except BaseException:
            os.close(first)
            raise

    def add(self, fd: int) -> None:
        """Readable when this is, too; a descriptor that is closed is left out by itself."""
        self._epoll.register(fd, select.EPOLLIN)

    def remove(self, fd: int) -> None:
        """Not for this any more: to be called before it is closed where others have it open, too,
        for then it is not left out."""
        with suppress(OSError):
            self._epoll.unregister(fd)

    def signal(self) -> None:
        """Makes it readable."""
        if self._news_fd >= 0:
            os.eventfd_write(self._news_fd, 1)

    def drain(self) -> None:
        """Takes the signals."""
        if self._news_fd >= 0:
            with suppress(BlockingIOError):
                os.eventfd_read(self._news_fd)

    def close(self) -> None:
        """Signals who watches a duplicate, and closes. Idempotent."""
        if self._news_fd < 0:
            return
        self.signal()
        os.close(self._news_fd)
        self._news_fd = -1
        self._epoll.close()
