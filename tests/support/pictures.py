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


def axis_positions(
    source: int, target: int, other_scale: float, resize: str, sampling: str
) -> tuple[Floats, NDArray[np.bool_]]:
    """Source position of each output pixel of one axis, and which of them show the source."""
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
    centre = 0.5 if sampling == "half_pixel" else 0.0
    return (pixels + centre) * ratio + start - centre, shown


def reference(picture: Picture, **changes: Any) -> Floats:
    """What preparation is to give: [height, width, channels] float64, unrounded."""
    chosen = options(picture, **changes)
    width, height = chosen["out_width"], chosen["out_height"]
    scales = (width / picture.width, height / picture.height)
    scale = max(scales) if chosen["resize"] == "crop" else min(scales)
    rule = (scale, chosen["resize"], chosen["sampling"])
    columns, columns_shown = axis_positions(picture.width, width, *rule)
    rows, rows_shown = axis_positions(picture.height, height, *rule)
    planes = []
    for index, component in enumerate(picture.components):
        x, y = columns, rows
        if index and picture.format in YUV:
            x = columns / 2
            y = rows if picture.format == "yuyv422" else (rows - 0.5) / 2
        planes.append(sample_axis(sample_axis(component.astype(np.float64), 0, y), 1, x))
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
