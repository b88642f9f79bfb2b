"""Many streams into one reader process: 640x360 at 30 frames a second each.

A few writer processes fill the frames of many streams each, as cameras would that do not know of
each other: a frame of each stream is due every 33 ms, spread over that time, and is dropped if no
slot is free then. One process reads them all, lossless, by epoll over `fileno()` with `arm()`, and
takes the planes of each frame. Rounds of each number of streams alternate.

CPU: user and system time of the reader's process for a frame. Wake: from publish to the reader
having the frame. Late: frames that their writer came to more than 33 ms after they were due.

    python -m bench.streams [--json] [--streams 1 16 64 256] [--rounds 5] [--frames 60]
"""

from __future__ import annotations

import argparse
import resource
import select
import time
from collections.abc import Sequence
from contextlib import ExitStack
from statistics import median
from typing import Any, Final, NamedTuple

import numpy as np

from bench.harness import Goal, at_most, percentile, private_daemon, report
from bench.processes import Worker
from mcpd.shm import connect
from mcpd.shm.errors import WouldBlock

WIDTH, HEIGHT, FPS = 640, 360, 30
WRITERS: Final = 4
FLAT_LIMIT: Final = 1.5
_TICK_S: Final = 0.001
"""How often a writer looks which frames are due."""


class Round(NamedTuple):
    """One round of one number of streams."""

    dropped: int
    late: int
    cpu_us: float
    writers_cpu_us: float
    p50_us: float
    p99_us: float


def _name(index: int) -> str:
    return f"bench-{index}"


class _Writer:
    """Writes every WRITERS-th stream, from its own number on."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._stack = ExitStack()
        self._streams: list[tuple[int, Any]] = []
        self._pixels = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)

    def open(self, socket: str, streams: int) -> None:
        _allow_descriptors()
        client = self._stack.enter_context(connect(socket, name="bench-writer"))
        for index in range(self._number, streams, WRITERS):
            stream = client.create_stream(
                _name(index), width=WIDTH, height=HEIGHT, format="rgb24", slots=4, holds=1
            )
            self._streams.append((index, self._stack.enter_context(stream)))

    def run(self, streams: int, frames: int, start_s: float) -> tuple[int, int, int]:
        """Frames dropped, frames late, and CPU nanoseconds."""
        started_ns = time.process_time_ns()
        period_s = 1 / FPS
        due = [
            (start_s + (frame + index / streams) * period_s, frame, stream)
            for frame in range(frames)
            for index, stream in self._streams
            if index < streams
        ]
        dropped = late = 0
        for due_s, frame, stream in due:
            while (now_s := time.monotonic()) < due_s:
                time.sleep(max(due_s - now_s, _TICK_S))
            late += now_s > due_s + period_s
            try:
                # The last one is waited for: it tells the reader that the round is over.
                with stream.acquire(0 if frame < frames - 1 else None) as slot:
                    np.copyto(slot.planes[0], self._pixels)
                    slot.pts_ns = frame
            except WouldBlock:
                dropped += 1
        return dropped, late, time.process_time_ns() - started_ns

    def close(self) -> None:
        self._stack.close()


class _Reader:
    """Reads every stream."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._streams: list[Any] = []

    def open(self, socket: str, streams: int) -> None:
        _allow_descriptors()
        client = self._stack.enter_context(connect(socket, name="bench-reader"))
        for index in range(streams):
            stream = client.open_stream(_name(index), policy="lossless", max_pins=1)
            self._streams.append(self._stack.enter_context(stream))

    def run(self, streams: int, frames: int) -> tuple[list[int], int]:
        """Reads until the last frame of each: wakes in nanoseconds, and CPU nanoseconds."""
        started_ns = time.process_time_ns()
        wakes_ns = []
        following = {stream.fileno(): stream for stream in self._streams[:streams]}
        with select.epoll() as poll:
            for fd, stream in following.items():
                poll.register(fd, select.EPOLLIN)
                assert not stream.arm(), "a frame is left of the round before"
            while following:
                for fd, _ in poll.poll():
                    stream = following[fd]
                    while True:
                        with stream.next(0) as frame:
                            wakes_ns.append(time.monotonic_ns() - frame.publish_ns)
                            assert frame.planes[0].shape == (HEIGHT, WIDTH, 3)
                            last = frame.pts_ns == frames - 1
                        if last:
                            stream.disarm()
                            poll.unregister(fd)
                            del following[fd]
                            break
                        if not stream.arm():
                            break
        return wakes_ns, time.process_time_ns() - started_ns

    def close(self) -> None:
        self._stack.close()


