"""One slot as a writer fills it and as a reader sees it: planes and tensors as numpy views.

The views are of shared memory itself. A view that the caller keeps also keeps its slot: the
writer's from being used again, the reader's pinned.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar, overload

from mcpd.native import _core
from mcpd.shm.bundle import Description, TensorSpec, describe_tensors, parse_description
from mcpd.shm.errors import InvalidRequest, LimitExceeded, ProtocolError
from mcpd.shm.formats import align
from mcpd.shm.stream_end import raise_ended

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Planes = tuple[NDArray[np.uint8], ...]
    Tensors = dict[str, NDArray[Any]]

NO_TIME: Final = _core.NO_TIME
"""A pts, capture time or deadline that is not known."""

FLAG_KEYFRAME, FLAG_QUANTISED, FLAG_FP16, FLAG_END, FLAG_PARTIAL = 1, 2, 4, 8, 16

_T = TypeVar("_T")


class _Carried(Generic[_T]):
    """An attribute of the core's slot object, under the same name here."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: Slot | Frame, owner: type) -> _T: ...
    def __get__(self, instance: Slot | Frame | None, owner: type) -> Self | _T:
        if instance is None:
            return self
        value: _T = getattr(instance.core, self._name)
        return value

    def __set__(self, instance: Slot, value: _T) -> None:
        setattr(instance.core, self._name, value)


