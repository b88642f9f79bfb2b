"""What processes use while frames flow: CPU time, and bytes through their pipes and sockets.

Bytes are rchar and wchar of /proc/PID/io: all that read and write moved, files, pipes and terminals
alike. Two things are known not to be a frame's and are subtracted, each by its exact number: what
the source read from its video file, and what this process wrote to the terminal and read from /proc
to measure. sendmsg and recvmsg are not in those counters: what went through the control sockets the
daemon counts for each session, and tells. Asking it is itself such traffic, and stays in.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Reading:
    """Counters of a process since its start.

    Attributes:
        cpu_s: User and system time.
        nbytes: Bytes read and written, without those of the video file and of measuring.
        file_nbytes: Bytes read from the video file.
        socket_nbytes: Bytes through control sockets, both directions.
    """

    cpu_s: float
    nbytes: int
    file_nbytes: int = 0
    socket_nbytes: int = 0


@dataclass(frozen=True)
class Use:
    """What a process used for each frame of a stretch; fields as of Reading."""

    cpu_ms: float
    nbytes: float
    file_nbytes: float
    socket_nbytes: float


class Stretch:
    """The first and the latest reading of one process, and how many frames lie between.

    Args:
        read: Takes a reading; raises ProcessLookupError or FileNotFoundError once it is gone.
    """

    def __init__(self, read: Callable[[], Reading]) -> None:
        self._read = read
        self._first: tuple[int, Reading] | None = None
        self._last: tuple[int, Reading] | None = None

    def take(self, frames: int) -> None:
        """A reading when `frames` are done. Nothing happens if the process has ended."""
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            reading = self._read()
            self._first = self._first or (frames, reading)
            self._last = (frames, reading)

    def use(self) -> Use | None:
        """Use per frame between first and last reading; None without two of them."""
        if self._first is None or self._last is None or self._last[0] == self._first[0]:
            return None
        (before, first), (after, last) = self._first, self._last
        frames = after - before
        return Use(
            cpu_ms=(last.cpu_s - first.cpu_s) * 1e3 / frames,
            nbytes=(last.nbytes - first.nbytes) / frames,
            file_nbytes=(last.file_nbytes - first.file_nbytes) / frames,
            socket_nbytes=(last.socket_nbytes - first.socket_nbytes) / frames,
        )


class ProcessReader:
    """Takes readings of processes through /proc and knows how much it read there itself."""

    def __init__(self) -> None:
        self.nbytes = 0
        """Bytes read from /proc so far: they are in this process's own rchar."""

    def read(self, pid: int, file: Path | None = None) -> Reading:
        """A reading of another process; `file` is one it reads whose bytes are not to count.

        Raises:
            FileNotFoundError, ProcessLookupError: It has ended.
            PermissionError: It is not dumpable, or another user's.
        """
        read, written = self._io(pid)
        position = self._position(pid, file) if file is not None else 0
        return Reading(self._cpu_s(pid), read + written - position, position)

    def read_self(self, terminal_nbytes: int) -> Reading:
        """A reading of this process without its `terminal_nbytes` and without measuring."""
        measured = self.nbytes
        read, written = self._io(os.getpid())
        times = os.times()
        return Reading(times.user + times.system, read + written - measured - terminal_nbytes)

    def _cpu_s(self, pid: int) -> float:
        fields = self._text(f"/proc/{pid}/stat").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * _TICK_S

    def _io(self, pid: int) -> tuple[int, int]:
        lines = self._text(f"/proc/{pid}/io").splitlines()
        counters = dict(line.split(": ") for line in lines)
        return int(counters["rchar"]), int(counters["wchar"])

    def _position(self, pid: int, file: Path) -> int:
        """How far the process has read in `file`, which it reads from front to back."""
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{pid}/fd/{descriptor}") == str(file):
                    line = self._text(f"/proc/{pid}/fdinfo/{descriptor}").splitlines()[0]
                    return int(line.split()[1])
        raise FileNotFoundError(f"process {pid} has no longer {file} open")

    def _text(self, path: str) -> str:
        with open(path, "rb") as stream:
            data = stream.read()
        self.nbytes += len(data)
        return data.decode()
