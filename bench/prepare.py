"""Fused preparation of 1080p frames on one thread: AVX2 beside portable code and OpenCV.

Every way runs once a round and rounds follow each other, so that what the machine does besides is
spread over all ways; ratios are medians over the rounds of the round's ratio. All ways write to one
tensor. Frames come from a ring of four, as they do from slots, and each call takes the next: no way
finds in a cache what the one before it has just read.

Chains of OpenCV calls are those of bench/opencv_chains.py; the best is the one with the least
median. In cases "padding kept" the tensor was filled before and neither side writes its padding
again, as when a worker prepares one frame after the other; in the others both write it. A batch is
of eight frames into one tensor, by one call of ours. Area sampling is timed, and two threads.

    bandwidth share   time to move the rows that count, in lines of memory, and the image, at the
                      speed that a large copy has in this run, over the time that preparation takes

opencv-python-headless is not a dependency: where it is not installed, its columns are missing.

    python -m bench.prepare [--json] [--rounds 40]
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, Final, NamedTuple
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from bench.harness import Goal, at_least, report
from bench.opencv_chains import HEIGHT, PAD, WIDTH, chains
from mcpd.native import _core

YUV_GOAL: Final = 5.0
"""Times faster than cvtColor, resize and normalise with OpenCV: I420 and NV12."""
BEST_GOAL: Final = 2.0
"""Times faster than the best chain of OpenCV calls: I420 and NV12."""
RGB_GOAL: Final = 2.0
COPY_NBYTES: Final = 64 << 20
_FRAMES: Final = 4
_MEMORY_LINE: Final = 64
_BATCH: Final = 8

Bytes = NDArray[np.uint8]
Way = Callable[[int], object]
"""Prepares the frame of that index."""


class Format(NamedTuple):
    """A pixel format of 1080p frames: planes as offset, bytes of a row and rows."""

    code: int
    planes: tuple[tuple[int, int, int], ...]

    @property
    def nbytes(self) -> int:
        return sum(row_nbytes * rows for _, row_nbytes, rows in self.planes)


_LUMA = (0, WIDTH, HEIGHT)
FORMATS: Final[Mapping[str, Format]] = {
    "i420": Format(
        7,
        (
            _LUMA,
            (WIDTH * HEIGHT, WIDTH // 2, HEIGHT // 2),
            (WIDTH * HEIGHT * 5 // 4, WIDTH // 2, HEIGHT // 2),
        ),
    ),
    "nv12": Format(6, (_LUMA, (WIDTH * HEIGHT, WIDTH, HEIGHT // 2))),
    "rgb24": Format(1, ((0, 3 * WIDTH, HEIGHT),)),
}


class Case(NamedTuple):
    """What frames are prepared to."""

    format: str
    size: int
    dtype: str
    layout: str = "nchw"
    kept: bool = False
    """The padding is there before."""
    batch: int = 1
    area: bool = False

    @property
    def name(self) -> str:
        how = "letterbox" if self.letterbox else "stretch"
        words = [f"{self.format} to {self.size} {how} {self.dtype} {self.layout}"]
        words += ["area"] if self.area else []
        words += [f"{self.batch} frames"] if self.batch > 1 else []
        words += ["padding kept"] if self.kept else []
        return ", ".join(words)

    @property
    def letterbox(self) -> bool:
        return self.size == 640

    @property
    def compared(self) -> bool:
        """Whether OpenCV makes it too."""
        return self.letterbox and self.layout == "nchw" and self.dtype != "uint8" and not self.area


CASES: Final = (
    *(Case(name, 640, "float32", kept=kept) for name in FORMATS for kept in (False, True)),
    *(Case(name, 640, "float16", kept=True) for name in FORMATS),
    *(
        Case(name, 640, dtype, kept=True, batch=_BATCH)
        for name in FORMATS
        for dtype in ("float32", "float16")
    ),
    *(Case(name, 640, "uint8") for name in FORMATS),
    *(Case(name, 640, "float32", "nhwc") for name in FORMATS),
    *(Case(name, 640, "float32", area=True) for name in FORMATS),
    *(Case(name, 300, "float32") for name in FORMATS),
    *(Case(name, 300, "uint8", "nhwc") for name in FORMATS),
)


def preparation(case: Case, isa: str) -> _core.Preparation:
    """The case's preparation by an instruction set; "" for the fastest that there is."""
    format, letterbox = FORMATS[case.format], case.letterbox
    with mock.patch.dict(os.environ, {"MCPD_PREPARE": isa}):
        return _core.Preparation(
            format=format.code,
            width=WIDTH,
            height=HEIGHT,
            plane_offsets=tuple(offset for offset, _, _ in format.planes),
            plane_strides=tuple(row_nbytes for _, row_nbytes, _ in format.planes),
            matrix=1,
            range=1,
            out_width=case.size,
            out_height=case.size,
            layout=case.layout,
            dtype=case.dtype,
            channels="rgb",
            resize="letterbox" if letterbox else "stretch",
            sampling="area" if case.area else "half_pixel" if letterbox else "corner",
            scale=1.0 if case.dtype == "uint8" else 1 / 255,
            mean=(0.0,),
            std=(1.0,),
            pad_value=PAD,
        )


