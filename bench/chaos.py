"""What others feel of an attack: latencies with it, without it, and beside as much other work.

A stream is written at 500 frames a second by one process and read by another, asleep in between; a
third asks the daemon: `status`, then makes a stream, attaches to it and closes both. For each
attack of tests/support/chaos.py three windows are measured in turn, round by round: quiet; with a
process that burns as much CPU as the attacker did before, but has nothing to do with mcpd; with the
attack. What an attack costs beyond the CPU that its process takes is ours.

Stream: publish to read. Control: the round trips of one turn. Ratios: p99 with the attack over p99
quiet, and over p99 beside the burner; the median of the rounds.

    python -m bench.chaos [--json] [--rounds 3] [--seconds 1] [--attacks NAME ...]
"""

from __future__ import annotations

import argparse
import os
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from statistics import median
from typing import Any, Final, NamedTuple

from bench.harness import Goal, at_most, cpu_ns, percentile, private_daemon, report
from bench.processes import Role, Worker
from mcpd.shm import connect
from mcpd.shm.errors import StreamClosed, WouldBlock
from tests.support.attacker import Attack
from tests.support.chaos import ATTACKS

LIMIT: Final = 1.5
_STREAM: Final = "bench-bystander"
_PERIOD_S: Final = 0.002
_TURN_S: Final = 0.02
_SETTLE_S: Final = 0.2
"""Of each window, before it counts: an attack that has begun is under way by then."""
_SLICE_S: Final = 0.002


class Window(NamedTuple):
    """What was felt: 99th percentiles in microseconds, and how many of each there were."""

    stream_us: float
    control_us: float
    frames: int
    turns: int


class _Writer:
    """Publishes at a fixed rate, from a thread, until it is closed."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._stopping = False

    def open(self, socket: str) -> None:
        client = self._stack.enter_context(connect(socket, name="bench-writer"))
        stream = client.create_stream(_STREAM, width=64, height=64, format="gray8", slots=32)
        thread = threading.Thread(target=self._run, args=(self._stack.enter_context(stream),))
        thread.start()
        self._stack.callback(thread.join)

    def _run(self, stream: Any) -> None:
        due_s = time.monotonic()
        while not self._stopping:
            due_s = max(due_s + _PERIOD_S, time.monotonic() - 0.1)
            time.sleep(max(0.0, due_s - time.monotonic()))
            try:
                with stream.acquire(0) as slot:
                    slot.planes[0][:] = 1
            except WouldBlock:
                continue
            except StreamClosed:
                return

    def close(self) -> None:
        self._stopping = True
        self._stack.close()


class _Reader:
    """Reads every frame and takes down how old it is."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def open(self, socket: str) -> None:
        client = self._stack.enter_context(connect(socket, name="bench-reader"))
        self._stream = self._stack.enter_context(client.open_stream(_STREAM, max_pins=1))

    def run(self, start_s: float, seconds: float) -> list[int]:
        """Latencies in nanoseconds of the frames that came in that window."""
        taken = []
        while (now_s := time.monotonic()) < start_s + seconds:
            with self._stream.next(60) as frame:
                age_ns = time.monotonic_ns() - frame.publish_ns
            if now_s >= start_s:
                taken.append(age_ns)
        return taken

    def close(self) -> None:
        self._stack.close()


