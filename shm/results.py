"""A model's results on a stream, one after the other, across deaths of its worker."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec.structs import replace

from mcpd.shm.errors import (
    DaemonUnavailable,
    McpdError,
    NotFound,
    ProtocolError,
    StreamClosed,
    TimedOut,
    WorkerDied,
    WouldBlock,
)
from mcpd.shm.lossless import LosslessOrder
from mcpd.shm.messages import OpenResults, RunOnce
from mcpd.shm.result import Detection, Result
from mcpd.shm.sessions import Sessions
from mcpd.shm.stream import ReaderStream, map_reader

if TYPE_CHECKING:
    from mcpd.shm.connection import Connection
    from mcpd.shm.replies import Answer

__all__ = ["Detection", "Result", "ResultReader", "Results", "open_results"]

STOPPING_S = 1.0
"""How long a daemon that has said "shutdown" of a stream may take to be gone."""
LOOK_S = 0.3
"""How often a thread that waits for the daemon looks whether the results were closed."""
OPEN_GRACE_S = 35.0
"""How long a reply may take beyond the wait for the model: the worker has to attach as well."""


class ResultReader:
    """A reader of a results stream and what is the same for all its results.

    Attributes:
        start_seq: Of results of every frame, the first frame that has one; 0 if that is not known.
    """

    def __init__(self, connection: Connection, request: OpenResults, answer: Answer) -> None:
        result, fds = answer
        self.connection = connection
        self.stream: ReaderStream = map_reader(connection, result.get("grant"), fds)
        try:
            self.source = request.stream
            self.model = str(result["model"])
            self.version = int(result["version"])
            self.start_seq = int(result.get("start_seq", 0))
            self.labels = [str(label) for label in result["labels"]]
        except (KeyError, TypeError, ValueError) as error:
            self.stream.close()
            raise ProtocolError(f"reply to open_results is not readable: {error!r}") from error

    def next(self, timeout_s: float | None = None) -> Result:
        """The next result; raises as ReaderStream.next."""
        return Result(
            self.stream.next(timeout_s),
            stream=self.source,
            model=self.model,
            version=self.version,
            labels=self.labels,
        )


def open_results(connection: Connection, request: OpenResults) -> ResultReader:
    """Has the daemon run a model on a stream and attaches to what it makes.

    Raises:
        NotFound: No such stream or model.
        ModelFailed: The model could not be loaded.
        TimedOut: It was not loaded in `request.wait_s`.
    """
    fresh = replace(request)
    answer = connection.request(fresh, timeout_s=request.wait_s + OPEN_GRACE_S)
    return ResultReader(connection, fresh, answer)


class Results:
    """An iterator of results. A context manager that closes. Safe for threads.

    When the worker dies it opens the results anew and goes on, from the frames that are new then;
    who shares them goes on with the same new reader. Where frames and results are both `lossless`,
    each frame in between has a result too, of status "worker_died". If the client reconnects, also
    when the daemon was lost, and as soon as the stream is there again.

    Attributes:
        reopened: How often that happened.
    """

    def __init__(
        self, sessions: Sessions, request: OpenResults, timeout_s: float | None = None
    ) -> None:
        self._sessions = sessions
        self._request = request
        self._timeout_s = timeout_s
        self._closed = False
        self._lock = threading.Lock()  # of which reader it is, and whether it is closed
        self._reopening = threading.Lock()
        self._reader = sessions.run(lambda session: open_results(session, request))
        self._order = lossless_order(request, self._reader)
        self.reopened = 0

    @property
    def stream(self) -> str:
        """Name of the stream that the model runs on."""
        return self._request.stream

    @property
    def model(self) -> str:
        """Name of the model."""
        return self._reader.model

    @property
    def version(self) -> int:
        """The model's version that runs."""
        return self._reader.version

    @property
    def labels(self) -> list[str]:
        """Names of the classes, by number; empty if the model has none."""
        return self._reader.labels

    def next(self, timeout_s: float | None = None) -> Result:
        """The next result by the policy; failed frames give one too, see Result.status.

        Args:
            timeout_s: None: as given when this was made; 0 does not wait, but for a new worker.

        Raises:
            WouldBlock, TimedOut: None came in time.
            LimitExceeded: Results with large tensors that were not closed hold every pin.
            StreamClosed: The stream that the model runs on has ended.
            ModelFailed, NotFound: The worker died and the model cannot be had again; asked once
                more, this tries once more.
            WorkerDied: Of results opened with `once`: it may have died with the run.
        """
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        order = self._order
        while True:
            if order is not None and (before := order.take()) is not None:
                return before
            reader = self._reader
            try:
                result = reader.next(timeout_s)
                if order is None or order.put(result) is not None:
                    return result
                continue
            except StreamClosed as error:
                again = error.reason == "writer_died" or is_to_return(self._sessions, reader)
                if self._closed or (reader is self._reader and not again):
                    raise
                self._reopen(reader, error, timeout_s)
            if deadline is not None:
                timeout_s = max(0.001, deadline - time.monotonic())

    def run_once(self, trace_id: bytes = b"") -> None:
        """Of results opened with `once`: runs the model on the newest frame; `next` has the result.

        Raises:
            InvalidRequest: They were not.
        """
        reader = self._reader
        if is_to_return(self._sessions, reader):
            self._replace(reader, StreamClosed("the daemon was lost", reason="shutdown"), None)
            reader = self._reader
        run = RunOnce(reader=reader.stream.reader_id, trace_id=trace_id)
        reader.connection.request(run)

    def fileno(self) -> int:
        """Becomes readable after `arm` returned False; changes when the results are reopened."""
        return self._reader.stream.fileno()

    def arm(self) -> bool:
        """For event loops: True if something is there now, else fileno() will become readable."""
        return self._reader.stream.arm()

    def disarm(self) -> None:
        """After fileno() became readable: drains it."""
        self._reader.stream.disarm()

    def stats(self) -> dict[str, int]:
        """Counters of the reader, since it was opened last."""
        return self._reader.stream.stats()

    def close(self) -> None:
        """Detaches; the model stops if nobody else wants these results. Idempotent."""
        with self._lock:
            self._closed = True
            reader = self._reader
        reader.stream.close()
        if self._order is not None:
            self._order.close()

    def __iter__(self) -> Iterator[Result]:
        return self

    def __next__(self) -> Result:
        try:
            return self.next()
        except StreamClosed as error:
            if error.reason == "closed":
                raise StopIteration from None
            raise

    def __enter__(self) -> Results:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _reopen(self, old: ResultReader, ended: StreamClosed, timeout_s: float | None) -> None:
        detail = self._replace(old, ended, timeout_s)
        if self._request.once:
            raise run_lost(self.model, detail)

    def _replace(self, old: ResultReader, ended: StreamClosed, timeout_s: float | None) -> str:
        """Replaces `old`, unless another thread has, and returns why its writer ended. If that
        fails, `old` tells its end again."""
        detail = old.stream.why_ended()
        with self._reopening:
            if self._reader is not old:
                return detail
            old.stream.retire()  # first: a new worker may be long in coming
            reader = self._open_anew(old, ended, timeout_s)
            with self._lock:
                closed = self._closed
                if not closed:
                    if self._order is not None:
                        self._order.reopened(reader, detail)
                    self._reader = reader
                    self.reopened += 1
            if closed:
                reader.stream.close()
        return detail

    def _open_anew(
        self, old: ResultReader, ended: StreamClosed, timeout_s: float | None
    ) -> ResultReader:
        request = self._request
        if timeout_s:
            request = replace(request, wait_s=min(request.wait_s, timeout_s))
        patience = Patience(timeout_s)
        while self._sessions.keeper is not None and patience.is_stopping(old, ended):
            time.sleep(patience.pause_s)
        while True:
            try:
                return self._sessions.run(lambda session: open_results(session, request), LOOK_S)
            except (NotFound, StreamClosed) as error:
                if not is_to_return(self._sessions, old):
                    raise ended from error  # it was the input stream's writer that died
                patience.check(error)
            except DaemonUnavailable as error:
                if not is_to_return(self._sessions, old):
                    raise
                patience.check(error)
            if self._closed:
                raise ended
            time.sleep(patience.pause_s)


