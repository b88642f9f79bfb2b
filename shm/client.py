"""The client: connect to the daemon, make and open streams, have models run."""

from __future__ import annotations

import os
import socket as sockets
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from mcpd.shm.connection import Connection
from mcpd.shm.errors import McpdError
from mcpd.shm.inference import Inference
from mcpd.shm.messages import (
    AttachReader,
    CreateStream,
    List,
    LoadModels,
    Message,
    OpenResults,
    SealStream,
    Status,
    Stop,
)
from mcpd.shm.paths import open_socket, resolve_socket
from mcpd.shm.requests import Requests
from mcpd.shm.results import Results
from mcpd.shm.spec import stream_spec
from mcpd.shm.stream import ReaderStream, WriterStream, map_reader, map_writer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mcpd.shm.bundle import TensorSpec
    from mcpd.shm.result import Result

Rows = list[dict[str, Any]]
MODEL_WAIT_S = 30.0
"""How long to wait for a model to be loaded, unless a call says otherwise."""


def connect(
    socket: str | os.PathLike[str] | None = None, *, timeout_s: float = 5.0, name: str = ""
) -> Client:
    """Connects to the daemon.

    Args:
        socket: Its socket; by default as docs/architecture.md says.
        timeout_s: How long it may take to accept and greet.
        name: What this program calls itself, for `mcpd status`.

    Raises:
        DaemonUnavailable: No daemon listens there.
        NotPermitted: The socket is another user's.
        InvalidRequest: The path cannot be a socket's, or timeout_s be a time.
        TimedOut, UnsupportedVersion: It does not greet, or speaks another protocol.
    """
    sock = open_socket(resolve_socket(socket), timeout_s)
    return Client(Connection(sock, name=name, timeout_s=timeout_s))