class _Asker:
    """Asks the daemon what programs ask."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._turns = 0

    def open(self, socket: str) -> None:
        self._client = self._stack.enter_context(connect(socket, name="bench-asker"))

    def run(self, start_s: float, seconds: float) -> list[int]:
        """Durations in nanoseconds of the turns that began in that window."""
        taken = []
        while (began_s := time.monotonic()) < start_s + seconds:
            began_ns = time.monotonic_ns()
            self._turns += 1
            name = f"bench-asked-{self._turns}"
            self._client.status()
            with self._client.create_stream(name, slot_nbytes=4096), self._client.open_stream(name):
                pass
            if began_s >= start_s:
                taken.append(time.monotonic_ns() - began_ns)
            time.sleep(_TURN_S)
        return taken

    def close(self) -> None:
        self._stack.close()


class _Burner:
    """Takes a share of one core, in slices, and has nothing to do with mcpd."""

    def run(self, share: float, until_s: float) -> None:
        while time.monotonic() < until_s:
            end_ns = time.thread_time_ns() + int(_SLICE_S * share * 1e9)
            while time.thread_time_ns() < end_ns:
                pass
            if share < 1:
                time.sleep(_SLICE_S * (1 - share))

    def close(self) -> None:
        return


def measure(
    names: Sequence[str], rounds: int, seconds: float
) -> tuple[dict[str, list[tuple[Window, Window, Window]]], dict[str, Counter[str]]]:
    """Windows quiet, beside the burner and with the attack; and what happened to each attacker."""
    taken: dict[str, list[tuple[Window, Window, Window]]] = {name: [] for name in names}
    outcomes: dict[str, Counter[str]] = {name: Counter() for name in names}
    shares = dict.fromkeys(names, 0.5)
    with ExitStack() as stack:
        roles: dict[str, Role] = {
            "writer": _Writer(),
            "reader": _Reader(),
            "asker": _Asker(),
            "burner": _Burner(),
        }
        workers = {
            name: stack.enter_context(Worker(f"the {name}", role)) for name, role in roles.items()
        }
        daemon = stack.enter_context(private_daemon(load="none"))
        socket = str(daemon.socket)
        for name in ("writer", "reader", "asker"):
            workers[name].call("open", socket)

        def window(share: float = 0.0) -> Window:
            start_s = time.monotonic() + _SETTLE_S
            if share:
                workers["burner"].start("run", share, start_s + seconds)
            for name in ("reader", "asker"):
                workers[name].start("run", start_s, seconds)
            ages, turns = workers["reader"].finish(), workers["asker"].finish()
            if share:
                workers["burner"].finish()
            return Window(p99_us(ages, seconds), p99_us(turns, seconds), len(ages), len(turns))

        for number in range(rounds + 1):  # the first says how much CPU each attacker takes
            for name in names:
                quiet = window()
                burnt = window(shares[name])
                # Its interpreter starts before the window, and not at the others' cost.
                with Attack(socket, name, _STREAM, seconds + 2 * _SETTLE_S) as attack:
                    attack.wait_ready()
                    began_ns, began_s = cpu_ns(attack.pid), time.monotonic()
                    attack.begin()
                    attacked = window()
                    share = (cpu_ns(attack.pid) - began_ns) / (time.monotonic() - began_s) / 1e9
                    if not _stopped(attack.pid):
                        outcomes[name].update(attack.outcome())
                    else:
                        outcomes[name]["stopped, then killed"] += 1
                shares[name] = max(0.01, min(1.0, share))
                if number:
                    taken[name].append((quiet, burnt, attacked))
    return taken, outcomes


def p99_us(durations_ns: Sequence[int], seconds: float) -> float:
    """The 99th percentile; where nothing came, as long as the window was."""
    return percentile(durations_ns, 99) / 1e3 if durations_ns else seconds * 1e6


def _stopped(pid: int) -> bool:
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0] in "Tt"


def figures_of(
    taken: dict[str, list[tuple[Window, Window, Window]]], outcomes: dict[str, Counter[str]]
) -> dict[str, dict[str, float | int | str]]:
    """A row for each attack."""
    rows: dict[str, dict[str, float | int | str]] = {}
    for name, rounds in taken.items():
        row: dict[str, float | int | str] = {
            "to the attacker": ", ".join(what for what, _ in outcomes[name].most_common(2)) or "-"
        }
        for what in ("stream", "control"):
            each = [[getattr(window, f"{what}_us") for window in round_] for round_ in rounds]
            for index, when in enumerate(("quiet", "burner", "attack")):
                row[f"{what} {when} us"] = round(median(one[index] for one in each))
            row[f"{what}/quiet"] = round(median(a / q for q, _, a in each), 2)
            row[f"{what}/burner"] = round(median(a / b for _, b, a in each), 2)
        rows[name] = row
    return rows


def goals_of(figures: dict[str, dict[str, float | int | str]]) -> list[Goal]:
    """For each attack the ratio to quiet, which is the promise, and to the burner beside it."""
    return [
        at_most(f"{name}: p99 {what} / {when}", float(row[f"{what}/{when}"]), LIMIT)
        for name, row in figures.items()
        for what in ("stream", "control")
        for when in ("quiet", "burner")
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m bench.chaos", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument("--rounds", type=int, default=3, help="of each attack (default 3)")
    parser.add_argument("--seconds", type=float, default=1.0, help="of a window (default 1)")
    parser.add_argument("--attacks", nargs="+", choices=list(ATTACKS), default=list(ATTACKS))
    options = parser.parse_args(arguments)
    if options.rounds < 1 or options.seconds < 0.1:
        parser.error("needs at least 1 round, and windows of 0.1 s")
    os.environ.setdefault("PYTHONPATH", os.getcwd())
    taken, outcomes = measure(options.attacks, options.rounds, options.seconds)
    figures = figures_of(taken, outcomes)
    report("chaos", figures, goals_of(figures), options.json)


if __name__ == "__main__":
    main()