class Patience:
    """How long results are tried to be had again after the daemon was lost; pauses in between.

    Args:
        timeout_s: None: as long as it takes; 0: not at all.
    """

    def __init__(self, timeout_s: float | None) -> None:
        self._timeout_s = timeout_s
        self._begun_s = time.monotonic()
        self._deadline = None if timeout_s is None else self._begun_s + timeout_s
        self._pause_s = 0.01

    @property
    def pause_s(self) -> float:
        """Longer each time."""
        self._pause_s = min(2 * self._pause_s, LOOK_S)
        return self._pause_s

    def is_stopping(self, old: ResultReader, ended: StreamClosed) -> bool:
        """Whether the daemon ends streams and is about to go: for a moment it is not asked."""
        said = ended.reason == "shutdown" and not old.connection.lost
        return said and time.monotonic() < self._begun_s + STOPPING_S

    def check(self, error: McpdError) -> None:
        """Raises when the time is over."""
        if self._deadline is None or time.monotonic() < self._deadline:
            return
        if self._timeout_s == 0:
            raise WouldBlock(f"the results are not there again: {error.message}") from error
        raise TimedOut(
            f"the results were not there again in {self._timeout_s} s: {error.message}", error.hint
        ) from error


def is_to_return(sessions: Sessions, reader: ResultReader) -> bool:
    """Whether results that have ended did so with their session, and will be there again."""
    keeper = sessions.keeper
    if keeper is None or keeper.over:
        return False
    return reader.connection.lost or reader.stream.ended == "shutdown"


def lossless_order(request: OpenResults, reader: ResultReader) -> LosslessOrder | None:
    """What tells of results that are missing, where every frame is to have one."""
    every = request.frames == request.results == "lossless" and not request.group
    return LosslessOrder(reader) if every and not request.once else None


def run_lost(model: str, detail: str = "") -> WorkerDied:
    """What a run of `once` results comes to when their worker dies."""
    why = f": {detail}" if detail else ""
    return WorkerDied(
        f"the worker of model {model!r} died before it gave the result{why}",
        "Ask again with run_once; a new worker is there.",
    )
