"""Owns the process's standard input and output, so that nothing but the protocol travels on them.

Imports only what the interpreter has at hand: it runs in the relay, whose start is waited for.
"""

from __future__ import annotations

import fcntl
import os

MAX_LINE_NBYTES = 1024 * 1024
"""Longest message read. Ours are below 1 KiB; a longer line is dropped as it comes, never kept."""


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


class Lines:
    """Cuts bytes that come in pieces into lines; keeps at most one line and one piece."""

    def __init__(self) -> None:
        self._unread = bytearray()
        self._searched = 0
        self._dropping = False

    def feed(self, piece: bytes) -> None:
        """Adds what has arrived."""
        self._unread += piece

    def next(self) -> bytes | None:
        """The next whole line with its line feed; None if there is none yet.

        A line above MAX_LINE_NBYTES comes out as empty bytes once its end is there.
        """
        end = self._unread.find(b"\n", self._searched) + 1
        if not end:
            if len(self._unread) > MAX_LINE_NBYTES:
                self._dropping = True
            if self._dropping:
                self._unread.clear()
            self._searched = len(self._unread)
            return None
        line = bytes(self._unread[:end])
        del self._unread[:end]
        self._searched = 0
        too_long = self._dropping or len(line) > MAX_LINE_NBYTES
        self._dropping = False
        return b"" if too_long else line
