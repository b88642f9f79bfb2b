"""What a stream is to carry, from what a caller says: geometry, tensors, or arrays to infer on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from mcpd.shm.bundle import Description, TensorSpec, describe_frame, describe_tensors
from mcpd.shm.errors import InvalidRequest, LimitExceeded, shown
from mcpd.shm.formats import ENCODED, MAX_SIDE, frame_layout
from mcpd.shm.messages import StreamSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mcpd.shm.slot import Slot

KINDS = ("frames", "tensors", "requests", "results")
MEMORIES = ("memfd", "posix", "foreign")

_STACKED = frozenset({"nv12", "i420"})
"""Formats that an array holds as one picture of height * 3 / 2 rows."""


def stream_spec(
    *,
    width: int,
    height: int,
    format: str,
    tensors: Mapping[str, TensorSpec] | None,
    slots: int,
    holds: int,
    history: int,
    memory: str,
    matrix: str,
    range: str,
    rotation: int,
    kind: str | None,
    slot_nbytes: int | None,
    strides: Sequence[int] | None = None,
    offsets: Sequence[int] | None = None,
) -> tuple[StreamSpec, Description | None]:
    """The spec to send and, if every slot holds the same, its description.

    Raises:
        InvalidRequest: A value out of its limits, or too little is said.
        LimitExceeded: What a slot is to hold is larger than `slot_nbytes`.
    """
    whole_kind = "frames" if kind is None else kind
    for what, value, known in (("memory", memory, MEMORIES), ("kind", whole_kind, KINDS)):
        if value not in known:
            raise InvalidRequest(f"{what} {shown(value)} is not one of {', '.join(known)}")
    if tensors is not None and not isinstance(tensors, Mapping):
        raise InvalidRequest(
            f"tensors is {shown(tensors)}", "Give a mapping from each name to a TensorSpec."
        )
    if slot_nbytes is not None and not isinstance(slot_nbytes, int):
        raise InvalidRequest(f"slot_nbytes is {shown(slot_nbytes)}", "Give a number of bytes.")
    description: Description | None = None
    if format:
        if tensors:
            raise InvalidRequest("a stream has a pixel format or tensors, not both")
        description = describe_frame(
            format,
            width,
            height,
            rotation=rotation,
            matrix=matrix,
            range=range,
            strides=strides,
            offsets=offsets,
        )
    elif strides is not None or offsets is not None:
        raise InvalidRequest("strides and offsets are of planes, and there is no format")
    elif width or height:
        raise InvalidRequest(f"size {width}x{height} without a format", "Say format='i420', say.")
    elif tensors:
        description = describe_tensors(tensors)
    needed = description.extent if description is not None else 0
    if slot_nbytes is None:
        if not needed:
            what = f"format {format!r} has no fixed size" if format in ENCODED else "no geometry"
            raise InvalidRequest(f"{what} and no slot_nbytes", "Say how large a slot must be.")
        slot_nbytes = needed
    elif needed > slot_nbytes:
        raise LimitExceeded(
            f"what a slot is to hold takes {needed} bytes, slot_nbytes is {slot_nbytes}",
            f"Leave slot_nbytes out, or make it at least {needed}.",
        )
    spec = StreamSpec(
        slots=slots,
        slot_nbytes=slot_nbytes,
        kind=kind or ("frames" if format else "tensors"),
        history=history,
        holds=holds,
        memory=memory,
        format=format,
        width=width if format else 0,
        height=height if format else 0,
    )
    return spec, description


def resized_spec(
    spec: StreamSpec,
    description: Description | None,
    *,
    width: int | None,
    height: int | None,
    format: str | None,
    tensors: Mapping[str, TensorSpec] | None,
    slots: int | None,
    holds: int | None,
    history: int | None,
    memory: str | None,
    matrix: str | None,
    range: str | None,
    rotation: int | None,
    slot_nbytes: int | None,
    strides: Sequence[int] | None,
    offsets: Sequence[int] | None,
) -> tuple[StreamSpec, Description | None]:
    """As stream_spec, for a stream that has these now; what is None stays as it is.

    Strides and offsets stay with the rest of the frame: a new size, say, has those of its own.

    Raises:
        As stream_spec.
    """
    image = (width, height, format, matrix, range, rotation, strides, offsets)
    slots = spec.slots if slots is None else slots
    holds = spec.holds if holds is None else holds
    history = spec.history if history is None else history
    memory = spec.memory if memory is None else memory
    if tensors is None and slot_nbytes is None and image == (None,) * len(image):
        kept = replace(spec, slots=slots, holds=holds, history=history, memory=memory)
        return kept, description
    old = description if description is not None and not tensors else None
    format = format if format is not None else (old.format if old else "") or ""
    return stream_spec(
        width=width if width is not None else spec.width if format else 0,
        height=height if height is not None else spec.height if format else 0,
        format=format,
        tensors=tensors,
        slots=slots,
        holds=holds,
        history=history,
        memory=memory,
        matrix=matrix if matrix is not None else (old.matrix if old else "bt709"),
        range=range if range is not None else (old.range if old else "limited"),
        rotation=rotation if rotation is not None else (old.rotation if old else 0),
        kind=spec.kind if spec.kind in ("requests", "results") else None,
        slot_nbytes=slot_nbytes,
        strides=strides,
        offsets=offsets,
    )


class RequestShape(NamedTuple):
    """What `infer` is given: an image of a geometry, or tensors of fixed shapes. Hashable."""

    format: str = ""
    width: int = 0
    height: int = 0
    tensors: tuple[tuple[str, TensorSpec], ...] = ()

    def write(self, slot: Slot, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Copies arrays of this shape into a slot."""
        if not self.format:
            for name, view in slot.tensors.items():
                array = arrays[name]
                # bfloat16 and float8 are carried as their bits.
                view[...] = array if array.dtype == view.dtype else array.view(view.dtype)
            return
        (image,) = arrays.values()
        slot.write(image)


