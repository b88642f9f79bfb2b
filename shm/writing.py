"""Ways to fill a slot without a pass in between: arrays, encoded payloads, OpenCV in place.

mcpd.shm.picture has PyAV's frames. Everything here is a method of mcpd.shm.slot.Slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from mcpd.native import _core
from mcpd.shm.bundle import KIND_ENCODED, KIND_FRAME, Description
from mcpd.shm.errors import InvalidRequest, LimitExceeded
from mcpd.shm.frame import FLAG_KEYFRAME

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray
    from typing_extensions import Buffer

    from mcpd.shm.views import Planes


class Capture(Protocol):
    """What is needed of cv2.VideoCapture."""

    def retrieve(self, image: Any, /) -> tuple[bool, Any]:
        """Writes the frame that was grabbed into `image` where it fits."""
        ...


def write_image(
    description: Description | None,
    planes: Planes,
    image: ArrayLike | Sequence[NDArray[Any]],
    *,
    non_temporal: bool = False,
) -> None:
    """Copies an image into a slot's planes; see Slot.write."""
    check_picture(description)
    sources = _sources(description, planes, image)
    for target, source in zip(planes, sources, strict=True):
        copy_plane(target, source, non_temporal=non_temporal)


def copy_plane(
    target: NDArray[np.uint8], source: NDArray[Any], *, non_temporal: bool = False
) -> None:
    """Copies a plane of the same shape; releases the GIL.

    Pixels of the source that are not next to each other in memory are copied by numpy, as is a
    source that shares memory with the target; `non_temporal` then has no effect.
    """
    if not _core.copy_rows(target.data, source.data, non_temporal):
        target[...] = source


def write_encoded(
    core: _core.WriteSlot,
    slot_nbytes: int,
    description: Description | None,
    data: Buffer,
    *,
    keyframe: bool = False,
) -> None:
    """Copies an encoded picture or access unit into a slot; see Slot.write_encoded."""
    if description is None or description.kind != KIND_ENCODED:
        held = description.format or "tensors" if description is not None else "nothing fixed"
        raise InvalidRequest(
            f"slot holds {held}, which is not an encoded format",
            "Create the stream with format='jpeg' or 'h264' and a slot_nbytes.",
        )
    with memoryview(data) as view:
        nbytes = view.nbytes
        if not nbytes:
            raise InvalidRequest("an encoded payload of 0 bytes")
        if nbytes > slot_nbytes:
            raise LimitExceeded(
                f"encoded payload has {nbytes} bytes, the slot has {slot_nbytes}",
                "Create the stream with a larger slot_nbytes, or encode at a lower rate.",
            )
        if not view.c_contiguous:
            raise InvalidRequest("encoded payload is not contiguous", "Give bytes(data).")
        with memoryview(core) as target, view.cast("B") as source:
            target[:nbytes] = source
    core.nbytes = nbytes
    core.flags = core.flags | FLAG_KEYFRAME if keyframe else core.flags & ~FLAG_KEYFRAME


def retrieve(description: Description | None, planes: Planes, capture: Capture) -> bool:
    """Has OpenCV write a frame into a slot; see Slot.retrieve."""
    format = check_picture(description).format
    if format not in ("bgr24", "gray8"):
        raise InvalidRequest(
            f"slot holds {format} frames, OpenCV gives bgr24",
            "Create the stream with format='bgr24'.",
        )
    (target,) = planes
    got, image = capture.retrieve(target)
    if not got:
        return False
    import numpy as np

    # OpenCV writes into what it is given if that fits its frame, and else makes an array anew.
    if not np.may_share_memory(image, target):
        rows, columns = image.shape[:2]
        kind = "bgr24" if image.ndim == 3 else "gray8"
        raise InvalidRequest(
            f"OpenCV gives frames of {columns}x{rows} {kind} {image.dtype}, the slot is "
            f"{target.shape[1]}x{target.shape[0]} {format}",
            "Create the stream with the capture's size and format.",
        )
    return True


def check_picture(description: Description | None) -> Description:
    """The description of a slot that holds pixels.

    Raises:
        InvalidRequest: It holds something else.
    """
    if description is None or description.kind != KIND_FRAME:
        raise InvalidRequest("slot holds no picture", "Create the stream with a pixel format.")
    return description


def _sources(
    description: Description | None,
    planes: Planes,
    image: ArrayLike | Sequence[NDArray[Any]],
) -> list[NDArray[Any]]:
    """The image as one array for each plane, of the plane's shape."""
    import numpy as np

    several = isinstance(image, (list, tuple))
    sources = [np.asarray(one) for one in image] if several else [np.asarray(image)]  # type: ignore[union-attr]
    if len(sources) == 1 and len(planes) > 1:
        sources = _unstacked(sources[0], planes)
    shapes = [source.shape for source in sources]
    wanted = [plane.shape for plane in planes]
    odd = next((source.dtype for source in sources if source.dtype != np.uint8), None)
    if shapes != wanted or odd is not None:
        format = description.format if description is not None else ""
        raise InvalidRequest(
            f"image is {odd or 'uint8'} {_shown(shapes)}, {format} of this size is uint8 "
            f"{_shown(wanted)}",
            "Give an array for each plane; picture.write_frame and swscale convert formats.",
        )
    return sources


def _unstacked(image: NDArray[Any], planes: Planes) -> list[NDArray[Any]]:
    """The planes of one array of height * 3 / 2 rows; the array itself if it is none."""
    height, width = planes[0].shape[:2]
    if height % 2 or width % 2 or image.shape != (height * 3 // 2, width):
        return [image]
    sources = [image[:height]]
    chroma = image[height:]
    if len(planes) == 2:
        return [*sources, chroma.reshape(planes[1].shape)]
    # Two rows of a chroma plane are in one of the array; a quarter of the height may be half a row.
    samples = chroma.reshape(-1)
    for plane in planes[1:]:
        sources.append(samples[: plane.size].reshape(plane.shape))
        samples = samples[plane.size :]
    return sources


def _shown(shapes: list[tuple[int, ...]]) -> str:
    return " and ".join(map(str, shapes))