def moved_nbytes(case: Case) -> int:
    """Bytes that have to be moved: of each row that counts whole lines of memory, and the image.

    Rows are those with a weight, all for area sampling; columns are closer to each other than lines
    of memory are. Of an image whose padding is kept, the rest.
    """
    format, total = FORMATS[case.format], 0
    rows = case.size * HEIGHT // WIDTH if case.letterbox else case.size
    for _, row_nbytes, count in format.planes:
        ratio, half = HEIGHT / rows, 0.5 if case.letterbox else 0.0
        at = (np.arange(rows) + half) * ratio - half
        if count < HEIGHT:
            at = (at - 0.5) / 2
        at = np.clip(at, 0, count - 1)
        needed = set(np.floor(at + 1e-9).astype(int)) | set(np.ceil(at - 1e-9).astype(int))
        read = count if case.area else len(needed)
        total += read * -(-row_nbytes // _MEMORY_LINE) * _MEMORY_LINE
    written = rows if case.kept else case.size
    total += 3 * case.size * written * np.dtype(case.dtype).itemsize
    return case.batch * total


def ways_of(case: Case, frames: Sequence[Bytes]) -> dict[str, Way]:
    """The ways to prepare the case here, by name; the instruction set that is ours first."""
    ways: dict[str, Way] = {}
    size = (3, case.size, case.size)
    # One tensor for all, so that none finds it in a cache where another does not.
    out = np.full((case.batch, *size), PAD / 255 if case.compared else 0, case.dtype)
    for isa in ("", "scalar"):
        one = preparation(case, isa)
        if one.isa not in ways:
            ways[one.isa] = _ours(case, one, frames, out)
    if case.batch > 1:
        ways["2 threads"] = _ours(case, preparation(case, ""), frames, out, threads=2)
    if case.compared:
        ways |= _opencv(case, frames, out)
    return ways


def _ours(
    case: Case,
    one: _core.Preparation,
    frames: Sequence[Bytes],
    out: NDArray[Any],
    *,
    threads: int = 1,
) -> Way:
    memory = out.reshape(-1).view(np.uint8).data

    def run(index: int) -> None:
        sources = [frames[(index + i) % len(frames)].data for i in range(case.batch)]
        jobs = [(one, source, i) for i, source in enumerate(sources)]
        _core.Preparation.run_batch(jobs, memory, threads=threads, padded=case.kept)

    def run_one(index: int) -> None:
        one.run(frames[index].data, memory, padded=case.kept)

    return run if case.batch > 1 else run_one


def _opencv(case: Case, frames: Sequence[Bytes], out: NDArray[Any]) -> dict[str, Way]:
    """Each chain on the case's frames; each image of a batch has a chain of its own."""
    found = [chains(case.format, image, fill=not case.kept) for image in out]

    def way(name: str) -> Way:
        def run(index: int) -> None:
            for i, one in enumerate(found):
                one[name](frames[(index + i) % len(frames)])

        return run

    return {f"opencv {name}": way(name) for name in found[0]}


def measure(rounds: int) -> tuple[dict[Case, dict[str, list[float]]], list[float]]:
    """Milliseconds by case and way, taken in turn; and those of copies of COPY_NBYTES."""
    random = np.random.default_rng(0)
    frames = {
        name: [random.integers(0, 256, format.nbytes, np.uint8) for _ in range(_FRAMES)]
        for name, format in FORMATS.items()
    }
    taken: dict[Case, dict[str, list[float]]] = {}
    source, target = np.ones((2, COPY_NBYTES), np.uint8)
    copies: list[float] = []
    turns = itertools.count()
    for case in CASES:
        ways = ways_of(case, frames[case.format])
        for way in ways.values():
            way(0)
        for _ in range(rounds):
            for name, way in ways.items():
                index = next(turns) % _FRAMES
                spent = _timed(lambda way=way, index=index: way(index))  # type: ignore[misc]
                taken.setdefault(case, {}).setdefault(name, []).append(spent)
        copies += [_timed(lambda: np.copyto(target, source)) for _ in range(2)]
    return taken, copies


def _timed(call: Callable[[], object]) -> float:
    started_ns = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - started_ns) / 1e6


