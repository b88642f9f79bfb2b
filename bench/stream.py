"""One 1080p frame after the other from one process to another, beside the peers of the same run.

Two things are measured, frames filled (the writer copies 6.2 MB into each) or not:

wake   Frames 2 ms apart, so that the reader sleeps. From the stamp that the writer sets just before
       it publishes to the reader having the frame. From Python, and floor and ours from C.
flow   Frames as fast as they go; the writer fills each, the reader reads every byte of each.

Every transport has a writer and a reader process that live through the whole run; rounds of all
transports alternate, so that what the machine does besides is spread over all of them. A figure is
the median over the rounds of the round's figure, a ratio the median of the rounds' ratios. CPU:
user and system time of both processes for a frame, the writer's pauses included.

    python -m bench.stream [--json] [--rounds 7] [--frames 300] [--flow-frames 300]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from statistics import median
from typing import Any, Final, NamedTuple, Self

import numpy as np

from bench.harness import Goal, at_least, at_most, percentile, private_daemon, ratio, report
from bench.native import NativeEventfd, NativeStream
from bench.peers import PEERS, Iceoryx2
from bench.processes import Worker
from bench.transports import HEIGHT, WIDTH, McpdStream, Pixels, PlainEventfd, Transport

PAUSE_S: Final = 0.002
"""Between two frames of `wake`; long enough for the reader to sleep again."""
SETTLE: Final = 20
"""First frames of a round that do not count."""
WAKE_LIMIT: Final = 1.15
NATIVE_LIMIT: Final = 1.1
ICEORYX2_LIMITS: Final = {True: 4.0, False: 3.0}
CPU_LIMIT_US: Final = 25.0

WAKE: Final[tuple[Callable[[], Transport], ...]] = (
    *(PlainEventfd, McpdStream),
    *PEERS,
    *(NativeEventfd, NativeStream),
)
FLOW: Final[tuple[Callable[[], Transport], ...]] = (lambda: McpdStream("lossless"), *PEERS)


class Round(NamedTuple):
    """One round of one transport: microseconds from stamp to frame, CPU of a frame, frames/s."""

    p50_us: float
    p99_us: float
    cpu_us: float
    per_s: float


Case = tuple[str, str]
"""A transport's name, and what was measured: "filled", "not filled" or "flow"."""


