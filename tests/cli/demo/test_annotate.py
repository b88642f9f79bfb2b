"""What is drawn onto a picture, and the files written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from mcpd.cli.demo.annotate import VIDEO_SIZE, annotate, write_annotated
from mcpd.cli.demo.clip import Clip, add_video_stream, video_frame


@dataclass
class Found:
    x0: float
    y0: float
    x1: float
    y1: float
    score: float
    label: str


CUP = Found(40, 60, 200, 180, 0.81, "cup")
TRUTH = {"cup": (44.0, 66.0, 210.0, 190.0)}


def drawn(*detections: Found) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    picture = Image.new("RGB", (320, 240))
    annotate(picture, TRUTH, detections, "title")
    return np.asarray(picture)


def test_a_detection_is_outlined_where_it_is() -> None:
    assert tuple(drawn(CUP)[170, 41]) == (120, 230, 110)


def test_the_true_rectangle_is_drawn_in_white() -> None:
    assert tuple(drawn()[100, 44]) == (255, 255, 255)


def test_a_label_stands_above_its_box() -> None:
    assert tuple(drawn(CUP)[55, 42]) == (120, 230, 110)


@pytest.mark.parametrize("corner", [(-50, -50), (300, 230), (-1000, 1000)])
def test_a_box_beyond_the_picture_does_no_harm(corner: tuple[int, int]) -> None:
    found = Found(corner[0], corner[1], corner[0] + 60, corner[1] + 60, 0.5, "a long label")
    assert drawn(found).shape == (240, 320, 3)


def make_clip(folder: Path, frames: int) -> Clip:
    path = folder / "clip.mp4"
    with av.open(str(path), "w") as container:
        stream = add_video_stream(container, (320, 240), 30)
        for index in range(frames):
            picture = Image.new("RGB", (320, 240), (index * 20, 0, 0))
            container.mux(stream.encode(video_frame(picture, picture.size, index, 30)))
        container.mux(stream.encode(None))
    return Clip(path, 320, 240, 30, [dict(TRUTH) for _ in range(frames)])


def test_the_video_has_every_frame_and_the_still_is_its_middle_one(tmp_path: Path) -> None:
    clip = make_clip(tmp_path, 5)
    video, still = tmp_path / "out.mp4", tmp_path / "out.png"
    write_annotated(clip, [[CUP]] * 5, "t", video, still, lambda done, total: None)
    with av.open(str(video)) as container:
        sizes = [(frame.width, frame.height) for frame in container.decode(video=0)]
    assert sizes == [VIDEO_SIZE] * 5
    red = np.asarray(Image.open(still))[10, 300, 0]
    assert abs(int(red) - 40) < 6


def test_a_video_cut_short_is_not_left(tmp_path: Path) -> None:
    clip = make_clip(tmp_path, 3)
    video = tmp_path / "out.mp4"

    def interrupt(_done: int, _total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_annotated(clip, [[CUP]] * 3, "t", video, tmp_path / "out.png", interrupt)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clip.mp4"]