class Slot:
    """An acquired slot: fill it, then publish. A context manager that publishes on a clean exit
    and abandons when an exception leaves it.

    Times are CLOCK_MONOTONIC nanoseconds (time.monotonic_ns()); NO_TIME where not known.
    Not to be filled by two threads at once.

    Attributes:
        core: The C core's slot.
        nbytes: Payload bytes in use; what the description takes, or the whole slot, unless set.
        pts_ns: When the frame is to be shown, in the time of its source.
        capture_ns: When it was captured.
        deadline_ns: When a result is of no use any more.
        trace_id: 16 bytes of W3C trace context, b"" for none.
    """

    nbytes = _Carried[int]()
    pts_ns = _Carried[int]()
    capture_ns = _Carried[int]()
    deadline_ns = _Carried[int]()
    trace_id = _Carried[bytes]()
    flags = _Carried[int]()
    status = _Carried[int]()
    source_seq = _Carried[int]()
    source_stream = _Carried[int]()
    source_publish_ns = _Carried[int]()
    awake_ns = _Carried[int]()
    finish_ns = _Carried[int]()
    model_version = _Carried[int]()

    def __init__(
        self,
        core: _core.WriteSlot,
        slot_nbytes: int,
        description: Description | None,
        stream_name: str,
    ) -> None:
        self.core = core
        self.slot_nbytes = slot_nbytes
        self._stream_name = stream_name
        self._abandoned = False
        self._description: Description | None = None
        self._planes: Planes | None = None
        self._tensors: Tensors | None = None
        if description is not None:
            self.describe(description)

    @property
    def index(self) -> int:
        """Which slot of the stream it is."""
        return self.core.index

    @property
    def seq(self) -> int:
        """Sequence number of the published frame; 0 before."""
        return self.core.seq

    @property
    def publish_ns(self) -> int:
        """When it was published."""
        return self.core.publish_ns

    @property
    def buffer(self) -> memoryview:
        """All bytes of the slot, writable. For encoded payloads; set `nbytes` to what was used."""
        return memoryview(self.core)

    @property
    def description(self) -> Description | None:
        """What the slot is said to hold; None for a stream without a fixed geometry."""
        return self._description

    @property
    def planes(self) -> Planes:
        """The image's planes as writable uint8 arrays, padding left out of their shapes.

        (h, w, samples) for packed formats, (h, w) for gray8, three 2-D arrays for i420, (h, w) and
        (h/2, w/2, 2) for nv12, (h, w, 2) for yuyv422. Empty for tensors and encoded payloads.
        """
        if self._planes is None:
            self._planes = _plane_views(self._owned(), self._description)
        return self._planes

    @property
    def tensors(self) -> Tensors:
        """The bundle's tensors as writable arrays, by name."""
        if self._tensors is None:
            self._tensors = _tensor_views(self._owned(), self._description)
        return self._tensors

    def describe(self, description: Description) -> None:
        """Says what the slot holds; `planes` and `tensors` follow it.

        Raises:
            LimitExceeded: It takes more bytes than the slot has.
        """
        if description.extent > self.slot_nbytes:
            raise LimitExceeded(
                f"bundle takes {description.extent} bytes, the slot has {self.slot_nbytes}",
                "Make the stream with a larger slot_nbytes, or send less at once.",
            )
        self.core.describe(description.packed)
        if description.extent:
            self.core.nbytes = description.extent
        self._description = description
        self._planes = self._tensors = None

    def set_tensors(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Lays out `arrays` in the slot, each 64-byte aligned, and copies them in.

        For bundles whose shapes vary; a stream with fixed tensors has them in `tensors`.

        Raises:
            LimitExceeded: Together they are larger than the slot.
            InvalidRequest: A name or dtype that a bundle cannot carry.
        """
        specs = {name: TensorSpec(array.dtype.name, array.shape) for name, array in arrays.items()}
        description = describe_tensors(specs)
        self.describe(description)
        if not description.extent:
            self.core.nbytes = 0
        views = self.tensors
        for name, array in arrays.items():
            view = views[name]
            # bfloat16 and float8 are carried as their bits, everything else by value.
            view[...] = array if view.dtype.name == array.dtype.name else array.view(view.dtype)

    def set_source(self, frame: Frame) -> None:
        """Makes this the result of `frame`: its sequence number, stream, times and trace."""
        source, core = frame.core, self.core
        core.source_seq = source.seq
        core.source_stream = frame.stream_id
        core.source_publish_ns = source.publish_ns
        core.pts_ns = source.pts_ns
        core.capture_ns = source.capture_ns
        core.deadline_ns = source.deadline_ns
        core.trace_id = source.trace_id

    def publish(self) -> int:
        """Publishes the frame and returns its sequence number; this object's views are dropped.

        Views that the caller still holds keep the slot from being used again.

        Raises:
            InvalidRequest: It was published or abandoned already.
            StreamClosed: The stream ended while the slot was filled.
        """
        self._planes = self._tensors = None
        try:
            return self.core.publish()
        except _core.StreamEnded as error:
            raise_ended(self._stream_name, error.args[0])
        except ValueError as error:
            raise InvalidRequest(f"slot {self.index} cannot be published: {error}") from error

    def abandon(self) -> None:
        """Gives the slot back unpublished. Idempotent; does nothing after publish."""
        self._planes = self._tensors = None
        self._abandoned = True
        self.core.abandon()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abandon()
        elif not self.core.published and not self._abandoned:
            self.publish()

    def _owned(self) -> memoryview:
        if self.core.published:
            raise InvalidRequest(f"slot {self.index} is published", "Acquire another one.")
        return memoryview(self.core)


class Frame:
    """A pinned frame: read-only views of shared memory, and copies of what came with it.

    It stays as it is until `close` was called, or this object is gone, and no view of it is left.
    A context manager that closes. Times are CLOCK_MONOTONIC nanoseconds, NO_TIME if not known.

    Attributes:
        core: The C core's pinned slot.
        stream_id: Of the stream it came from.
        source_seq: Of a result: the frame it was made from; likewise source_stream (id) and
            source_publish_ns. awake_ns: when its worker had the frame; finish_ns: model done.
        status: Of a result: 0, or an index into errors.STATUS_CODES.
    """

    seq = _Carried[int]()
    generation = _Carried[int]()
    nbytes = _Carried[int]()
    pts_ns = _Carried[int]()
    capture_ns = _Carried[int]()
    publish_ns = _Carried[int]()
    deadline_ns = _Carried[int]()
    trace_id = _Carried[bytes]()
    flags = _Carried[int]()
    status = _Carried[int]()
    source_seq = _Carried[int]()
    source_stream = _Carried[int]()
    source_publish_ns = _Carried[int]()
    awake_ns = _Carried[int]()
    finish_ns = _Carried[int]()
    model_version = _Carried[int]()

    def __init__(self, core: _core.PinnedSlot, stream_id: int, slot_nbytes: int) -> None:
        self.core = core
        self.stream_id = stream_id
        self._slot_nbytes = slot_nbytes
        self._description: Description | None = None
        self._planes: Planes | None = None
        self._tensors: Tensors | None = None
        self._closed = False

    @property
    def description(self) -> Description:
        """What the frame holds, checked.

        Raises:
            ProtocolError: Its writer described no such slot.
        """
        if self._description is None:
            description = parse_description(self.core.description, self._slot_nbytes)
            if description.extent > self.core.nbytes:
                raise ProtocolError(
                    f"frame {self.seq} is described with {description.extent} bytes, "
                    f"its writer used {self.core.nbytes}"
                )
            self._description = description
        return self._description

    @property
    def buffer(self) -> memoryview:
        """The bytes in use, read-only."""
        return memoryview(self.core)

    @property
    def planes(self) -> Planes:
        """The image's planes as read-only uint8 arrays; shapes as for Slot.planes."""
        if self._planes is None:
            self._planes = _plane_views(self._open_buffer(), self.description)
        return self._planes

    @property
    def tensors(self) -> Tensors:
        """The bundle's tensors as read-only arrays, by name."""
        if self._tensors is None:
            self._tensors = _tensor_views(self._open_buffer(), self.description)
        return self._tensors

    def close(self) -> None:
        """Unpins, once no view is left that the caller took. Idempotent."""
        self._closed = True
        self._planes = self._tensors = None
        self.core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open_buffer(self) -> memoryview:
        if self._closed:
            raise InvalidRequest(f"frame {self.seq} is closed", "Use it before close().")
        return memoryview(self.core)


def _plane_views(buffer: memoryview, description: Description | None) -> Planes:
    import numpy as np

    if description is None:
        return ()
    if not description.planes:
        return ()
    # An ndarray made of a buffer keeps its owner but gives the export back, and with it the pin;
    # one from frombuffer holds the export. So all views are made of such a one.
    whole = np.frombuffer(buffer, np.uint8)
    views = []
    for plane in description.planes:
        # Columns and samples are packed: only rows are apart.
        strides = (plane.stride, *plane.shape[2:], 1)
        views.append(np.ndarray(plane.shape, np.uint8, whole, plane.offset, strides))
    return tuple(views)


def _tensor_views(buffer: memoryview, description: Description | None) -> Tensors:
    import numpy as np

    if description is None:
        return {}
    views: Tensors = {}
    whole = np.frombuffer(buffer, np.uint8) if description.extent else None  # see _plane_views
    for tensor in description.tensors:
        if 0 in tensor.shape:
            # Nothing of the slot is looked at, and its offset may be the slot's end.
            views[tensor.name] = np.empty(tensor.shape, tensor.numpy_dtype)
            continue
        views[tensor.name] = np.ndarray(
            tensor.shape, tensor.numpy_dtype, whole, tensor.offset, tensor.strides
        )
    return views


def bundle_nbytes(specs: Mapping[str, TensorSpec]) -> int:
    """Bytes of a slot that holds these tensors."""
    return align(describe_tensors(specs).extent)
