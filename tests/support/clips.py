"""A small video file for a source to play."""

from __future__ import annotations

from pathlib import Path

FRAMES = 20


def write_clip(path: Path) -> str:
    """Twenty frames of 64x48, each of one level; its path as text."""
    import av
    import numpy as np

    with av.open(str(path), "w") as container:
        stream = container.add_stream("mjpeg", rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuvj420p"
        for number in range(FRAMES):
            pixels = np.full((48, 64, 3), number * 10, np.uint8)
            for packet in stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    return str(path)
