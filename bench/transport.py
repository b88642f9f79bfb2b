"""Publish-to-wake latency from Python, beside the plain eventfd floor measured in the same run.

Every transport has a writer and a reader process that live through the whole run; rounds of all
transports alternate, so that what the machine does besides is spread over all of them. A figure is
the median over the rounds of the round's percentile. Wake: from the stamp that the writer sets just
before it publishes to the reader running again. CPU: user and system time of both processes for a
frame, the writer's pause of 2 ms between frames included.

    python -m bench.transport [--json] [--rounds 7] [--frames 300]
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import os
import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection
from statistics import median
from typing import Any, Final, NamedTuple, Self

import numpy as np

from bench.harness import Goal, at_most, percentile, private_daemon, report
from bench.transports import HEIGHT, TRANSPORTS, WIDTH, McpdStream, PlainEventfd, Transport
from mcpd.native._core import die_with_parent

PAUSE_S: Final = 0.002
"""Between two frames; long enough for the reader to sleep again."""
SETTLE: Final = 20
"""First frames of a round that do not count."""
LIMIT: Final = 1.5
_ANSWER_S: Final = 120.0


class Round(NamedTuple):
    """One round of one transport: microseconds from publishing to wake, and CPU of a frame."""

    p50_us: float
    p99_us: float
    cpu_us: float


class Pair:
    """The writer and the reader process of one transport; a context manager."""

    def __init__(self, transport: Transport) -> None:
        self.name = transport.name
        self._transport = transport
        context = mp.get_context("fork")
        self._ends: dict[str, Connection] = {}
        self._processes = []
        for role in ("writer", "reader"):
            end, other = context.Pipe()
            process = context.Process(target=_serve, args=(transport, role, other, os.getpid()))
            process.start()
            other.close()
            self._ends[role] = end
            self._processes.append(process)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for end in self._ends.values():
            # Not end-of-file: the processes forked later hold this end of the pipe too.
            with suppress(BrokenPipeError):
                end.send(("stop",))
            end.close()
        for process in self._processes:
            process.join()
        self._transport.close()

    def open(self, socket: str) -> None:
        """Connects both processes, the writer first."""
        for role in ("writer", "reader"):
            self._ends[role].send(("open", socket))
            self._answer(role)

    def run(self, frames: int, filled: bool) -> Round:
        """Moves `frames` frames, with the writer copying pixels into each if `filled`."""
        for role in ("reader", "writer"):
            self._ends[role].send(("run", frames, filled))
        _, writer_ns = self._answer("writer")
        wakes_ns, reader_ns = self._answer("reader")
        counted = wakes_ns[SETTLE:]
        return Round(
            percentile(counted, 50) / 1e3,
            percentile(counted, 99) / 1e3,
            (writer_ns + reader_ns) / frames / 1e3,
        )

    def _answer(self, role: str) -> Any:
        if not self._ends[role].poll(_ANSWER_S):
            raise TimeoutError(f"{self.name}: the {role} did not answer in {_ANSWER_S:.0f} s")
        answer = self._ends[role].recv()
        if isinstance(answer, Exception):
            raise answer
        return answer


def _serve(transport: Transport, role: str, parent: Connection, parent_pid: int) -> None:
    """The life of one process: does what the parent asks, until it says stop."""
    die_with_parent(signal.SIGKILL, parent_pid)
    pixels = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
    try:
        while True:
            match parent.recv():
                case ("stop",):
                    break
                case ("open", socket):
                    opened = transport.open_writer if role == "writer" else transport.open_reader
                    opened(socket)
                    parent.send(None)
                case ("run", frames, filled):
                    started_ns = time.process_time_ns()
                    wakes_ns: list[int] = []
                    if role == "writer":
                        _write(transport, frames, pixels if filled else None)
                    else:
                        wakes_ns = _read(transport, frames)
                    parent.send((wakes_ns, time.process_time_ns() - started_ns))
    except Exception as error:
        parent.send(error)
    finally:
        transport.close()


def _write(transport: Transport, frames: int, pixels: Any) -> None:
    for index in range(frames):
        time.sleep(PAUSE_S)
        transport.send(index, pixels)


def _read(transport: Transport, frames: int) -> list[int]:
    wakes_ns, index = [], -1
    while index < frames - 1:
        awake_ns, stamp_ns, index = transport.receive()
        wakes_ns.append(awake_ns - stamp_ns)
    return wakes_ns


def measure(rounds: int, frames: int) -> dict[tuple[str, bool], list[Round]]:
    """Rounds by transport and whether the frames were filled, taken in turn."""
    taken: dict[tuple[str, bool], list[Round]] = {}
    with ExitStack() as stack:
        # Forked before the daemon is started, which starts threads in this process.
        pairs = [stack.enter_context(Pair(make())) for make in TRANSPORTS]
        with private_daemon(load="none") as daemon:
            for pair in pairs:
                pair.open(str(daemon.socket))
            for _ in range(rounds):
                for filled in (True, False):
                    for pair in pairs:
                        taken.setdefault((pair.name, filled), []).append(pair.run(frames, filled))
    return taken


def goals_of(taken: dict[tuple[str, bool], list[Round]]) -> list[Goal]:
    """Ours over the floor, round by round, so that both saw the same minute of the machine."""
    goals = []
    for filled in (True, False):
        ours, floor = taken[McpdStream.name, filled], taken[PlainEventfd.name, filled]
        ratio = median(a.p50_us / b.p50_us for a, b in zip(ours, floor, strict=True))
        name = f"wake p50 / eventfd floor, {_words(filled)}"
        goals.append(at_most(name, round(ratio, 3), LIMIT))
    return goals


def _words(filled: bool) -> str:
    return "filled" if filled else "not filled"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m bench.transport", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument("--rounds", type=int, default=7, help="of each transport (default 7)")
    parser.add_argument("--frames", type=int, default=300, help="in a round (default 300)")
    options = parser.parse_args(arguments)
    if options.rounds < 1 or options.frames <= SETTLE:
        parser.error(f"needs at least 1 round and {SETTLE + 1} frames")
    taken = measure(options.rounds, options.frames)
    figures = {
        f"{name}, {_words(filled)}": {
            "wake p50 us": round(median(each.p50_us for each in rounds), 1),
            "wake p99 us": round(median(each.p99_us for each in rounds), 1),
            "cpu us/frame": round(median(each.cpu_us for each in rounds), 1),
        }
        for (name, filled), rounds in sorted(taken.items(), key=lambda item: not item[0][1])
    }
    report("transport", figures, goals_of(taken), options.json)


if __name__ == "__main__":
    main()
