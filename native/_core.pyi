"""The C core as Python sees it: streams in shared memory, fused preparation, process ties.

Times are CLOCK_MONOTONIC nanoseconds, as from time.monotonic_ns(). Descriptors passed in stay the
caller's: what is needed later is mapped or duplicated. Every blocking call releases the GIL and
answers signals. Objects may be used from several threads.
"""

from collections.abc import Iterable
from typing import Any, Final, Self

from typing_extensions import Buffer

ABI_VERSION: Final[int]
MAX_READERS: Final[int]
MAX_SLOTS: Final[int]
MAX_PINS: Final[int]
MAX_TENSORS: Final[int]
NO_TIME: Final[int]
POLICY_LATEST: Final[int]
POLICY_FIFO: Final[int]
POLICY_LOSSLESS: Final[int]
END_LIVE: Final[int]
END_CLOSED: Final[int]
END_WRITER_DIED: Final[int]
END_REVOKED: Final[int]
END_SHUTDOWN: Final[int]
END_MOVED: Final[int]
LATENCY_BUCKETS: Final[int]

class StreamEnded(Exception):
    """The stream has ended and nothing is left to read. args: (reason,), one of END_*."""

def payload_nbytes(nslots: int, slot_nbytes: int) -> int: ...
def writer_control_nbytes(nslots: int) -> int: ...
def reader_control_nbytes(max_pins: int) -> int: ...
def group_control_nbytes(nslots: int) -> int: ...
def die_with_parent(signum: int, parent_pid: int) -> None:
    """Has the kernel send signum to this process when its parent dies; now, if it is gone already.

    The kernel means the thread that started the process: start children from one that lives on.
    """

def set_dumpable(dumpable: bool) -> None: ...
def copy_rows(target: Buffer, source: Buffer, non_temporal: bool = False, /) -> bool:
    """Copies a plane into one of the same shape; releases the GIL.

    False, and nothing is copied, where a row's bytes do not follow one another or the two overlap.
    Rows, the first dimension, may be any bytes apart, also backwards. ValueError if the shapes
    differ. non_temporal: past the caches, where the processor can.
    """

class WriterControl:
    """The daemon's view of a writer's control object: it formats it, ends it and counts."""

    def __init__(self, fd: int, nslots: int) -> None: ...
    def initialise(
        self, stream_id: int, generation: int, slot_nbytes: int, first_seq: int = 1
    ) -> None: ...
    def end(self, reason: int) -> None:
        """Marks the stream ended unless it is already; waking the readers is the caller's part."""

    def stats(self) -> dict[str, int]:
        """The writer's counters.

        head, ended, published, abandoned, would_block, blocked_ns, blocked_since_ns, wakes,
        publish_ns, nbytes, held.
        """

    def close(self) -> None: ...

class ReaderControl:
    """The daemon's view of a reader's control object."""

    def __init__(self, fd: int, max_pins: int) -> None: ...
    def initialise(self, stream_id: int, generation: int, reader_id: int) -> None: ...
    def pins(self) -> list[tuple[int, int]]:
        """(seq, slot) of every pin that stands now."""

    def stats(self) -> dict[str, int]:
        """cursor, asleep, received, skipped, dropped, passed, expired, wakeups, spurious, retries,
        pinned, pinned_since_ns, longest_pin_ns."""

    def latency(self) -> list[int]:
        """Frames by time from publish to pin: LATENCY_BUCKETS counts, the first those below
        2^10 ns, each other those below twice the bound before it, the last all others."""

    def close(self) -> None: ...

class GroupControl:
    """The daemon's view of a group's control object."""

    def __init__(self, fd: int, nslots: int) -> None: ...
    def initialise(self, stream_id: int, generation: int, group_id: int) -> None: ...
    def start(self, cursor: int) -> None:
        """Sets the group's cursor; once, before the first member comes."""

    def sweep(self, member: int, others: bool) -> int:
        """The member is gone and its process cannot look any more: what it had claimed goes back to
        the group, or is done with if there are no others. Returns how many claims that were;
        signalling the members is the caller's part."""

    def claims(self) -> list[tuple[int, int, int, int]]:
        """(slot, seq, member, state) of every claim that pins a frame: 1 taken, 3 returned."""

    def stats(self) -> dict[str, int]:
        """cursor, returned, finished, returns."""

    def close(self) -> None: ...

