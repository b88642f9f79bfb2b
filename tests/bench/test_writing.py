"""The writing benchmark measures every way, with what it writes being right, and tells a miss."""

from __future__ import annotations

import json
from pathlib import Path

import av
import numpy as np
import pytest

from bench.writing import ARRAYS, COPIES, GOALS, OPENCV, array_ways, frame_ways, goals_of, main
from mcpd.shm.bundle import describe_frame
from tests.cli.clips import RED, write_video
from tests.support.streams import LocalStream


def test_every_way_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clip = write_video(tmp_path / "clip.mp4", [RED] * 3)
    main(["--json", "--rounds", "2", "--clip", str(clip)])
    document = json.loads(capsys.readouterr().out)
    named = {f"{row}: {name}" for row, *names, _ in GOALS for name in names}
    assert named <= document["figures"].keys()
    assert all(row["cpu ms"] >= 0 for row in document["figures"].values())
    assert len(document["goals"]) == len(GOALS)


@pytest.mark.parametrize("format", ["i420", "nv12", "rgb24"])
def test_every_way_writes_the_same(format: str) -> None:
    frame = av.VideoFrame(128, 64, "yuv420p")
    for plane in frame.planes:
        plane.update(np.random.default_rng(1).bytes(plane.buffer_size))
    frame.colorspace, frame.color_range = 1, 1
    first: list[np.ndarray] = []
    with LocalStream(describe_frame(format, 128, 64)) as stream:
        for name, way in frame_ways(format).items():
            with stream.writer.acquire(0) as slot:
                way(slot, frame)
                got = [plane.astype(int) for plane in slot.planes]
            first = first or got
            # to_ndarray lets PyAV guess the colours.
            most = 2 if name != "to_ndarray" else 40
            assert max(np.abs(a - b).max() for a, b in zip(first, got, strict=True)) <= most, name


def test_every_way_writes_the_array() -> None:
    array = np.random.default_rng(1).integers(0, 256, (64, 128, 3), np.uint8)
    with LocalStream(describe_frame("rgb24", 128, 64)) as stream:
        for way in array_ways().values():
            with stream.writer.acquire(0) as slot:
                slot.planes[0][...] = 0
                way(slot, array)
                np.testing.assert_array_equal(slot.planes[0], array)


def test_goal_that_was_missed_is_called_missed() -> None:
    times = {row: {slow: [2.0], fast: [1.0]} for row, slow, fast, _ in GOALS}
    assert all(goal["ok"] for goal in goals_of(times))
    times[COPIES]["to_ndarray"] = [0.9]
    times[ARRAYS]["numpy"] = [0.9]
    del times[OPENCV]
    missed = [goal["name"] for goal in goals_of(times) if not goal["ok"]]
    assert [name.split(":")[0] for name in missed] == [ARRAYS, COPIES, OPENCV]
