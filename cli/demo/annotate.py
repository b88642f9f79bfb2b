"""The demo's result as a video and a picture: detections drawn beside the true rectangles."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcpd.cli.demo.clip import Clip, Rectangle, add_video_stream, pictures, video_frame
from mcpd.cli.demo.score import Detected, intersection_over_union

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw as Canvas

VIDEO_SIZE = (1280, 720)
_FONT_SIZE = 30
_COLOURS = {"person": (255, 176, 32), "cat": (64, 200, 255), "cup": (120, 230, 110)}
_OTHER = (190, 170, 230)
_TRUTH = (255, 255, 255)
_INK = (16, 18, 22)


def annotate(
    picture: Image,
    truth: Mapping[str, Rectangle],
    detections: Sequence[Detected],
    title: str,
) -> None:
    """Draws onto `picture`: true rectangles thin and white, detections thick with label and score.

    Args:
        picture: RGB; the coordinates are its pixels.
        title: A line for the picture's lower left corner.
    """
    from PIL import ImageDraw, ImageFont

    canvas = ImageDraw.Draw(picture)
    font = ImageFont.load_default(_FONT_SIZE)
    for detection in sorted(detections, key=lambda d: d.score):
        box = (detection.x0, detection.y0, detection.x1, detection.y1)
        colour = _COLOURS.get(detection.label, _OTHER)
        canvas.rectangle(box, outline=colour, width=5 if detection.label in truth else 2)
    for rectangle in truth.values():
        canvas.rectangle(rectangle, outline=_TRUTH, width=2)
    # Labels last, so that no line runs through them; the surest has the first choice of place.
    taken: list[Rectangle] = []
    _label(canvas, font, title, (225, 228, 232), [(0, picture.size[1])], taken)
    for detection in sorted(detections, key=lambda d: d.score, reverse=True):
        text = f"{detection.label} {detection.score:.2f}"
        colour = _COLOURS.get(detection.label, _OTHER)
        x0, y0, x1, y1 = detection.x0, detection.y0, detection.x1, detection.y1
        width, height = _size(canvas, font, text)
        corners = [(x0, y0), (x1 - width, y0), (x0, y0 + height), (x0, y1 + height), (x0, y1)]
        _label(canvas, font, text, colour, corners, taken)


def write_still(picture: Image, path: Path) -> None:
    """Writes a PNG that is there whole or not at all."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        picture.save(part, "PNG")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_annotated(
    clip: Clip,
    detections: Sequence[Sequence[Detected]],
    title: str,
    video: Path,
    still: Path,
    progress: Callable[[int, int], None],
) -> None:
    """Decodes the clip again and writes it annotated, at 1280x720, with its middle frame as PNG.

    Args:
        detections: Those of each frame, in the clip's order and pixels.
        video: MP4 to write; there whole or not at all.
        still: PNG to write, in the clip's size.
        progress: Called with frames done and frames in all.
    """
    import av

    part = video.with_name(f".{video.name}.{os.getpid()}")
    try:
        with av.open(part, "w", format="mp4") as target:
            stream = add_video_stream(target, VIDEO_SIZE, clip.fps)
            for index, (picture, found) in enumerate(zip(pictures(clip), detections, strict=False)):
                annotate(picture, clip.truth[index], found, f"{title} · frame {index}")
                if index == len(detections) // 2:
                    write_still(picture, still)
                shown = video_frame(picture, VIDEO_SIZE, index, clip.fps)
                target.mux(stream.encode(shown))
                progress(index + 1, len(detections))
            target.mux(stream.encode(None))
        part.replace(video)
    finally:
        part.unlink(missing_ok=True)


def _label(
    canvas: Canvas,
    font: Any,
    text: str,
    colour: tuple[int, int, int],
    corners: Sequence[tuple[float, float]],
    taken: list[Rectangle],
) -> None:
    """Text on a filled ground that stands on the first of `corners` where nothing is yet.

    A corner is the lower left one. Where it would leave the picture it is moved. If every place is
    taken it goes to the first; it joins `taken`.
    """
    width, height = _size(canvas, font, text)
    places: list[Rectangle] = []
    for corner_x, corner_y in corners:
        x = min(max(corner_x, 0), canvas.im.size[0] - width)
        y = min(max(corner_y - height, 0), canvas.im.size[1] - height)
        places.append((x, y, x + width, y + height))
    free = (p for p in places if not any(intersection_over_union(p, t) for t in taken))
    place = next(free, places[0])
    taken.append(place)
    canvas.rectangle(place, fill=colour)
    left, top, _, _ = canvas.textbbox((0, 0), text, font)
    canvas.text((place[0] + 8 - left, place[1] + 7 - top), text, _INK, font)


def _size(canvas: Canvas, font: Any, text: str) -> tuple[float, float]:
    left, top, right, bottom = canvas.textbbox((0, 0), text, font)
    return right - left + 16, bottom - top + 14
