"""When a model whose worker keeps ending is tried again, and when it is not any more."""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from mcpd.daemon.models.repository import ModelConfig

MIN_BACKOFF_S = 0.1
MAX_BACKOFF_S = 10.0
MAX_DOUBLINGS = 16
"""Of the back-off, which has come to its most long before; a float has no room for thousands."""
SERVED_S = 1.0
"""A worker that lived so long after it was ready starts its successor's back-off anew."""
MAX_FILES = 256
"""Of a version's folder that are looked at for a change."""

FileStamp = tuple[str, int, int, int]


class Failures:
    """How often a model's worker has ended by itself, of late and in a row.

    Attributes:
        in_a_row: Since one served for a while, or since it was asked to be tried anew.
        of_late: When each of those within the window was, in the clock's seconds.
    """

    def __init__(self) -> None:
        self.in_a_row = 0
        self.of_late: deque[float] = deque()

    def add(self, now_s: float, window_s: float) -> None:
        """The worker has ended."""
        self.of_late.append(now_s)
        while self.of_late[0] < now_s - window_s:
            self.of_late.popleft()

    def next_delay_s(self) -> float:
        """How long to wait before the next is started: longer each time."""
        doublings = min(self.in_a_row, MAX_DOUBLINGS)
        self.in_a_row += 1
        return min(MAX_BACKOFF_S, MIN_BACKOFF_S * 2.0**doublings)

    @property
    def span_s(self) -> float:
        """From the first to the last of those of late."""
        return self.of_late[-1] - self.of_late[0] if self.of_late else 0.0

    def forget(self) -> None:
        """Somebody asked for the model to be tried anew, or it was changed."""
        self.in_a_row = 0
        self.of_late.clear()


def how_it_ended(status: int) -> str:
    """An exit status as Popen gives it, in words."""
    if status >= 0:
        return f"ended with status {status}"
    try:
        name = f" ({signal.Signals(-status).name})"
    except ValueError:
        name = ""
    return f"was killed by signal {-status}{name}"


def stamp_files(config: ModelConfig, version: int) -> tuple[FileStamp, ...]:
    """What tells whether a version of a model was changed: names, times and sizes of its files."""
    return tuple(sorted(_stamps(config, version)))


def _stamps(config: ModelConfig, version: int) -> Iterator[FileStamp]:
    for folder in (config.path, config.path / str(version)):
        try:
            with os.scandir(folder) as entries:
                for entry, _ in zip(entries, range(MAX_FILES), strict=False):
                    yield _stamp(Path(entry.path), entry.stat())
        except OSError as error:
            yield str(folder), error.errno or 0, 0, 0


def _stamp(path: Path, status: os.stat_result) -> FileStamp:
    return str(path), status.st_mtime_ns, status.st_size, status.st_ino
