"""Kills and stops processes at every labelled step, by the hundred, and looks for what is left.

    python -m tests.faults.soak --kills 1000 --seed 1         (make soak; make soak N=10000)
    python -m tests.faults.soak --only writer/memfd/writer.publish.head/3/SIGKILL    one kill, again

Exit status 1 on any fault. Every kill is drawn from the seed; what fails is printed with the
command that repeats it alone.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.daemon_kills import DaemonLane
from tests.faults.kills import Field, Kill, Lane, Scenario, scenarios
from tests.faults.worker_kills import kill_worker
from tests.support.clips import write_clip
from tests.support.models import write_trivial
from tests.support.steps import TestBuild, all_labels

GOAL_MS = 50.0
WORKER_SHARE, DAEMON_SHARE = 0.04, 0.04
CHECK_EVERY = 25
"""Kills of a lane between two looks at the bystanders."""
MAX_PASS = 40


@dataclass
class Report:
    """What came of a run."""

    seed: int
    kills: list[Kill] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    reached: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    def add_reached(self, counts: dict[str, int]) -> None:
        """Steps that somebody came to."""
        for label, count in counts.items():
            self.reached[label] = self.reached.get(label, 0) + count

    @property
    def struck(self) -> list[Kill]:
        """Those that came to their step."""
        return [kill for kill in self.kills if kill.outcome != "missed"]

    @property
    def died(self) -> list[Kill]:
        """Those that died there."""
        return [kill for kill in self.kills if kill.outcome == "killed"]

    def all_faults(self) -> list[str]:
        """Each with the command that repeats it, where one does."""
        lines = list(self.faults)
        for kill in self.kills:
            lines += [f"{fault}\n    again: {again(kill)}" for fault in kill.faults]
        return lines

    def dead_labels(self) -> list[str]:
        """Steps in the tables that nobody came to."""
        return [label for label in all_labels() if not self.reached.get(label)]


def again(kill: Kill) -> str:
    """The command that repeats a kill alone."""
    parts = (kill.role, kill.scenario, kill.label, kill.passes, kill.signal)
    return f"python -m tests.faults.soak --only {'/'.join(map(str, parts))}"


def percentile(values: list[float], share: float) -> float:
    """Of a list that need not be sorted; nan of an empty one."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else float("nan")


