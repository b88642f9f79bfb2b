"""Small videos and pictures for tests, made with PyAV."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av
import numpy as np

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)
Colour = tuple[int, int, int]


def write_video(
    path: Path,
    colours: list[Colour],
    *,
    width: int = 64,
    height: int = 48,
    fps: int = 25,
    codec: str = "mpeg4",
) -> Path:
    """A video with one frame of each colour, in order; the container is chosen by the name."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=fps)
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height = width, height
        stream.pix_fmt = "yuv420p"
        stream.bit_rate = 2_000_000
        stream.time_base = Fraction(1, fps)
        for number, colour in enumerate(colours):
            image = np.empty((height, width, 3), np.uint8)
            image[:] = colour
            frame = av.VideoFrame.from_ndarray(image, format="rgb24")
            frame.pts = number
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def write_noise(path: Path, frames: int, *, width: int = 320, height: int = 240) -> Path:
    """A video of noise, whose frames take many bytes: one to cut off in the middle."""
    random = np.random.default_rng(7)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=25)
        stream.width, stream.height = width, height
        stream.pix_fmt = "yuv420p"
        stream.bit_rate = 8_000_000
        for _ in range(frames):
            image = random.integers(0, 256, (height, width, 3), np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode())
    return path


def write_picture(path: Path, colour: Colour, *, width: int = 64, height: int = 48) -> Path:
    """A PNG of one colour."""
    image = np.empty((height, width, 3), np.uint8)
    image[:] = colour
    with av.open(str(path), "w", format="image2") as container:
        stream = container.add_stream("png", rate=1)
        stream.width, stream.height = width, height
        stream.pix_fmt = "rgb24"
        container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode())
    return path


def truncate(path: Path, fraction: float) -> Path:
    """Cuts the file off after `fraction` of its bytes; returns it."""
    with path.open("r+b") as file:
        file.truncate(round(path.stat().st_size * fraction))
    return path
