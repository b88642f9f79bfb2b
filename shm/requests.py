"""A client's own requests to a model: it writes inputs, results come back matched to them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Self, TypeAlias

from msgspec.structs import replace

from mcpd.shm.errors import (
    DaemonUnavailable,
    InvalidRequest,
    McpdError,
    StreamClosed,
    TimedOut,
    WorkerDied,
    WouldBlock,
)
from mcpd.shm.messages import OpenResults
from mcpd.shm.results import STOPPING_S, ResultReader, open_results
from mcpd.shm.slot import Slot
from mcpd.shm.stream import ReaderStream, WriterStream

if TYPE_CHECKING:
    from mcpd.shm.connection import Connection
    from mcpd.shm.result import Result


Remade: TypeAlias = "tuple[Connection, WriterStream, OpenResults, ResultReader]"
"""What Requests are, in another session with a daemon."""


class Pending:
    """A request in flight. `collect` has its result, once."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self.seq = 0
        self.result: Result | None = None
        self.error: McpdError | None = None

    @property
    def done(self) -> bool:
        """Whether `collect` returns at once; only noticed while somebody collects."""
        return self.result is not None or self.error is not None

    def take(self) -> Result:
        """What came, when `done`."""
        if self.error is not None:
            raise self.error
        if self.result is None:
            raise WouldBlock(f"request {self.seq} has no result yet")
        return self.result

    def collect(self, timeout_s: float | None = None) -> Result:
        """Waits for the result. A failed frame is a result too, see Result.status.

        Raises:
            TimedOut: None came in time; the request is given up.
            WorkerDied: The worker died with it.
            DaemonUnavailable: The daemon is gone.
        """
        return self._requests.collect(self, timeout_s)


