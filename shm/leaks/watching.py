"""Watches processes for a while: the daemon, its workers, any others, and their children."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any

from mcpd.shm.errors import McpdError, NotFound
from mcpd.shm.leaks.growth import Judged, judge
from mcpd.shm.leaks.nvml import Nvml
from mcpd.shm.leaks.processes import read_comm
from mcpd.shm.leaks.sampling import Sampler, Series, children_of, shm_used_nbytes, start_ticks

if TYPE_CHECKING:
    from mcpd.shm.client import Client

FIND_S = 5.0
"""How often children are looked for: that reads all of /proc."""
CONNECT_S = 1.0
"""How often a daemon that is not there is tried again."""
LEASES_SHARE = 0.01
"""Of the time, at most, goes into asking the daemon for its leases."""


class Watch:
    """Series of readings. A context manager that ends its connection to the daemon.

    Args:
        pids: Processes to watch.
        children: Whether also those that descend from these.
        daemon: Whether also the daemon and its workers, and what all have in /dev/shm.
        connect: Makes a connection to the daemon; called again when that was lost.

    Attributes:
        series: One for each process that was seen; one that ended keeps its own.

    Raises:
        NotFound: One of `pids` is not there.
        DaemonUnavailable: `daemon`, and none answers.
    """

    def __init__(
        self,
        pids: Collection[int] = (),
        *,
        children: bool = False,
        daemon: bool = False,
        connect: Callable[[], Client] | None = None,
    ) -> None:
        self._pids = set(pids)
        self._children = children
        self._daemon = daemon
        self._connect = connect
        self._client: Client | None = None
        self._sampler = Sampler()
        self._began_s = time.monotonic()
        self._children_due_s = 0.0
        self._leases_due_s = 0.0
        self._connect_due_s = 0.0
        self._leases: Counter[int] = Counter()
        self._live: dict[int, Series] = {}
        self.series: list[Series] = []
        self._machine = Series("machine", 0)
        try:
            self._nvml: Nvml | None = Nvml()
        except OSError:
            self._nvml = None
        for pid in pids:
            if not start_ticks(pid):
                raise NotFound(f"there is no process {pid}")
            self._add(pid, f"{read_comm(pid)} ({pid})")
        if daemon:
            if connect is None:
                raise ValueError("daemon=True needs connect")
            self._client = connect()
            self.series.append(self._machine)

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self._lose()

    @property
    def span_s(self) -> float:
        """Since it began."""
        return time.monotonic() - self._began_s

    @property
    def cost_s(self) -> float:
        """Processor time that reading one process once took, on average."""
        return self._sampler.spent_s / max(1, self._sampler.readings)

    @property
    def alive(self) -> bool:
        """Whether anything is left to watch."""
        return self._daemon or bool(self._live)

    def look(self) -> None:
        """One reading of each; finds those that came, and notices those that went."""
        time_s = self.span_s
        known = self._ask()
        if self._children and time_s >= self._children_due_s:
            self._children_due_s = time_s + FIND_S
            self._find_children()
        gpu = self._gpu()
        for pid, series in list(self._live.items()):
            more = dict(known.get(pid, {}))
            if pid in gpu:
                more["gpu"] = gpu[pid]
            if not self._sampler.read(series, time_s, more):
                series.ended_s = time_s
                del self._live[pid]
        if self._daemon:
            self._machine.add(time_s, {"shm_used": shm_used_nbytes()})

    def judge(self, *, warm_up_s: float | None = None, limit: float | None = None) -> list[Judged]:
        """What each does; see `mcpd.shm.leaks.growth.judge`. Those hardly seen are left out."""
        seen = [series for series in self.series if series.times_s]
        longest_s = max((s.times_s[-1] - s.times_s[0] for s in seen), default=0.0)
        return [
            judge(series, warm_up_s=warm_up_s, limit=limit)
            for series in seen
            # A child of a moment leaks nothing any more.
            if series.ended_s is None or series.times_s[-1] - series.times_s[0] > longest_s / 10
        ]

    # ---- who ------------------------------------------------------------------------------------

    def _add(self, pid: int, label: str) -> None:
        ticks = start_ticks(pid)
        if ticks and pid not in self._live:
            self._live[pid] = series = Series(label, pid, ticks)
            self.series.append(series)

    def _find_children(self) -> None:
        for pid in children_of(self._pids | set(self._live)):
            self._add(pid, f"{read_comm(pid)} ({pid}), child")

    # ---- what others know -----------------------------------------------------------------------

    def _ask(self) -> dict[int, dict[str, float]]:
        """What the daemon knows of itself, its workers and its clients, by process."""
        if self._connect is None:
            return {}
        try:
            if self._client is None:
                now_s = time.monotonic()
                if now_s < self._connect_due_s:
                    return {}
                self._connect_due_s = now_s + CONNECT_S
                self._client = self._connect()
            return self._ask_daemon(self._client)
        except McpdError:
            self._lose()  # it ended, or starts again; the next look tries anew
            return {}

    def _ask_daemon(self, client: Client) -> dict[int, dict[str, float]]:
        known: dict[int, dict[str, float]] = {}
        began_s = time.monotonic()
        if began_s >= self._leases_due_s:
            self._leases = Counter(int(row["pid"]) for row in client.list("leases"))
            took_s = time.monotonic() - began_s
            self._leases_due_s = began_s + took_s / LEASES_SHARE
        for pid in self._live:
            known[pid] = {"leases": self._leases[pid]}
        if self._daemon:
            status: dict[str, Any] = client.status()["daemon"]
            pid = int(status["pid"])
            self._add(pid, f"daemon ({pid})")
            known[pid] = {
                "leases": self._leases.total(),
                "lent": status["memory_bytes"],
                "fds": status["fds"],
            }
            for row in client.list("workers"):
                number = int(row["pid"])
                self._add(number, f"worker {row['model']}/{row['version']} ({number})")
        return known

    def _gpu(self) -> dict[int, int]:
        if self._nvml is None:
            return {}
        try:
            return self._nvml.used_nbytes()
        except OSError:
            self._nvml = None
            return {}

    def _lose(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


def paces(interval_s: float, for_s: float) -> Iterator[None]:
    """Yields once at once and then every `interval_s`, for `for_s`; late ones are left out."""
    began_s = due_s = time.monotonic()
    while True:
        yield
        now_s = time.monotonic()
        due_s += interval_s * max(1, -(-(now_s - due_s) // interval_s))
        if due_s - began_s > for_s:
            return
        time.sleep(max(0.0, due_s - now_s))
