"""assert_no_leaks: for anybody's tests, that a piece of program leaves nothing behind."""

from __future__ import annotations

import gc
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from mcpd.shm.leaks.belongings import Thing, look, matches, without_others
from mcpd.shm.leaks.sites import Sites, forget, record

GRACE_S = 1.0
"""Threads, processes and the daemon may take that long to end what they are at."""
PAUSE_S = 0.01
KINDS = frozenset(
    ("descriptor", "mapping", "thread", "process", "name", "semaphore", "sysv", "lease")
)


class LeakError(AssertionError):
    """Something was left behind.

    Attributes:
        leftovers: What, with its owner and, if it was seen, where it was made.
    """

    def __init__(self, leftovers: Sequence[Thing]) -> None:
        self.leftovers = tuple(leftovers)
        lines = "".join(f"\n  {thing}" for thing in leftovers)
        super().__init__(f"{len(leftovers)} left behind:{lines}")


@contextmanager
def assert_no_leaks(
    *,
    ignore: Sequence[str] = (),
    tolerance: Mapping[str, int] | None = None,
    kinds: Sequence[str] | None = None,
    grace_s: float = GRACE_S,
    sites: bool = True,
) -> Iterator[None]:
    """Raises LeakError if what runs in it leaves more behind than was there before.

        with assert_no_leaks(ignore=["thread pool-"]):
            work()

    Counted are, of this process: descriptors (memfds among them), mappings of files and shared
    objects, threads, child processes, System V segments, and leases of its sessions with daemons of
    mcpd; and names in /dev/shm, semaphores among them, of this user that no other process has open.
    Garbage is collected before anything is called left. What the body raises goes on as it is, and
    nothing is checked then.
    Not for two threads at a time: each would be shown what the other makes.

    Args:
        ignore: Regular expressions; what shows one of them does not count.
        tolerance: Of each kind, how many may be left: {"thread": 2}.
        kinds: Only these.
        grace_s: How long to wait for what is about to go.
        sites: Whether to note where things are made. Costs some microseconds for each.

    Raises:
        LeakError: With each leftover, its owner and call site.
        ValueError: There is no such kind.
    """
    wanted = KINDS if kinds is None else frozenset(kinds)
    if unknown := (wanted | set(tolerance or ())) - KINDS:
        raise ValueError(f"no such kind: {sorted(unknown)}; there are {sorted(KINDS)}")
    patterns = [re.compile(pattern) for pattern in ignore]
    seen = Sites()
    if sites:
        record(seen)
    try:
        before = look(leases="lease" in wanted)
        yield
        deadline = time.monotonic() + grace_s
        while left := _left(before, wanted, patterns, tolerance or {}):
            if time.monotonic() >= deadline:
                raise LeakError([_with_site(thing, seen) for thing in left])
            time.sleep(PAUSE_S)
    finally:
        if sites:
            forget(seen)


def _left(
    before: Counter[Thing],
    wanted: frozenset[str],
    patterns: Sequence[re.Pattern[str]],
    tolerance: Mapping[str, int],
) -> list[Thing]:
    if not look(leases="lease" in wanted) - before:
        return []
    gc.collect()
    more = look(leases="lease" in wanted) - before
    left = [t for t in more.elements() if t.kind in wanted and not matches(t, patterns)]
    left = without_others(left)
    counts = Counter(thing.kind for thing in left)
    return [thing for thing in left if counts[thing.kind] > tolerance.get(thing.kind, 0)]


def _with_site(thing: Thing, seen: Sites) -> Thing:
    site = thing.site or seen.of(thing)
    return Thing(thing.kind, thing.key, thing.name, thing.owner, site)
