"""Ways to get a decoded 1080p frame into a slot: copies, conversions, OpenCV in place.

The slots are a stream's, so that each way writes where frames are really written: to the slot that
was freed last. Every way runs once a round, in an order drawn anew, each on a frame that none has
read lately: what a way leaves in the caches is the next one's gain or loss. Figures are medians of
CPU time, ratios medians of the round's ratio to the row's first way. Frames come from a clip and
are decoded before they are timed; OpenCV converts in `retrieve`, so that is in its time, decoding
is not.

    numpy            target[...] = source, plane by plane
    copy_plane       what our ways copy a plane by
    write_frame      Slot.write_frame; `write` Slot.write
    non-temporal     the same past the caches, for frames that only a GPU reads
    to_ndarray       PyAV's to_ndarray, then numpy's copy
    into the slot    Slot.write_frame(convert=True): swscale writes to the slot
    reformat         PyAV's reformat, then the planes are copied
    in place         Slot.retrieve; `retrieve` OpenCV's own array, then numpy's copy

opencv-python-headless comes with the extra `opencv`; without it its rows are missing.

    python -m bench.writing [--json] [--rounds 60] [--clip FILE]
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from bench.harness import Goal, at_least, private_daemon, ratio, report
from mcpd.cli.demo.clip import cached_clip
from mcpd.shm import Client, Slot, WriterStream, connect
from mcpd.shm.video import open_video
from mcpd.shm.writing import copy_plane

if TYPE_CHECKING:
    import av

SECONDS: Final = 2
FRAMES: Final = 8
"""Decoded frames that are written in turn: more than a cache of ours holds, as they are in use."""
WARM: Final = 2
"""Rounds before the first that counts."""

AV_NAMES: Final = {"i420": "yuv420p"}
Way = Callable[[Slot, Any], object]
Times = dict[str, dict[str, list[float]]]
"""Milliseconds of CPU by row (what is written) and way."""

COPIES: Final = "planes i420"
ARRAYS: Final = "array rgb24"
OPENCV: Final = "opencv bgr24"

GOALS: Final = (
    (ARRAYS, "numpy", "copy_plane", 0.95),  # both are memcpy: what they differ by is noise
    (COPIES, "to_ndarray", "write_frame", 1.0),
    ("to nv12", "reformat", "into the slot", 1.0),
    ("to rgb24", "reformat", "into the slot", 1.0),
    (OPENCV, "retrieve", "in place", 1.0),
)
"""What is written, the way that is to be slower, the other, and how many times at least."""


def cache_folder() -> Path:
    """Where the demo keeps its clips."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "mcpd"


def copy_by_numpy(slot: Slot, frame: av.VideoFrame) -> None:
    """The planes of a frame, by numpy's assignment."""
    description = slot.description
    assert description is not None
    for source, plane, target in zip(frame.planes, description.planes, slot.planes, strict=True):
        strides = (source.line_size, *plane.shape[2:], 1)
        target[...] = np.ndarray(plane.shape, np.uint8, memoryview(source), 0, strides)


def copy_to_ndarray(format: str) -> Way:
    """PyAV's array of a frame, copied into the slot."""

    def write(slot: Slot, frame: av.VideoFrame) -> None:
        array = frame.to_ndarray(format=AV_NAMES.get(format, format))
        planes, start = slot.planes, 0
        flat = array.reshape(-1)
        for plane in planes:
            plane[...] = flat[start : start + plane.size].reshape(plane.shape)
            start += plane.size

    return write


def copy_reformatted(format: str) -> Way:
    """PyAV's conversion, whose planes are copied into the slot."""

    def write(slot: Slot, frame: av.VideoFrame) -> None:
        name = AV_NAMES.get(format, format)
        colours = {"src_colorspace": 1, "src_color_range": 1, "dst_colorspace": 1}
        levels = 2 if format == "rgb24" else 1
        copy_by_numpy(slot, frame.reformat(format=name, dst_color_range=levels, **colours))

    return write


def frame_ways(format: str) -> dict[str, Way]:
    """The ways to write a decoded I420 frame as `format`; the one to compare with is first."""
    if format == "i420":
        return {
            "write_frame": lambda slot, frame: slot.write_frame(frame),
            "numpy": copy_by_numpy,
            "non-temporal": lambda slot, frame: slot.write_frame(frame, non_temporal=True),
            "to_ndarray": copy_to_ndarray(format),
        }
    return {
        "into the slot": lambda slot, frame: slot.write_frame(frame, convert=True),
        "reformat": copy_reformatted(format),
        "to_ndarray": copy_to_ndarray(format),
    }


def array_ways() -> dict[str, Way]:
    """The ways to write an array of 6.2 MB."""

    def by_numpy(slot: Slot, array: Any) -> None:
        slot.planes[0][...] = array

    return {
        "copy_plane": lambda slot, array: copy_plane(slot.planes[0], array),
        "numpy": by_numpy,
        "write": lambda slot, array: slot.write(array),
        "non-temporal": lambda slot, array: slot.write(array, non_temporal=True),
    }