class WriteSlot:
    """One acquired slot. A writable buffer of slot_nbytes; exported views keep the slot from reuse.

    Attributes may be set until publish; afterwards seq and publish_ns tell what was published.
    Times are NO_TIME unless set. A slot that is dropped unpublished is abandoned.
    """

    index: Final[int]
    seq: Final[int]
    publish_ns: Final[int]
    published: Final[bool]
    nbytes: int  # payload bytes in use; slot_nbytes unless set
    pts_ns: int
    capture_ns: int
    deadline_ns: int
    trace_id: bytes  # 16 bytes; b"" sets none
    source_seq: int
    source_stream: int
    source_publish_ns: int
    awake_ns: int
    finish_ns: int
    model_version: int
    flags: int
    status: int
    def describe(self, description: Buffer) -> None:
        """Sets the slot's description: the first bytes of struct mcpd_description, at least 128."""

    def publish(self) -> int:
        """Publishes and returns the sequence number.

        Raises ValueError if published or abandoned already, StreamEnded when the stream has ended
        (the slot then stays acquired). Views exported now keep the slot among the writer's holds.
        """

    def abandon(self) -> None:
        """Gives the slot back unpublished. Idempotent; does nothing after publish."""

    def __buffer__(self, flags: int, /) -> memoryview: ...

class Slot:
    """What shm.slot.Slot derives from: an acquired slot, its core, and views made of it."""

    core: Final[WriteSlot]
    grant: Any
    closed: Final[bool]  # abandoned
    _description: Any
    _planes: Any
    _tensors: Any
    index: Final[int]
    seq: Final[int]
    publish_ns: Final[int]
    nbytes: int
    pts_ns: int
    capture_ns: int
    deadline_ns: int
    trace_id: bytes
    source_seq: int
    source_stream: int
    source_publish_ns: int
    awake_ns: int
    finish_ns: int
    model_version: int
    flags: int
    status: int
    def publish(self) -> int: ...
    def abandon(self) -> None:
        """Gives the slot back unpublished. Idempotent; does nothing after publish."""

    def __enter__(self) -> Self: ...
    def __exit__(self, kind: object, error: object, traceback: object, /) -> None:
        """Publishes, or abandons when an exception left; `publish` of the subclass raises."""

class Writer:
    def __init__(
        self,
        control_fd: int,
        payload_fd: int,
        wake_fd: int,
        *,
        stream_id: int,
        generation: int,
        nslots: int,
        slot_nbytes: int,
        first_seq: int = 1,
        history: int = 1,
        holds: int = 2,
        payload_offset: int = 0,
    ) -> None: ...
    def add_group(self, group: int, control_fd: int, policy: int, depth: int = 0) -> int:
        """Returns the first sequence number that the group is owed; 0 for POLICY_LATEST.

        Errors as add_reader, and EINVAL for a depth that does not fit the policy.
        """

    def remove_group(self, group: int) -> None:
        """Forgets a group that has no members. OSError: EBUSY if it has, ENOENT: not known."""

    def add_reader(
        self,
        reader_id: int,
        control_fd: int,
        wake_fd: int,
        max_pins: int,
        policy: int,
        depth: int = 0,
        group: int = 0,
        member: int = 0,
    ) -> int:
        """Returns the first sequence number that the reader is owed; 0 for latest and for members.

        OSError with errno ENOSPC: too few slots; EUSERS: MAX_READERS reached; EEXIST: the id is in
        use; ENOENT: no such group; EINVAL: a value out of its bounds.
        """

    def release_reader(self, reader_id: int) -> None: ...
    def remove_reader(self, reader_id: int) -> None: ...
    def presents(
        self,
        slot: type[Slot],
        grant: Any,
        description: Any,
        packed: bytes | None,
        nbytes: int,
        flags: int,
        /,
    ) -> None:
        """Has `acquire` give instances of that class, with `grant` and `description`.

        packed: Describes every slot, if given; then nbytes and flags are those of its frames.
        """

    def acquire(self, timeout_s: float | None = None) -> Any:
        """The most recently freed slot, a WriteSlot or as `presents` says.

        None when none came free in time (0: does not wait).

        Raises BufferError when `holds` slots are held, StreamEnded when the stream has ended.
        """

    def freeze(self, frozen: bool) -> None:
        """While the stream is resized: acquire waits as if there was no room, and publish raises
        ValueError; readers are still admitted. False lets both go on."""

    def end(self, reason: int) -> None: ...
    def fileno(self) -> int:
        """Readable when a lossless reader made room after an acquire that would have blocked."""

    def arm(self) -> bool:
        """For event loops: True if a slot is free now, else fileno() will become readable."""

    def disarm(self) -> None: ...
    def stats(self) -> dict[str, int]: ...
    def close(self) -> None:
        """Detaches; the mapping goes when the last exported view is gone. Idempotent."""

