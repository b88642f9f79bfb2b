"""Lossless readers that hold their writer up: found, reported, and evicted after their time.

A reader stalls while its writer waits, frames are there that it has not come to, and it comes to
none. What counts is how far the writer lets it be, so a reader that only claims to go on does not.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from mcpd.daemon.leases import Reader, Stream
from mcpd.daemon.registry import Registry
from mcpd.shm.messages import ReaderEvicted

log = logging.getLogger("mcpd.daemon")

TICK_S = 1.0
"""How often readers are looked at while one stalls, unless a limit is less than four times that."""
IDLE_TICK_S = 5.0
"""And while none does."""
MIN_TICK_S = 0.02
REPORT_S = 5.0
"""A reader that stalls longer, or half of its limit, is reported."""


@dataclass
class Stall:
    """How a reader stands.

    Attributes:
        position: The first frame that it has not come to, at most the one after the newest.
        moved: Whether it has come further since it was looked at before.
        since_s: Since when it has stalled; None: it does not.
    """

    position: int
    moved: bool = True
    since_s: float | None = None
    reported: bool = False


class Stalls:
    """Looks at lossless readers while there are any. Belongs to the event loop's thread.

    Args:
        limit_s: After that time a reader is evicted; 0: never. One may ask for less.
    """

    def __init__(self, registry: Registry, limit_s: float) -> None:
        self._registry = registry
        self._limit_s = limit_s
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._stalls: dict[Reader, Stall] = {}
        self._refused: dict[Stream, int] = {}  # how often each writer found no slot
        registry.on_reader_added = self._added

    def close(self) -> None:
        """Looks no more. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()

    def _added(self, reader: Reader) -> None:
        reader.stall_limit_s = self._limit_of(reader)
        if not _is_watched(reader):
            return
        due_s = self._loop.time() + self._tick_s([reader])
        if self._timer is not None and self._timer.when() > due_s:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = self._loop.call_at(due_s, self._look)

    def _limit_of(self, reader: Reader) -> float:
        """0: never, as for those that are not watched."""
        if not _is_watched(reader):
            return 0.0
        return min(filter(None, (reader.asked_limit_s, self._limit_s)), default=0.0)

    def _tick_s(self, readers: list[Reader]) -> float:
        stalls = any(stall.since_s is not None for stall in self._stalls.values())
        most_s = TICK_S if stalls else IDLE_TICK_S
        least_s = min((r.stall_limit_s for r in readers if r.stall_limit_s), default=4 * most_s)
        return min(most_s, max(MIN_TICK_S, least_s / 4))

    def _look(self) -> None:
        now_s = self._loop.time()
        readers = [
            reader
            for reader in self._registry.readers.values()
            if _is_watched(reader) and reader.state in ("joining", "live")
        ]
        before, self._stalls = self._stalls, {}
        refused, self._refused = self._refused, {}
        waits = {
            stream: self._writer_waits(stream, refused.get(stream))
            for stream in {reader.stream for reader in readers}
        }
        for reader in readers:
            if reader.state == "live":
                stall = self._stalls[reader] = before.get(reader) or Stall(0)
                self._follow(reader, stall, waits[reader.stream], now_s)
        for reader, stall in list(self._stalls.items()):
            if stall.since_s is not None:
                self._act(reader, stall, now_s - stall.since_s)
        if readers:
            self._timer = self._loop.call_later(self._tick_s(readers), self._look)
        else:
            self._timer = None

    def _writer_waits(self, stream: Stream, refused: int | None) -> bool:
        """By the writer's word, who can end its stream as well."""
        stats = stream.counters.stats()
        self._refused[stream] = stats["would_block"]
        return bool(stats["blocked_since_ns"]) or (
            refused is not None and stats["would_block"] != refused
        )

    def _follow(self, reader: Reader, stall: Stall, waits: bool, now_s: float) -> None:
        head = reader.stream.head()
        position = max(stall.position, min(_position(reader), head + 1))
        stall.moved = position != stall.position
        stall.position = position
        moved = stall.moved or _moved_before(reader, self._stalls)
        if not waits or moved or position > head or not self._holds_up(reader, position):
            stall.since_s, stall.reported = None, False
        elif stall.since_s is None:
            stall.since_s = now_s
        reader.stalled_since_s = stall.since_s

    def _holds_up(self, reader: Reader, position: int) -> bool:
        """Whether no other reader is further behind, or it has all the unread frames it may."""
        depth = reader.group.depth if reader.group is not None else reader.depth
        if depth and reader.stream.head() + 1 - position >= depth:
            return True
        others = (
            self._stalls[other].position
            for other in reader.stream.readers.values()
            if other in self._stalls and other is not reader
        )
        return position <= min(others, default=position)

    def _act(self, reader: Reader, stall: Stall, stalled_s: float) -> None:
        limit_s = reader.stall_limit_s
        if limit_s and stalled_s >= limit_s:
            self.evict(
                reader,
                f"it held up the writer of stream {reader.stream.name!r} for {stalled_s:.1f} s "
                f"without taking a frame; its limit is {limit_s:g} s",
            )
        elif not stall.reported and stalled_s >= min(REPORT_S, limit_s / 2 or REPORT_S):
            stall.reported = True
            fate = f"evicted after {limit_s:g} s" if limit_s else "never evicted"
            log.warning(
                "stream=%d name=%s reader=%d %s holds its writer up for %.1f s; %s",
                *(reader.stream.id, reader.stream.name, reader.id, reader.session, stalled_s, fate),
            )

    def evict(self, reader: Reader, why: str) -> None:
        """Takes a reader's place away, in every generation that it has not left.

        It is owed nothing more. What its process may still look at stays until it has detached or
        is gone.
        """
        first = reader
        while first.predecessor is not None:
            first = first.predecessor
        one: Reader | None = first
        while one is not None:
            after = one.successor
            if one.state == "live":
                one.evicted = why
                one.stalled_since_s = None
                if one.told:
                    one.session.send(ReaderEvicted(reader=one.id, reason=why))
                self._registry.release_reader(one)
                log.warning(
                    "stream=%d name=%s reader=%d %s evicted: %s",
                    *(one.stream.id, one.stream.name, one.id, one.session, why),
                )
            one = after


def _position(reader: Reader) -> int:
    """The first frame that it, or its group, has not come to, by its own word."""
    counters = reader.group.counters if reader.group is not None else reader.counters
    return max(counters.stats()["cursor"], reader.start_seq, reader.stream.first_seq)


def _moved_before(reader: Reader, stalls: dict[Reader, Stall]) -> bool:
    """Whether it still reads an earlier generation, and has come further there."""
    earlier = reader.predecessor
    while earlier is not None:
        known = stalls.get(earlier)
        if known is not None and known.moved:
            return True
        earlier = earlier.predecessor
    return False


def _is_watched(reader: Reader) -> bool:
    """Whether somebody else may have to wait for it; workers have a watchdog of their own."""
    return reader.policy == "lossless" and not reader.stream.hidden and not reader.session.is_worker