def ratio(slow: Sequence[float], fast: Sequence[float]) -> float:
    """How many times faster, round by round, so that both saw the same moment of the machine."""
    return median(a / b for a, b in zip(slow, fast, strict=True))


def figures_of(
    taken: Mapping[Case, Mapping[str, Sequence[float]]], copies: Sequence[float]
) -> dict[str, dict[str, float]]:
    """A row for each case: milliseconds of each way, and how many times slower than ours."""
    nbytes_per_ms = 2 * COPY_NBYTES / median(copies)
    figures: dict[str, dict[str, float]] = {}
    for case, times in taken.items():
        isa, ours = next(iter(times.items()))
        row = {f"{name} ms": round(median(spent), 3) for name, spent in times.items()}
        for name, spent in times.items():
            if name != isa:
                row[f"{name} / {isa}"] = round(ratio(spent, ours), 2)
        row["bandwidth share"] = round(moved_nbytes(case) / nbytes_per_ms / median(ours), 3)
        figures[case.name] = row
    return figures


def goals_of(taken: Mapping[Case, Mapping[str, Sequence[float]]]) -> list[Goal]:
    """Ours against OpenCV's, where OpenCV is."""
    goals = []
    for case, times in taken.items():
        ours = next(iter(times.values()))
        theirs = {name: spent for name, spent in times.items() if name.startswith("opencv")}
        if not theirs:
            continue
        whole = theirs["opencv whole"]
        limit = RGB_GOAL if case.format == "rgb24" else YUV_GOAL
        goals.append(at_least(f"opencv whole / ours, {case.name}", _times(whole, ours), limit))
        if len(theirs) > 1:
            best = min(theirs, key=lambda name: median(theirs[name]))
            name = f"best chain ({best}) / ours, {case.name}"
            goals.append(at_least(name, _times(theirs[best], ours), BEST_GOAL))
    return goals


def _times(slow: Sequence[float], fast: Sequence[float]) -> float:
    return round(ratio(slow, fast), 2)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m bench.prepare", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument(
        "--rounds", type=int, default=40, help="of each case, at least 5 (default 40)"
    )
    options = parser.parse_args(arguments)
    if options.rounds < 5:
        parser.error("needs at least 5 rounds")
    taken, copies = measure(options.rounds)
    goals = goals_of(taken)
    if not goals:
        print(
            "OpenCV is not installed, so that there is no goal to compare with: "
            "pip install opencv-python-headless",
            file=sys.stderr,
        )
    report("prepare", figures_of(taken, copies), goals, options.json)


if __name__ == "__main__":
    main()
