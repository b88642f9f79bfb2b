"""A trivial model on a 1080p frame that lies in a slot: round trip, rate, and CPU by process.

The floor beside it is the same round trip between two plain Python processes: a mapped memfd, an
eventfd each way, and the same few pixels read, with no library. Rounds of both alternate; a figure
is the median over the rounds. Then one 1080p stream flows at 30 frames a second with the model on
it, to see what the daemon's process has to do with that: next to nothing.

    python -m bench.serving [--json] [--rounds 5] [--requests 1000] [--seconds 10]
"""

from __future__ import annotations

import argparse
import mmap
import os
import signal
import struct
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from bench.harness import at_most, cpu_ns, percentile, private_daemon, report
from mcpd.native._core import die_with_parent
from mcpd.shm import connect
from tests.support.models import write_trivial

if TYPE_CHECKING:
    from mcpd.shm import Client, Requests

WIDTH, HEIGHT = 1920, 1080
FPS: Final = 30
SETTLE: Final = 50
IN_FLIGHT: Final = 4
P50_LIMIT_MS: Final = 0.3
DAEMON_LIMIT_PERCENT: Final = 0.5
TIMEOUT_S: Final = 30.0


class Round(NamedTuple):
    """One round of a closed loop: milliseconds of a round trip, microseconds of CPU by process."""

    p50_ms: float
    p99_ms: float
    cpu_us: dict[str, float]


def closed_loop(once: Callable[[], None], requests: int, processes: dict[str, int]) -> Round:
    """One request after the other, each timed."""
    for _ in range(SETTLE):
        once()
    before = {name: cpu_ns(pid) for name, pid in processes.items()}
    taken_ms = []
    for _ in range(requests):
        began = time.perf_counter_ns()
        once()
        taken_ms.append((time.perf_counter_ns() - began) / 1e6)
    used = {name: (cpu_ns(pid) - before[name]) / requests / 1e3 for name, pid in processes.items()}
    return Round(percentile(taken_ms, 50), percentile(taken_ms, 99), used)


def keep_in_flight(requests: Requests, count: int) -> float:
    """Requests a second with IN_FLIGHT of them under way."""
    pending = deque(requests.submit(requests.acquire(TIMEOUT_S)) for _ in range(IN_FLIGHT))
    began = time.perf_counter()
    for _ in range(count):
        pending.popleft().collect(TIMEOUT_S).raise_for_status()
        pending.append(requests.submit(requests.acquire(TIMEOUT_S)))
    taken_s = time.perf_counter() - began
    while pending:
        pending.popleft().collect(TIMEOUT_S)
    return count / taken_s


@contextmanager
def plain_server() -> Iterator[tuple[Callable[[], None], int]]:
    """A process that reads the frame's corner and answers; (one round trip, its pid)."""
    memory = os.memfd_create("bench", os.MFD_CLOEXEC)
    os.ftruncate(memory, WIDTH * HEIGHT * 3 + 4096)
    asked, done = os.eventfd(0, os.EFD_CLOEXEC), os.eventfd(0, os.EFD_CLOEXEC)
    parent, answer = os.getpid(), struct.Struct("<3f")
    with mmap.mmap(memory, 0) as shared:
        pid = os.fork()
        if pid == 0:
            die_with_parent(signal.SIGKILL, parent)
            frame = np.frombuffer(shared, np.uint8, WIDTH * HEIGHT * 3, 4096)
            corner = frame.reshape(HEIGHT, WIDTH, 3)[:4, :4]
            while True:
                os.eventfd_read(asked)
                answer.pack_into(shared, 0, *corner.mean((0, 1)))
                os.eventfd_write(done, 1)

        def once() -> None:
            os.eventfd_write(asked, 1)
            os.eventfd_read(done)
            answer.unpack_from(shared, 0)

        try:
            yield once, pid
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            for fd in (memory, asked, done):
                os.close(fd)