def _allow_descriptors() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def measure(streams: Sequence[int], rounds: int, frames: int) -> dict[int, list[Round]]:
    """Rounds by number of streams, taken in turn."""
    taken: dict[int, list[Round]] = {}
    with ExitStack() as stack:
        # Forked before the daemon is started, which starts threads in this process.
        writers = [
            stack.enter_context(Worker(f"writer {number}", _Writer(number)))
            for number in range(WRITERS)
        ]
        reader = stack.enter_context(Worker("the reader", _Reader()))
        daemon = stack.enter_context(private_daemon(load="none"))
        for worker in (*writers, reader):
            worker.call("open", str(daemon.socket), max(streams))
        for _ in range(rounds):
            for count in streams:
                taken.setdefault(count, []).append(_round(writers, reader, count, frames))
    return taken


def _round(writers: Sequence[Worker], reader: Worker, streams: int, frames: int) -> Round:
    reader.start("run", streams, frames)
    start_s = time.monotonic() + 0.2
    for writer in writers:
        writer.start("run", streams, frames, start_s)
    ends = [writer.finish() for writer in writers]
    wakes_ns, cpu_ns = reader.finish()
    return Round(
        dropped=streams * frames - len(wakes_ns),
        late=sum(end[1] for end in ends),
        cpu_us=cpu_ns / len(wakes_ns) / 1e3,
        writers_cpu_us=sum(end[2] for end in ends) / len(wakes_ns) / 1e3,
        p50_us=percentile(wakes_ns, 50) / 1e3,
        p99_us=percentile(wakes_ns, 99) / 1e3,
    )


def goals_of(taken: dict[int, list[Round]]) -> list[Goal]:
    """No frame dropped, and no more CPU for one of many streams than for one of the fewest."""
    few, many = min(taken), max(taken)
    dropped = sum(each.dropped for each in taken[many])
    flat = median(b.cpu_us / a.cpu_us for a, b in zip(taken[few], taken[many], strict=True))
    return [
        at_most(f"frames dropped, {many} streams, all rounds", dropped, 0),
        at_most(f"reader cpu per frame, {many} streams / {few}", round(flat, 3), FLAT_LIMIT),
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m bench.streams", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument(
        "--streams", type=int, nargs="+", default=[1, 16, 64, 256], help="(default 1 16 64 256)"
    )
    parser.add_argument("--rounds", type=int, default=5, help="of each number (default 5)")
    parser.add_argument("--frames", type=int, default=60, help="of a stream in a round (60)")
    options = parser.parse_args(arguments)
    if min(*options.streams, options.rounds, options.frames, 2) < 1:
        parser.error("needs at least 1 stream, 1 round and 1 frame")
    taken = measure(options.streams, options.rounds, options.frames)
    figures = {
        f"{count} streams": {
            "frames/s": count * FPS,
            "dropped": sum(each.dropped for each in rounds),
            "late": sum(each.late for each in rounds),
            "reader cpu us/frame": round(median(each.cpu_us for each in rounds), 1),
            "writers cpu us/frame": round(median(each.writers_cpu_us for each in rounds), 1),
            "wake p50 us": round(median(each.p50_us for each in rounds), 1),
            "wake p99 us": round(median(each.p99_us for each in rounds), 1),
        }
        for count, rounds in taken.items()
    }
    report("streams", figures, goals_of(taken), options.json)


if __name__ == "__main__":
    main()
