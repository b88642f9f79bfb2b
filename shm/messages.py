"""Every message of the control protocol, typed once for both sides; drawn in docs/control.md.

A message is one msgpack map. `type` names it; a request has an `id` above 0 and gets one Reply or
ErrorReply with the same id; id 0 is a notification. Either side may send requests. `fds` is the
number of descriptors that ride on the message's first byte. Unknown fields are ignored.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

PROTOCOL_VERSION = 1
MAX_MESSAGE_NBYTES = 64 * 1024
MAX_FDS = 8
PAGE_LENGTH = 100
"""Most entries in one page of a listing."""


class Message(Struct, tag_field="type", omit_defaults=True, kw_only=True):
    """What every message has."""

    id: int = 0
    fds: int = 0


class Reply(Message, tag="reply"):
    """The answer to a request: the fields of the request's result, see each request."""

    result: dict[str, Any] = field(default_factory=dict)


class ErrorReply(Message, tag="error"):
    """The answer to a request that failed, or with id 0 the reason why the session ends."""

    code: str
    message: str
    hint: str = ""


class Hello(Message, tag="hello"):
    """First request of a session. Result: version, session, daemon_pid, daemon_version, instance,
    socket."""

    versions: list[int]
    client: str = ""
    """What the peer calls itself, for status and leaks: a program's name, at most 64 characters."""


# ---- streams -----------------------------------------------------------------------------------


class StreamSpec(Struct, omit_defaults=True, kw_only=True):
    """What a stream is to carry: its geometry, and the description of its frames if fixed."""

    slots: int
    slot_nbytes: int
    """Bytes of payload a slot must hold; the daemon rounds it up to whole pages."""
    kind: str = "frames"
    """"frames", "tensors", "requests" or "results"."""
    history: int = 1
    holds: int = 2
    memory: str = "memfd"
    """"memfd", "posix" or "foreign"."""
    format: str = ""
    width: int = 0
    height: int = 0


class StreamGrant(Struct, omit_defaults=True, kw_only=True):
    """A stream as handed to its writer or a reader; numbers to map it by come only from here."""

    stream: int
    name: str
    generation: int
    slots: int
    slot_nbytes: int
    spec: StreamSpec
    shm_name: str = ""
    """The payload's name under /dev/shm, if memory is "posix"."""
    payload_offset: int = 0
    """Bytes of the payload object before slot 0, if memory is "foreign"."""
    first_seq: int = 1
    """Sequence number of this generation's first frame."""
    reader: int = 0
    """0 for the writer."""
    max_pins: int = 0
    policy: str = ""
    depth: int = 0
    start_seq: int = 0
    group: int = 0
    """0: the reader is of no group."""
    member: int = 0


class CreateStream(Message, tag="create_stream"):
    """Result: StreamGrant. fds: writer control, payload, writer's wake eventfd.

    Nobody may attach until the writer has mapped it and sent SealStream. A name whose writer died
    or left goes on under it: the same stream, the next generation. With memory "foreign" it brings
    one descriptor, of the segment that the slots are to be in; no other message brings any.
    """

    name: str
    spec: StreamSpec
    segment_offset: int = 0
    """Where in that segment they are to begin."""
    site: str = ""
    """Where in the program it was asked for, if it traces: at most 200 characters."""
    first_seq: int = 0
    """The number that the first frame should have: a writer that had the stream in an earlier
    session goes on counting. Not below what the daemon remembers of the name; 0: as it says."""


class ResizeStream(Message, tag="resize_stream"):
    """The writer goes on in other memory. Result and fds as for CreateStream, of the next
    generation; the old one goes on until that is sealed."""

    stream: int
    spec: StreamSpec
    first_seq: int
    """The number after the last published."""


class SealStream(Message, tag="seal_stream"):
    """The writer has mapped its objects: from now on nobody can map them writable. Result: {}.

    Before the reply the readers of the generation before are brought over.
    """

    stream: int
    generation: int = 0
    """0: the newest."""


class CloseStream(Message, tag="close_stream"):
    """The writer has ended and unmapped a generation of its stream. Result: {}."""

    stream: int
    generation: int = 0
    """0: the newest."""


class AttachReader(Message, tag="attach_reader"):
    """Result: StreamGrant. fds: writer control, payload, reader control, reader's wake eventfd;
    for policy "lossless" and for members the writer's wake eventfd; for members the group's
    control.
    """

    stream: str
    policy: str = "latest"
    max_pins: int = 2
    depth: int = 0
    """Of "fifo": newest frames kept for it. Of "lossless": with so many unread the writer waits."""
    group: str = ""
    """Readers of one stream that give the same name share its frames."""
    follow: bool = False
    """Whether to wait for the next writer of that name when this one is gone."""
    stall_limit_s: float = 0.0
    """Of "lossless": how long it may hold the writer up before it is evicted; 0: as the daemon's
    setting, which it cannot exceed."""
    site: str = ""
    """As of CreateStream."""


