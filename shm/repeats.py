"""Which results of the same frame have come before: groups deliver each frame at least once."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Protocol, TypeVar

from mcpd.shm.errors import InvalidRequest
from mcpd.shm.frame import FLAG_PARTIAL


class FromFrame(Protocol):
    """A Result, or a frame that was made from another."""

    @property
    def source_stream(self) -> int: ...
    @property
    def source_seq(self) -> int: ...
    @property
    def flags(self) -> int: ...
    def close(self) -> None: ...


T = TypeVar("T", bound=FromFrame)


class Repeats:
    """Tells results of frames that had one before, by stream and sequence number. Safe for threads.

    A member of a group that dies after its result was published and before it closed the frame
    leaves the frame to another, who makes the result once more.

    Args:
        window: Newest frames that are remembered. A repeat that comes after so many others is taken
            for new. Each takes about 200 bytes.

    Raises:
        InvalidRequest: window is below 1.
    """

    def __init__(self, window: int = 4096) -> None:
        if window < 1:
            raise InvalidRequest(f"window is {window}", "Remember 1 frame or more.")
        self._window = window
        self._lock = threading.Lock()
        self._known: set[tuple[int, int]] = set()
        self._order: deque[tuple[int, int]] = deque()
        self.count = 0
        """How many repeats there were."""

    def seen(self, result: FromFrame) -> bool:
        """Whether a result of the same frame was asked about before; remembers it.

        Partial results belong together and are never repeats; the last of them counts.
        """
        if result.flags & FLAG_PARTIAL:
            return False
        key = result.source_stream, result.source_seq
        with self._lock:
            if key in self._known:
                self.count += 1
                return True
            self._known.add(key)
            self._order.append(key)
            if len(self._order) > self._window:
                self._known.discard(self._order.popleft())
        return False

    def drop(self, results: Iterable[T]) -> Iterator[T]:
        """Those of `results` that do not repeat; what does is closed."""
        for result in results:
            if self.seen(result):
                result.close()
            else:
                yield result
