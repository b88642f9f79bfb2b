"""What a look at everything costs: `mcpd leaks` by the number of processes and of names.

Each process has 40 descriptors and maps a file of /dev/shm and an object without a name, beside
what an interpreter maps. Run it from the repository's root: `python -m bench.leaks [--json]`.
"""

from __future__ import annotations

import mmap
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import click

from bench.harness import Goal, at_most, percentile, report
from mcpd.native._core import die_with_parent
from mcpd.shm.leaks import Options, examine
from mcpd.shm.leaks.record import Record
from mcpd.shm.segment import SHM_DIRECTORY

PROCESSES = (0, 100, 300)
NAMES = 1000
ROUNDS = 7
DESCRIPTORS = 40


@contextmanager
def holders(count: int) -> Iterator[None]:
    """Processes that map memory, until this is left."""
    pids = []
    handle, name = tempfile.mkstemp(prefix="mcpd-bench-", dir=SHM_DIRECTORY)
    os.ftruncate(handle, 1 << 20)
    parent = os.getpid()
    try:
        for _ in range(count):
            pid = os.fork()
            if pid == 0:
                _hold(handle, parent)
            pids.append(pid)
        yield
    finally:
        os.unlink(name)
        os.close(handle)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, 0)


def _hold(handle: int, parent: int) -> None:
    """A child's whole life."""
    try:
        die_with_parent(signal.SIGKILL, parent)
        nameless = os.memfd_create("mcpd-bench")
        os.ftruncate(nameless, 4096)
        mapped = [mmap.mmap(fd, 0) for fd in (handle, nameless)]
        for _ in range(DESCRIPTORS):
            os.dup(handle)
        while mapped:
            signal.pause()
    finally:
        os._exit(1)


@contextmanager
def names(count: int) -> Iterator[None]:
    """Names that a dead process has left, until this is left."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    paths = [SHM_DIRECTORY / f"torch_{pid}_{number}_0" for number in range(count)]
    try:
        for path in paths:
            path.write_bytes(bytes(4096))
        yield
    finally:
        for path in paths:
            Path(path).unlink(missing_ok=True)


def measure() -> dict[str, float]:
    """Median and worst time of a look, and how many entries it had."""
    options = Options(min_age_s=0, alone=True, record=Record())
    took, cpu, entries = [], [], 0
    for _ in range(ROUNDS):
        began = time.process_time()
        found = examine(None, options)
        took.append(found.took_s * 1e3)
        cpu.append((time.process_time() - began) * 1e3)
        entries = len(found.entries)
    return {
        "ms": round(percentile(took, 50), 1),
        "worst ms": round(max(took), 1),
        "cpu ms": round(percentile(cpu, 50), 1),
        "entries": entries,
    }


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def main(as_json: bool) -> None:
    """Measures a look at everything."""
    figures: dict[str, dict[str, float]] = {}
    for count in PROCESSES:
        with holders(count):
            figures[f"{count} more processes"] = measure()
    with ExitStack() as stack:
        stack.enter_context(names(NAMES))
        figures[f"{NAMES} names left behind"] = measure()
    least, some, many = (figures[f"{count} more processes"]["cpu ms"] for count in PROCESSES)
    grown = (many - least) / PROCESSES[2] / max((some - least) / PROCESSES[1], 1e-9)
    goals: list[Goal] = [at_most("a process of 300, over one of 100", round(grown, 2), 1.5)]
    report("leaks", figures, goals, as_json)


if __name__ == "__main__":
    main()
