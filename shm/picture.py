"""One decoded frame of PyAV: what it is, and its planes straight into a slot.

Formats that a slot can carry are copied plane by plane, row by row; others go through swscale once,
to i420, or to rgb24 where a side is odd.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcpd.shm.errors import InvalidRequest

if TYPE_CHECKING:
    import av

    from mcpd.shm.frame import Slot

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
_EVEN = frozenset({"i420", "nv12", "yuyv422"})

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
    own = _FORMATS.get(frame.format.name, "i420")
    odd_width, odd_height = frame.width % 2, frame.height % 2
    if own in _EVEN and (odd_width or (odd_height and own != "yuyv422")):
        return "rgb24"
    return own


def frame_matrix(frame: av.VideoFrame) -> str:
    """Its colour matrix; if it does not tell, BT.709 from 720 rows on, as players assume."""
    known = _MATRICES.get(int(frame.colorspace))
    return known or ("bt709" if frame.height >= _HD_HEIGHT else "bt601")


def frame_range(frame: av.VideoFrame) -> str:
    """Its range of values."""
    if frame.format.name.startswith("yuvj"):
        return "full"
    return _RANGES.get(int(frame.color_range), "limited")


def write_frame(frame: av.VideoFrame, slot: Slot) -> None:
    """Copies a decoded frame's planes into a slot, with nothing in between.

    A frame of another size or format than the slot's is first converted by swscale.

    Raises:
        InvalidRequest: The slot has no pixel format.
    """
    import numpy as np

    description = slot.description
    if description is None or not description.planes:
        raise InvalidRequest("slot holds no picture", "Create the stream with a pixel format.")
    wanted = description.format
    same_size = (frame.width, frame.height) == (description.width, description.height)
    if not same_size or _FORMATS.get(frame.format.name) != wanted or _is_flipped(frame):
        frame = frame.reformat(
            description.width,
            description.height,
            _AV_FORMATS[wanted],
            src_colorspace=_SWS_MATRICES[frame_matrix(frame)],
            dst_colorspace=_SWS_MATRICES[description.matrix or "bt709"],
            src_color_range=_SWS_RANGES[frame_range(frame)],
            dst_color_range=_SWS_RANGES[description.range or "limited"],
        )
    for source, plane, target in zip(frame.planes, description.planes, slot.planes, strict=True):
        strides = (source.line_size, *plane.shape[2:], 1)
        target[...] = np.ndarray(plane.shape, np.uint8, memoryview(source), 0, strides)


def _is_flipped(frame: av.VideoFrame) -> bool:
    """Whether rows are stored from the bottom up, which swscale turns round."""
    return any(plane.line_size <= 0 for plane in frame.planes)