class _End:
    """One process of a pair."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._pixels: Pixels = np.random.default_rng(0).integers(
            0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8
        )

    def open_writer(self, socket: str) -> None:
        self._transport.open_writer(socket)

    def open_reader(self, socket: str) -> None:
        self._transport.open_reader(socket)

    def write(self, frames: int, filled: bool, pause_s: float) -> tuple[None, int, float]:
        return self._timed(
            lambda: self._transport.write(frames, self._pixels if filled else None, pause_s)
        )

    def read(self, frames: int, whole: bool) -> tuple[list[int], int, float]:
        return self._timed(lambda: self._transport.read(frames, _read_all if whole else None))

    def close(self) -> None:
        self._transport.close()

    def _timed(self, work: Callable[[], Any]) -> tuple[Any, int, float]:
        started_ns, started_s = time.process_time_ns(), time.monotonic()
        value = work()
        return value, time.process_time_ns() - started_ns, time.monotonic() - started_s


def _read_all(pixels: Pixels) -> None:
    np.add.reduce(pixels.reshape(-1).view(np.uint64))


class Pair:
    """The writer and the reader process of one transport; a context manager."""

    def __init__(self, transport: Transport) -> None:
        self.name = transport.name
        self._transport = transport
        end = _End(transport)
        self._writer = Worker(f"{self.name}: the writer", end)
        self._reader = Worker(f"{self.name}: the reader", end)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._writer.__exit__(*exception)
        self._reader.__exit__(*exception)
        self._transport.close()

    def open(self, socket: str) -> None:
        """Connects both processes, the writer first."""
        self._writer.call("open_writer", socket)
        self._reader.call("open_reader", socket)

    def wake(self, frames: int, filled: bool) -> Round:
        """Moves frames with pauses between them."""
        return self._run(frames, filled, PAUSE_S, whole=False)

    def flow(self, frames: int) -> Round:
        """Moves frames as fast as they go, filled and read."""
        return self._run(frames, True, 0.0, whole=True)

    def _run(self, frames: int, filled: bool, pause_s: float, *, whole: bool) -> Round:
        self._reader.start("read", frames, whole)
        self._writer.start("write", frames, filled, pause_s)
        _, writer_ns, _ = self._writer.finish()
        wakes_ns, reader_ns, reader_s = self._reader.finish()
        if whole and len(wakes_ns) != frames:
            raise ValueError(f"{self.name}: {frames - len(wakes_ns)} of {frames} frames were lost")
        counted = wakes_ns[SETTLE:]
        return Round(
            percentile(counted, 50) / 1e3,
            percentile(counted, 99) / 1e3,
            (writer_ns + reader_ns) / frames / 1e3,
            frames / reader_s,
        )


def make(kinds: Iterable[Callable[[], Transport]]) -> tuple[list[Transport], dict[str, str]]:
    """The transports that can be made, and why each peer that cannot is missing."""
    transports, missing = [], {}
    for kind in kinds:
        try:
            transports.append(kind())
        except ImportError as error:
            missing[getattr(kind, "name", repr(kind))] = str(error)
    return transports, missing


def measure(
    rounds: int, frames: int, flow_frames: int
) -> tuple[dict[Case, list[Round]], dict[str, str]]:
    """Rounds by case, taken in turn, and the peers that are missing."""
    taken: dict[Case, list[Round]] = {}
    with ExitStack() as stack:
        # Forked before the daemon is started, which starts threads in this process.
        wake_transports, missing = make(WAKE)
        flow_transports, _ = make(FLOW)
        wake = [stack.enter_context(Pair(each)) for each in wake_transports]
        flow = [stack.enter_context(Pair(each)) for each in flow_transports]
        with private_daemon(load="none") as daemon:
            for pair in (*wake, *flow):
                pair.open(str(daemon.socket))
            for _ in range(rounds):
                for name, filled in (("filled", True), ("not filled", False)):
                    for pair in wake:
                        taken.setdefault((pair.name, name), []).append(pair.wake(frames, filled))
                for pair in flow:
                    taken.setdefault((pair.name, "flow"), []).append(pair.flow(flow_frames))
    return taken, missing


def goals_of(taken: dict[Case, list[Round]]) -> list[Goal]:
    """What the figures should reach; goals against a peer that is missing are missed."""

    def p50(name: str, what: str) -> list[float]:
        return [each.p50_us for each in taken[name, what]]

    goals = []
    for what in ("filled", "not filled"):
        ours = p50(McpdStream.name, what)
        over = ratio(ours, p50(PlainEventfd.name, what))
        goals.append(at_most(f"wake p50 / eventfd floor, {what}", over, WAKE_LIMIT))
        peer = (Iceoryx2.name, what)
        under = ratio(p50(*peer), ours) if peer in taken else None
        limit = ICEORYX2_LIMITS[what == "filled"]
        goals.append(at_least(f"wake p50 of {Iceoryx2.name} / ours, {what}", under, limit))
        native = ratio(p50(NativeStream.name, what), p50(NativeEventfd.name, what))
        goals.append(at_most(f"wake p50 / eventfd floor in C, {what}", native, NATIVE_LIMIT))
    cpu_us = median(each.cpu_us for each in taken[McpdStream.name, "not filled"])
    goals.append(at_most("cpu us/frame of both sides, not filled", round(cpu_us, 1), CPU_LIMIT_US))
    return goals + _flow_goals(taken)


def _flow_goals(taken: dict[Case, list[Round]]) -> list[Goal]:
    """Against the peer with the most frames/s. All must be there, so that none is left out."""
    ours = taken[McpdStream.name, "flow"]
    peers = {kind.name: taken.get((kind.name, "flow")) for kind in PEERS}
    absent = [name for name, rounds in peers.items() if rounds is None]
    speeds = {n: median(each.per_s for each in rounds) for n, rounds in peers.items() if rounds}
    best = max(speeds, key=lambda name: speeds[name])
    theirs = taken[best, "flow"]
    note = f" (not in the run: {', '.join(absent)})" if absent else ""
    per_s = ratio([each.per_s for each in ours], [each.per_s for each in theirs])
    cpu = ratio([each.cpu_us for each in ours], [each.cpu_us for each in theirs])
    return [
        at_least(f"flow: frames/s / {best}{note}", None if absent else per_s, 1.0),
        at_most(f"flow: cpu per frame / {best}{note}", None if absent else cpu, 1.0),
    ]


def figures_of(
    taken: dict[Case, list[Round]], missing: dict[str, str]
) -> dict[str, dict[str, float | str]]:
    """A row for each case, and one for each peer that is missing."""
    figures: dict[str, dict[str, float | str]] = {}
    for what in ("filled", "not filled", "flow"):
        for (name, measured), rounds in taken.items():
            if measured != what:
                continue
            row: dict[str, float | str] = figures.setdefault(f"{name}, {what}", {})
            if what == "flow":
                row["frames/s"] = round(median(each.per_s for each in rounds), 1)
            else:
                row["wake p50 us"] = round(median(each.p50_us for each in rounds), 1)
                row["wake p99 us"] = round(median(each.p99_us for each in rounds), 1)
            row["cpu us/frame"] = round(median(each.cpu_us for each in rounds), 1)
    for name, why in missing.items():
        figures[name] = {"missing": why}
    return figures


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m bench.stream", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument("--rounds", type=int, default=7, help="of each transport (default 7)")
    parser.add_argument("--frames", type=int, default=300, help="in a round of wake (default 300)")
    parser.add_argument("--flow-frames", type=int, default=300, help="in a round of flow (300)")
    options = parser.parse_args(arguments)
    if options.rounds < 1 or min(options.frames, options.flow_frames) <= SETTLE:
        parser.error(f"needs at least 1 round and {SETTLE + 1} frames")
    taken, missing = measure(options.rounds, options.frames, options.flow_frames)
    report("stream", figures_of(taken, missing), goals_of(taken), options.json)


if __name__ == "__main__":
    main()