def stream_percent(client: Client, processes: dict[str, int], seconds: float) -> dict[str, float]:
    """CPU of each process in per cent of a core while the stream flows with the model on it."""
    pixels = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
    stop = threading.Event()

    with client.create_stream("bench", width=WIDTH, height=HEIGHT, format="rgb24") as stream:

        def write() -> None:
            due = time.monotonic()
            while not stop.is_set():
                with stream.acquire() as slot:
                    np.copyto(slot.planes[0], pixels)
                due += 1 / FPS
                time.sleep(max(0.0, due - time.monotonic()))

        writer = threading.Thread(target=write)
        writer.start()
        try:
            with client.results("bench", model="trivial", timeout_s=TIMEOUT_S) as results:
                for _ in range(FPS):
                    results.next()
                began, before = time.monotonic(), {n: cpu_ns(p) for n, p in processes.items()}
                frames = 0
                while time.monotonic() - began < seconds:
                    results.next().raise_for_status()
                    frames += 1
                taken_s = time.monotonic() - began
                used = {n: (cpu_ns(p) - before[n]) / taken_s / 1e7 for n, p in processes.items()}
        finally:
            stop.set()
            writer.join()
    return {"frames/s": frames / taken_s, **{f"{n} cpu %": value for n, value in used.items()}}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m bench.serving", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument("--rounds", type=int, default=5, help="of each way (default 5)")
    parser.add_argument("--requests", type=int, default=1000, help="in a round (default 1000)")
    parser.add_argument("--seconds", type=float, default=10.0, help="of the stream (default 10)")
    options = parser.parse_args(arguments)
    if options.rounds < 1 or options.requests < 1 or options.seconds <= 0:
        parser.error("rounds, requests and seconds must be positive")

    ours: list[Round] = []
    floor: list[Round] = []
    rates: list[float] = []
    # The plain server forks before the daemon is started, which starts threads in this process.
    with (
        plain_server() as (plain_once, plain_pid),
        tempfile.TemporaryDirectory() as models,
    ):
        write_trivial(Path(models))
        with private_daemon(Path(models)) as daemon, connect(daemon.socket) as client:
            # Every slot is written once, here; from then on the frame is there already.
            with client.requests("trivial", width=WIDTH, height=HEIGHT, format="rgb24") as requests:
                (worker,) = client.list("workers")
                processes = {"client": os.getpid(), "worker": worker["pid"], "daemon": daemon.pid}
                for _ in range(3):
                    slots = [requests.acquire(TIMEOUT_S) for _ in range(IN_FLIGHT)]
                    for slot in slots:
                        slot.planes[0][...] = 7
                    for pending in [requests.submit(slot) for slot in slots]:
                        pending.collect(TIMEOUT_S).raise_for_status()

                def once() -> None:
                    requests.submit(requests.acquire()).collect(TIMEOUT_S)

                plain = {"client": os.getpid(), "worker": plain_pid}
                for _ in range(options.rounds):
                    floor.append(closed_loop(plain_once, options.requests, plain))
                    ours.append(closed_loop(once, options.requests, processes))
                    rates.append(keep_in_flight(requests, options.requests))
            flow = stream_percent(client, processes, options.seconds)

    figures: dict[str, dict[str, float | int | str]] = {
        "two plain processes": _row(floor),
        "mcpd, one in flight": _row(ours),
        f"mcpd, {IN_FLIGHT} in flight": {"req/s": round(median(rates))},
        f"mcpd, a stream at {FPS} fps": {name: round(value, 3) for name, value in flow.items()},
    }
    goals = [
        at_most("infer round trip p50 ms", median(each.p50_ms for each in ours), P50_LIMIT_MS),
        at_most(
            f"daemon CPU at {FPS} fps, % of a core", flow["daemon cpu %"], DAEMON_LIMIT_PERCENT
        ),
    ]
    report("serving", figures, goals, options.json)


def _row(rounds: list[Round]) -> dict[str, float | int | str]:
    row: dict[str, float | int | str] = {
        "p50 ms": round(median(each.p50_ms for each in rounds), 4),
        "p99 ms": round(median(each.p99_ms for each in rounds), 4),
        "req/s": round(1e3 / median(each.p50_ms for each in rounds)),
    }
    for name in rounds[0].cpu_us:
        row[f"{name} cpu us"] = round(median(each.cpu_us[name] for each in rounds), 1)
    return row


if __name__ == "__main__":
    main()
