"""Frames of noise, and what preparation is to make of them: an independent reference in float64.

Written from the rules in native/src/prepare/prepare.h, without a look at the code under test.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

FORMATS = {
    "rgb24": 1, "bgr24": 2, "rgba": 3, "bgra": 4, "gray8": 5, "nv12": 6, "i420": 7, "yuyv422": 8,
}  # fmt: skip
YUV = ("nv12", "i420", "yuyv422")
BT601, BT709 = 1, 2
LIMITED, FULL = 1, 2

Floats = NDArray[np.float64]
Bytes = NDArray[np.uint8]


class Picture(NamedTuple):
    """A frame of noise: its bytes as the format lays them out, and its components apart."""

    format: str
    width: int
    height: int
    data: Bytes
    offsets: tuple[int, ...]
    strides: tuple[int, ...]
    components: tuple[Bytes, ...]
    """y, u, v or r, g, b, or one of gray; chroma as small as the format has it."""


def make_picture(format: str, width: int, height: int, *, padding: int = 0) -> Picture:
    """Noise, with rows `padding` bytes longer than need be and a gap before each plane."""
    generator = np.random.default_rng(width * 1000 + height)

    def noise(columns: int, rows: int) -> Bytes:
        return generator.integers(0, 256, (rows, columns), np.uint8)

    chroma_width, chroma_height = -(-width // 2), -(-height // 2)
    components: tuple[Bytes, ...]
    if format == "gray8":
        components = (noise(width, height),)
        planes = [components[0]]
    elif format in ("nv12", "i420"):
        size = (chroma_width, chroma_height)
        components = (noise(width, height), noise(*size), noise(*size))
        planes = list(components)
        if format == "nv12":
            pairs = np.stack(components[1:], axis=-1)
            planes = [components[0], pairs.reshape(chroma_height, 2 * chroma_width)]
    elif format == "yuyv422":
        components = (noise(width, height), noise(width // 2, height), noise(width // 2, height))
        packed = np.empty((height, 2 * width), np.uint8)
        packed[:, 0::2], packed[:, 1::4], packed[:, 3::4] = components
        planes = [packed]
    else:
        components = (noise(width, height), noise(width, height), noise(width, height))
        order = components if format.startswith("rgb") else components[::-1]
        extra = (noise(width, height),) if format.endswith("a") else ()
        planes = [np.stack([*order, *extra], axis=-1).reshape(height, -1)]
    rows: list[Bytes] = []
    offsets, strides, end = [], [], 0
    for plane in planes:
        gap = generator.integers(0, 256, padding, np.uint8)
        padded = np.pad(plane, ((0, 0), (0, padding)), constant_values=77)
        offsets.append(end + padding)
        strides.append(padded.shape[1])
        rows += [gap, padded.reshape(-1)]
        end += padding + padded.size
    data = np.concatenate(rows)
    return Picture(format, width, height, data, tuple(offsets), tuple(strides), components)


def options(picture: Picture, **changes: Any) -> dict[str, Any]:
    """The arguments of a plain preparation of the picture."""
    return {
        "format": FORMATS[picture.format],
        "width": picture.width,
        "height": picture.height,
        "plane_offsets": picture.offsets,
        "plane_strides": picture.strides,
        "matrix": BT709,
        "range": LIMITED,
        "out_width": 20,
        "out_height": 14,
        "layout": "nchw",
        "dtype": "float32",
        "channels": "rgb",
        "resize": "stretch",
        "sampling": "half_pixel",
        "scale": 1.0,
        "mean": (0.0,),
        "std": (1.0,),
        "pad_value": 0.0,
        "roi": None,
        "rotation": 0,
    } | changes


def sample_axis(plane: Floats, axis: int, positions: Floats) -> Floats:
    """Linear interpolation at fractional positions, edges repeated."""
    last = plane.shape[axis] - 1
    at = np.clip(positions, 0, last)
    low = np.floor(at).astype(int)
    high = np.minimum(low + 1, last)
    weight = at - low
    weight = weight[:, None] if axis == 0 else weight[None, :]
    result: Floats = plane.take(low, axis) * (1 - weight) + plane.take(high, axis) * weight
    return result


def average_axis(plane: Floats, axis: int, positions: Floats, width: float) -> Floats:
    """Mean over `width` samples around each position: a difference of the plane's integral."""
    plane = np.moveaxis(plane, axis, 0)
    count = len(plane)
    integral = np.concatenate([np.zeros((1, plane.shape[1])), np.cumsum(plane, 0)])

    def up_to(end: Floats) -> Floats:
        inside = np.clip(end, 0, count)
        low = np.minimum(np.floor(inside).astype(int), count - 1)
        total: Floats = integral[low] + (inside - low)[:, None] * plane[low]
        total += np.minimum(end, 0)[:, None] * plane[0]
        total += np.maximum(end - count, 0)[:, None] * plane[-1]
        return total

    middle = positions + 0.5
    mean = (up_to(middle + width / 2) - up_to(middle - width / 2)) / width
    return np.moveaxis(mean, 0, axis)


