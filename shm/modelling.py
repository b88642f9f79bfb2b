"""What a client has models do: results on a stream, requests, and infer on arrays."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mcpd.shm.connection import Connection
from mcpd.shm.errors import InvalidRequest, WorkerDied
from mcpd.shm.inference import Inference
from mcpd.shm.messages import CreateStream, OpenResults
from mcpd.shm.reading import Reading
from mcpd.shm.requests import Remade, Requests
from mcpd.shm.results import Results, open_results
from mcpd.shm.sessions import Sessions
from mcpd.shm.spec import stream_spec
from mcpd.shm.stream import WriterStream
from mcpd.shm.streaming import StreamClient, make_stream

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mcpd.shm.bundle import TensorSpec
    from mcpd.shm.result import Result

MODEL_WAIT_S = 30.0
"""How long to wait for a model to be loaded, unless a call says otherwise."""


class ModelClient(StreamClient):
    """A client's part about models; see Client."""

    def __init__(self, sessions: Sessions) -> None:
        super().__init__(sessions)
        self._lock = threading.Lock()
        self._numbers = 0
        self._inference = Inference(self.requests, sessions)

    def results(
        self,
        stream: str,
        *,
        model: str,
        version: int = 0,
        frames: str = "latest",
        policy: str | None = None,
        max_pins: int = 2,
        depth: int = 0,
        group: str = "",
        once: bool = False,
        timeout_s: float | None = None,
    ) -> Results:
        """Has a model run on a stream; iterates over what it makes, until the stream ends.

        Args:
            version: 0: the newest.
            frames: Which frames the model gets: "latest" or "lossless", which holds the writer
                back.
            policy: Which results this reader gets, as of `open_stream`; as `frames` if None.
            depth: Of policy "fifo": newest results kept for this reader; of "lossless": with so
                many unread the model waits, 0: while there are slots.
            group: Readers of these results that name the same group share them.
            once: Only when Results.run_once asks, on the newest frame.
            timeout_s: How long the next result may take; None: as long as it takes.

        Raises:
            NotFound: No such stream or model.
            ModelFailed: The model could not be loaded, or cannot work on such frames.
            TimedOut: It was not loaded in time.
        """
        request = results_request(
            stream,
            model,
            version,
            frames,
            Reading(policy=policy or frames, max_pins=max_pins, depth=depth, group=group),
            once,
            timeout_s,
        )
        return Results(self._sessions, request, timeout_s)

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

        If the worker dies with it, it is run once more by the next one.

        Raises:
            As `results`; TimedOut also when there was no frame; WorkerDied if both died.
        """
        deadline = time.monotonic() + timeout_s
        with self.results(
            stream, model=model, version=version, once=True, timeout_s=timeout_s
        ) as results:
            try:
                results.run_once(trace_id)
                return results.next(left_of(deadline))
            except WorkerDied:
                if time.monotonic() >= deadline:
                    raise
                results.run_once(trace_id)  # a new worker is there
                return results.next(left_of(deadline))

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
        spec, description = stream_spec(
            width=width,
            height=height,
            format=format,
            tensors=tensors,
            # Beside what is in flight: the newest frame, the worker's pins and one to turn over.
            slots=slots + 4,
            holds=slots,
            history=1,
            memory="memfd",
            matrix=matrix,
            range=range,
            rotation=0,
            kind="requests",
            slot_nbytes=None,
        )

        def make(session: Connection) -> tuple[WriterStream, OpenResults]:
            writer = make_stream(
                session, CreateStream(name=f"~{session.session}-{number}", spec=spec), description
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
            return writer, request

        def begin(session: Connection) -> Requests:
            writer, request = make(session)
            try:
                return Requests(session, writer, request, remake)
            except BaseException:
                writer.close()
                raise

        def resume(session: Connection) -> Remade:
            writer, request = make(session)
            try:
                return session, writer, request, open_results(session, request)
            except BaseException:
                writer.close()
                raise

        remake = None
        if self._sessions.keeper is not None:
            remake = functools.partial(self._sessions.run, resume, timeout_s)
        return self._sessions.run(begin, timeout_s)

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
        others as tensors. Several threads may call it. If the worker dies with it, it is run once
        more by the next one: at least once, then, as far as a model can tell.

        Args:
            inputs: Array, or arrays by the names of the model's inputs.
            format: Of an image given otherwise: such as "bgr24", or "nv12" and "i420" as one array
                of height * 3 / 2 rows.
            timeout_s: For everything together, loading the model included.

        Raises:
            InvalidRequest: The model does not take such inputs.
            ModelFailed: It could not be loaded, or failed on them.
            WorkerDied: Two workers died of it, or at the time.
            TimedOut: It took longer.
        """
        return self._inference.infer(model, inputs, format, timeout_s, version)


def left_of(deadline_s: float) -> float:
    """What is left until a time by time.monotonic, at least enough to look once."""
    return max(0.001, deadline_s - time.monotonic())


def results_request(
    stream: str,
    model: str,
    version: int,
    frames: str,
    reading: Reading,
    once: bool,
    timeout_s: float | None,
) -> OpenResults:
    """The request that opens a model's results.

    Raises:
        InvalidRequest: `frames` is none that a model can be given.
    """
    if frames not in ("latest", "lossless"):
        raise InvalidRequest(
            f"frames is {frames!r}; it must be latest or lossless",
            "It is which frames the model gets; policy is which results you get.",
        )
    return OpenResults(
        stream=stream,
        model=model,
        version=version,
        frames=frames,
        results=reading.policy,
        max_pins=reading.max_pins,
        depth=reading.depth,
        group=reading.group,
        once=once,
        wait_s=MODEL_WAIT_S if timeout_s is None else timeout_s,
    )
