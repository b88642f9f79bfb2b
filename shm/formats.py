"""Pixel formats: which planes a frame has, where they lie in a slot, and how large it is.

Unless a writer asks otherwise, rows are padded to whole multiples of 64 bytes and planes start at
them, so that every row may be loaded with aligned vector instructions. The numbers are those of
native/include/mcpd.h.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from mcpd.shm.errors import InvalidRequest, shown

ALIGN_NBYTES = 64
MAX_SIDE = 16384
"""Most pixels of a frame's width or height."""

FORMAT_CODES: dict[str, int] = {
    "rgb24": 1, "bgr24": 2, "rgba": 3, "bgra": 4, "gray8": 5,
    "nv12": 6, "i420": 7, "yuyv422": 8, "jpeg": 64, "h264": 65,
}  # fmt: skip
FORMAT_NAMES = {code: name for name, code in FORMAT_CODES.items()}
ENCODED = frozenset({"jpeg", "h264"})
"""Formats whose payload is a piece of a bit stream: no planes, as many bytes as the slot says."""

MATRIX_CODES: dict[str, int] = {"bt601": 1, "bt709": 2}
MATRIX_NAMES = {code: name for name, code in MATRIX_CODES.items()}
RANGE_CODES: dict[str, int] = {"limited": 1, "full": 2}
RANGE_NAMES = {code: name for name, code in RANGE_CODES.items()}
ROTATIONS = (0, 90, 180, 270)

# Of each plane: pixels to a sample across and down, and the bytes of a sample. Chroma of an odd
# side has a sample for the last pixel alone. yuyv422 has two bytes a pixel, of which every two
# share their chroma within a row, so that its width is even.
_PLANES: dict[str, tuple[tuple[int, int, int], ...]] = {
    "rgb24": ((1, 1, 3),),
    "bgr24": ((1, 1, 3),),
    "rgba": ((1, 1, 4),),
    "bgra": ((1, 1, 4),),
    "gray8": ((1, 1, 1),),
    "nv12": ((1, 1, 1), (2, 2, 2)),
    "i420": ((1, 1, 1), (2, 2, 1), (2, 2, 1)),
    "yuyv422": ((1, 1, 2),),
}
MAX_NBYTES = 1 << 40
"""Most bytes of a slot."""


class Plane(NamedTuple):
    """One plane of a frame: `rows` rows of `row_nbytes` bytes, `stride` bytes apart."""

    offset: int
    stride: int
    rows: int
    row_nbytes: int
    shape: tuple[int, ...]
    """As a uint8 array: (rows, columns), or (rows, columns, samples)."""

    @property
    def end(self) -> int:
        """One past its last byte."""
        return self.offset + self.stride * (self.rows - 1) + self.row_nbytes


class FrameLayout(NamedTuple):
    """Where a frame's planes lie in a slot."""

    format: str
    width: int
    height: int
    planes: tuple[Plane, ...]
    nbytes: int
    """Bytes of a slot that it takes, padding included."""


@lru_cache(maxsize=256)
def frame_layout(
    format: str,
    width: int,
    height: int,
    strides: tuple[int, ...] | None = None,
    offsets: tuple[int, ...] | None = None,
) -> FrameLayout:
    """Where a frame's planes lie: as mcpd places them itself, or with strides or places given.

    Args:
        strides: Bytes from row to row of each plane; rows padded to ALIGN_NBYTES if None.
        offsets: Where each plane starts in the slot; one after the other, aligned, if None.

    Raises:
        InvalidRequest: Unknown or encoded format, a size that it cannot have, or planes that have
            not room for their rows, overlap, or do not fit any slot.
    """
    shapes = plane_shapes(format, width, height)
    for what, given in (("strides", strides), ("offsets", offsets)):
        if given is not None and len(given) != len(shapes):
            raise InvalidRequest(
                f"{len(given)} {what} for {format}, which has {len(shapes)} planes",
                f"Give {len(shapes)}, in the order of the planes.",
            )
    planes: list[Plane] = []
    offset = 0
    for index, (shape, row_nbytes) in enumerate(shapes):
        stride = align(row_nbytes) if strides is None else strides[index]
        plane = Plane(
            offset if offsets is None else offsets[index], stride, shape[0], row_nbytes, shape
        )
        if stride < row_nbytes:
            raise InvalidRequest(
                f"stride {stride} of plane {index} is less than its rows of {row_nbytes} bytes"
            )
        if plane.offset < 0 or plane.end > MAX_NBYTES:
            raise InvalidRequest(
                f"plane {index} from byte {plane.offset} to {plane.end} does not fit a slot; "
                f"a slot has at most {MAX_NBYTES} bytes"
            )
        planes.append(plane)
        offset = align(plane.offset + stride * shape[0])
    if offsets is not None:
        _check_apart(planes)
    nbytes = offset if offsets is None else max(plane.end for plane in planes)
    return FrameLayout(format, width, height, tuple(planes), nbytes)


