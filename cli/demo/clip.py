"""The demo's clip: three photos that move over a background, and their true rectangles.

The clip is made from a recipe: the same photos, motion and encoder give the same pictures. It is
kept in the user's cache as NAME.mp4 with NAME.json beside it:

    {"recipe", "width", "height", "fps", "frames", "licence": [...], "labelled": [...],
     "truth": [{"person": [x0, y0, x1, y1], "cat": …, "cup": …}, …one for each frame]}
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcpd.cli.demo.photos import PHOTOS, Photo, load_photos
from mcpd.shm.errors import InvalidRequest

if TYPE_CHECKING:
    from PIL.Image import Image

RECIPE = 1
"""Goes up with every change of motion, size, rectangles or encoder: older clips are made anew."""

WIDTH, HEIGHT, FPS = 1920, 1080, 30
MAX_SECONDS = 60
_CAPTION_HEIGHT = 28

Rectangle = tuple[float, float, float, float]
Progress = Callable[[int, int], None]
"""Called with what is done and what there is to do, in frames."""


@dataclass(frozen=True)
class Clip:
    """A clip on disk and what is truly to be seen in it.

    Attributes:
        truth: For each frame, the rectangle of each label: x0, y0, x1, y1 in pixels.
    """

    path: Path
    width: int
    height: int
    fps: int
    truth: list[dict[str, Rectangle]]


@dataclass(frozen=True)
class Motion:
    """Where a photo is: size on the canvas, resting place, and swings about it in pixels.

    A swing is (pixels, turns in 12 s, phase in turns); the place at time t is the resting place
    plus the swing's sine. Left and top are of the photo's corner.
    """

    size: tuple[int, int]
    left: int
    top: int
    across: tuple[int, int, float]
    down: tuple[int, int, float]

    def place(self, seconds: float) -> tuple[int, int]:
        """The photo's left and top edge, in whole pixels."""
        return self.left + _swing(self.across, seconds), self.top + _swing(self.down, seconds)


MOTIONS = {
    "person": Motion((880, 880), left=110, top=80, across=(70, 2, 0.0), down=(70, 3, 0.0)),
    "cat": Motion((677, 450), left=1150, top=30, across=(80, 2, 0.25), down=(24, 3, 0.25)),
    "cup": Motion((760, 507), left=1110, top=531, across=(45, 3, 0.5), down=(20, 2, 0.5)),
}
"""Chosen so that no photo ever covers another or leaves the picture."""


def cached_clip(cache: Path, seconds: int, progress: Progress) -> Clip:
    """The clip of `seconds`, from the cache or made now (about 15 s of CPU for 12 s of clip).

    Args:
        cache: The folder that keeps clip and photos; made if missing.

    Raises:
        InvalidRequest: `seconds` is not from 1 to 60.
        McpdError: The photos cannot be had.
    """
    if not 1 <= seconds <= MAX_SECONDS:
        raise InvalidRequest(f"a clip of {seconds} s", f"1 to {MAX_SECONDS} s are possible")
    path = cache / f"demo-{seconds}s-r{RECIPE}.mp4"
    if not (path.exists() and path.with_suffix(".json").exists()):
        photos = load_photos(cache)
        _write_clip(path, photos, seconds * FPS, progress)
        for old in set(cache.glob(f"demo-{seconds}s-r*")) - {path, path.with_suffix(".json")}:
            old.unlink(missing_ok=True)
    return read_clip(path)


def read_clip(path: Path) -> Clip:
    """A clip with the true rectangles beside it."""
    about = json.loads(path.with_suffix(".json").read_text())
    truth = [{label: tuple(box) for label, box in frame.items()} for frame in about["truth"]]
    return Clip(path, about["width"], about["height"], about["fps"], truth)


def pictures(clip: Clip) -> Iterator[Image]:
    """The clip's frames as RGB pictures, decoded with the colours it was made with."""
    import av
    from av.video.reformatter import ColorRange, Colorspace
    from PIL import Image

    with av.open(clip.path) as container:
        for frame in container.decode(video=0):
            rgb = frame.reformat(
                format="rgb24",
                src_colorspace=Colorspace.ITU709,
                src_color_range=ColorRange.MPEG,
                dst_color_range=ColorRange.JPEG,
            )
            yield Image.fromarray(rgb.to_ndarray())


def add_video_stream(container: Any, size: tuple[int, int], fps: int) -> Any:
    """A video stream in a PyAV output container, for frames made by `video_frame`."""
    import av
    from av.video.reformatter import ColorRange, Colorspace

    codec, options = "mpeg4", {"qscale": "3"}
    if "libx264" in av.codecs_available:
        codec, options = "libx264", {"crf": "22", "preset": "veryfast"}
    stream = container.add_stream(codec, rate=fps, options={**options, "g": str(fps), "bf": "0"})
    stream.width, stream.height = size
    stream.pix_fmt = "yuv420p"
    # libx264's result depends on the number of threads: the same one on every machine.
    stream.codec_context.thread_count = 4
    stream.codec_context.colorspace = Colorspace.ITU709
    stream.codec_context.color_range = ColorRange.MPEG
    return stream