def request_shape(
    inputs: Mapping[str, NDArray[Any]] | NDArray[Any], format: str | None
) -> tuple[RequestShape, Mapping[str, NDArray[Any]]]:
    """How the inputs of an `infer` travel, and the arrays by name.

    Raises:
        InvalidRequest: No arrays, or an array that is no image of `format`.
    """
    arrays = inputs if isinstance(inputs, Mapping) else {"input": inputs}
    for name, array in arrays.items():
        if not hasattr(array, "dtype"):
            raise InvalidRequest(
                f"input {name!r} is a {type(array).__name__}, not an array",
                "Give numpy arrays.",
            )
    if not arrays:
        raise InvalidRequest("no inputs to infer on")
    first = next(iter(arrays.values()))
    if format is not None:
        if len(arrays) != 1:
            raise InvalidRequest(f"{len(arrays)} inputs with format {format!r}, which is of one")
        return _image_shape(first, format), arrays
    if len(arrays) == 1 and first.dtype.name == "uint8" and _looks_like_image(first):
        return _image_shape(first, "rgb24" if first.ndim == 3 else "gray8"), arrays
    specs = tuple((name, TensorSpec(a.dtype.name, a.shape)) for name, a in arrays.items())
    return RequestShape(tensors=specs), arrays


def _looks_like_image(array: NDArray[Any]) -> bool:
    """Whether it may travel as rgb24 or gray8; a model of tensors takes those as well."""
    if array.ndim not in (2, 3) or array.shape[2:] not in ((), (3,)):
        return False
    return all(length > 0 for length in array.shape) and max(array.shape[:2]) <= MAX_SIDE


def _image_shape(array: NDArray[Any], format: str) -> RequestShape:
    if format in ENCODED:
        raise InvalidRequest(f"format {format!r} is encoded", "Decode it, or use mcpd infer.")
    height, width = (*array.shape, 0, 0)[:2]
    if format in _STACKED:
        if height % 3 or width % 2:
            raise InvalidRequest(
                f"input is {array.dtype.name} {array.shape}, {format} needs uint8 of "
                "(height * 3 / 2, width), both sides of the picture even",
                "A picture with an odd side goes into a stream of its own: Slot.write.",
            )
        height = height * 2 // 3
    layout = frame_layout(format, width, height)
    shape = layout.planes[0].shape
    if format in _STACKED:
        shape = (height * 3 // 2, width)
    if array.dtype.name != "uint8" or array.shape != shape:
        raise InvalidRequest(
            f"input is {array.dtype.name} {array.shape}, {format} needs uint8 {shape}"
        )
    return RequestShape(format, width, height)
