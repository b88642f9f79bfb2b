"""Owns the process's standard input and output, so that nothing but the protocol travels on them.

Imports only the standard library: it runs before anything that might print.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from typing import Final

MAX_LINE_NBYTES: Final = 1024 * 1024
"""Longest message read. Ours are below 1 KiB; a longer line is dropped as it comes, never kept."""
_READ_NBYTES: Final = 64 * 1024
UNREADABLE: Final = "{line too long}\n"
"""Stands for a line that was dropped; no JSON, so the SDK treats it as it treats garbage."""


def take_wire() -> tuple[int, int]:
    """Moves standard input and output to descriptors of our own: (input, output), close-on-exec.

    From now on descriptor 0 is empty and descriptor 1 is standard error, so that whatever a
    library or a child process prints or reads stays off the wire.

    Raises:
        OSError: Standard input or output is closed.
    """
    wire_in = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 3)
    wire_out = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 3)
    null = os.open(os.devnull, os.O_RDWR)
    try:
        os.dup2(null, 0)
        try:
            os.dup2(2, 1)
        except OSError:
            os.dup2(null, 1)
            os.dup2(null, 2)
    finally:
        if null > 2:
            os.close(null)
    return wire_in, wire_out


class WireInput:
    """Lines of at most MAX_LINE_NBYTES from a descriptor: pipe, socket, terminal or file.

    `readline` blocks; one thread at a time. The descriptor stays the caller's.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._unread = bytearray()
        self._ended = False

    def readline(self) -> str:
        """The next line with its line feed, UNREADABLE for one that is too long, "" at the end.

        Bytes that are not UTF-8 become U+FFFD. What follows the last line feed at the end of the
        input is half a message and is dropped.
        """
        dropping = False
        searched = 0
        while True:
            end = self._unread.find(b"\n", searched)
            if end >= 0:
                line = bytes(self._unread[: end + 1])
                del self._unread[: end + 1]
                too_long = dropping or len(line) > MAX_LINE_NBYTES
                return UNREADABLE if too_long else line.decode("utf-8", "replace")
            if len(self._unread) > MAX_LINE_NBYTES:
                dropping = True
                self._unread.clear()
            searched = len(self._unread)
            if not self._fill():
                return ""

    def _fill(self) -> bool:
        if not self._ended:
            try:
                received = os.read(self._fd, _READ_NBYTES)
            except ConnectionResetError:
                received = b""
            self._unread += received
            self._ended = not received
        return not self._ended


class WireOutput:
    """Writes whole lines to a descriptor. `write` blocks; one thread at a time.

    `on_closed` is called when the host has closed its end, and should end the process: reading
    further would wait for a host that no longer listens.
    """

    def __init__(self, fd: int, on_closed: Callable[[], None]) -> None:
        self._fd = fd
        self._on_closed = on_closed

    def write(self, text: str) -> int:
        """Writes all of `text`; returns its number of characters."""
        rest = memoryview(text.encode("utf-8"))
        try:
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except (BrokenPipeError, ConnectionResetError):
            self._on_closed()
        return len(text)

    def flush(self) -> None:
        """Does nothing: `write` leaves nothing behind."""
