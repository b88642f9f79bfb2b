"""What each session, each user and all together have, against what they may have.

Everything is admitted here before it is made: the answer comes at once, and says what is used, what
is allowed and which option raises it. What was admitted is a Share, which its lease gives back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

from mcpd.daemon.limits import MemoryLedger
from mcpd.shm.errors import LimitExceeded
from mcpd.shm.limits import Limits, size

SESSION_FDS = 2
"""Descriptors of the daemon for a connection: its socket and the pidfd."""
STREAM_FDS = 5
"""For a generation while it is sealed: control, payload, wake, and the first two read-only."""
READER_FDS = 3
"""Control, wake, and the read-only one that goes to the writer."""
GROUP_FDS = 2

THINGS = ("memory", "streams", "readers", "fds", "sessions", "requests")
_TEXTS = {
    "memory": "memory",
    "streams": "streams",
    "readers": "readers",
    "fds": "descriptors of the daemon",
    "sessions": "sessions",
    "requests": "requests that wait",
}
_HINTS = {
    "memory": "Use fewer or smaller slots, or close a stream",
    "streams": "Close a stream",
    "readers": "Close a reader",
    "fds": "Close streams or readers",
    "sessions": "Close a session (`mcpd status` lists them)",
    "requests": "Wait for replies before asking more",
}


class Holder(Protocol):
    """A session, as far as its quota goes. A worker's is of no user: what it has, it has for
    clients, whose readers are counted."""

    @property
    def number(self) -> int: ...
    @property
    def is_worker(self) -> bool: ...
    @property
    def uid(self) -> int: ...


class Owner(NamedTuple):
    """Whose a quota is: ("session", number), ("user", uid) or ("all", 0)."""

    scope: str
    number: int

    def __str__(self) -> str:
        return "all together" if self.scope == "all" else f"{self.scope} {self.number}"


_ALL = Owner("all", 0)


class Share:
    """What was admitted for one lease; given back once. Made by Quotas.take."""

    def __init__(self, quotas: Quotas, owners: tuple[Owner, ...], things: dict[str, int]) -> None:
        self.things = things
        self._quotas = quotas
        self._owners = owners
        self._pending = things.get("memory", 0)

    def settle(self) -> None:
        """Its memory is reserved by now, so the machine's own numbers tell. Idempotent."""
        if self._pending:
            self._quotas.ledger.settle(self._pending)
            self._pending = 0

    def give_back(self) -> None:
        """What it stands for is no more. Idempotent."""
        self.settle()
        things, self.things = self.things, {}
        self._quotas.give_back(self._owners, things)


class Quotas:
    """The one place that counts. Belongs to the event loop's thread.

    Args:
        ledger: Counts memory against the machine and the configured total.
        limits: What is allowed.
        total_fds: Descriptors that all sessions together may have the daemon hold.
    """

    def __init__(self, ledger: MemoryLedger, limits: Limits, total_fds: int) -> None:
        self.ledger = ledger
        self.limits = limits
        self._allowed = _allowed(limits, total_fds)
        self._used: dict[Owner, Counter[str]] = {}

    def take(self, session: Holder, what: str, **things: int) -> Share:
        """Admits things for a session: counted from now on, until the share is given back.

        Args:
            what: What they are for, for the error.
            things: Of THINGS, how many; bytes of memory.

        Raises:
            LimitExceeded: A limit of the session, its user or all together.
            OutOfMemory: The machine has not the memory.
        """
        owners = _owners(session)
        for thing, count in things.items():
            for owner in owners:
                self._check(owner, thing, count, what)
        if things.get("memory"):
            self.ledger.admit(things["memory"], what)
        for owner in owners:
            self._used.setdefault(owner, Counter()).update(things)
        return Share(self, owners, things)

    def give_back(self, owners: tuple[Owner, ...], things: dict[str, int]) -> None:
        """Called by a share."""
        if things.get("memory"):
            self.ledger.release(things["memory"])
        for owner in owners if things else ():
            used = self._used[owner]
            used.subtract(things)
            if not any(used.values()):
                del self._used[owner]

    def used(self, owner: Owner, thing: str) -> int:
        """How much of something is counted."""
        return self._used[owner][thing] if owner in self._used else 0

    def allowed(self, scope: str, thing: str) -> int:
        """How much there may be; 0: no limit of its own."""
        if (scope, thing) == ("all", "memory"):
            return self.ledger.limit_nbytes
        return self._allowed.get((scope, thing), ("", 0))[1]

    def rows(self) -> Iterator[dict[str, Any]]:
        """Used and allowed, of all together and of each user: {scope, id, used, allowed}."""
        users = sorted(owner for owner in self._used if owner.scope == "user")
        for owner in (_ALL, *users):
            yield {
                "scope": owner.scope,
                "id": owner.number,
                "used": {thing: self.used(owner, thing) for thing in THINGS},
                "allowed": {thing: self.allowed(owner.scope, thing) for thing in THINGS},
            }

    def of_session(self, number: int) -> dict[str, int]:
        """What a session has; not that it is one."""
        owner = Owner("session", number)
        return {thing: self.used(owner, thing) for thing in THINGS if thing != "sessions"}

    def _check(self, owner: Owner, thing: str, count: int, what: str) -> None:
        option, allowed = self._allowed.get((owner.scope, thing), ("", 0))
        used = self.used(owner, thing)
        if not allowed or used + count <= allowed:
            return
        amounts = (count, used, allowed)
        asked, has, may = map(size, amounts) if thing == "memory" else map(str, amounts)
        verb = "use" if owner is _ALL else "uses"
        raise LimitExceeded(
            f"{what} asks for {asked}; {owner} {verb} {has} of {may} {_TEXTS[thing]}",
            f"{_HINTS[thing]}; {option} raises it.",
        )


def _owners(session: Holder) -> tuple[Owner, ...]:
    if session.is_worker:
        return (_ALL,)
    return Owner("session", session.number), Owner("user", session.uid), _ALL


def _allowed(limits: Limits, total_fds: int) -> dict[tuple[str, str], tuple[str, int]]:
    """The option that says it, and how much, by scope and thing."""
    table: dict[tuple[str, str], tuple[str, int]] = {}
    for scope, prefix in (("session", "session"), ("user", "user"), ("all", "max")):
        for thing in THINGS:
            field = f"{prefix}_{thing}"
            if hasattr(limits, field):
                table[scope, thing] = "--" + field.replace("_", "-"), getattr(limits, field)
    shares = {"session": total_fds // 4, "user": total_fds - total_fds // 8}
    for scope, share in shares.items():
        option, configured = table[scope, "fds"]
        table[scope, "fds"] = option, min(configured or share, total_fds)
    table["all", "fds"] = "a higher limit of open files (ulimit -n, LimitNOFILE=)", total_fds
    return table
