"""What a worker writes to its standard error: passed on to the daemon's, the last lines kept."""

from __future__ import annotations

import asyncio
import os
import select
import sys
from collections import deque

READ_NBYTES = 64 << 10
WRITE_NBYTES = 4096
"""PIPE_BUF: a pipe that polls as writable takes so much without blocking."""
NBYTES_PER_S = 1 << 20
"""A worker that writes more waits: neither the daemon's time nor its log is there for one model."""
RETRY_S = 0.05
"""How long to wait for whoever reads the daemon's log before looking again."""
LAST_LINES = 8
LINE_LENGTH = 300
_OF_STACKS = ("Current thread 0x", "Thread 0x", "Extension modules:", "Traceback (most")
"""Such lines, and those that are indented, say little where a reason is told."""
MAX_LINE_NBYTES = 16 << 10
"""A longer line is passed on in parts."""


class WorkerLog:
    """Reads a worker's end of a pipe. Belongs to the event loop's thread.

    Nothing here blocks: a log that nobody reads holds up the worker that writes, not the daemon.

    Args:
        loop: The daemon's.
        fd: Where to read; this object's from the call on.

    Attributes:
        nbytes: Read so far.
        last_lines: Those that came last, without empty ones and those of stacks.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, fd: int) -> None:
        self.nbytes = 0
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self._loop = loop
        self._fd = fd
        self._partial = b""
        self._out = bytearray()
        self._since_s = loop.time()
        self._read_since = 0
        self._paused: asyncio.TimerHandle | None = None
        os.set_blocking(fd, False)
        loop.add_reader(fd, self._readable)

    def close(self) -> None:
        """Takes in what is still there and lets go. Idempotent."""
        if self._fd < 0:
            return
        while len(self._out) < NBYTES_PER_S and self._read() > 0:
            pass
        self._take(self._partial + b"\n" if self._partial else b"")
        self._write()
        if self._paused is not None:
            self._paused.cancel()
        self._loop.remove_reader(self._fd)
        os.close(self._fd)
        self._fd = -1

    def _readable(self) -> None:
        if self._read() == 0:
            self.close()
            return
        left_s = self._since_s + 1.0 - self._loop.time()
        if left_s <= 0:
            self._since_s, self._read_since = self._loop.time(), 0
        elif self._read_since >= NBYTES_PER_S:
            self._pause(left_s)
        if not self._write():
            self._pause(RETRY_S)

    def _pause(self, pause_s: float) -> None:
        self._loop.remove_reader(self._fd)
        if self._paused is None:
            self._paused = self._loop.call_later(pause_s, self._resume)

    def _resume(self) -> None:
        self._paused = None
        if self._write():
            self._loop.add_reader(self._fd, self._readable)
        else:
            self._pause(RETRY_S)

    def _read(self) -> int:
        """Takes in what is there; how many bytes: 0 at the end, -1 if there is nothing now."""
        try:
            data = os.read(self._fd, READ_NBYTES)
        except BlockingIOError:
            return -1
        self.nbytes += len(data)
        self._read_since += len(data)
        whole, newline, rest = (self._partial + data).rpartition(b"\n")
        if len(rest) > MAX_LINE_NBYTES:
            whole, newline, rest = whole + newline + rest, b"\n", b""
        self._partial = rest
        self._take(whole + newline)
        return len(data)

    def _take(self, lines: bytes) -> None:
        self._out += lines
        for line in lines.decode(errors="replace").splitlines():
            if line[:1].strip() and not line.startswith(_OF_STACKS):
                self.last_lines.append(line[:LINE_LENGTH])

    def _write(self) -> bool:
        """Passes on what is there, as far as the log takes it; whether that was all."""
        poll = select.poll()
        try:
            fd = sys.__stderr__.fileno() if sys.__stderr__ is not None else -1
            poll.register(fd, select.POLLOUT)
            while self._out:
                if not poll.poll(0):
                    return False
                written = os.write(fd, self._out[:WRITE_NBYTES])
                del self._out[:written]
        except (OSError, ValueError):
            self._out.clear()  # nobody reads the log any more
        return True
