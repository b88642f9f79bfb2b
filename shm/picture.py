"""One decoded frame of PyAV: what it is, and its planes straight into a slot.

Formats that a slot can carry are copied plane by plane. Others go through swscale once: gray ones
to gray8, RGB and palettes to rgb24, all else to i420.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcpd.shm.bundle import Description
from mcpd.shm.errors import InvalidRequest
from mcpd.shm.writing import copy_plane

if TYPE_CHECKING:
    import av

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
_SWS_RANGES = {"limited": 1, "full": 2}
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
    swscale first. What a frame does not tell about its colours is taken to be as described.

    Args:
        convert: Whether it may be; else such a frame is an error.
        non_temporal: As for Slot.write.

    Raises:
        InvalidRequest: The frame is another and `convert` is not set.
    """
    import numpy as np

    if differs := _difference(frame, description):
        if not convert:
            raise InvalidRequest(
                f"frame {differs}",
                "Give convert=True to have swscale convert it, or create the stream to match.",
            )
        frame = frame.reformat(
            description.width,
            description.height,
            _AV_FORMATS[description.format],
            src_colorspace=_SWS_MATRICES[frame_matrix(frame)],
            dst_colorspace=_SWS_MATRICES[description.matrix or "bt709"],
            src_color_range=_SWS_RANGES[frame_range(frame)],
            dst_color_range=_SWS_RANGES[description.range or "limited"],
        )
    for source, plane, target in zip(frame.planes, description.planes, planes, strict=True):
        strides = (source.line_size, *plane.shape[2:], 1)
        pixels = np.ndarray(plane.shape, np.uint8, memoryview(source), 0, strides)
        copy_plane(target, pixels, non_temporal=non_temporal)


def _difference(frame: av.VideoFrame, description: Description) -> str:
    """What of a frame is not as the slot is described, in words; "" if it may be copied as it is.

    Matrix and range count for formats of luma and chroma, where both sides tell.
    """
    if (frame.width, frame.height) != (description.width, description.height):
        size = f"{description.width}x{description.height}"
        return f"has {frame.width}x{frame.height} pixels, the slot {size}"
    if _FORMATS.get(frame.format.name) != description.format:
        return f"is {frame.format.name}, the slot {description.format}"
    if _is_flipped(frame):
        return f"is {frame.format.name} with its rows from the bottom up"
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


def _is_flipped(frame: av.VideoFrame) -> bool:
    """Whether rows are stored from the bottom up, which swscale turns round."""
    return any(plane.line_size <= 0 for plane in frame.planes)
