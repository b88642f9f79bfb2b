"""What many readers cost the writer of one 1080p stream at 60 frames a second.

Every reader is a process with its own session. Rounds of these alternate:

bare      The same processes wait on a plain eventfd each; C code writes one after the other.
asleep    They wait in `next`, and all are signalled at every publish.
stalled   The same, with one of them stopped by SIGSTOP.
awake     Nobody sleeps: some poll, the others do not ask for a frame. Frames follow each other at
          once; the writer's system calls are counted by strace, where it can be attached, and the
          signals by the stream's own counter.

CPU is the writer's thread time around a publish: a slot acquired, not filled, and published. Wake:
from publish to the reader having the frame, over all readers that run.

    python -m bench.readers [--json] [--readers 64] [--rounds 5] [--frames 120]
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

from bench.harness import Figures, Goal, at_most, percentile, private_daemon, ratio, report
from bench.native import library
from bench.processes import Worker
from bench.transports import HEIGHT, WIDTH
from mcpd.shm import connect
from mcpd.shm.errors import WouldBlock

FPS: Final = 60
SETTLE: Final = 10
"""First frames of a round that do not count."""
CPU_LIMIT: Final = 1.2
STALL_LIMIT: Final = 1.1
_STREAM: Final = "bench"


class _Writer:
    """The stream's writer, and of the plain eventfds."""

    def __init__(self, wake_fds: Sequence[int]) -> None:
        self._library = library()
        self._wake_fds = (ctypes.c_int * len(wake_fds))(*wake_fds)
        self._stack = ExitStack()
        self._stream: Any = None

    def open(self, socket: str) -> None:
        client = self._stack.enter_context(connect(socket, name="bench-writer"))
        slots = len(self._wake_fds) + 3  # a pin each, history, one that is written, one more
        self._stream = self._stack.enter_context(
            client.create_stream(
                _STREAM, width=WIDTH, height=HEIGHT, format="rgb24", slots=slots, holds=1
            )
        )

    def bare(self, frames: int) -> float:
        """Signals every eventfd, paced: CPU nanoseconds of a frame."""
        return _paced(frames, lambda _: self._signal())

    def publish(self, frames: int) -> float:
        """Publishes, paced: CPU nanoseconds of a frame."""
        return _paced(frames, self._publish)

    def hurry(self, frames: int) -> int:
        """Publishes frames at once, between two getppid: signals sent."""
        before = self._stream.stats()["wakes"]
        os.getppid()
        for index in range(frames):
            self._publish(index)
        os.getppid()
        return int(self._stream.stats()["wakes"] - before)

    def close(self) -> None:
        self._stack.close()

    def _signal(self) -> None:
        if self._library.bench_floor_signal(self._wake_fds, len(self._wake_fds)) != 0:
            raise OSError("an eventfd cannot be written")

    def _publish(self, index: int) -> None:
        with self._stream.acquire() as slot:
            slot.pts_ns = index


def _paced(frames: int, work: Callable[[int], None]) -> float:
    """CPU nanoseconds of `work` for a frame, on average over those that count."""
    taken = []
    due = time.monotonic()
    for index in range(frames):
        due += 1 / FPS
        time.sleep(max(0.0, due - time.monotonic()))
        started_ns = time.thread_time_ns()
        work(index)
        taken.append(time.thread_time_ns() - started_ns)
    return fmean(taken[SETTLE:])


class _Reader:
    """One of the readers."""

    def __init__(self, wake_fd: int) -> None:
        self._wake_fd = wake_fd
        self._stack = ExitStack()
        self._stream: Any = None

    def open(self, socket: str) -> None:
        client = self._stack.enter_context(connect(socket, name="bench-reader"))
        self._stream = self._stack.enter_context(client.open_stream(_STREAM, max_pins=1))

    def bare(self, frames: int) -> None:
        """Waits until the plain eventfd has been signalled that often."""
        seen = 0
        while seen < frames:
            seen += os.eventfd_read(self._wake_fd)

    def follow(self, frames: int) -> list[int]:
        """Reads until the frame with the last number: nanoseconds from publish to each frame."""
        wakes_ns, index = [], -1
        while index < frames - 1:
            with self._stream.next() as frame:
                wakes_ns.append(time.monotonic_ns() - frame.publish_ns)
                index = frame.pts_ns
        return wakes_ns

    def poll(self, frames: int) -> int:
        """Asks again and again, without sleeping, until the last frame: how many it got."""
        received, index = 0, -1
        while index < frames - 1:
            try:
                with self._stream.next(0) as frame:
                    index = frame.pts_ns
            except WouldBlock:
                continue
            received += 1
        return received

    def catch_up(self) -> None:
        """Passes over what is there already."""
        try:
            self._stream.next(0).close()
        except WouldBlock:
            return

    def close(self) -> None:
        self._stack.close()