def axis_positions(
    source: float, target: int, other_scale: float, resize: str, sampling: str
) -> tuple[Floats, NDArray[np.bool_], float]:
    """Source position of each output pixel of an axis, which of them show the source, the ratio."""
    pixels = np.arange(target, dtype=np.float64)
    shown = np.ones(target, bool)
    if resize == "stretch":
        start, ratio = 0.0, source / target
    elif resize == "letterbox":
        covered = min(target, max(1, int(np.floor(source * other_scale + 0.5))))
        first = (target - covered) // 2
        shown = (pixels >= first) & (pixels < first + covered)
        ratio = source / covered
        start = -first * ratio
    else:
        ratio = 1 / other_scale
        start = (source - target * ratio) / 2
    centre = 0.0 if sampling == "corner" else 0.5
    return (pixels + centre) * ratio + start - centre, shown, ratio


def resample(
    plane: Floats, axis: int, positions: Floats, ratio: float, area: bool, span: tuple[float, float]
) -> Floats:
    """One axis of a plane, of which only the samples that `span` touches are there."""
    low, high = int(np.floor(span[0])), int(np.ceil(span[1]))
    there = plane.take(range(low, min(high, plane.shape[axis])), axis)
    if area and ratio > 1:
        return average_axis(there, axis, positions - low, ratio)
    return sample_axis(there, axis, positions - low)


def reference(picture: Picture, **changes: Any) -> Floats:
    """What preparation is to give: [height, width, channels] float64, unrounded."""
    chosen = options(picture, **changes)
    width, height = chosen["out_width"], chosen["out_height"]
    left, top, roi_width, roi_height = chosen["roi"] or (0.0, 0.0, picture.width, picture.height)
    rotation, area = chosen["rotation"], chosen["sampling"] == "area"
    upright = (roi_height, roi_width) if rotation in (90, 270) else (roi_width, roi_height)
    scales = (width / upright[0], height / upright[1])
    scale = max(scales) if chosen["resize"] == "crop" else min(scales)
    rule = (scale, chosen["resize"], chosen["sampling"])
    columns, columns_shown, ratio_x = axis_positions(upright[0], width, *rule)
    rows, rows_shown, ratio_y = axis_positions(upright[1], height, *rule)
    # The stored position of each upright column and row: turning clockwise takes the bottom left
    # corner of the stored picture to the top left.
    if rotation in (180, 270):
        along_x = left + roi_width - 1 - (rows if rotation == 270 else columns)
    else:
        along_x = left + (rows if rotation == 90 else columns)
    if rotation in (90, 180):
        along_y = top + roi_height - 1 - (columns if rotation == 90 else rows)
    else:
        along_y = top + (columns if rotation == 270 else rows)
    if rotation in (90, 270):
        ratio_x, ratio_y = ratio_y, ratio_x
    planes = []
    for index, component in enumerate(picture.components):
        x, y, each_x, each_y = along_x, along_y, 1, 1
        if index and picture.format in YUV:
            x, each_x = x / 2, 2
            if picture.format != "yuyv422":
                y, each_y = (y - 0.5) / 2, 2
        span_x = (left / each_x, (left + roi_width) / each_x)
        span_y = (top / each_y, (top + roi_height) / each_y)
        plane = component.astype(np.float64)
        plane = resample(plane, 0, y, ratio_y / each_y, area, span_y)
        plane = resample(plane, 1, x, ratio_x / each_x, area, span_x)
        planes.append(plane.T if rotation in (90, 270) else plane)
    rgb = to_rgb(planes, picture.format, chosen["matrix"], chosen["range"])
    if chosen["channels"] == "bgr":
        rgb = rgb[..., ::-1]
    elif chosen["channels"] == "gray":
        rgb = to_gray(planes, picture.format, chosen["matrix"], chosen["range"])
    rgb[~(rows_shown[:, None] & columns_shown[None, :])] = chosen["pad_value"]
    result: Floats = (rgb * chosen["scale"] - np.array(chosen["mean"])) / np.array(chosen["std"])
    return result


def luma_weights(matrix: int) -> Floats:
    return np.array([0.299, 0.587, 0.114] if matrix == BT601 else [0.2126, 0.7152, 0.0722])


def to_rgb(planes: list[Floats], format: str, matrix: int, range: int) -> Floats:
    """[height, width, 3] from components, by inverting RGB to YCbCr."""
    if format == "gray8":
        return np.stack([planes[0]] * 3, axis=-1)
    if format not in YUV:
        return np.stack(planes, axis=-1)
    red, green, blue = luma_weights(matrix)
    forward = np.array(
        [
            [red, green, blue],
            np.array([-red, -green, 1 - blue]) / (2 * (1 - blue)),
            np.array([1 - red, -green, -blue]) / (2 * (1 - red)),
        ]
    )
    y, u, v = planes
    if range == LIMITED:
        y, u, v = (y - 16) / 219 * 255, (u - 128) / 224 * 255, (v - 128) / 224 * 255
    else:
        u, v = u - 128, v - 128
    return np.clip(np.stack([y, u, v], axis=-1) @ np.linalg.inv(forward).T, 0, 255)


def to_gray(planes: list[Floats], format: str, matrix: int, range: int) -> Floats:
    """[height, width, 1]: the luma."""
    if format == "gray8":
        return planes[0][..., None]
    if format in YUV:
        luma = (planes[0] - 16) / 219 * 255 if range == LIMITED else planes[0]
        return np.clip(luma, 0, 255)[..., None]
    gray: Floats = (np.stack(planes, axis=-1) @ luma_weights(matrix))[..., None]
    return gray