class PinnedSlot:
    """One pinned frame: a read-only buffer of the slot's bytes in use. The metadata are copies.

    The pin lasts until close() was called, or the object is gone, and no exported view is left.
    """

    pin: Final[int]
    index: Final[int]
    generation: Final[int]
    seq: Final[int]
    nbytes: Final[int]
    pts_ns: Final[int]
    capture_ns: Final[int]
    publish_ns: Final[int]
    deadline_ns: Final[int]
    trace_id: Final[bytes]
    source_seq: Final[int]
    source_stream: Final[int]
    source_publish_ns: Final[int]
    awake_ns: Final[int]
    finish_ns: Final[int]
    model_version: Final[int]
    flags: Final[int]
    status: Final[int]
    description: Final[bytes]  # a copy: 128 + 192 * ntensors bytes, with ntensors checked
    @property
    def lost(self) -> bool:
        """Whether memory under what its reader reads was taken away; as it was at the unpin."""

    def close(self) -> None: ...
    def give_back(self) -> None:
        """A member is not done with the frame: closes it and leaves it to the group.

        BufferError while views are exported: they would outlive the claim.
        """

    def __buffer__(self, flags: int, /) -> memoryview: ...

class Frame:
    """What shm.frame.Frame derives from: a pinned frame, its core, and views made of it."""

    core: Final[PinnedSlot]
    grant: Any
    closed: Final[bool]
    _description: Any
    _planes: Any
    _tensors: Any
    seq: Final[int]
    generation: Final[int]
    nbytes: Final[int]
    pts_ns: Final[int]
    capture_ns: Final[int]
    publish_ns: Final[int]
    deadline_ns: Final[int]
    trace_id: Final[bytes]
    source_seq: Final[int]
    source_stream: Final[int]
    source_publish_ns: Final[int]
    awake_ns: Final[int]
    finish_ns: Final[int]
    model_version: Final[int]
    flags: Final[int]
    status: Final[int]
    def close(self) -> None:
        """Unpins, once no view is left that the caller took. Idempotent."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...

class Reader:
    def __init__(
        self,
        writer_control_fd: int,
        payload_fd: int,
        control_fd: int,
        wake_fd: int,
        writer_wake_fd: int = -1,
        group_fd: int = -1,
        *,
        stream_id: int,
        generation: int,
        nslots: int,
        slot_nbytes: int,
        max_pins: int,
        policy: int,
        start_seq: int = 0,
        first_seq: int = 1,
        depth: int = 0,
        group: int = 0,
        member: int = 0,
        every_n: int = 0,
        interval_ns: int = 0,
        skip_expired: bool = False,
        payload_offset: int = 0,
    ) -> None: ...
    def presents(self, frame: type[Frame], grant: Any, /) -> None:
        """Has `next` give instances of that class, with `grant`, instead of PinnedSlot."""

    def next(self, timeout_s: float | None = None) -> Any:
        """The next frame by the policy; None when none came in time (0: does not wait).

        Raises BufferError when all pins are in use, StreamEnded when nothing is left to come,
        OSError with errno EBADMSG when what the writer left in shared memory makes no sense. While
        armed, a call that finds nothing drains fileno() and leaves the reader armed.
        """

    def recent(self, count: int, /) -> list[Any]:
        """Those of the `count` newest frames that still stand, seen or not, oldest first; each a
        PinnedSlot or as `presents` says.

        They count as seen. Empty when there is none. BufferError: fewer than `count` pins are
        free; ValueError: not a `latest` reader of its own, or count below 1.
        """

    def arm(self) -> bool:
        """For event loops: True if something is there now, else fileno() will become readable."""

    def disarm(self) -> None:
        """After fileno() became readable: drains it and is awake again."""

    def fileno(self) -> int: ...
    def ended(self) -> int: ...
    def stats(self) -> dict[str, int]: ...
    def close(self) -> None: ...

class Preparation:
    """Turns a frame into model input in one pass, with no intermediate image (prepare/prepare.h).

    out is float32, float16, uint8 or int8, layout "nchw" or "nhwc", channels "rgb", "bgr" or
    "gray": value = (pixel * scale - mean[c]) / std[c], with pixel in 0..255. uint8 and int8 are
    quantised: round_half_even(value / quant_scale) + zero_point, kept within the type.
    resize: "stretch", "letterbox" (scaled to fit, centred, padded with pad_value) or "crop" (scaled
    to cover, centred). sampling: "half_pixel" (centre of pixel i at i + 0.5, as OpenCV, PyTorch),
    "corner" (source = i * ratio, as TensorFlow 1), both bilinear; or "area" (the mean over what an
    output pixel covers, bilinear along an axis that is enlarged, as OpenCV's INTER_AREA is of
    pictures made smaller).
    roi: the rectangle (x, y, width, height) of the frame as stored that is prepared, in pixels,
    fractions allowed; None: the whole frame. Pixels that it does not touch do not count: its edges
    are repeated.
    rotation: degrees clockwise that the frame, or its roi, is turned by first: 0, 90, 180 or 270.
    """

    def __init__(
        self,
        *,
        format: int,
        width: int,
        height: int,
        plane_offsets: tuple[int, ...],
        plane_strides: tuple[int, ...],
        matrix: int,
        range: int,
        out_width: int,
        out_height: int,
        layout: str,
        dtype: str,
        channels: str,
        resize: str,
        sampling: str,
        scale: float,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        pad_value: float,
        roi: tuple[float, float, float, float] | None = None,
        rotation: int = 0,
        quant_scale: float = 0.0,  # 0: 1
        zero_point: int = 0,
    ) -> None: ...
    out_nbytes: Final[int]  # of one image
    isa: Final[str]
    """The instruction set that runs it: "avx2" or "scalar", the same results to the bit.

    The fastest that the processor has, or at most the one that MCPD_PREPARE in the environment
    names when the object is made: ValueError for one that is unknown or that it does not have.
    Rows of fewer than 16 bytes are always left to portable code.
    """
    transform: Final[tuple[float, float, float, float]]
    """(ax, bx, ay, by): source pixel x = ax * output pixel x + bx, in continuous coordinates.

    ValueError for a frame turned by 90 or 270 degrees, whose axes are exchanged: see `affine`.
    """
    affine: Final[tuple[float, float, float, float, float, float]]
    """(a, b, c, d, e, f): source x = a * x + b * y + c, source y = d * x + e * y + f, continuous.

    x and y are an output pixel's, the source's of the frame as stored, whatever roi and rotation.
    """
    def run(
        self,
        source: Buffer,
        out: Buffer,
        index: int = 0,
        *,
        threads: int = 1,
        padded: bool = False,
    ) -> None:
        """Writes image `index` of the batch tensor `out`; releases the GIL.

        threads: up to how many make it (1 to 64), the caller's among them; the result is the same
        to the bit. padded: the image was written by this preparation before, so that its padding is
        there and is left as it is.
        ValueError when a buffer is too small for the geometry given.
        """

    @classmethod
    def run_batch(
        cls,
        frames: Iterable[tuple[Preparation, Buffer, int]],
        out: Buffer,
        *,
        threads: int = 1,
        padded: bool = False,
    ) -> None:
        """Writes images of the batch tensor `out`, one for each (preparation, source, index).

        Preparations may differ in the frames they take, not in the shape and dtype they make.
        threads are shared by all images; else as `run`.
        """
