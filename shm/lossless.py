"""Keeps the results of every frame in order, and tells those that a dead worker owes."""

from __future__ import annotations

import threading
from collections import deque
from typing import Protocol

from mcpd.shm.result import Result


class Opened(Protocol):
    """A ResultReader, as far as it says of what it reads."""

    source: str
    model: str
    version: int
    start_seq: int


class LosslessOrder:
    """Says of results that come one for each frame which are missing. Safe for threads.

    A worker that dies takes frames along that have no result, and others are published before the
    next one reads. Each of those gets a result that says so, in its place.
    """

    def __init__(self, reader: Opened) -> None:
        self._lock = threading.Lock()
        self._next_seq = reader.start_seq  # 0: not known before the first result
        self._waiting: deque[Result | range] = deque()
        self._reader = reader
        self._why = ""

    def put(self, result: Result) -> Result | None:
        """Takes a result in; returns it if it is the next, None if `take` has what comes first."""
        seq = result.source_seq
        with self._lock:
            early = self._next_seq and seq > self._next_seq
            if early:
                self._waiting.append(range(self._next_seq, seq))
            if not result.partial and seq >= self._next_seq:
                self._next_seq = seq + 1
            if not self._waiting:
                return result
            self._waiting.append(result)
            return None

    def take(self) -> Result | None:
        """What comes before any new result: one that is lost, or one that was put back."""
        if not self._waiting:
            return None
        with self._lock:
            if not self._waiting:
                return None
            first = self._waiting.popleft()
            if isinstance(first, Result):
                return first
            if len(first) > 1:
                self._waiting.appendleft(first[1:])
        reader = self._reader
        return Result.lost(
            first[0],
            stream=reader.source,
            model=reader.model,
            version=reader.version,
            error=f"the worker died with the frame, or before another took it{self._why}",
        )

    def reopened(self, reader: Opened, detail: str) -> None:
        """The worker died, and another goes on: what lies between is lost."""
        with self._lock:
            self._reader = reader
            self._why = f": {detail}" if detail else ""
            if self._next_seq and reader.start_seq > self._next_seq:
                self._waiting.append(range(self._next_seq, reader.start_seq))
            self._next_seq = max(self._next_seq, reader.start_seq)

    def close(self) -> None:
        """Lets go of what nobody took."""
        with self._lock:
            waiting, self._waiting = list(self._waiting), deque()
        for one in waiting:
            if isinstance(one, Result):
                one.close()
