"""Streams, results and requests for asyncio; see mcpd.shm.aio, which makes them."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, Self

from mcpd.shm.aio_waiting import Opening, Waiting, in_thread, to_the_end
from mcpd.shm.errors import DaemonUnavailable, NotFound, StreamClosed, TimedOut, WorkerDied
from mcpd.shm.frame import Frame
from mcpd.shm.messages import OpenResults
from mcpd.shm.requests import Pending, Requests
from mcpd.shm.results import (
    LOOK_S,
    Patience,
    ResultReader,
    is_to_return,
    lossless_order,
    run_lost,
)
from mcpd.shm.sessions import Sessions
from mcpd.shm.slot import Slot
from mcpd.shm.stream import ReaderStream, WriterStream

if TYPE_CHECKING:
    from mcpd.shm.bundle import TensorSpec
    from mcpd.shm.result import Result


class ResultOpener(Protocol):
    """What AsyncResults needs of its client."""

    @property
    def sessions(self) -> Sessions: ...
    async def open_results(
        self, request: OpenResults, timeout_s: float | None = ...
    ) -> ResultReader: ...
    async def run_binding(self, reader: ResultReader, trace_id: bytes) -> None: ...


class AsyncWriterStream:
    """The writer's end of a stream; as WriterStream."""

    def __init__(self, stream: WriterStream) -> None:
        self.stream = stream
        self.name = stream.name
        self.stream_id = stream.stream_id
        self._waiting = Waiting(lambda: self.stream)

    def acquire(self, timeout_s: float | None = None) -> Opening[Slot]:
        """A free slot; `async with` publishes it, or abandons it when an exception leaves."""

        async def make() -> Slot:
            what = f"stream {self.name!r}: no slot came free"
            return await self._waiting.attempt(lambda: self.stream.acquire(0), timeout_s, what)

        return Opening(make)

    async def resize(
        self,
        *,
        width: int | None = None,
        height: int | None = None,
        format: str | None = None,
        tensors: Mapping[str, TensorSpec] | None = None,
        slots: int | None = None,
        holds: int | None = None,
        history: int | None = None,
        memory: str | None = None,
        matrix: str | None = None,
        range: str | None = None,
        rotation: int | None = None,
        strides: Sequence[int] | None = None,
        offsets: Sequence[int] | None = None,
        slot_nbytes: int | None = None,
    ) -> None:
        """As WriterStream.resize, in a thread. Cancelled, it is still awaited to its end, so that
        the stream is either resized or as it was."""
        work = functools.partial(
            self.stream.resize,
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
            slot_nbytes=slot_nbytes,
        )
        await to_the_end(work)

    def stats(self) -> dict[str, int]:
        """As WriterStream.stats."""
        return self.stream.stats()

    def end(self, reason: str = "closed") -> None:
        """As WriterStream.end."""
        self.stream.end(reason)

    async def close(self) -> None:
        """As WriterStream.close."""
        await asyncio.to_thread(self.stream.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncReaderStream:
    """A reader's end of a stream; as ReaderStream. `async for` gives frames."""

    def __init__(self, stream: ReaderStream) -> None:
        self.stream = stream
        self.name = stream.name
        self.stream_id = stream.stream_id
        self._waiting = Waiting(lambda: self.stream)

    async def next(self, timeout_s: float | None = None) -> Frame:
        """The next frame by the policy."""
        what = f"stream {self.name!r}: no frame came"
        return await self._waiting.attempt(lambda: self.stream.next(0), timeout_s, what)

    async def __aiter__(self) -> AsyncIterator[Frame]:
        while True:
            try:
                frame = await self.next()
            except StreamClosed as error:
                if error.reason == "closed":
                    return
                raise
            with frame:
                yield frame

    def recent(self, count: int) -> list[Frame]:
        """As ReaderStream.recent."""
        return self.stream.recent(count)

    def stats(self) -> dict[str, int]:
        """As ReaderStream.stats."""
        return self.stream.stats()

    async def close(self) -> None:
        """As ReaderStream.close."""
        await asyncio.to_thread(self.stream.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncResults:
    """A model's results on a stream; as Results. `async for` gives them."""

    def __init__(
        self,
        client: ResultOpener,
        request: OpenResults,
        reader: ResultReader,
        timeout_s: float | None,
    ) -> None:
        self._client = client
        self._request = request
        self._reader = reader
        self._timeout_s = timeout_s
        self._closed = False
        self._reopening = asyncio.Lock()
        self._order = lossless_order(request, reader)
        self._waiting = Waiting(lambda: self._reader.stream)
        self.model = reader.model
        self.labels = reader.labels
        self.reopened = 0

    @property
    def version(self) -> int:
        """The model's version that runs."""
        return self._reader.version

    async def next(self, timeout_s: float | None = None) -> Result:
        """The next result; opened anew when the worker died. Raises as Results.next."""
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        what = f"model {self.model!r} on {self._request.stream!r}: no result came"
        tried: ResultReader | None = None
        order = self._order

        def take() -> Result:
            nonlocal tried
            while True:
                if order is not None and (before := order.take()) is not None:
                    return before
                tried = self._reader
                result = tried.next(0)
                if order is None or order.put(result) is not None:
                    return result

        while True:
            try:
                return await self._waiting.attempt(take, timeout_s, what)
            except StreamClosed as error:
                returns = tried is not None and is_to_return(self._client.sessions, tried)
                again = error.reason == "writer_died" or returns
                if self._closed or (tried is self._reader and not again):
                    raise
                await self._reopen(tried, error, timeout_s)

    async def run_once(self, trace_id: bytes = b"") -> None:
        """As Results.run_once."""
        reader = self._reader
        if is_to_return(self._client.sessions, reader):
            lost = StreamClosed("the daemon was lost", reason="shutdown")
            await self._replace(reader, lost, self._timeout_s)
            reader = self._reader
        await self._client.run_binding(reader, trace_id)

    async def __aiter__(self) -> AsyncIterator[Result]:
        while True:
            try:
                result = await self.next()
            except StreamClosed as error:
                if error.reason == "closed":
                    return
                raise
            yield result

    async def close(self) -> None:
        """As Results.close."""
        self._closed = True
        await asyncio.to_thread(self._reader.stream.close)
        if self._order is not None:
            self._order.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _reopen(
        self, old: ResultReader | None, ended: StreamClosed, timeout_s: float | None
    ) -> None:
        detail = await self._replace(old, ended, timeout_s)
        if self._request.once:
            raise run_lost(self.model, detail)

    async def _replace(
        self, old: ResultReader | None, ended: StreamClosed, timeout_s: float | None
    ) -> str:
        """Replaces `old`, unless another task has, and returns why its writer ended. If that
        fails, `old` tells its end again."""
        async with self._reopening:
            if old is None or old is not self._reader:
                return ""
            detail = await asyncio.to_thread(old.stream.why_ended)
            await asyncio.to_thread(old.stream.retire)
            reader = await self._open_anew(old, ended, timeout_s)
            if self._closed:
                await asyncio.to_thread(reader.stream.close)
            else:
                if self._order is not None:
                    self._order.reopened(reader, detail)
                self._reader = reader
                self.reopened += 1
            return detail

    async def _open_anew(
        self, old: ResultReader, ended: StreamClosed, timeout_s: float | None
    ) -> ResultReader:
        sessions = self._client.sessions
        if sessions.keeper is None:
            try:
                return await self._client.open_results(self._request)
            except (NotFound, StreamClosed) as error:
                raise ended from error
        patience = Patience(timeout_s)
        while patience.is_stopping(old, ended):
            await asyncio.sleep(patience.pause_s)
        while True:
            try:
                return await self._client.open_results(self._request, LOOK_S)
            except (NotFound, StreamClosed) as error:
                if not is_to_return(sessions, old):
                    raise ended from error
                patience.check(error)
            except DaemonUnavailable as error:
                if not is_to_return(sessions, old):
                    raise
                patience.check(error)
            if self._closed:
                raise ended
            await asyncio.sleep(patience.pause_s)


class AsyncRequests:
    """A private stream of inputs to a model; as Requests."""

    def __init__(self, requests: Requests) -> None:
        self.requests = requests
        self.model = requests.model
        self._room = Waiting(lambda: requests.stream)
        self._waiting = Waiting(lambda: requests.results)

    def acquire(self, timeout_s: float | None = None) -> Opening[Slot]:
        """A slot to fill with an input, for `submit`."""

        async def make() -> Slot:
            if not self.requests.bound:
                await in_thread(self.requests.bind, lambda _: None)
            what = f"requests to {self.model!r}: no slot came free"
            return await self._room.attempt(lambda: self.requests.acquire(0), timeout_s, what)

        return Opening(make)

    def submit(self, slot: Slot) -> Pending:
        """Publishes an acquired slot as a request; `collect` has its result.

        If the worker has died meanwhile, that is WorkerDied: nothing here waits for the next one.
        """
        pending = self.requests.try_submit(slot)
        if pending is None:
            slot.abandon()
            pending = Pending(self.requests)
            pending.error = WorkerDied(
                f"the worker of model {self.model!r} died before the request was submitted",
                "Acquire a slot and submit it again; a new worker is started.",
            )
        return pending

    async def collect(self, pending: Pending, timeout_s: float | None = None) -> Result:
        """Waits for a request's result; raises as Pending.collect."""

        def attempt() -> Result:
            if not pending.done:
                self.requests.poll()
            return pending.take()

        try:
            return await self._waiting.attempt(attempt, timeout_s, "")
        except TimedOut:
            raise self.requests.give_up(pending, timeout_s) from None
        except asyncio.CancelledError:
            self.requests.give_up(pending, timeout_s)
            raise

    async def close(self) -> None:
        """As Requests.close."""
        await asyncio.to_thread(self.requests.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