def plane_shapes(format: str, width: int, height: int) -> list[tuple[tuple[int, ...], int]]:
    """Of each plane of a frame, its shape as a uint8 array and the bytes of a row unpadded.

    Raises:
        InvalidRequest: As frame_layout.
    """
    check_frame(format, width, height)
    if format in ENCODED:
        raise InvalidRequest(f"format {format!r} is encoded and has no planes")
    shapes: list[tuple[tuple[int, ...], int]] = []
    for across, down, samples in _PLANES[format]:
        columns, rows = -(-width // across), -(-height // down)
        shape = (rows, columns) if samples == 1 else (rows, columns, samples)
        shapes.append((shape, columns * samples))
    return shapes


def check_frame(format: str, width: int, height: int) -> None:
    """Checks a frame's format and size.

    Raises:
        InvalidRequest: Unknown format, a side out of 1..MAX_SIDE, or an odd width for yuyv422.
    """
    if not isinstance(format, str) or format not in FORMAT_CODES:
        raise InvalidRequest(
            f"unknown pixel format {shown(format)}", f"Known: {', '.join(FORMAT_CODES)}."
        )
    for side, pixels in (("width", width), ("height", height)):
        if not hasattr(pixels, "__index__") or not 1 <= pixels <= MAX_SIDE:
            raise InvalidRequest(f"{side} {shown(pixels)} is not in 1..{MAX_SIDE}")
    if format == "yuyv422" and width % 2:
        raise InvalidRequest(
            f"width {width} is odd, yuyv422 needs it even: two pixels share their chroma",
            f"Crop the picture to {width - 1 or 2}, or use i420 or rgb24.",
        )


def whole_bytes(what: str, values: Sequence[int] | None) -> tuple[int, ...] | None:
    """Strides or offsets as a caller gives them; the integers may be numpy's.

    Raises:
        InvalidRequest: Something else, or more bytes than a slot may have.
    """
    if values is None:
        return None
    hint = "Give a list of whole bytes, one for each plane."
    try:
        whole = tuple(map(operator.index, values))
    except TypeError as error:
        raise InvalidRequest(f"{what} is {shown(values)}", hint) from error
    if isinstance(values, (bytes, bytearray)) or any(isinstance(one, bool) for one in values):
        raise InvalidRequest(f"{what} is {shown(values)}", hint)
    for one in whole:
        if abs(one) > MAX_NBYTES:
            raise InvalidRequest(
                f"{what} has {shown(one)}; a slot has at most {MAX_NBYTES} bytes", hint
            )
    return whole


def align(nbytes: int) -> int:
    """`nbytes` rounded up to a whole multiple of ALIGN_NBYTES."""
    return -(-nbytes // ALIGN_NBYTES) * ALIGN_NBYTES


def _check_apart(planes: list[Plane]) -> None:
    """Rows of different planes share no byte; planes may interlace, as those of IMC4 do."""
    rows = [
        (plane.offset + row * plane.stride, index, plane.row_nbytes)
        for index, plane in enumerate(planes)
        for row in range(plane.rows)
    ]
    rows.sort()
    for (start, index, nbytes), (following, other, _) in pairwise(rows):
        if start + nbytes > following:
            raise InvalidRequest(
                f"planes {index} and {other} overlap at byte {following}",
                "Move one, or leave offsets out.",
            )
