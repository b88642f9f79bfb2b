"""One decoded frame of PyAV: what it is, and its planes straight into a slot.

Formats that a slot can carry are copied plane by plane. Others go through swscale once: gray ones
to gray8, RGB and palettes to rgb24, all else to i420.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from mcpd.shm import swscale
from mcpd.shm.bundle import Description
from mcpd.shm.errors import InvalidRequest
from mcpd.shm.writing import copy_plane

if TYPE_CHECKING:
    import av
    import av.video.plane
    import numpy as np
    from numpy.typing import NDArray

    from mcpd.shm.formats import Plane
    from mcpd.shm.slot import Slot
    from mcpd.shm.views import Planes

_FORMATS = {
    "yuv420p": "i420",
    "yuvj420p": "i420",
    "nv12": "nv12",
    "rgb24": "rgb24",
    "bgr24": "bgr24",
    "rgba": "rgba",
    "bgra": "bgra",
    "gray": "gray8",
    "yuyv422": "yuyv422",
}
_AV_FORMATS = {ours: theirs for theirs, ours in _FORMATS.items() if theirs != "yuvj420p"}
_YUV = frozenset({"i420", "nv12", "yuyv422"})

# AVColorSpace: 1 BT.709, 4 FCC, 5 and 6 BT.601 of both line counts, 7 SMPTE 240M (near BT.709).
# BT.2020 has no name of its own here; BT.709 is the nearer one.
_MATRICES = {1: "bt709", 4: "bt601", 5: "bt601", 6: "bt601", 7: "bt709", 9: "bt709", 10: "bt709"}
_RANGES = {1: "limited", 2: "full"}
_SWS_MATRICES = {"bt601": 5, "bt709": 1}
_HD_HEIGHT = 720


class Picture:
    """One decoded frame.

    Attributes:
        frame: PyAV's.
        pts_ns: When it is to be shown, in the source's time; None if it does not tell.
    """

    def __init__(self, frame: av.VideoFrame) -> None:
        self.frame = frame
        self.pts_ns: int | None = None
        if frame.pts is not None and frame.time_base is not None:
            base = frame.time_base
            self.pts_ns = frame.pts * base.numerator * 1_000_000_000 // base.denominator

    @property
    def width(self) -> int:
        """Pixels across."""
        return self.frame.width

    @property
    def height(self) -> int:
        """Pixels down."""
        return self.frame.height

    def write(self, slot: Slot) -> None:
        """Writes the planes into a slot; see write_frame."""
        write_frame(self.frame, slot)


def frame_format(frame: av.VideoFrame) -> str:
    """The format in which a slot carries this frame at the least cost."""
    format = frame.format
    own = _FORMATS.get(format.name)
    if own is not None and not (own == "yuyv422" and frame.width % 2):
        return own
    if format.is_rgb or format.has_palette:
        return "rgb24"
    return "gray8" if len(format.components) == 1 else "i420"


def frame_matrix(frame: av.VideoFrame) -> str:
    """Its colour matrix; if it does not tell, BT.709 from 720 rows on, as players assume."""
    return _told_matrix(frame) or ("bt709" if frame.height >= _HD_HEIGHT else "bt601")


def frame_range(frame: av.VideoFrame) -> str:
    """Its range of values; if it does not tell, limited."""
    return _told_range(frame) or "limited"


def write_frame(frame: av.VideoFrame, slot: Slot) -> None:
    """Writes a decoded frame into a slot, converted where it must be; see Slot.write_frame."""
    slot.write_frame(frame, convert=True)


def copy_frame(
    frame: av.VideoFrame,
    description: Description,
    planes: Planes,
    *,
    convert: bool = False,
    non_temporal: bool = False,
) -> None:
    """Copies a decoded frame's planes into a slot's, with nothing in between.

    A frame of another size, format, colour matrix or range than the description's is converted by
    swscale, straight into the planes where their rows have room for it (see swscale.py). What a
    frame does not tell about its colours is taken to be as described.

    Args:
        convert: Whether it may be; else such a frame is an error.
        non_temporal: As for Slot.write.

    Raises:
        InvalidRequest: The frame is another and `convert` is not set.
    """
    if differs := _difference(frame, description):
        if not convert:
            raise InvalidRequest(
                f"frame {differs}",
                "Give convert=True to have swscale convert it, or create the stream to match.",
            )
        conversion = _conversion(frame, description)
        if swscale.convert(frame, conversion, description, planes):
            return
        frame = _reformatted(frame, conversion)
    for source, plane, target in zip(frame.planes, description.planes, planes, strict=True):
        copy_plane(target, _pixels(source, plane), non_temporal=non_temporal)


def _conversion(frame: av.VideoFrame, description: Description) -> swscale.Conversion:
    """From what the frame is to what the slot holds; RGB and gray are of all 256 levels."""
    format = frame.format
    gray = len(format.components) == 1 and not format.has_palette
    told = _told_range(frame)
    full = format.is_rgb or format.has_palette or told == "full" or (gray and not told)
    matrix = _SWS_MATRICES[frame_matrix(frame)]
    target_matrix, target_full = matrix, True
    if description.format in _YUV:
        target_matrix = _SWS_MATRICES.get(description.matrix, matrix)
        target_full = description.range == "full" or (not description.range and full)
        if format.is_rgb or format.has_palette:
            matrix = target_matrix
    return swscale.Conversion(
        *(format.name, frame.width, frame.height, matrix, int(full)),
        *(_AV_FORMATS[description.format], description.width, description.height),
        *(target_matrix, int(target_full)),
    )


def _reformatted(frame: av.VideoFrame, to: swscale.Conversion) -> av.VideoFrame:
    """The frame as PyAV converts it, into memory of its own."""
    return frame.reformat(
        to.target_width,
        to.target_height,
        to.target,
        src_colorspace=to.source_matrix,
        dst_colorspace=to.target_matrix,
        src_color_range=1 + to.source_range,
        dst_color_range=1 + to.target_range,
    )


def _difference(frame: av.VideoFrame, description: Description) -> str:
    """What of a frame is not as the slot is described, in words; "" if it may be copied as it is.

    Matrix and range count for formats of luma and chroma, where both sides tell.
    """
    if (frame.width, frame.height) != (description.width, description.height):
        size = f"{description.width}x{description.height}"
        return f"has {frame.width}x{frame.height} pixels, the slot {size}"
    if _FORMATS.get(frame.format.name) != description.format:
        return f"is {frame.format.name}, the slot {description.format}"
    if description.format in _YUV:
        for what, its, wanted in (
            ("matrix", _told_matrix(frame), description.matrix),
            ("range", _told_range(frame), description.range),
        ):
            if its and wanted and its != wanted:
                return f"has colour {what} {its}, the slot {wanted}"
    return ""


def _told_matrix(frame: av.VideoFrame) -> str:
    return _MATRICES.get(int(frame.colorspace), "")


def _told_range(frame: av.VideoFrame) -> str:
    if frame.format.name.startswith("yuvj"):
        return "full"
    return _RANGES.get(int(frame.color_range), "")


def _pixels(source: av.video.plane.VideoPlane, plane: Plane) -> NDArray[np.uint8]:
    """A view of a plane of PyAV's; its frame has to be kept as long as the view."""
    import numpy as np

    step = abs(source.line_size)
    strides = (step, *plane.shape[2:], 1)
    if source.line_size > 0:
        return np.ndarray(plane.shape, np.uint8, memoryview(source), 0, strides)
    # Rows from the bottom up: the address is that of the top row, which comes last in memory.
    lowest = source.buffer_ptr - step * (plane.rows - 1)
    memory = (ctypes.c_uint8 * (step * (plane.rows - 1) + plane.row_nbytes)).from_address(lowest)
    return np.ndarray(plane.shape, np.uint8, memoryview(memory).cast("B"), 0, strides)[::-1]
