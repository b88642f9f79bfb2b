"""What a slot holds: named tensors or one image, and the description that says so.

The description is `struct mcpd_description` of native/src/layout.h: a head of 128 bytes and 192
bytes for each tensor, little-endian. Those that come from shared memory are another process's and
are checked here, once for each different one, before anything is made of them.
"""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

from mcpd.shm.dtypes import DTYPES, check_quantisation, dtype_advice
from mcpd.shm.errors import InvalidRequest, ProtocolError, shown
from mcpd.shm.formats import (
    ALIGN_NBYTES,
    ENCODED,
    FORMAT_CODES,
    FORMAT_NAMES,
    MATRIX_CODES,
    MATRIX_NAMES,
    RANGE_CODES,
    RANGE_NAMES,
    ROTATIONS,
    Plane,
    align,
    check_frame,
    frame_layout,
    plane_shapes,
    whole_bytes,
)
from mcpd.shm.views import plane_viewer

MAX_TENSORS = 16
MAX_DIMENSIONS = 8
MAX_NAME_NBYTES = 31

KIND_BUNDLE, KIND_FRAME, KIND_ENCODED = 1, 2, 3

_DTYPE_NAMES = {code: name for name, (code, _, _) in DTYPES.items()}
_HEAD = struct.Struct("<5I2B2x2I4Q4Q32x")
_TENSOR = struct.Struct("<32sHBBfi4xQQ8Q8q")
_FLOAT = struct.Struct("<f")
HEAD_NBYTES = _HEAD.size
TENSOR_NBYTES = _TENSOR.size


@dataclass(frozen=True)
class TensorSpec:
    """A tensor's element type, one of DTYPES, its shape, and how its numbers are quantised.

    Attributes:
        scale: Of quantised integers, which are real / scale + zero_point: the step between two,
            rounded to float32. 0: not quantised.
        zero_point: The integer that stands for a real 0.

    Raises:
        InvalidRequest: Unknown dtype, more than 8 dimensions or a negative one, or a scale or zero
            point that cannot be.
    """

    dtype: str
    shape: tuple[int, ...]
    scale: float = 0.0
    zero_point: int = 0

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise InvalidRequest(f"unknown dtype {self.dtype!r}", dtype_advice(self.dtype))
        try:
            object.__setattr__(self, "shape", tuple(map(operator.index, self.shape)))
        except TypeError as error:
            raise InvalidRequest(f"shape {shown(self.shape)} is not of whole numbers") from error
        if len(self.shape) > MAX_DIMENSIONS or min(self.shape, default=0) < 0:
            raise InvalidRequest(
                f"shape {self.shape} is not one of a tensor",
                f"At most {MAX_DIMENSIONS} dimensions, none below 0.",
            )
        try:
            (scale,) = _FLOAT.unpack(_FLOAT.pack(self.scale))
            check_quantisation(self.dtype, scale, self.zero_point)
        except (OverflowError, struct.error) as error:
            raise InvalidRequest(f"scale {self.scale!r} is not a float32") from error
        if self.scale and not scale:
            raise InvalidRequest(f"scale {self.scale!r} is 0 as a float32", "Use a larger one.")
        object.__setattr__(self, "scale", scale)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, without padding."""
        return math.prod(self.shape) * DTYPES[self.dtype][1]


class Tensor(NamedTuple):
    """One tensor of a slot. Quantised values are real / scale + zero_point; scale 0: not so.

    real_value = (value - zero_point) * scale, as ONNX, TensorFlow Lite and PyTorch have it.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """Bytes from element to element of each dimension."""
    offset: int
    nbytes: int
    scale: float = 0.0
    zero_point: int = 0
    flags: int = 0

    @property
    def numpy_dtype(self) -> str:
        """numpy's name for the elements; bfloat16 and float8 come as unsigned integers."""
        return DTYPES[self.dtype][2]


@dataclass(frozen=True)
class Description:
    """What a slot holds: kind, the image's geometry, the tensors. Immutable.

    Attributes:
        kind: KIND_BUNDLE, KIND_FRAME or KIND_ENCODED.
        format: Pixel format's name, "" for a bundle.
        matrix: "bt601", "bt709" or "" if not known.
        range: "limited", "full" or "" if not known.
        rotation: Degrees clockwise that show it upright.
        tensors: Of a bundle, in order; `tensor(name)` gives one.
        view_planes: Makes numpy views of the planes in a slot's buffer.
    """

    kind: int
    format: str = ""
    width: int = 0
    height: int = 0
    rotation: int = 0
    matrix: str = ""
    range: str = ""
    planes: tuple[Plane, ...] = ()
    tensors: tuple[Tensor, ...] = ()

    view_planes = cached_property(plane_viewer)

    @cached_property
    def extent(self) -> int:
        """One past the last byte of the slot that planes and tensors take."""
        ends = [plane.end for plane in self.planes]
        ends += [tensor.offset + tensor.nbytes for tensor in self.tensors]
        return max(ends, default=0)

    def tensor(self, name: str) -> Tensor:
        """The tensor of that name: dtype, shape, scale and zero point.

        Raises:
            InvalidRequest: There is none.
        """
        for tensor in self.tensors:
            if tensor.name == name:
                return tensor
        held = ", ".join(repr(tensor.name) for tensor in self.tensors) or "no tensors"
        raise InvalidRequest(f"no tensor {name!r}; the slot holds {held}")

    @property
    def quantised(self) -> bool:
        """Whether a tensor has a scale."""
        return any(tensor.scale for tensor in self.tensors)

    @cached_property
    def packed(self) -> bytes:
        """The bytes of it: HEAD_NBYTES and TENSOR_NBYTES for each tensor."""
        fill = (0,) * (4 - len(self.planes))
        head = _HEAD.pack(
            self.kind,
            FORMAT_CODES.get(self.format, 0),
            self.width,
            self.height,
            self.rotation,
            MATRIX_CODES.get(self.matrix, 0),
            RANGE_CODES.get(self.range, 0),
            len(self.planes),
            len(self.tensors),
            *(plane.offset for plane in self.planes),
            *fill,
            *(plane.stride for plane in self.planes),
            *fill,
        )
        return head + b"".join(map(_pack_tensor, self.tensors))


