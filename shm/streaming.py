"""A client's streams: made to be written, opened to be read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from mcpd.shm.connection import Connection
from mcpd.shm.foreign import brought
from mcpd.shm.kept_reader import KeptReaderStream
from mcpd.shm.kept_writer import KeptWriterStream
from mcpd.shm.messages import CreateStream, SealStream
from mcpd.shm.reading import Reading
from mcpd.shm.sessions import Sessions
from mcpd.shm.spec import stream_spec
from mcpd.shm.stream import ReaderStream, WriterStream, map_reader, map_writer

if TYPE_CHECKING:
    from mcpd.shm.bundle import Description, TensorSpec
    from mcpd.shm.reconnection import Reconnection


class StreamClient:
    """A client's part about streams; see Client."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    @property
    def connection(self) -> Connection:
        """The session that it talks over, or the last one while the daemon is away."""
        return self._sessions.connection

    def create_stream(
        self,
        name: str,
        *,
        width: int = 0,
        height: int = 0,
        format: str = "",
        tensors: Mapping[str, TensorSpec] | None = None,
        slots: int = 8,
        holds: int = 2,
        history: int = 1,
        memory: str = "memfd",
        segment: int | str | None = None,
        segment_offset: int = 0,
        matrix: str = "bt709",
        range: str = "limited",
        rotation: int = 0,
        strides: Sequence[int] | None = None,
        offsets: Sequence[int] | None = None,
        kind: str | None = None,
        slot_nbytes: int | None = None,
    ) -> WriterStream:
        """Makes a stream that this process writes. All its memory is reserved and touched here.

        Args:
            name: Letters, digits and ._-, at most 63, the first no sign.
            width: Pixels; with `height` and `format` the frames' geometry.
            format: One of mcpd.shm.formats.FORMAT_CODES.
            tensors: Or the tensors of each bundle, if they are always the same.
            slots: Cells that frames are written to in turn.
            holds: Slots the writer may hold at once.
            history: Newest frames kept for readers that come late.
            memory: "memfd", "posix" for a payload with a name under /dev/shm, or "foreign" for one
                that the caller brings (docs/foreign.md).
            segment: Of "foreign": a descriptor of shared memory, which stays the caller's, or its
                name under /dev/shm.
            segment_offset: Where in it slot 0 is to begin: bytes, in whole pages.
            matrix: Of the frames' colours: "bt601", "bt709", or "" if it is not known.
            range: Of their values: "limited", "full", or "" if it is not known.
            rotation: Degrees clockwise that show them upright: 0, 90, 180 or 270.
            strides: Bytes from row to row of each plane; padded to 64 if None.
            offsets: Where in a slot each plane starts; one after the other if None.
            kind: "frames", "tensors", "requests" or "results"; follows from the others if None.
            slot_nbytes: Bytes of a slot; needed when neither geometry nor tensors tell.

        Raises:
            InvalidRequest: A value out of its limits.
            LimitExceeded: A frame is larger than `slot_nbytes`, or the daemon allows no more.
            AlreadyExists: The name is taken.
            OutOfMemory: The machine has not the memory.
            NotFound, NotPermitted: There is no such segment, or it is not this user's.
        """
        spec, description = stream_spec(
            width=width,
            height=height,
            format=format,
            tensors=tensors,
            slots=slots,
            holds=holds,
            history=history,
            memory=memory,
            matrix=matrix,
            range=range,
            rotation=rotation,
            strides=strides,
            offsets=offsets,
            kind=kind,
            slot_nbytes=slot_nbytes,
        )
        keeper = self._sessions.keeper
        request = CreateStream(name=name, spec=spec, segment_offset=segment_offset)
        with brought(memory, segment, segment_offset) as segments:
            stream = self._sessions.run(
                lambda connection: make_stream(connection, request, description, keeper, segments)
            )
        return keep(self._sessions, stream)

    def open_stream(
        self,
        name: str,
        *,
        policy: str = "latest",
        max_pins: int = 2,
        depth: int = 0,
        group: str = "",
        follow: bool = False,
        every_n: int = 0,
        max_fps: float = 0.0,
        skip_expired: bool = False,
        stall_limit_s: float = 0.0,
    ) -> ReaderStream:
        """Attaches as a reader. docs/streams.md shows each way.

        Args:
            policy: "latest" jumps to the newest frame; "fifo" gets them in order, and misses those
                that are no longer among the `depth` newest; "lossless" gets each, in order, and
                holds the writer back.
            max_pins: Frames that may be held at once.
            depth: Of "fifo": newest frames that the stream keeps for this reader. Of "lossless":
                with so many published and unread the writer waits; 0: it may use all slots.
            group: Readers of one stream that name the same group share its frames: each goes to
                one of them, and to another if that one dies before it closes the frame.
            follow: Whether to wait for the next writer of this name when this one dies or closes
                its stream, and go on with its frames.
            every_n: Of the frames it would get, one in n; the others are not looked at.
            max_fps: At most so many frames a second; 0: no bound.
            skip_expired: Whether to pass over frames whose deadline is over.
            stall_limit_s: Of "lossless": how long this reader may hold the writer up, taking no
                frame, before the daemon evicts it; 0: as the daemon's --stall-limit says, which
                is the most.

        Raises:
            NotFound: No such stream.
            InvalidRequest: A value out of its limits; policy or depth is not the group's.
            LimitExceeded: The stream has too few slots for this reader, or too many readers.
        """
        reading = Reading(
            policy=policy,
            max_pins=max_pins,
            depth=depth,
            group=group,
            follow=follow,
            every_n=every_n,
            max_fps=max_fps,
            skip_expired=skip_expired,
            stall_limit_s=stall_limit_s,
        )

        def attach(connection: Connection) -> ReaderStream:
            answer = connection.request(reading.attach(name))
            return map_reader(connection, *answer, reading, self._sessions.keeper)

        return keep(self._sessions, self._sessions.run(attach))


def make_stream(
    connection: Connection,
    request: CreateStream,
    description: Description | None,
    keeper: Reconnection | None = None,
    segments: Sequence[int] = (),
) -> WriterStream:
    """Creates, maps and seals a stream; raises as StreamClient.create_stream."""
    answer = connection.request(replace(request), segments)
    stream = map_writer(connection, *answer, description, keeper)
    try:
        connection.request(SealStream(stream=stream.stream_id, generation=stream.generation))
    except BaseException:
        stream.close()
        raise
    return stream


E = TypeVar("E", WriterStream, ReaderStream)


def keep(sessions: Sessions, end: E) -> E:
    """An end that was opened; if the client reconnects, it is made again in each session."""
    if sessions.keeper is not None and isinstance(end, (KeptWriterStream, KeptReaderStream)):
        sessions.keeper.keep(end, end.session)
    return end