def video_frame(picture: Image, size: tuple[int, int], index: int, fps: int) -> Any:
    """An RGB picture, scaled to `size`, as frame `index` of a stream by `add_video_stream`."""
    import av
    import numpy as np
    from av.video.reformatter import ColorRange, Colorspace

    frame = av.VideoFrame.from_ndarray(np.asarray(picture), format="rgb24").reformat(
        *size, "yuv420p", dst_colorspace=Colorspace.ITU709, dst_color_range=ColorRange.MPEG
    )
    frame.pts, frame.time_base = index, Fraction(1, fps)
    return frame


def rectangle_at(photo: Photo, motion: Motion, seconds: float) -> Rectangle:
    """Where the photo's object is on the canvas at a time, as its label moved and scaled."""
    left, top = motion.place(seconds)
    across, down = motion.size[0] / photo.size[0], motion.size[1] / photo.size[1]
    x0, y0, x1, y1 = photo.rectangle
    return left + x0 * across, top + y0 * down, left + x1 * across, top + y1 * down


def compose(photos: dict[str, Image], frames: int) -> Iterator[Image]:
    """The pictures, one after the other; each is drawn anew and belongs to the caller."""
    from PIL import ImageDraw, ImageFont

    scaled = {label: photos[label].resize(motion.size) for label, motion in MOTIONS.items()}
    background = _background()
    font = ImageFont.load_default(_CAPTION_HEIGHT)
    for index in range(frames):
        picture = background.copy()
        for label, motion in MOTIONS.items():
            picture.paste(scaled[label], motion.place(index / FPS))
        ImageDraw.Draw(picture).text(
            (12, HEIGHT - _CAPTION_HEIGHT - 8), f"frame {index:04d}", (225, 228, 232), font
        )
        yield picture


def _write_clip(path: Path, photos: dict[str, Image], frames: int, progress: Progress) -> None:
    # Both files get their names only when complete, the video last: it is what is looked for.
    part = path.with_name(f".{path.name}.{os.getpid()}")
    rectangles = path.with_name(f".{path.stem}.json.{os.getpid()}")
    try:
        _encode(part, compose(photos, frames), frames, progress)
        about = {
            "recipe": RECIPE,
            "width": WIDTH,
            "height": HEIGHT,
            "fps": FPS,
            "frames": frames,
            "licence": [f"{photo.file}: {photo.credit}" for photo in PHOTOS],
            "labelled": [f"{photo.label}: {photo.note}" for photo in PHOTOS],
            "truth": [
                {p.label: rectangle_at(p, MOTIONS[p.label], index / FPS) for p in PHOTOS}
                for index in range(frames)
            ],
        }
        rectangles.write_text(json.dumps(about))
        rectangles.replace(path.with_suffix(".json"))
        part.replace(path)
    finally:
        for leftover in (part, rectangles):
            leftover.unlink(missing_ok=True)


def _encode(path: Path, drawn: Iterator[Image], frames: int, progress: Progress) -> None:
    import av

    # The index goes to the front, so that a reader need not seek.
    with av.open(path, "w", format="mp4", options={"movflags": "+faststart"}) as container:
        stream = add_video_stream(container, (WIDTH, HEIGHT), FPS)
        for index, picture in enumerate(drawn):
            container.mux(stream.encode(video_frame(picture, (WIDTH, HEIGHT), index, FPS)))
            progress(index + 1, frames)
        container.mux(stream.encode(None))


def _background() -> Image:
    """A wall above a floor, each with a slight fall of light, so that it is no plain colour."""
    import numpy as np
    from PIL import Image

    rows = np.linspace(0.0, 1.0, HEIGHT, dtype=np.float32)[:, None]
    wall = np.array([58, 70, 82], np.float32) + rows * np.array([30, 30, 30], np.float32)
    floor = np.array([62, 66, 72], np.float32) - rows * np.array([22, 22, 22], np.float32)
    column = np.where(rows < 0.78, wall, floor).astype(np.uint8)
    return Image.fromarray(
        np.ascontiguousarray(np.broadcast_to(column[:, None], (HEIGHT, WIDTH, 3)))
    )


def _swing(swing: tuple[int, int, float], seconds: float) -> int:
    pixels, turns, phase = swing
    return round(pixels * math.sin(2 * math.pi * (turns * seconds / 12 + phase)))