def describe_frame(
    format: str,
    width: int,
    height: int,
    *,
    rotation: int = 0,
    matrix: str = "bt709",
    range: str = "limited",
    strides: Sequence[int] | None = None,
    offsets: Sequence[int] | None = None,
) -> Description:
    """The description of a frame.

    Args:
        matrix: "bt601", "bt709", or "" if it is not known; likewise `range`.
        strides: Bytes from row to row of each plane, None as mcpd lays them out: padded to 64.
        offsets: Where each plane starts, None for one after the other, aligned to 64.

    Raises:
        InvalidRequest: A value out of its limits; see formats.frame_layout.
    """
    check_frame(format, width, height)
    for what, value, known in (
        ("matrix", matrix, ("", *MATRIX_CODES)),
        ("range", range, ("", *RANGE_CODES)),
        ("rotation", rotation, ROTATIONS),
    ):
        if value not in known or isinstance(value, float):
            allowed = ", ".join(str(one) for one in known if one != "")
            raise InvalidRequest(f"{what} {shown(value)} is not one of {allowed}")
    planes: tuple[Plane, ...] = ()
    if format not in ENCODED:
        places = whole_bytes("strides", strides), whole_bytes("offsets", offsets)
        planes = frame_layout(format, width, height, *places).planes
    elif strides is not None or offsets is not None:
        raise InvalidRequest(
            f"format {format!r} is encoded and has no planes", "Leave strides and offsets out."
        )
    kind = KIND_ENCODED if format in ENCODED else KIND_FRAME
    return Description(kind, format, width, height, rotation, matrix, range, planes)


def describe_tensors(specs: Mapping[str, TensorSpec]) -> Description:
    """The description of a bundle: tensors one after the other, each 64-byte aligned, C order.

    Raises:
        InvalidRequest: Too many tensors, or a name or a spec that a tensor cannot have.
    """
    if len(specs) > MAX_TENSORS:
        raise InvalidRequest(f"{len(specs)} tensors in a bundle, the limit is {MAX_TENSORS}")
    tensors = []
    offset = 0
    for name, spec in specs.items():
        _check_name(name)
        if not isinstance(spec, TensorSpec):
            raise InvalidRequest(f"tensor {name!r} is {shown(spec)}", "Give a TensorSpec.")
        strides = _c_strides(spec.shape, DTYPES[spec.dtype][1])
        place = (name, spec.dtype, spec.shape, strides, offset, spec.nbytes)
        tensors.append(Tensor(*place, spec.scale, spec.zero_point))
        offset = align(offset + spec.nbytes)
    return Description(KIND_BUNDLE, tensors=tuple(tensors))


@lru_cache(maxsize=1024)
def parse_description(data: bytes, slot_nbytes: int) -> Description:
    """Reads a description that another process wrote; nothing in it reaches out of the slot.

    Args:
        data: As PinnedSlot.description: a copy that the writer can no longer change.
        slot_nbytes: Size of the slot, from the daemon.

    Raises:
        ProtocolError: It describes no slot; the message has the field, its value and the limit.
    """
    if len(data) < HEAD_NBYTES:
        raise ProtocolError(f"slot description has {len(data)} bytes, needs {HEAD_NBYTES}")
    kind, code, width, height, rotation, matrix, colour_range, nplanes, ntensors, *places = (
        _HEAD.unpack_from(data)
    )
    if kind not in (KIND_BUNDLE, KIND_FRAME, KIND_ENCODED):
        raise ProtocolError(f"slot description: kind {kind} is not in 1..3")
    if ntensors > MAX_TENSORS or len(data) < HEAD_NBYTES + ntensors * TENSOR_NBYTES:
        raise ProtocolError(f"slot description: ntensors {ntensors} in {len(data)} bytes")
    name = FORMAT_NAMES.get(code, "")
    planes: tuple[Plane, ...] = ()
    if kind == KIND_BUNDLE:
        name, width, height = "", 0, 0
    else:
        if rotation not in ROTATIONS:
            raise ProtocolError(f"slot description: rotation {rotation} is not one of {ROTATIONS}")
        if (name in ENCODED) != (kind == KIND_ENCODED):
            raise ProtocolError(f"slot description: kind {kind} with format {code}")
        if kind == KIND_FRAME:
            planes = _read_planes(name, width, height, nplanes, places, slot_nbytes)
    tensors = tuple(
        _read_tensor(data, HEAD_NBYTES + index * TENSOR_NBYTES, slot_nbytes)
        for index in range(ntensors)
    )
    if len({tensor.name for tensor in tensors}) != ntensors:
        raise ProtocolError("slot description: two tensors have the same name")
    return Description(
        kind,
        name,
        width,
        height,
        rotation,
        MATRIX_NAMES.get(matrix, ""),
        RANGE_NAMES.get(colour_range, ""),
        planes,
        tensors,
    )


