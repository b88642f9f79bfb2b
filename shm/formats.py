"""Pixel formats: which planes a frame has, where they lie in a slot, and how large it is.

Rows are padded to whole multiples of 64 bytes and planes start at them, so that every row may be
loaded with aligned vector instructions. The numbers are those of native/include/mcpd.h.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from mcpd.shm.errors import InvalidRequest

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

# Of each plane: pixels to a sample across and down, and the bytes of a sample. yuyv422 has two
# bytes a pixel, of which every second pair shares its chroma, so its width is even as well.
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
_EVEN_WIDTH = frozenset({"nv12", "i420", "yuyv422"})
_EVEN_HEIGHT = frozenset({"nv12", "i420"})


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
def frame_layout(format: str, width: int, height: int) -> FrameLayout:
    """The layout that mcpd itself gives to a frame; others may be read too, see bundle.py.

    Raises:
        InvalidRequest: Unknown or encoded format, or a size that the format cannot have.
    """
    planes = []
    offset = 0
    for shape, row_nbytes in plane_shapes(format, width, height):
        stride = align(row_nbytes)
        planes.append(Plane(offset, stride, shape[0], row_nbytes, shape))
        offset += stride * shape[0]
    return FrameLayout(format, width, height, tuple(planes), offset)


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
        columns, rows = width // across, height // down
        shape = (rows, columns) if samples == 1 else (rows, columns, samples)
        shapes.append((shape, columns * samples))
    return shapes


def check_frame(format: str, width: int, height: int) -> None:
    """Checks a frame's format and size.

    Raises:
        InvalidRequest: Unknown format, a side out of 1..MAX_SIDE, or an odd one where chroma is
            shared between neighbours.
    """
    if format not in FORMAT_CODES:
        raise InvalidRequest(
            f"unknown pixel format {format!r}", f"Known: {', '.join(FORMAT_CODES)}."
        )
    for side, pixels, even in (
        ("width", width, format in _EVEN_WIDTH),
        ("height", height, format in _EVEN_HEIGHT),
    ):
        if not 1 <= pixels <= MAX_SIDE:
            raise InvalidRequest(f"{side} {pixels} is not in 1..{MAX_SIDE}")
        if even and pixels % 2:
            raise InvalidRequest(
                f"{side} {pixels} is odd, {format} needs it even",
                f"Scale or crop the picture to {pixels - 1 or 2}, or use rgb24.",
            )


def align(nbytes: int) -> int:
    """`nbytes` rounded up to a whole multiple of ALIGN_NBYTES."""
    return -(-nbytes // ALIGN_NBYTES) * ALIGN_NBYTES
