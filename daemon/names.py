"""Names of streams: which are taken, and what is remembered of one whose writer is gone."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from mcpd.daemon.leases import MAX_SEQ, Stream
from mcpd.shm.errors import AlreadyExists

REMEMBERED = 256
"""Names without followers that are remembered."""
REMEMBERED_S = 600.0


class Past(NamedTuple):
    """A stream whose writer is gone, as the next of its name continues it.

    Attributes:
        generation: The highest that was given.
    """

    id: int
    generation: int
    next_seq: int
    ended_s: float


class Names:
    """Taken names, names being taken, and names that may be continued.

    Args:
        followed: Whether somebody waits for the next writer of a stream, by its number.

    Attributes:
        live: Streams that can be found: not ended. The newest generation of each.
    """

    def __init__(self, followed: Callable[[int], bool]) -> None:
        self.live: dict[str, Stream] = {}
        self._reserved: set[str] = set()
        self._past: dict[str, Past] = {}  # the one that ended last is the last
        self._followed = followed

    def reserve(self, name: str) -> None:
        """Keeps a name for a stream that is being made; AlreadyExists if it is taken."""
        if name in self.live or name in self._reserved:
            raise AlreadyExists(
                f"stream {name!r} exists",
                "Choose another name, or stop its writer (`mcpd status` names it).",
            )
        self._reserved.add(name)

    def release(self, name: str) -> None:
        """Gives a reserved name back."""
        self._reserved.discard(name)

    def add(self, stream: Stream) -> None:
        """The stream is found under its name from now on."""
        self._reserved.discard(stream.name)
        self.live[stream.name] = stream
        self._past.pop(stream.name, None)

    def forget(self, stream: Stream) -> None:
        """The stream cannot be found any more, and its name is free. Idempotent."""
        if self.live.get(stream.name) is stream:
            del self.live[stream.name]

    def end(self, stream: Stream) -> None:
        """As forget; what comes under the name next continues the stream."""
        if self.live.get(stream.name) is not stream:
            return
        del self.live[stream.name]
        next_seq = stream.head() + 1
        if stream.hidden or next_seq >= MAX_SEQ:
            return
        self._past[stream.name] = Past(stream.id, stream.given, next_seq, time.monotonic())
        self._prune()

    def past(self, name: str) -> Past | None:
        """What is remembered of a name that is free."""
        self._prune()
        return self._past.get(name)

    def _prune(self) -> None:
        oldest_s = time.monotonic() - REMEMBERED_S
        spare = len(self._past) - REMEMBERED
        for name, past in list(self._past.items()):
            if past.ended_s > oldest_s and spare <= 0:
                return  # so are all that follow: they ended later
            if not self._followed(past.id):
                del self._past[name]
                spare -= 1