def measure(
    stream: WriterStream, ways: Mapping[str, Way], sources: Sequence[Any], rounds: int
) -> dict[str, list[float]]:
    """Milliseconds of CPU of each way, taken in turn."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    fresh, order = itertools.cycle(sources), random.Random(0)
    for index in range(-WARM, rounds):
        for name in order.sample(list(ways), len(ways)):
            with stream.acquire(5) as slot:
                spent = _timed(ways[name], slot, next(fresh))
            if index >= 0:
                taken[name].append(spent)
    return taken


def measure_opencv(client: Client, path: Path, rounds: int) -> dict[str, list[float]]:
    """Of OpenCV's retrieve, in place and not; nothing where OpenCV is not installed."""
    try:
        cv2: Any = importlib.import_module("cv2")
    except ImportError:
        return {}
    cv2.setNumThreads(1)

    def frames() -> Iterator[Any]:
        while True:
            capture = cv2.VideoCapture(str(path), cv2.CAP_FFMPEG, [cv2.CAP_PROP_N_THREADS, 1])
            while capture.grab():
                yield capture

    def in_place(slot: Slot, capture: Any) -> None:
        assert slot.retrieve(capture)

    def copied(slot: Slot, capture: Any) -> None:
        slot.planes[0][...] = capture.retrieve()[1]

    ways: dict[str, Way] = {"in place": in_place, "retrieve": copied}
    captures = {name: frames() for name in ways}
    taken: dict[str, list[float]] = {name: [] for name in ways}
    order = random.Random(0)
    capture = next(captures["in place"])
    height, width = capture.retrieve()[1].shape[:2]
    with client.create_stream("opencv", format="bgr24", width=width, height=height) as stream:
        for index in range(-WARM, rounds):
            for name in order.sample(list(ways), len(ways)):
                grabbed = next(captures[name])
                with stream.acquire(5) as slot:
                    spent = _timed(ways[name], slot, grabbed)
                if index >= 0:
                    taken[name].append(spent)
    return taken


def measure_all(client: Client, path: Path, rounds: int) -> Times:
    """Every row's ways."""
    with open_video(str(path)) as video:
        frames = [picture.frame for picture in itertools.islice(video, FRAMES)]
    times: Times = {}

    def stream_of(format: str) -> WriterStream:
        return client.create_stream(
            f"writing-{format}",
            format=format,
            width=video.width,
            height=video.height,
            matrix=video.matrix,
            range=video.range,
        )

    for row, format in ((COPIES, "i420"), ("to nv12", "nv12"), ("to rgb24", "rgb24")):
        with stream_of(format) as stream:
            times[row] = measure(stream, frame_ways(format), frames, rounds)
    arrays = [frame.to_ndarray(format="rgb24") for frame in frames]
    with stream_of("rgb24") as stream:
        times[ARRAYS] = measure(stream, array_ways(), arrays, rounds)
    opencv = measure_opencv(client, path, rounds)
    return {**times, OPENCV: opencv} if opencv else times


def _timed(way: Way, slot: Slot, source: Any) -> float:
    started_ns = time.process_time_ns()
    way(slot, source)
    return (time.process_time_ns() - started_ns) / 1e6


def figures_of(times: Times) -> dict[str, dict[str, float]]:
    """A row for each thing written: milliseconds of each way, and how many times the first's."""
    figures: dict[str, dict[str, float]] = {}
    for row, ways in times.items():
        first, ours = next(iter(ways.items()))
        for name, spent in ways.items():
            figures[f"{row}: {name}"] = {
                "cpu ms": round(median(spent), 3),
                "/ first": 1.0 if name == first else ratio(spent, ours),
            }
    return figures


def goals_of(times: Times) -> list[Goal]:
    """A pass less costs less, and our copy is no slower than numpy's."""
    goals = []
    for row, slow, fast, limit in GOALS:
        value = ratio(times[row][slow], times[row][fast]) if row in times else None
        goals.append(at_least(f"{row}: {slow} / {fast}", value, limit))
    return goals


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m bench.writing", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument("--rounds", type=int, default=60, help="of each way (default 60)")
    parser.add_argument("--clip", type=Path, help="a video of I420 frames; the demo's if left out")
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error("needs at least 1 round")
    path = options.clip
    if path is None:
        path = cached_clip(cache_folder(), SECONDS, lambda done, of: None).path
    with private_daemon() as daemon, connect(daemon.socket, name="bench.writing") as client:
        times = measure_all(client, path, options.rounds)
    if OPENCV not in times:
        print("OpenCV is not installed: pip install opencv-python-headless", file=sys.stderr)
    report("writing", figures_of(times), goals_of(times), options.json)


if __name__ == "__main__":
    main()