class Audience:
    """The writer and its readers, connected; a context manager."""

    def __init__(self, readers: int) -> None:
        self._stack = ExitStack()
        wake_fds = [os.eventfd(0, os.EFD_CLOEXEC) for _ in range(readers)]
        for fd in wake_fds:
            self._stack.callback(os.close, fd)
        # Forked before the daemon is started, which starts threads in this process.
        self._writer = self._stack.enter_context(Worker("the writer", _Writer(wake_fds)))
        self._readers = [
            self._stack.enter_context(Worker(f"reader {number}", _Reader(fd)))
            for number, fd in enumerate(wake_fds)
        ]
        daemon = self._stack.enter_context(private_daemon(load="none"))
        self._writer.call("open", str(daemon.socket))
        for reader in self._readers:
            reader.call("open", str(daemon.socket))

    def __enter__(self) -> Audience:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.__exit__(None, None, None)

    def bare(self, frames: int) -> float:
        """CPU microseconds of the writer for a frame, plain eventfds."""
        for reader in self._readers:
            reader.start("bare", frames)
        cpu_ns = float(self._writer.call("bare", frames))
        for reader in self._readers:
            reader.finish()
        return cpu_ns / 1e3

    def asleep(self, frames: int, *, stalled: bool = False) -> tuple[float, float]:
        """The writer's CPU for a publish, and the wake p50 of the readers that run, in us."""
        first, *others = self._readers
        for reader in self._readers:
            reader.call("catch_up")
        for reader in self._readers:
            reader.start("follow", frames)
        if stalled:
            os.kill(first.pid, signal.SIGSTOP)
        try:
            cpu_ns = float(self._writer.call("publish", frames))
            wakes_ns = [wake for reader in others for wake in reader.finish()[SETTLE:]]
        finally:
            if stalled:
                os.kill(first.pid, signal.SIGCONT)
        first.finish()
        return cpu_ns / 1e3, percentile(wakes_ns, 50) / 1e3

    def awake(self, frames: int) -> tuple[float, float | None]:
        """Signals and system calls of the writer for a publish; None: strace did not tell."""
        polling = self._readers[: os.cpu_count()]
        for reader in self._readers:
            reader.call("catch_up")
        for reader in polling:
            reader.start("poll", frames)
        with tempfile.TemporaryDirectory(prefix="mcpd-bench-") as folder, ExitStack() as stack:
            log = Path(folder) / "strace"
            traced = _attach_strace(self._writer.pid, log, stack)
            wakes = self._writer.call("hurry", frames)
            stack.close()
            calls = _calls_between_marks(log) if traced else None
        for reader in polling:
            reader.finish()
        return wakes / frames, None if calls is None else calls / frames


def _attach_strace(pid: int, log: Path, stack: ExitStack) -> bool:
    """Has strace write a process's system calls into `log`; False if it cannot."""
    command = ["strace", "-o", str(log), "-p", str(pid)]
    try:
        tracer = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    except FileNotFoundError:
        return False

    def detach() -> None:
        tracer.send_signal(signal.SIGINT)
        tracer.communicate()

    stack.callback(detach)
    assert tracer.stderr is not None
    return "attached" in tracer.stderr.readline()


def _calls_between_marks(log: Path) -> int:
    """System calls between the two getppid.

    Raises:
        ValueError: They are not there.
    """
    lines = log.read_text().splitlines()
    first, last = (i for i, line in enumerate(lines) if line.startswith("getppid("))
    return last - first - 1


def measure(readers: int, rounds: int, frames: int) -> dict[str, list[float]]:
    """Figures by name, one for each round."""
    taken: dict[str, list[float]] = {}

    def add(name: str, value: float | None) -> None:
        if value is not None:
            taken.setdefault(name, []).append(value)

    with Audience(readers) as audience:
        for _ in range(rounds):
            add("bare cpu us", audience.bare(frames))
            cpu_us, wake_us = audience.asleep(frames)
            add("asleep cpu us", cpu_us)
            add("asleep wake us", wake_us)
            cpu_us, wake_us = audience.asleep(frames, stalled=True)
            add("stalled cpu us", cpu_us)
            add("stalled wake us", wake_us)
            signals, calls = audience.awake(frames)
            add("awake signals", signals)
            add("awake calls", calls)
    return taken


def goals_of(taken: dict[str, list[float]], readers: int) -> list[Goal]:
    """What the figures should reach."""
    cpu = ratio(taken["asleep cpu us"], taken["bare cpu us"])
    stall = ratio(taken["stalled wake us"], taken["asleep wake us"])
    calls = taken.get("awake calls")
    return [
        at_most(f"cpu of a publish to {readers} sleepers / bare eventfd writes", cpu, CPU_LIMIT),
        at_most("signals to awake readers for a publish", max(taken["awake signals"]), 0.0),
        at_most("system calls of a publish to awake readers", max(calls) if calls else None, 0.0),
        at_most("wake p50 of the others with a stalled reader / without", stall, STALL_LIMIT),
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m bench.readers", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument("--readers", type=int, default=64, help="processes (default 64)")
    parser.add_argument("--rounds", type=int, default=5, help="of each kind (default 5)")
    parser.add_argument("--frames", type=int, default=120, help="in a round (default 120)")
    options = parser.parse_args(arguments)
    if not 2 <= options.readers <= 64 or options.rounds < 1 or options.frames <= SETTLE:
        parser.error(f"needs 2 to 64 readers, at least 1 round and {SETTLE + 1} frames")
    taken = measure(options.readers, options.rounds, options.frames)
    middle = {name: round(median(values), 3) for name, values in taken.items()}
    figures: Figures = {
        f"{options.readers} eventfds, bare writes": {"writer cpu us": middle["bare cpu us"]},
        f"{options.readers} readers asleep": {
            "writer cpu us": middle["asleep cpu us"],
            "wake p50 us": middle["asleep wake us"],
        },
        "one of them stalled": {
            "writer cpu us": middle["stalled cpu us"],
            "wake p50 us": middle["stalled wake us"],
        },
        "all awake": {
            "signals/publish": middle["awake signals"],
            "system calls/publish": middle.get("awake calls", "not measured"),
        },
    }
    report("readers", figures, goals_of(taken, options.readers), options.json)


if __name__ == "__main__":
    main()