class Soak:
    """A whole run. Used once.

    Args:
        folder: For pages, logs, models and the clip.
        kills: How many, in all.
        every: Each label once, in the scenario that comes to it first, in place of that.
        minutes: The longest that it goes on; what has not died by then is not killed.
    """

    def __init__(
        self, folder: Path, seed: int, kills: int, minutes: float, *, lanes: int = 2,
        every: bool = False, tell: Callable[[Report], None] = lambda report: None,
    ) -> None:  # fmt: skip
        self.report = Report(seed)
        self._folder = folder
        self._kills = kills
        self._every = every
        self._lanes = lanes
        self._end_s = time.monotonic() + minutes * 60
        self._tell = tell
        self._random = random.Random(seed)
        self._build = TestBuild()
        self._models = folder / "models"
        self._models.mkdir(exist_ok=True)
        write_trivial(self._models)
        self._clip = write_clip(folder / "clip.avi")
        self._lock = threading.Lock()

    def run(self, only: str = "") -> Report:
        """All of it; or the one kill."""
        began = time.monotonic()
        with Field(self._folder, self._build, self._models) as field:
            if only:
                self._run_one(field, only.split("/"))
            else:
                self._run_all(field)
            self.report.faults += field.look_at_bystanders(close=True)
            self.report.add_reached(field.worker.reached())
            self.report.faults += field.finish()
        self.report.seconds = time.monotonic() - began
        return self.report

    def _run_one(self, field: Field, parts: list[str]) -> None:
        role, name, label, passes, signals = parts
        signum = signal.Signals[signals.removesuffix("+CONT")]
        if role == "worker":
            self._add(kill_worker(field, field.observer, label, int(passes), signum, 0))
        elif role == "daemon":
            lane = DaemonLane(self._folder, self._build, field, self._models)
            self._add(lane.kill(label, int(passes), signum, 0))
            self.report.faults += lane.close()
        else:
            known = {(s.role, s.name): s for s in scenarios(True, self._clip)}
            one = Lane(field, 0)
            go_on = signals.endswith("+CONT")
            self._add(one.kill(known[role, name], label, int(passes), signum, 0, go_on))
            one.close()

    def _run_all(self, field: Field) -> None:
        workers = max(1, round(self._kills * WORKER_SHARE))
        daemons = max(1, round(self._kills * DAEMON_SHARE))
        lanes = [Lane(field, number) for number in range(self._lanes)]
        calibrated = {s: lanes[0].calibrate(s) for s in scenarios(True, self._clip)}
        for counts in calibrated.values():
            self.report.add_reached(counts)
        plan = self._plan(calibrated, self._kills - workers - daemons)
        draws = [random.Random(self._random.random()) for _ in (*lanes, 0, 0)]
        threads = [
            threading.Thread(target=self._guarded, args=(self._run_lane, lane, field, plan, draw))
            for lane, draw in zip(lanes, draws, strict=False)
        ]
        threads.append(
            threading.Thread(
                target=self._guarded, args=(self._run_workers, field, workers, draws[-2])
            )
        )
        dying = threading.Thread(
            target=self._guarded, args=(self._run_daemons, field, daemons, draws[-1])
        )
        if self._every:
            threads.append(dying)  # nobody measures how long it takes
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for lane in lanes:
            self.report.add_reached(lane.reached)
            lane.close()
        if not self._every:
            dying.start()
            dying.join()

    def _plan(
        self, calibrated: dict[Scenario, dict[str, int]], count: int
    ) -> Iterator[tuple[Scenario, str, int]]:
        """Which step of which life, and how often that is come to in one."""
        pairs = [(s, label, n) for s, counts in calibrated.items() for label, n in counts.items()]
        if self._every:
            first: dict[str, tuple[Scenario, str, int]] = {}
            pairs.sort(key=lambda pair: pair[0].name != "both")  # what depends on no other process
            for scenario, label, often in pairs:
                first.setdefault(label, (scenario, label, often))
            return iter(list(first.values()))
        return self._drawn(pairs, count)

    def _drawn(
        self, pairs: list[tuple[Scenario, str, int]], count: int
    ) -> Iterator[tuple[Scenario, str, int]]:
        """All pairs in one random order after the other, until so many came to their step."""
        while True:
            self._random.shuffle(pairs)
            for pair in pairs:
                struck = len(self.report.struck) - self._count("worker") - self._count("daemon")
                if struck >= count:
                    return
                yield pair

    def _run_lane(
        self,
        lane: Lane,
        field: Field,
        plan: Iterator[tuple[Scenario, str, int]],
        draw: random.Random,
    ) -> None:
        count = 0
        while time.monotonic() < self._end_s:
            with self._lock:
                chosen = next(plan, None)
            if chosen is None:
                return
            scenario, label, often = chosen
            passes = draw.randint(1, max(1, min(MAX_PASS, often // 2)))
            signum = draw.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP))
            go_on = signum == signal.SIGSTOP and draw.random() < 0.5
            if self._every:
                passes, signum, go_on = 1, signal.SIGKILL, False
            attempts = 4 if self._every else 2
            for attempt in range(1, attempts + 1):
                kill = lane.kill(scenario, label, passes, signum, self.report.seed, go_on)
                self._add(kill)
                if kill.outcome != "missed" or attempt == attempts:
                    break
                passes = 1  # this life came to it less often than the one before
            count += 1
            if count % CHECK_EVERY == 0:
                self.report.faults += field.look_at_bystanders()

    def _run_workers(self, field: Field, count: int, draw: random.Random) -> None:
        own = [label for label in all_labels() if label.startswith("worker.")]
        shared = ["reader.pin.exchanged", "reader.pin.checked", "reader.take.wanted"]
        shared += ["reader.unpin.counted", "writer.acquire.writing", "writer.publish.published"]
        shared += ["writer.publish.head", "writer.publish.told", "wake.decided", "sleep.armed"]
        labels = own if self._every else [*own, *shared]
        draw.shuffle(labels)
        for number in range(len(own) if self._every else 2 * count):
            if self._over("worker", count):
                return
            label = labels[number % len(labels)]
            passes = 1 if self._every or label.startswith("worker.load") else draw.randint(1, 4)
            signum = draw.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP))
            self._add(kill_worker(field, field.observer, label, passes, signum, self.report.seed))

    def _run_daemons(self, field: Field, count: int, draw: random.Random) -> None:
        lane = DaemonLane(self._folder, self._build, field, self._models, settled=not self._every)
        counts = {} if self._every else lane.calibrate()
        self.report.add_reached(counts)
        labels = [label for label in all_labels() if label.startswith("daemon.")]
        draw.shuffle(labels)
        for number in range(len(labels) if self._every else 2 * count):
            if self._over("daemon", count):
                break
            label = labels[number % len(labels)]
            passes = (
                1 if self._every else draw.randint(1, max(1, min(8, counts.get(label, 1) // 3)))
            )
            signum = draw.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP))
            self._add(lane.kill(label, passes, signum, self.report.seed))
        self.report.add_reached(lane.reached)
        self.report.faults += lane.close()

    def _count(self, role: str) -> int:
        return sum(kill.role == role for kill in self.report.struck)

    def _over(self, role: str, count: int) -> bool:
        late = time.monotonic() > self._end_s
        return late or (not self._every and self._count(role) >= count)

    def _guarded(self, work: Callable[..., None], *arguments: Any) -> None:
        try:
            work(*arguments)
        except Exception as error:
            self.report.faults.append(f"{work.__name__}: {error!r}")

    def _add(self, kill: Kill) -> None:
        with self._lock:
            self.report.kills.append(kill)
        self._tell(self.report)


# ---- saying it -----------------------------------------------------------------------------------


def goals(report: Report, wanted: int) -> list[dict[str, Any]]:
    """What the run is to show, and whether it does."""
    free = [kill.free_ms for kill in report.died if kill.free_ms is not None]
    faults = report.all_faults()
    left = [fault for fault in faults if "left" in fault.split(":")[0]]
    p99 = percentile(free, 0.99)
    rows = [
        ("processes killed or stopped", len(report.struck), wanted, len(report.struck) >= wanted),
        ("leftovers", len(left), 0, not left),
        ("other faults, lost replies among them", len(faults) - len(left), 0, not faults),
        ("death to everything free, p99, ms", round(p99, 2), GOAL_MS, p99 <= GOAL_MS),
        ("steps that nobody came to", len(report.dead_labels()), 0, not report.dead_labels()),
    ]
    return [dict(zip(("name", "value", "limit", "ok"), row, strict=True)) for row in rows]


def table(report: Report) -> Iterator[str]:
    """A line for each role and step, then one for each role, then all."""

    def line(role: str, label: str, kills: list[Kill]) -> str:
        free = [k.free_ms for k in kills if k.outcome == "killed" and k.free_ms is not None]
        went_on = sum(kill.outcome == "went on" for kill in kills)
        figures = [f"{percentile(free, share):8.2f}" for share in (0.5, 0.99, 1.0)] if free else []
        return f"{role:7} {label:34} {len(free):6} {went_on:6} {' '.join(figures)}"

    figures = f"{'p50 ms':>8} {'p99':>8} {'worst':>8}"
    yield f"{'role':7} {'step':34} {'killed':>6} {'let go':>6} {figures}"
    groups: dict[tuple[str, str], list[Kill]] = {}
    for kill in report.struck:
        groups.setdefault((kill.role, kill.label), []).append(kill)
    for (role, label), kills in sorted(groups.items()):
        yield line(role, label, kills)
    for role in sorted({kill.role for kill in report.struck}):
        yield line(role, "all of it", [kill for kill in report.struck if kill.role == role])
    yield line("all", "", report.struck)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak", description=__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--lanes", type=int, default=2)
    parser.add_argument("--every", action="store_true", help="each step once")
    parser.add_argument("--only", default="", metavar="ROLE/SCENARIO/STEP/PASSES/SIGNAL")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    began = time.monotonic()

    def tell(report: Report) -> None:
        if sys.stderr.isatty() or len(report.kills) % 100 == 0:
            rate = len(report.kills) / (time.monotonic() - began)
            print(
                f"\r{len(report.kills)} kills, {rate:.1f}/s ", end="", file=sys.stderr, flush=True
            )

    print(f"seed {options.seed}", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="mcpd-soak-", dir="/tmp") as folder:
        soak = Soak(
            Path(folder), options.seed, options.kills, options.minutes,
            lanes=options.lanes, every=options.every, tell=tell,
        )  # fmt: skip
        report = soak.run(options.only)
    print(file=sys.stderr)
    wanted = 1 if options.only else len(report.struck) if options.every else options.kills
    results = goals(report, wanted)
    if options.only:
        results = [goal for goal in results if not goal["name"].startswith("steps")]
    faults = report.all_faults()
    if options.json:
        machine = {"cpus": os.cpu_count(), "kernel": platform.release(), "load": os.getloadavg()}
        print(json.dumps({
            "machine": machine, "seed": options.seed, "seconds": report.seconds, "goals": results,
            "faults": faults, "unreached": report.dead_labels(),
            "kills": [kill.plain() for kill in report.kills],
        }))  # fmt: skip
    else:
        print("\n".join(table(report)))
        for goal in results:
            said = "ok  " if goal["ok"] else "MISS"
            print(f"{said} {goal['name']}: {goal['value']} ({goal['limit']})")
        missed = len(report.kills) - len(report.struck)
        rate = len(report.struck) / report.seconds
        print(
            f"{report.seconds:.0f} s, {rate:.1f} a second; {missed} lives ended before their step"
        )
        for label in [] if options.only else report.dead_labels():
            print(f"nobody came to {label}")
        slow = [k for k in report.died if k.free_ms is not None and k.free_ms > GOAL_MS]
        for kill in sorted(slow, key=lambda k: -(k.free_ms or 0))[:10]:
            print(f"slow {kill.free_ms:.1f} ms, {kill.last} last: {again(kill)}")
        for fault in faults:
            print(f"FAULT {fault}")
    return 0 if all(goal["ok"] for goal in results) else 1


if __name__ == "__main__":
    sys.exit(main())
