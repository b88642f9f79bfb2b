"""Finds workers that make no progress, by what shared memory and the kernel tell of them.

No worker is asked, so that one that is stuck costs no more than one that works. A timer runs only
while a model works for somebody, twice within its time limit: a frame that will be too long is seen
before its time is up, and looked at again in the moment when it is.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator

from mcpd.daemon.catalogue import Model
from mcpd.daemon.leases import Binding, Reader, Stream
from mcpd.daemon.registry import Registry
from mcpd.daemon.rows import lag
from mcpd.daemon.supervisor import Supervisor

log = logging.getLogger("mcpd.daemon")

LATE_S = 0.5
"""When the daemon itself was held up for so long, the workers may have been, too."""


class Watchdog:
    """Watches the workers of models that are at work. Belongs to the event loop's thread.

    Args:
        bindings: Those there are, by number.
    """

    def __init__(
        self, registry: Registry, bindings: dict[int, Binding], supervisor: Supervisor
    ) -> None:
        self._registry = registry
        self._bindings = bindings
        self._supervisor = supervisor
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._seen: dict[Model, _Seen] = {}

    def look_on(self) -> None:
        """A model is about to work: from now on until none does, it is watched. Idempotent."""
        if self._timer is None:
            self._look()

    def is_at_a_frame(self, session_number: int) -> bool:
        """Whether this session's worker has a frame in work, within its time or not."""
        return any(
            reader.counters.stats()["pinned_since_ns"]
            for reader in self._readers()
            if reader.session.number == session_number
        )

    def _look(self, due_s: float = 0.0) -> None:
        """Looks at every worker that has work; `due_s` is when it was to, by the loop's clock."""
        now_s = time.monotonic()
        late = bool(due_s) and self._loop.time() - due_s > LATE_S
        readers: dict[int, list[Reader]] = {}
        for reader in self._readers():
            readers.setdefault(reader.session.number, []).append(reader)
        bindings: dict[int, list[Binding]] = {}
        for binding in self._bindings.values():
            bindings.setdefault(binding.session.number, []).append(binding)
        seen: dict[Model, _Seen] = {}
        next_s: list[float] = []
        for model in self._supervisor.catalogue.models.values():
            session = model.session
            if session is None or session.number not in bindings or model.config is None:
                continue
            one = self._seen.get(model)
            if one is None or one.session != session.number or late:
                one = _Seen(session.number, now_s)
            seen[model] = one
            limit_s = model.config.run.time_limit_s
            mine = readers.get(session.number, [])
            why = one.look(model, mine, bindings[session.number], now_s, limit_s)
            if why:
                self._supervisor.replace(model, why)
            next_s.append(one.next_s(now_s, limit_s))
        self._seen = seen
        self._timer = None
        if next_s:
            due_s = self._loop.time() + max(0.001, min(next_s) - now_s)
            self._timer = self._loop.call_at(due_s, self._look, due_s)

    def _readers(self) -> Iterator[Reader]:
        for reader in self._registry.readers.values():
            if reader.session.is_worker and reader.state != "quarantined":
                yield reader


class _Seen:
    """What was seen of a worker up to now."""

    def __init__(self, session: int, now_s: float) -> None:
        self.session = session
        self._from_s = now_s
        self._progress = -1
        self._waiting_since_s = 0.0
        self._stopped_since_s = 0.0
        self._pinned_since_s = 0.0

    def look(
        self,
        model: Model,
        readers: list[Reader],
        bindings: list[Binding],
        now_s: float,
        limit_s: float,
    ) -> str:
        """Why the worker is to be replaced; "" if it is not."""
        stats = [reader.counters.stats() for reader in readers]
        pinned = [s["pinned_since_ns"] / 1e9 for s in stats if s["pinned_since_ns"]]
        # When the daemon was held up, and looks anew, a frame has at least half its time from then.
        self._pinned_since_s = max(min(pinned), self._from_s - limit_s / 2) if pinned else 0.0
        progress = sum(s["received"] for s in stats) + sum(map(_published, bindings))
        behind = {reader.stream for reader in readers if lag(reader)}
        waiting = not pinned and any(_waits(binding, behind) for binding in bindings)
        moved = progress != self._progress
        self._waiting_since_s = _since(waiting, self._waiting_since_s, now_s, moved)
        stopped = model.process is not None and model.process.is_stopped
        self._stopped_since_s = _since(stopped, self._stopped_since_s, now_s, moved)
        self._progress = progress
        limit = f"time_limit_s={limit_s:g}"
        if self._pinned_since_s and now_s - self._pinned_since_s >= limit_s:
            return f"ran longer than {limit} at one frame"
        if self._stopped_since_s and now_s - self._stopped_since_s >= limit_s / 2:
            return f"was stopped, and has {limit}"
        if self._waiting_since_s and now_s - self._waiting_since_s >= limit_s:
            return f"took no frame for longer than {limit}, though there were some"
        return ""

    def next_s(self, now_s: float, limit_s: float) -> float:
        """When to look next, by time.monotonic."""
        due = [now_s + limit_s / 2]
        if self._pinned_since_s:
            due.append(self._pinned_since_s + limit_s)
        if self._waiting_since_s:
            due.append(self._waiting_since_s + limit_s)
        return min(when for when in due if when > now_s)


def _since(is_so: bool, since_s: float, now_s: float, moved: bool) -> float:
    """Since when it is so without progress; 0 if it is not."""
    if not is_so:
        return 0.0
    return now_s if moved or not since_s else since_s


def _published(binding: Binding) -> int:
    """Results that a binding has given."""
    results = _results(binding)
    return results.head() - results.first_seq + 1 if results is not None else 0


def _waits(binding: Binding, behind: set[Stream]) -> bool:
    """Whether there is a frame that the worker could take, and certainly room for its result.

    Args:
        behind: Streams of which the worker has not read everything.
    """
    results = _results(binding)
    frames = binding.stream
    if results is None or results.state != "live" or frames.state != "live":
        return False
    who = [reader for reader in results.readers.values() if reader.state == "live"]
    if not who or any(reader.policy == "lossless" and lag(reader) for reader in who):
        return False  # who does not read holds the worker back, as it may
    if binding.once:
        return binding.asked > _published(binding) and frames.head() >= frames.first_seq
    return frames in behind


def _results(binding: Binding) -> Stream | None:
    """Its results stream, once it is served."""
    done = binding.results.done() and binding.results.exception() is None
    return binding.results.result() if done else None