def _read_planes(
    format: str, width: int, height: int, nplanes: int, places: list[int], slot_nbytes: int
) -> tuple[Plane, ...]:
    try:
        shapes = plane_shapes(format, width, height)
    except InvalidRequest as error:
        raise ProtocolError(f"slot description: {error.message}") from error
    if nplanes != len(shapes):
        raise ProtocolError(f"slot description: {nplanes} planes, {format} has {len(shapes)}")
    planes = []
    for (shape, row_nbytes), offset, stride in zip(shapes, places[:4], places[4:], strict=False):
        plane = Plane(offset, stride, shape[0], row_nbytes, shape)
        if stride < row_nbytes or plane.end > slot_nbytes:
            raise ProtocolError(
                f"slot description: plane at {offset} with {shape[0]} rows of {row_nbytes} bytes "
                f"every {stride} does not fit a slot of {slot_nbytes} bytes"
            )
        planes.append(plane)
    return tuple(planes)


def _read_tensor(data: bytes, start: int, slot_nbytes: int) -> Tensor:
    raw_name, code, ndim, flags, scale, zero_point, offset, nbytes, *lengths = _TENSOR.unpack_from(
        data, start
    )
    try:
        name = raw_name.rstrip(b"\0").decode()
        _check_name(name)
    except (UnicodeDecodeError, InvalidRequest) as error:
        raise ProtocolError(f"slot description: tensor name {raw_name!r}") from error
    dtype = _DTYPE_NAMES.get(code)
    if dtype is None:
        raise ProtocolError(f"slot description: tensor {name!r} has unknown dtype {code}")
    if ndim > MAX_DIMENSIONS:
        raise ProtocolError(
            f"slot description: tensor {name!r} has {ndim} dimensions, at most {MAX_DIMENSIONS}"
        )
    if offset % ALIGN_NBYTES or offset + nbytes > slot_nbytes:
        raise ProtocolError(
            f"slot description: tensor {name!r} at {offset} with {nbytes} bytes is not "
            f"{ALIGN_NBYTES}-byte aligned in a slot of {slot_nbytes} bytes"
        )
    try:
        check_quantisation(dtype, scale, zero_point if scale else 0)
    except InvalidRequest as error:
        raise ProtocolError(f"slot description: tensor {name!r}: {error.message}") from error
    shape, strides = tuple(lengths[:ndim]), tuple(lengths[8 : 8 + ndim])
    item = DTYPES[dtype][1]
    count = math.prod(shape)
    # The elements' own bytes are bounded as well: with a stride of 0 a small slot could otherwise
    # stand for a tensor of any size, and whoever copies it would run out of memory.
    reach = item + sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))
    if count and (min(strides, default=0) < 0 or reach > nbytes or count * item > slot_nbytes):
        raise ProtocolError(
            f"slot description: tensor {name!r} of shape {shape} and strides {strides} does not "
            f"fit its {nbytes} bytes"
        )
    if not count and max(shape) > slot_nbytes:
        raise ProtocolError(f"slot description: tensor {name!r} has shape {shape}")
    return Tensor(name, dtype, shape, strides, offset, nbytes, scale, zero_point, flags)


def _pack_tensor(tensor: Tensor) -> bytes:
    fill = (0,) * (MAX_DIMENSIONS - len(tensor.shape))
    return _TENSOR.pack(
        tensor.name.encode(),
        DTYPES[tensor.dtype][0],
        len(tensor.shape),
        tensor.flags,
        tensor.scale,
        tensor.zero_point,
        tensor.offset,
        tensor.nbytes,
        *tensor.shape,
        *fill,
        *tensor.strides,
        *fill,
    )


def _check_name(name: str) -> None:
    try:
        nbytes = len(name.encode())
    except (AttributeError, UnicodeEncodeError):  # no text, or a lone surrogate
        nbytes = 0
    if not 1 <= nbytes <= MAX_NAME_NBYTES or "\0" in name:
        raise InvalidRequest(
            f"tensor name {shown(name)} is not of 1..{MAX_NAME_NBYTES} bytes without a zero byte"
        )


def _c_strides(shape: tuple[int, ...], item_nbytes: int) -> tuple[int, ...]:
    return tuple(math.prod(shape[axis + 1 :]) * item_nbytes for axis in range(len(shape)))