class Client:
    """A session with the daemon. A context manager that closes. Safe for threads, not over fork.

    Made by `connect`, or `from_socket` where the socket is there already.

    Attributes:
        connection: What it talks over.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._lock = threading.Lock()
        self._numbers = 0
        self._inference = Inference(self.requests)

    @classmethod
    def from_socket(
        cls,
        sock: sockets.socket,
        *,
        name: str = "",
        timeout_s: float = 5.0,
        on_message: Callable[[Message], None] | None = None,
        on_closed: Callable[[McpdError], None] | None = None,
    ) -> Self:
        """A client over a connected socket, its own from the call on; see Connection."""
        return cls(
            Connection(
                sock, name=name, timeout_s=timeout_s, on_message=on_message, on_closed=on_closed
            )
        )

    @property
    def session(self) -> int:
        """The daemon's number of this session."""
        return self.connection.session

    @property
    def daemon_pid(self) -> int:
        """The daemon's process."""
        return self.connection.daemon_pid

    @property
    def socket(self) -> str:
        """Where the daemon listens."""
        return self.connection.socket_path

    # ---- streams -------------------------------------------------------------------------------

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
            memory: "memfd", or "posix" for a payload with a name under /dev/shm.
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
        result, fds = self.connection.request(CreateStream(name=name, spec=spec))
        stream = map_writer(self.connection, result, fds, description)
        try:
            self.connection.request(SealStream(stream=stream.stream_id))
        except BaseException:
            stream.close()
            raise
        return stream

    def open_stream(self, name: str, *, policy: str = "latest", max_pins: int = 2) -> ReaderStream:
        """Attaches as a reader.

        Args:
            policy: "latest" jumps to the newest frame; "lossless" gets each, in order, and holds
                the writer back.
            max_pins: Frames that may be held at once.

        Raises:
            NotFound: No such stream.
            LimitExceeded: The stream has too few slots for more pins, or too many readers.
        """
        message = AttachReader(stream=name, policy=policy, max_pins=max_pins)
        result, fds = self.connection.request(message)
        return map_reader(self.connection, result, fds)

    # ---- models --------------------------------------------------------------------------------

    def results(
        self,
        stream: str,
        *,
        model: str,
        version: int = 0,
        frames: str = "latest",
        policy: str | None = None,
        max_pins: int = 2,
        once: bool = False,
        timeout_s: float | None = None,
    ) -> Results:
        """Has a model run on a stream; iterates over what it makes, until the stream ends.

        Args:
            version: 0: the newest.
            frames: Which frames the model gets: "latest" or "lossless", which holds the writer
                back.
            policy: Which results this reader gets; as `frames` if None.
            once: Only when Results.run_once asks, on the newest frame.
            timeout_s: How long the next result may take; None: as long as it takes.

        Raises:
            NotFound: No such stream or model.
            ModelFailed: The model could not be loaded, or cannot work on such frames.
            TimedOut: It was not loaded in time.
        """
        request = OpenResults(
            stream=stream,
            model=model,
            version=version,
            frames=frames,
            results=policy or frames,
            max_pins=max_pins,
            once=once,
            wait_s=MODEL_WAIT_S if timeout_s is None else timeout_s,
        )
        return Results(self.connection, request, timeout_s)

    def run_once(
        self,
        stream: str,
        *,
        model: str,
        version: int = 0,
        timeout_s: float = MODEL_WAIT_S,
        trace_id: bytes = b"",
    ) -> Result:
        """Runs a model on the newest frame of a stream, or its first if there is none yet.

        Raises:
            As `results`; TimedOut also when there was no frame.
        """
        with self.results(
            stream, model=model, version=version, once=True, timeout_s=timeout_s
        ) as results:
            results.run_once(trace_id)
            return results.next()

    def requests(
        self,
        model: str,
        *,
        width: int = 0,
        height: int = 0,
        format: str = "",
        tensors: Mapping[str, TensorSpec] | None = None,
        matrix: str = "bt709",
        range: str = "limited",
        slots: int = 4,
        version: int = 0,
        timeout_s: float = MODEL_WAIT_S,
    ) -> Requests:
        """A private stream of inputs to a model, results matched to them.

        Args:
            slots: Inputs that may be in flight at once.
            timeout_s: How long to wait for the model to be loaded.

        Raises:
            As `create_stream` and `results`.
        """
        with self._lock:
            self._numbers += 1
            number = self._numbers
        writer = self.create_stream(
            f"~{self.session}-{number}",
            width=width,
            height=height,
            format=format,
            tensors=tensors,
            matrix=matrix,
            range=range,
            kind="requests",
            # Beside what is in flight: the newest frame, the worker's pins and one to turn over.
            slots=slots + 4,
            holds=slots,
        )
        request = OpenResults(
            stream=writer.name,
            model=model,
            version=version,
            frames="lossless",
            results="lossless",
            max_pins=2,
            wait_s=timeout_s,
        )
        try:
            return Requests(self.connection, writer, request)
        except BaseException:
            writer.close()
            raise

    def infer(
        self,
        model: str,
        inputs: Mapping[str, NDArray[Any]] | NDArray[Any],
        *,
        format: str | None = None,
        timeout_s: float = MODEL_WAIT_S,
        version: int = 0,
    ) -> Result:
        """Runs a model on arrays and waits for its result.

        The arrays are copied into a slot; to spare that, fill a slot of `requests` yourself. A
        single uint8 array of shape (height, width, 3) or (height, width) travels as an image,
        others as tensors. Several threads may call it.

        Args:
            inputs: Array, or arrays by the names of the model's inputs.
            format: Of an image given otherwise: such as "bgr24", or "nv12" and "i420" as one array
                of height * 3 / 2 rows.
            timeout_s: For everything together, loading the model included.

        Raises:
            InvalidRequest: The model does not take such inputs.
            ModelFailed: It could not be loaded, or failed on them.
            WorkerDied: Its worker died of it, or at the time; may be tried again.
            TimedOut: It took longer.
        """
        return self._inference.infer(model, inputs, format, timeout_s, version)

    # ---- questions -----------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """The daemon and counts of what it has; see docs/control.md."""
        return self.connection.request(Status())[0]

    def list(self, what: str) -> Rows:
        """Every row of a table: "streams", "models", "sessions", "leases" or "workers".

        Raises:
            InvalidRequest: No such table.
        """
        rows: Rows = []
        cursor = ""
        while True:
            page, _ = self.connection.request(List(what=what, cursor=cursor))
            rows.extend(page["items"])
            cursor = page.get("cursor", "")
            if not cursor:
                return rows

    def load_models(self) -> list[str]:  # type: ignore[valid-type]
        """Has the daemon read its model repository again; the names of all models."""
        return [str(name) for name in self.connection.request(LoadModels())[0]["models"]]

    def stop(self) -> None:
        """Has the daemon drain and end."""
        self.connection.request(Stop())

    # ---- life ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Closes every stream of this client and ends the session. Idempotent.

        Does nothing in a forked child: the session is its parent's.
        """
        if self.connection.inherited:
            return
        self._inference.close()
        for stream in self.connection.streams.all():
            stream.close()
        self.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