class Requests:
    """A private stream of inputs, bound to a model. A context manager that closes.

    Safe for threads: each may acquire, submit and collect; whoever collects also takes in the
    results of the others. After the worker died, the next acquire binds to a new one; what was in
    flight, and had no result yet, comes back as WorkerDied and is not submitted again.

    Args:
        remake: Makes them anew in the next session when this one was lost; None: they end with it.
    """

    def __init__(
        self,
        connection: Connection,
        writer: WriterStream,
        request: OpenResults,
        remake: Callable[[], Remade] | None = None,
    ) -> None:
        self._connection = connection
        self._writer = writer
        self._request = request
        self._remake = remake
        self._changed = threading.Condition()
        self._table: dict[int, Pending] = {}
        self._reading = False  # whether a thread reads results, or binds anew
        self._closed = False
        self._gone = False  # the results have ended, and nobody may be there to notice
        self._reader: ResultReader = open_results(connection, request)
        self._follow(self._reader)

    @property
    def stream(self) -> WriterStream:
        """The stream that the inputs travel in."""
        return self._writer

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
        """Names of the classes, by number."""
        return self._reader.labels

    @property
    def results(self) -> ReaderStream:
        """The stream that the results travel in; another one after the worker died."""
        return self._reader.stream

    @property
    def in_flight(self) -> int:
        """Requests submitted of which the result has not come yet."""
        with self._changed:
            return len(self._table)

    def acquire(self, timeout_s: float | None = None) -> Slot:
        """A slot to fill with an input; for `submit`.

        Raises:
            As WriterStream.acquire, and as opening results when the worker died before.
        """
        while True:
            self.bind(timeout_s)
            writer = self._writer
            try:
                return writer.acquire(timeout_s)
            except StreamClosed as error:
                if self._remake is None or self._closed or error.reason != "shutdown":
                    raise

    def submit(self, slot: Slot) -> Pending:
        """Publishes an acquired slot as a request.

        Raises:
            InvalidRequest: The slot was published or abandoned already.
            DaemonUnavailable: The daemon was lost since the slot was acquired.
        """
        while (pending := self.try_submit(slot)) is None:
            self.bind()
        return pending

    def try_submit(self, slot: Slot) -> Pending | None:
        """As submit, but None if the worker died: never waits for the next one."""
        with self._changed:
            # Under the lock: the result may be there before publish returns.
            if not self.bound:
                return None
            if self._remake is not None and slot.grant is not self._writer.grant:
                raise DaemonUnavailable(
                    "the daemon was lost while the input was filled",
                    "Acquire another slot and fill that.",
                )
            pending = Pending(self)
            pending.seq = slot.publish()
            self._table[pending.seq] = pending
            return pending

    def poll(self) -> None:
        """Takes in every result that is there, without waiting; for event loops.

        Raises:
            As ReaderStream.next, but for StreamClosed: then the requests in flight have failed.
        """
        with self._changed:
            if self._reading:
                return  # another thread does it
            self._reading = True
        try:
            while self.in_flight:
                self._read_one(0)
        except WouldBlock:
            return
        finally:
            self._stop_reading()

    def collect(self, pending: Pending, timeout_s: float | None = None) -> Result:
        """As Pending.collect."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            with self._changed:
                while self._reading and not pending.done:
                    if not self._changed.wait(_remaining(deadline)):
                        raise self.give_up(pending, timeout_s)
                if pending.done:
                    return pending.take()
                if self._closed:
                    raise StreamClosed(f"requests to {self.model!r} are closed")
                self._reading = True
            try:
                self._read_one(_remaining(deadline))
            except (TimedOut, WouldBlock):
                raise self.give_up(pending, timeout_s) from None
            finally:
                self._stop_reading()

    def close(self) -> None:
        """Unbinds and ends the stream; requests in flight are lost. Idempotent."""
        with self._changed:
            self._closed = True
        self._reader.stream.mark_ended("closed")  # wakes whoever collects
        self._writer.close()
        self._reader.stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read_one(self, timeout_s: float | None) -> None:
        """Takes in one result, or fails all that are in flight. Only while `_reading` is ours."""
        try:
            result = self._reader.next(timeout_s)
        except StreamClosed as error:
            self._fail_all(error)
            return
        with self._changed:
            pending = self._table.get(result.source_seq)
            if pending is None:
                result.close()  # given up
                return
            if not result.partial:
                del self._table[result.source_seq]
            pending.result = result

    def _fail_all(self, ended: StreamClosed) -> None:
        detail = ""
        if ended.reason == "writer_died" and self.in_flight:
            detail = self._reader.stream.why_ended()
        with self._changed:
            table, self._table = self._table, {}
        for pending in table.values():
            pending.error = self._error(pending.seq, ended, detail)

    def _error(self, seq: int, ended: StreamClosed, detail: str) -> McpdError:
        """What becomes of a request in flight when its results have ended."""
        what = f"request {seq} to model {self.model!r} was in flight"
        if self._closed:
            return StreamClosed(f"requests to {self.model!r} are closed")
        if ended.reason == "closed" or self._connection.streams.closing:
            return StreamClosed(f"the client was closed, or its streams, while {what}")
        if ended.reason == "shutdown":
            return DaemonUnavailable(f"the daemon stopped while {what}")
        if ended.reason != "writer_died":
            return StreamClosed(f"{ended.message} while {what}", ended.hint, ended.reason)
        return WorkerDied(
            f"the worker of model {self.model!r} died with request {seq} in flight"
            + (f": {detail}" if detail else ""),
            "Submit it again; a new worker is started.",
        )

    def _follow(self, reader: ResultReader) -> None:
        """Lets go of these results as soon as they have ended, though nobody asks for any."""
        reader.stream.on_ended = self._results_ended
        if reader.stream.ended:
            self._results_ended()

    def _results_ended(self) -> None:
        """On the connection's I/O thread. Whoever reads at the moment does the same."""
        with self._changed:
            self._gone = True
            if self._reading:
                return
            self._reading = True
        try:
            while self.in_flight:
                self._read_one(0)
        except McpdError:
            return  # whoever collects is told
        finally:
            self._stop_reading()

    @property
    def bound(self) -> bool:
        """Whether a worker serves these requests; if not, `acquire` waits for a new one."""
        return not self._reader.stream.ended

    def bind(self, timeout_s: float | None = None) -> None:
        """Binds to a new worker if the old one died, and fails what that had. `acquire` does so.

        Args:
            timeout_s: How long to wait for the next worker, if that is less than was said first.

        Raises:
            As opening results.
        """
        if self.bound:
            return
        with self._changed:
            while self._reading:
                self._changed.wait()
            if self._closed:
                raise self._closed_error()
            if self.bound:
                return
            self._reading = True
        try:
            while self.in_flight:
                try:
                    self._read_one(0)
                except WouldBlock:
                    self._fail_all(StreamClosed("worker died", reason="writer_died"))
            self._replace(self._open(timeout_s))
        finally:
            self._stop_reading()

    def _open(self, timeout_s: float | None) -> ResultReader:
        """Binds to a worker; in the next session, if this one is lost, with another stream."""
        if self._remake is not None and self._reader.stream.ended == "shutdown":
            self._writer.wait_lost(STOPPING_S)
        self._reader.stream.retire()
        if self._remake is not None and self._writer.lost:
            self._writer.close()
            self._connection, self._writer, self._request, reader = self._remake()
            return reader
        request = self._request
        if timeout_s:
            request = replace(request, wait_s=min(request.wait_s, timeout_s))
        return open_results(self._connection, request)

    def _replace(self, reader: ResultReader) -> None:
        with self._changed:
            if not self._closed:
                self._reader, self._gone = reader, False
        if self._reader is reader:
            self._follow(reader)
            return
        reader.stream.close()
        raise self._closed_error()

    def _closed_error(self) -> InvalidRequest:
        return InvalidRequest(f"requests to model {self.model!r} are closed")

    def _stop_reading(self) -> None:
        with self._changed:
            self._reading = False
            if self._gone and not self._table:
                self._reader.stream.retire_soon()
            self._changed.notify_all()

    def give_up(self, pending: Pending, timeout_s: float | None) -> TimedOut:
        """Drops a request that nobody waits for any more; the error that says so."""
        with self._changed:
            self._table.pop(pending.seq, None)
            error = pending.error = TimedOut(
                f"model {self.model!r} gave no result for request {pending.seq} in {timeout_s} s"
            )
        return error


def _remaining(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())
