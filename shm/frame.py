"""One frame as a reader sees it: pinned, its planes and tensors as read-only numpy views."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mcpd.native import _core
from mcpd.shm.bundle import KIND_ENCODED, Description, parse_description
from mcpd.shm.errors import InvalidRequest, ProtocolError, SegmentLost
from mcpd.shm.views import tensor_views

if TYPE_CHECKING:
    from mcpd.shm.messages import StreamGrant
    from mcpd.shm.views import Planes, Tensors

NO_TIME: Final = _core.NO_TIME
"""A pts, capture time or deadline that is not known."""

FLAG_KEYFRAME, FLAG_QUANTISED, FLAG_FP16, FLAG_END, FLAG_PARTIAL = 1, 2, 4, 8, 16


class Frame(_core.Frame):
    """A pinned frame: read-only views of shared memory, and copies of what came with it.

    It stays as it is until `close` was called, or this object is gone, and no view of it is left.
    A context manager that closes. Times are CLOCK_MONOTONIC nanoseconds, NO_TIME if not known.

    Attributes:
        core: The C core's pinned slot.
        grant: Of the stream it came from, by the daemon.
        seq, generation, nbytes, pts_ns, capture_ns, publish_ns, deadline_ns, trace_id, flags: As
            its writer had them when it published.
        source_seq: Of a result: the frame it was made from; likewise source_stream (id) and
            source_publish_ns. awake_ns: when its worker had the frame; finish_ns: model done.
        status: Of a result: 0, or an index into errors.STATUS_CODES.
    """

    __slots__ = ()

    grant: StreamGrant
    _description: Description | None
    _planes: Planes | None
    _tensors: Tensors | None

    @property
    def stream_id(self) -> int:
        """Number of the stream it came from."""
        return self.grant.stream

    @property
    def description(self) -> Description:
        """What the frame holds, checked.

        Raises:
            ProtocolError: Its writer described no such slot.
        """
        if self._description is None:
            description = parse_description(self.core.description, self.grant.slot_nbytes)
            if description.extent > self.core.nbytes:
                raise ProtocolError(
                    f"frame {self.seq} is described with {description.extent} bytes, "
                    f"its writer used {self.core.nbytes}"
                )
            self._description = description
        return self._description

    @property
    def format(self) -> str:
        """The pixel format's name, "" for tensors."""
        return self.description.format

    @property
    def width(self) -> int:
        """Pixels across, as stored."""
        return self.description.width

    @property
    def height(self) -> int:
        """Pixels down, as stored."""
        return self.description.height

    @property
    def rotation(self) -> int:
        """Degrees clockwise that show it upright; `upright` does."""
        return self.description.rotation

    @property
    def matrix(self) -> str:
        """Of its colours: "bt601", "bt709", or "" if the writer does not tell."""
        return self.description.matrix

    @property
    def range(self) -> str:
        """Of its values: "limited", "full", or "" if the writer does not tell."""
        return self.description.range

    @property
    def keyframe(self) -> bool:
        """Whether its writer marked it as one that decoding can begin with."""
        return bool(self.flags & FLAG_KEYFRAME)

    @property
    def buffer(self) -> memoryview:
        """The bytes in use, read-only.

        Raises:
            SegmentLost: They were taken away, see `check`; likewise planes, tensors and encoded.
        """
        try:
            return memoryview(self.core)
        except BufferError:
            self.check()
            raise

    @property
    def planes(self) -> Planes:
        """The image's planes as read-only uint8 arrays; shapes as for Slot.planes."""
        if self._planes is None:
            self._planes = self.description.view_planes(self._open_buffer())
        return self._planes

    def upright(self) -> Planes:
        """`planes` turned by `rotation`: views of the same bytes, nothing is copied.

        Raises:
            InvalidRequest: A turned yuyv422 frame, whose pixels share chroma in pairs of a row.
        """
        import numpy as np

        turns = self.rotation // 90
        if turns and self.format == "yuyv422":
            raise InvalidRequest(
                f"a yuyv422 frame cannot be turned by {self.rotation} degrees in place",
                "Convert it first: its chroma is shared by pairs of pixels in a row.",
            )
        return tuple(np.rot90(plane, -turns) for plane in self.planes)

    def encoded(self) -> bytes:
        """A copy of an encoded payload: exactly the bytes that were written.

        A copy, because a parser must not read what a writer could still change.

        Raises:
            InvalidRequest: The frame is of pixels or tensors.
        """
        if self.description.kind != KIND_ENCODED:
            held = f"{self.format} pixels" if self.format else "tensors"
            raise InvalidRequest(f"frame {self.seq} holds {held}, not an encoded payload")
        data = bytes(self._open_buffer())
        self.check()
        return data

    @property
    def tensors(self) -> Tensors:
        """The bundle's tensors as read-only arrays, by name.

        bfloat16 comes as uint16 and float8 as uint8: their bits. description.tensor(name) has the
        dtype's name, the scale and the zero point.
        """
        if self._tensors is None:
            self._tensors = tensor_views(self._open_buffer(), self.description)
        return self._tensors

    @property
    def intact(self) -> bool:
        """Whether what was read of it so far is what its writer left there; see `check`."""
        return not self.core.lost

    def check(self) -> None:
        """Raises unless what was read of it so far is what its writer left there.

        Only memory that a peer may shrink can be lost: that of streams with memory "posix" or
        "foreign". To be asked after the last look at the frame and before what came of it is used;
        `close` does, and leaving the `with` block. Works on a closed frame.

        Raises:
            SegmentLost: Memory was taken away: zeros were read in its place.
        """
        if self.core.lost:
            raise SegmentLost(
                f"frame {self.seq} of stream {self.grant.name!r} cannot be trusted: a peer took "
                "away memory under it, and zeros were read",
                "Throw away what was made of it; the stream's writer has to make it again.",
            )

    def give_back(self) -> None:
        """Of a group's member: closes the frame undone, and leaves it to the group. For other
        readers it is `close`.

        Raises:
            InvalidRequest: A view of it is still held, or it is closed.
        """
        if self.closed:
            raise InvalidRequest(f"frame {self.seq} is closed", "Give back an open one.")
        self._planes = self._tensors = None
        try:
            self.core.give_back()
        except BufferError as error:
            raise InvalidRequest(
                f"frame {self.seq} cannot be given back: views of it are held",
                "Drop every array and memoryview of it first.",
            ) from error
        self.close()

    def _open_buffer(self) -> memoryview:
        if self.closed:
            raise InvalidRequest(f"frame {self.seq} is closed", "Use it before close().")
        return self.buffer