class OpenResults(Message, tag="open_results"):
    """Has a model run on a stream and attaches the caller to the results. Result and fds: as for
    AttachReader, with `model` (name), `version` and `labels` (list of names) beside the grant's
    fields under "grant".

    frames: how the worker reads the stream, "latest" or "lossless". results: the caller's policy,
    with depth and group as for AttachReader.
    once: the model runs only when RunOnce asks, on the newest frame.
    """

    stream: str
    model: str
    version: int = 0
    frames: str = "latest"
    results: str = "latest"
    max_pins: int = 2
    depth: int = 0
    group: str = ""
    once: bool = False
    wait_s: float = 30.0
    """How long to wait for the model to be loaded."""
    site: str = ""
    """As of CreateStream."""


class RunOnce(Message, tag="run_once"):
    """Runs a `once` binding on the newest frame of its stream; one result follows. Result: {}."""

    reader: int
    trace_id: bytes = b""


class DetachReader(Message, tag="detach_reader"):
    """The reader has unmapped; it and its pins are free. Result: {}."""

    reader: int


# ---- to the writer of a stream, by the daemon --------------------------------------------------


class GroupJoin(Message, tag="group_join"):
    """Request to the writer, before the group's first ReaderJoin. Result: start_seq. fds: group
    control (read-only)."""

    stream: int
    generation: int
    group: int
    policy: str
    depth: int = 0


class GroupLeave(Message, tag="group_leave"):
    """Notification to the writer: the group's last member has left."""

    stream: int
    group: int


class ReaderJoin(Message, tag="reader_join"):
    """Request to the writer. Result: start_seq. fds: reader control (read-only), reader's wake."""

    stream: int
    reader: int
    max_pins: int
    policy: str
    generation: int = 1
    depth: int = 0
    group: int = 0
    member: int = 0


class ReaderLeave(Message, tag="reader_leave"):
    """Notification to the writer. pins: "keep" while its process may still look, else "drop"."""

    stream: int
    reader: int
    pins: str


class StreamMoved(Message, tag="stream_moved"):
    """Notification to a reader that is brought over to another generation. fds: as for
    AttachReader. It finishes the old generation first, then detaches from it."""

    reader: int
    """Its number in the old generation."""
    grant: StreamGrant


class ReaderEvicted(Message, tag="reader_evicted"):
    """Notification to a lossless reader that held its writer up for too long: it is owed nothing
    more, in any generation, and detaches when it looks at no frame any more."""

    reader: int
    reason: str


class StreamEndedNote(Message, tag="stream_ended"):
    """Notification to readers and, when the daemon took the stream away, to its writer."""

    stream: int
    reason: str
    generation: int = 1
    detail: str = ""
    """Why the daemon ended the writer, if it did."""


# ---- models and workers ------------------------------------------------------------------------


class Serve(Message, tag="serve"):
    """Request to a worker: attach to a stream and write results to a stream of its own.

    Result: stream (id of the results stream, created and sealed by then).
    """

    binding: int
    stream: str
    results_name: str
    frames: str
    once: bool = False


class Unserve(Message, tag="unserve"):
    """Request to a worker: nobody reads this binding's results any more. Result: {}."""

    binding: int


class Run(Message, tag="run"):
    """Notification to a worker: run a `once` binding on the newest frame."""

    binding: int
    trace_id: bytes = b""


class WorkerState(Message, tag="worker_state"):
    """Notification by a worker. state: "ready" or "failed"; details for status.

    details: engine, provider, load_s, warm_s, inputs and outputs as {name: {dtype, shape}}.
    """

    state: str
    error: str = ""
    details: dict[str, Any] = field(default_factory=dict)


class WorkerStats(Message, tag="worker_stats"):
    """Notification by a worker, about once a second while it works: counters since its start."""

    frames: int
    errors: int
    busy_ns: int
    prepare_ns: int
    infer_ns: int
    decode_ns: int


# ---- questions ---------------------------------------------------------------------------------


class Status(Message, tag="status"):
    """Result: daemon {pid, version, uptime_s, socket, rss_bytes, cpu_s, io, sessions,
    memory_bytes}, models, streams and workers as counts. Lists come from the List requests."""


class List(Message, tag="list"):
    """One page of a table. what: "streams", "models", "sessions", "readers", "leases", "workers"
    or "limits".

    Result: items (list of maps, see docs/control.md), cursor ("" on the last page).
    """

    what: str
    cursor: str = ""


class LoadModels(Message, tag="load_models"):
    """Reads the model repository again and starts what is new or parked. Result: models (names)."""

    model: str = ""
    """Only this one is started."""


class Stop(Message, tag="stop"):
    """Has the daemon drain and end. Result: {} before it does."""


REQUESTS: tuple[type[Message], ...] = (
    Hello, CreateStream, ResizeStream, SealStream, CloseStream, AttachReader, OpenResults, RunOnce,
    DetachReader, Status, List, LoadModels, Stop,
)  # fmt: skip
"""What a client may ask of the daemon."""

WORKER_MESSAGES: tuple[type[Message], ...] = (WorkerState, WorkerStats)
"""What only a worker may tell the daemon."""

TO_CLIENT: tuple[type[Message], ...] = (
    Reply, ErrorReply, GroupJoin, GroupLeave, ReaderJoin, ReaderLeave, StreamMoved, ReaderEvicted,
    StreamEndedNote,
    Serve, Unserve, Run,
)  # fmt: skip
"""What the daemon may send; the last three to workers only."""
