"""Fused preparation of 1080p frames on one thread: AVX2 beside portable code and OpenCV.

Every way runs once a round and rounds follow each other, so that what the machine does besides is
spread over all ways; ratios are medians over the rounds of the round's ratio. Images go to the same
memory each time, frames come from a ring of four, as they do from slots.

    opencv         cvtColor, resize, scaled to float32, each channel into its plane of the output
    opencv planes  Y, U and V are resized first, and the small frame is converted

    bandwidth share   time to move the rows that count, in lines of memory, and the image, at the
                      speed that a large copy has in this run, over the time that preparation takes

opencv-python-headless is not a dependency: where it is not installed, those columns are missing.

    python -m bench.prepare [--json] [--rounds 40]
"""

from __future__ import annotations

import argparse
import importlib
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
from mcpd.native import _core

WIDTH: Final = 1920
HEIGHT: Final = 1080
YUV_GOAL: Final = 5.0
"""Times faster than cvtColor, resize and normalise with OpenCV: I420 and NV12."""
PLANES_GOAL: Final = 2.0
"""Times faster than the best chain of OpenCV calls: I420 and NV12."""
RGB_GOAL: Final = 2.0
COPY_NBYTES: Final = 64 << 20
_FRAMES: Final = 4
_MEMORY_LINE: Final = 64
_PAD: Final = 114.0

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

    @property
    def name(self) -> str:
        how = "letterbox" if self.size == 640 else "stretch"
        return f"{self.format} to {self.size} {how} {self.dtype} {self.layout}"


CASES: Final = (
    *(Case(name, 640, dtype) for name in FORMATS for dtype in ("float32", "float16", "uint8")),
    *(Case(name, 640, "float32", "nhwc") for name in FORMATS),
    *(Case(name, 300, "float32") for name in FORMATS),
    *(Case(name, 300, "uint8", "nhwc") for name in FORMATS),
)


def preparation(case: Case, isa: str) -> _core.Preparation:
    """The case's preparation by an instruction set; "" for the fastest that there is."""
    format, letterbox = FORMATS[case.format], case.size == 640
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
            sampling="half_pixel" if letterbox else "corner",
            scale=1.0 if case.dtype == "uint8" else 1 / 255,
            mean=(0.0,),
            std=(1.0,),
            pad_value=_PAD,
        )


def moved_nbytes(case: Case) -> int:
    """Bytes that have to be moved: of each row that counts whole lines of memory, and the image.

    Rows are those with a weight; columns are closer to each other than lines of memory are.
    """
    format, total = FORMATS[case.format], 0
    rows = case.size * HEIGHT // WIDTH if case.size == 640 else case.size
    for _, row_nbytes, count in format.planes:
        ratio, half = HEIGHT / rows, 0.5 if case.size == 640 else 0.0
        at = (np.arange(rows) + half) * ratio - half
        if count < HEIGHT:
            at = (at - 0.5) / 2
        at = np.clip(at, 0, count - 1)
        needed = set(np.floor(at + 1e-9).astype(int)) | set(np.ceil(at - 1e-9).astype(int))
        total += len(needed) * -(-row_nbytes // _MEMORY_LINE) * _MEMORY_LINE
    return total + 3 * case.size**2 * np.dtype(case.dtype).itemsize


def ways_of(case: Case, frames: Sequence[Bytes]) -> dict[str, Way]:
    """The ways to prepare the case here, by name."""
    ways: dict[str, Way] = {}
    for isa in ("", "scalar"):
        one = preparation(case, isa)
        if one.isa not in ways:
            ways[one.isa] = _ours(one, frames)
    if case.size == 640 and case.dtype == "float32" and case.layout == "nchw":
        ways.update(_opencv(case.format, frames))
    return ways


def _ours(one: _core.Preparation, frames: Sequence[Bytes]) -> Way:
    out = np.zeros(one.out_nbytes, np.uint8)
    return lambda index: one.run(frames[index].data, out.data)


def _opencv(format: str, frames: Sequence[Bytes]) -> dict[str, Way]:
    """Letterbox of 640 to float32, planes apart, by OpenCV; nothing where it is not installed."""
    try:
        cv2: Any = importlib.import_module("cv2")
    except ImportError:
        return {}
    cv2.setNumThreads(1)
    out = np.full((3, 640, 640), _PAD / 255, np.float32)

    def normalise(rgb: Any) -> None:
        for channel in range(3):
            plane = out[channel, 140:500]
            cv2.multiply(cv2.extractChannel(rgb, channel), 1 / 255, plane, dtype=cv2.CV_32F)

    def whole(index: int) -> None:
        frame = frames[index]
        if format == "rgb24":
            rgb = frame.reshape(HEIGHT, WIDTH, 3)
        else:
            code = cv2.COLOR_YUV2RGB_I420 if format == "i420" else cv2.COLOR_YUV2RGB_NV12
            rgb = cv2.cvtColor(frame.reshape(HEIGHT * 3 // 2, WIDTH), code)
        normalise(cv2.resize(rgb, (640, 360)))

    def planes(index: int) -> None:
        frame = frames[index]
        luma = frame[: WIDTH * HEIGHT].reshape(HEIGHT, WIDTH)
        chroma = frame[WIDTH * HEIGHT :]
        small = np.empty((540, 640), np.uint8)
        cv2.resize(luma, (640, 360), dst=small[:360])
        if format == "i420":
            halves = chroma.reshape(2, HEIGHT // 2, WIDTH // 2)
            for half, to in zip(halves, small[360:].reshape(2, 180, 320), strict=True):
                cv2.resize(half, (320, 180), dst=to)
            normalise(cv2.cvtColor(small, cv2.COLOR_YUV2RGB_I420))
        else:
            pairs = chroma.reshape(HEIGHT // 2, WIDTH // 2, 2)
            cv2.resize(pairs, (320, 180), dst=small[360:].reshape(180, 320, 2))
            normalise(cv2.cvtColor(small, cv2.COLOR_YUV2RGB_NV12))

    return {"opencv": whole} if format == "rgb24" else {"opencv": whole, "opencv planes": planes}


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
    for case in CASES:
        ways = ways_of(case, frames[case.format])
        for way in ways.values():
            way(0)
        for index in range(rounds):
            for name, way in ways.items():
                spent = _timed(lambda way=way, index=index: way(index % _FRAMES))  # type: ignore[misc]
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
        yuv = case.format != "rgb24"
        for name, limit in (
            ("opencv", YUV_GOAL if yuv else RGB_GOAL),
            ("opencv planes", PLANES_GOAL),
        ):
            if name in times:
                times_faster = round(ratio(times[name], ours), 2)
                goals.append(at_least(f"{name} / ours, {case.name}", times_faster, limit))
    return goals


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m bench.prepare", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument("--rounds", type=int, default=40, help="of each case (default 40)")
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error("needs at least 1 round")
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
