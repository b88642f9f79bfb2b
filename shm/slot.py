"""One slot as its writer fills it: writable numpy views of planes and tensors, ways to write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mcpd.native import _core
from mcpd.shm.bundle import Description, TensorSpec, describe_tensors
from mcpd.shm.errors import InvalidRequest, LimitExceeded, shown
from mcpd.shm.frame import FLAG_QUANTISED, Frame
from mcpd.shm.stream_end import raise_ended, raise_lost
from mcpd.shm.views import tensor_views
from mcpd.shm.writing import check_picture, retrieve, write_encoded, write_image

if TYPE_CHECKING:
    import av
    from numpy.typing import ArrayLike, NDArray
    from typing_extensions import Buffer

    from mcpd.shm.messages import StreamGrant
    from mcpd.shm.views import Planes, Tensors
    from mcpd.shm.writing import Capture


class Slot(_core.Slot):
    """An acquired slot: fill it, then publish. A context manager that publishes on a clean exit
    and abandons when an exception leaves it.

    Times are CLOCK_MONOTONIC nanoseconds (time.monotonic_ns()); NO_TIME where not known.
    Not to be filled by two threads at once.

    Attributes:
        core: The C core's slot.
        grant: Of its stream, by the daemon.
        index: Which slot of the stream it is.
        seq: Sequence number of the published frame; 0 before.
        publish_ns: When it was published.
        nbytes: Payload bytes in use; what the description takes, or the whole slot, unless set.
        pts_ns: When the frame is to be shown, in the time of its source.
        capture_ns: When it was captured.
        deadline_ns: When a result is of no use any more.
        trace_id: 16 bytes of W3C trace context, b"" for none.
    """

    __slots__ = ()

    grant: StreamGrant
    _description: Description | None
    _planes: Planes | None
    _tensors: Tensors | None

    @property
    def slot_nbytes(self) -> int:
        """Bytes of payload that it has room for."""
        return self.grant.slot_nbytes

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

        (h, w, samples) for packed formats, (h, w) for gray8, (h, w, 2) for yuyv422; for i420 (h, w)
        and twice ((h+1)/2, (w+1)/2), for nv12 (h, w) and ((h+1)/2, (w+1)/2, 2). Empty for tensors
        and encoded payloads.
        """
        if self._planes is None:
            described = self._description
            self._planes = described.view_planes(self._owned()) if described is not None else ()
        return self._planes

    @property
    def tensors(self) -> Tensors:
        """The bundle's tensors as writable arrays, by name."""
        if self._tensors is None:
            self._tensors = tensor_views(self._owned(), self._description)
        return self._tensors

    def describe(self, description: Description) -> None:
        """Says what the slot holds; `planes` and `tensors` follow it.

        Raises:
            LimitExceeded: It takes more bytes than the slot has.
        """
        check_room(description, self.slot_nbytes)
        self.core.describe(description.packed)
        if description.extent:
            self.core.nbytes = description.extent
        if description.quantised:
            self.core.flags |= FLAG_QUANTISED
        elif self._description is not None and self._description.quantised:
            self.core.flags &= ~FLAG_QUANTISED
        self._description = description
        self._planes = self._tensors = None

    def set_tensors(
        self,
        arrays: Mapping[str, NDArray[Any]],
        *,
        quantised: Mapping[str, tuple[float, int]] | None = None,
    ) -> None:
        """Lays out `arrays` in the slot, each 64-byte aligned, and copies them in.

        For bundles whose shapes vary; a stream with fixed tensors has them in `tensors`.

        Args:
            quantised: Scale and zero point of each tensor that has them; see TensorSpec.

        Raises:
            LimitExceeded: Together they are larger than the slot.
            InvalidRequest: A name or dtype that a bundle cannot carry.
        """
        scales = quantised or {}
        _check_arrays(arrays, scales)
        specs = {
            name: TensorSpec(array.dtype.name, array.shape, *scales.get(name, (0.0, 0)))
            for name, array in arrays.items()
        }
        if scales.keys() - arrays.keys():
            raise InvalidRequest(f"quantised names {sorted(scales)}, the arrays {sorted(arrays)}")
        description = describe_tensors(specs)
        self.describe(description)
        if not description.extent:
            self.core.nbytes = 0
        views = self.tensors
        for name, array in arrays.items():
            view = views[name]
            # bfloat16 and float8 are carried as their bits, everything else by value.
            view[...] = array if view.dtype.name == array.dtype.name else array.view(view.dtype)

    def write(
        self, image: ArrayLike | Sequence[NDArray[Any]], *, non_temporal: bool = False
    ) -> None:
        """Copies an image into the slot's planes; releases the GIL.

        Args:
            image: uint8, of any strides: the one plane, or all planes in order, shaped as `planes`
                says. For i420 and nv12 of even sides also one array of height * 3 / 2 rows, as
                OpenCV and `ffmpeg -f rawvideo` have it.
            non_temporal: Past the caches. Only for frames that no CPU reads soon, such as those
                that a GPU fetches: a CPU would have to get them back from memory.

        Raises:
            InvalidRequest: Not the planes of the slot's format and size.
        """
        write_image(self._description, self.planes, image, non_temporal=non_temporal)

    def write_frame(
        self, frame: av.VideoFrame, *, convert: bool = False, non_temporal: bool = False
    ) -> None:
        """Copies the planes of a frame that PyAV decoded; see picture.copy_frame.

        Args:
            convert: Lets swscale convert a frame of another format, size, matrix or range straight
                into the slot; otherwise such a frame is an error.
            non_temporal: As for `write`; conversions do without.

        Raises:
            InvalidRequest: The frame is not what the slot holds, and `convert` is not set.
        """
        from mcpd.shm.picture import copy_frame

        description = check_picture(self._description)
        copy_frame(frame, description, self.planes, convert=convert, non_temporal=non_temporal)

    def write_encoded(self, data: Buffer, *, keyframe: bool = False) -> None:
        """Copies a jpeg picture or an h264 access unit into the slot and sets `nbytes`.

        Args:
            keyframe: Whether decoding can begin here; sets or clears the flag of that name.

        Raises:
            LimitExceeded: It has more bytes than the slot.
            InvalidRequest: It is empty, or the slot is not of an encoded format.
        """
        write_encoded(self.core, self.slot_nbytes, self._description, data, keyframe=keyframe)

    def retrieve(self, capture: Capture) -> bool:
        """Has OpenCV write the frame it grabbed into the slot in place; False if there is none.

        Args:
            capture: A cv2.VideoCapture after `grab()`; its frames must be of the slot's size.

        Raises:
            InvalidRequest: The slot is not bgr24 (or gray8, if that is what it gives), or the frame
                is of another size; the slot's bytes are then as they were.
        """
        return retrieve(self._description, self.planes, capture)

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
            InvalidRequest: It was published or abandoned already, or the stream is being or was
                resized.
            StreamClosed: The stream ended while the slot was filled.
            SegmentLost: A peer took away memory of the stream: who reads the slot may find zeros.
        """
        try:
            return super().publish()
        except _core.StreamEnded as error:
            raise_ended(self.grant.name, error.args[0])
        except ValueError as error:
            raise InvalidRequest(f"slot {self.index} cannot be published: {error}") from error
        except OSError as error:
            raise_lost(self.grant.name, error)

    def _owned(self) -> memoryview:
        if self.core.published:
            raise InvalidRequest(f"slot {self.index} is published", "Acquire another one.")
        return memoryview(self.core)


def check_room(description: Description, slot_nbytes: int) -> None:
    """LimitExceeded unless a slot has room for what is described."""
    if description.extent > slot_nbytes:
        raise LimitExceeded(
            f"bundle takes {description.extent} bytes, the slot has {slot_nbytes}",
            "Make the stream with a larger slot_nbytes, or send less at once.",
        )


def _check_arrays(
    arrays: Mapping[str, NDArray[Any]], scales: Mapping[str, tuple[float, int]]
) -> None:
    for what, value in (("arrays", arrays), ("quantised", scales)):
        if not isinstance(value, Mapping):
            raise InvalidRequest(f"{what} is {shown(value)}", "Give a mapping by tensor name.")
    for name, array in arrays.items():
        if not hasattr(array, "dtype") or not hasattr(array, "view"):
            raise InvalidRequest(
                f"tensor {shown(name)} is a {type(array).__name__}, not an array",
                "Give numpy arrays.",
            )
    for name, scale in scales.items():
        if not isinstance(scale, (tuple, list)) or len(scale) != 2:
            raise InvalidRequest(
                f"quantised has {shown(scale)} for {shown(name)}", "Give (scale, zero_point)."
            )
