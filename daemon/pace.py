"""How fast the daemon reads what sessions send, so that none of them takes it from the others.

A message costs a token, or more if answering it took long. Each session has a bucket of tokens that
fills at its rate; the user's and everybody's buckets hold back only those sessions that have used
more than half of their own: who asks little never waits for who asks much.
"""

from __future__ import annotations

import time

from mcpd.shm.limits import Limits

COST_S = 0.00025
"""Of the loop's time that one token pays for: at 1000 tokens a second a quarter of it."""
BURST_S = 1.0
"""A bucket holds what comes in that time: so much may be asked at once."""
MAX_DEBT_S = 0.25
"""What one dear request may cost in advance."""


class Bucket:
    """Tokens that come at a rate; 0: without end."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.capacity = rate * BURST_S
        self.tokens = self.capacity
        self._seen_s = time.monotonic()

    def wait_s(self, now_s: float) -> float:
        """Seconds until there is a token; 0 if there is one."""
        if not self.rate:
            return 0.0
        self.tokens = min(self.capacity, self.tokens + (now_s - self._seen_s) * self.rate)
        self._seen_s = now_s
        return 0.0 if self.tokens >= 1 else (1 - self.tokens) / self.rate

    def spend(self, tokens: float) -> None:
        """Takes tokens, into debt if need be."""
        self.tokens = max(self.tokens - tokens, -self.rate * MAX_DEBT_S)


class Pacer:
    """One session's: its own bucket, and those that it shares."""

    def __init__(self, own: Bucket, shared: tuple[Bucket, ...]) -> None:
        self._own = own
        self._shared = shared

    def wait_s(self, now_s: float) -> float:
        """Seconds to wait before the next message is looked at; 0: none."""
        wait_s = self._own.wait_s(now_s)
        shared_s = max((bucket.wait_s(now_s) for bucket in self._shared), default=0.0)
        if self._own.rate and self._own.tokens >= self._own.capacity / 2:
            return wait_s
        return max(wait_s, shared_s)

    def spend(self, elapsed_s: float) -> None:
        """A message was looked at, and that took so long."""
        tokens = max(1.0, elapsed_s / COST_S)
        for bucket in (self._own, *self._shared):
            bucket.spend(tokens)


class Pace:
    """The buckets of all. Belongs to the event loop's thread."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._all = Bucket(limits.max_rate)
        self._users: dict[int, Bucket] = {}

    def pacer(self, uid: int, *, is_worker: bool = False) -> Pacer:
        """For a new session. Workers are ours and are not held back."""
        if is_worker:
            return Pacer(Bucket(0), ())
        user = self._users.setdefault(uid, Bucket(self._limits.user_rate))
        return Pacer(Bucket(self._limits.session_rate), (user, self._all))
