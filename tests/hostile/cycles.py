"""Whether anything grows that should not: connect, create, publish, read and close, very often.

    python -m tests.hostile.cycles [--n 10000] [--processes 50] [--json]

N cycles in this process, then some in new processes. After every hundredth part the daemon's and
this process's descriptors, mappings, PSS and anonymous memory are taken down. A line is fitted
through the second half, after caches have filled; a thing grows if the 99 % confidence interval of
its slope is above zero and it would amount to more than a page in a hundred cycles.
Exit status: 0 flat, 1 something grows.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import mcpd.shm
from tests.support.daemon import RunningDaemon

SAMPLES = 100
T_99 = 2.7
"""Of Student's t with about fifty degrees of freedom, both sides."""
NOTICEABLE = {"fds": 0.01, "mappings": 0.01, "pss_kb": 0.04, "anonymous_kb": 0.04}
"""Less than that for each cycle is not worth a word: a descriptor in a hundred cycles, 40 bytes."""


class Slope(NamedTuple):
    """Growth for each cycle, and half the width of its 99 % confidence interval."""

    value: float
    error: float

    def grows(self, noticeable: float) -> bool:
        """Whether it is surely above what is noticeable."""
        return self.value - self.error > noticeable


def fit(xs: Sequence[float], ys: Sequence[float]) -> Slope:
    """The least-squares line through the points: its slope."""
    count = len(xs)
    mean_x, mean_y = sum(xs) / count, sum(ys) / count
    spread = sum((x - mean_x) ** 2 for x in xs)
    value = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread
    rest = sum((y - mean_y - value * (x - mean_x)) ** 2 for x, y in zip(xs, ys, strict=True))
    return Slope(value, T_99 * math.sqrt(rest / (count - 2) / spread))


def look(pid: int) -> dict[str, float]:
    """What a process has now; only what this user may see."""
    folder = Path(f"/proc/{pid}")
    found: dict[str, float] = {"fds": len(os.listdir(folder / "fd"))}
    found["mappings"] = len((folder / "maps").read_text().splitlines())
    for line in (folder / "smaps_rollup").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("Pss", "Anonymous"):
            key = {"Pss": "pss_kb", "Anonymous": "anonymous_kb"}[name]
            found[key] = float(value.split()[0])
    return found


def cycle(socket: str, number: int) -> None:
    """Connects, creates, publishes, reads, closes."""
    with (
        mcpd.shm.connect(socket, name="cycle") as client,
        client.create_stream(f"cycle-{number % 7}", slot_nbytes=4096) as stream,
        client.open_stream(stream.name) as reader,
    ):
        with stream.acquire(30) as slot:
            slot.buffer[:4] = number.to_bytes(4, "little")
        with reader.next(30):
            pass


def run(daemon: RunningDaemon, n: int) -> dict[str, dict[str, Slope]]:
    """Slopes by process and thing, for each cycle."""
    seen: dict[str, list[tuple[int, dict[str, float]]]] = {"daemon": [], "client": []}
    step = max(1, n // SAMPLES)
    for number in range(1, n + 1):
        cycle(daemon.socket, number)
        if number % step == 0 and number > n // 2:
            gc.collect()
            for name, pid in (("daemon", daemon.pid), ("client", os.getpid())):
                seen[name].append((number, look(pid)))
    return {
        name: {
            thing: fit([number for number, _ in rows], [row[thing] for _, row in rows])
            for thing in NOTICEABLE
        }
        for name, rows in seen.items()
    }


def growing(slopes: dict[str, dict[str, Slope]]) -> list[str]:
    """What grows, in words."""
    return [
        f"{thing} of the {name} grow by {slope.value:.4f} (±{slope.error:.4f}) a cycle"
        for name, things in slopes.items()
        for thing, slope in things.items()
        if slope.grows(NOTICEABLE[thing])
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """The program."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.cycles", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--n", type=int, default=10_000, help="cycles (default 10000)")
    parser.add_argument("--processes", type=int, default=50, help="new processes, one cycle each")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder, RunningDaemon(Path(folder)) as daemon:
        slopes = run(daemon, options.n)
        before = look(daemon.pid)
        for number in range(options.processes):
            code = f"from tests.hostile.cycles import cycle; cycle({daemon.socket!r}, {number})"
            subprocess.run([sys.executable, "-c", code], check=True, cwd=os.getcwd())
        after = look(daemon.pid)
    found = growing(slopes)
    if after["fds"] > before["fds"] or after["mappings"] > before["mappings"] + 2:
        found.append(f"the daemon has {after} after {options.processes} processes, {before} before")
    if options.json:
        print(json.dumps({"cycles": options.n, "slopes": slopes, "growing": found}, indent=2))
    else:
        for name, things in slopes.items():
            for thing, slope in things.items():
                print(f"{name:7} {thing:13} {slope.value:+.5f} ±{slope.error:.5f} a cycle")
        print("\n".join(found) or f"flat after {options.n} cycles")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
