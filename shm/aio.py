"""The client for asyncio: the names of mcpd.shm.client, with await, async with and async for.

What opens something is awaited, or entered with `async with`, which closes it again:

    async with aio.connect() as client, client.results("cam0", model="m") as results:
        async for result in results: ...

An await that is cancelled leaves nothing behind: no reader, no stream, no pin. Objects belong to
the event loop they were made in. Slots, frames and results are those of the synchronous client.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from msgspec.structs import replace

from mcpd.shm import client as synchronous
from mcpd.shm.aio_sessions import ask, run
from mcpd.shm.aio_streams import (
    AsyncReaderStream,
    AsyncRequests,
    AsyncResults,
    AsyncWriterStream,
)
from mcpd.shm.aio_waiting import Opening, in_loop, in_thread
from mcpd.shm.client import Client, Rows
from mcpd.shm.connection import REQUEST_TIMEOUT_S, Connection
from mcpd.shm.errors import McpdError, WorkerDied
from mcpd.shm.foreign import brought
from mcpd.shm.messages import (
    CreateStream,
    OpenResults,
    RunOnce,
    SealStream,
)
from mcpd.shm.modelling import MODEL_WAIT_S, left_of, results_request
from mcpd.shm.reading import Reading
from mcpd.shm.requests import Requests
from mcpd.shm.results import OPEN_GRACE_S, ResultReader
from mcpd.shm.sessions import Sessions
from mcpd.shm.spec import stream_spec
from mcpd.shm.stream import ReaderStream, WriterStream, map_reader, map_writer
from mcpd.shm.streaming import keep

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mcpd.shm.bundle import TensorSpec
    from mcpd.shm.result import Result

__all__ = [
    "AsyncClient",
    "AsyncReaderStream",
    "AsyncRequests",
    "AsyncResults",
    "AsyncWriterStream",
    "Opening",
    "connect",
]


def connect(
    socket: str | os.PathLike[str] | None = None,
    *,
    timeout_s: float = 5.0,
    name: str = "",
    trace: bool | None = None,
    reconnect: bool = False,
    on_lost: Callable[[McpdError], None] | None = None,
    on_restored: Callable[[], None] | None = None,
) -> Opening[AsyncClient]:
    """Connects to the daemon; as mcpd.shm.connect. The callbacks run in the event loop."""

    async def make() -> AsyncClient:
        loop = asyncio.get_running_loop()
        client = await in_thread(
            lambda: synchronous.connect(
                socket,
                timeout_s=timeout_s,
                name=name,
                trace=trace,
                reconnect=reconnect,
                on_lost=in_loop(loop, on_lost),
                on_restored=in_loop(loop, on_restored),
            ),
            Client.close,
        )
        return AsyncClient(client)

    return Opening(make)


class AsyncClient:
    """A session with the daemon for asyncio; as Client. Made by `connect`."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._sessions = client.sessions

    @property
    def session(self) -> int:
        """As Client.session."""
        return self._client.session

    @property
    def daemon_pid(self) -> int:
        """As Client.daemon_pid."""
        return self._client.daemon_pid

    @property
    def socket(self) -> str:
        """As Client.socket."""
        return self._client.socket

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
    ) -> Opening[AsyncWriterStream]:
        """Makes a stream that this process writes; as Client.create_stream."""

        async def make() -> AsyncWriterStream:
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

            async def create(session: Connection) -> WriterStream:
                request = CreateStream(name=name, spec=spec, segment_offset=segment_offset)
                with brought(memory, segment, segment_offset) as segments:
                    answer = await ask(session, request, fds=segments)
                stream = await in_thread(
                    lambda: map_writer(session, *answer, description, keeper), WriterStream.close
                )
                try:
                    seal = SealStream(stream=stream.stream_id, generation=stream.generation)
                    await ask(session, seal)
                except BaseException:
                    _close_later(stream)
                    raise
                return stream

            return AsyncWriterStream(keep(self._sessions, await run(self._sessions, create)))

        return Opening(make)

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
    ) -> Opening[AsyncReaderStream]:
        """Attaches as a reader; as Client.open_stream."""

        async def make() -> AsyncReaderStream:
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
            keeper = self._sessions.keeper

            async def attach(session: Connection) -> ReaderStream:
                answer = await ask(session, reading.attach(name))
                return await in_thread(
                    lambda: map_reader(session, *answer, reading, keeper), ReaderStream.close
                )

            return AsyncReaderStream(keep(self._sessions, await run(self._sessions, attach)))

        return Opening(make)

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
    ) -> Opening[AsyncResults]:
        """Has a model run on a stream; as Client.results."""

        async def make() -> AsyncResults:
            request = results_request(
                stream,
                model,
                version,
                frames,
                Reading(policy=policy or frames, max_pins=max_pins, depth=depth, group=group),
                once,
                timeout_s,
            )
            reader = await self.open_results(request)
            return AsyncResults(self, request, reader, timeout_s)

        return Opening(make)

    async def run_once(
        self,
        stream: str,
        *,
        model: str,
        version: int = 0,
        timeout_s: float = MODEL_WAIT_S,
        trace_id: bytes = b"",
    ) -> Result:
        """Runs a model on the newest frame of a stream; as Client.run_once."""
        deadline = time.monotonic() + timeout_s
        async with self.results(
            stream, model=model, version=version, once=True, timeout_s=timeout_s
        ) as results:
            try:
                await results.run_once(trace_id)
                return await results.next(left_of(deadline))
            except WorkerDied:
                if time.monotonic() >= deadline:
                    raise
                await results.run_once(trace_id)  # a new worker is there
                return await results.next(left_of(deadline))

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
    ) -> Opening[AsyncRequests]:
        """A private stream of inputs to a model; as Client.requests."""

        async def make() -> AsyncRequests:
            requests = await in_thread(
                lambda: self._client.requests(
                    model,
                    width=width,
                    height=height,
                    format=format,
                    tensors=tensors,
                    matrix=matrix,
                    range=range,
                    slots=slots,
                    version=version,
                    timeout_s=timeout_s,
                ),
                Requests.close,
            )
            return AsyncRequests(requests)

        return Opening(make)

    async def infer(
        self,
        model: str,
        inputs: Mapping[str, NDArray[Any]] | NDArray[Any],
        *,
        format: str | None = None,
        timeout_s: float = MODEL_WAIT_S,
        version: int = 0,
    ) -> Result:
        """Runs a model on arrays; as Client.infer, which a thread of the loop's pool waits in."""
        return await asyncio.to_thread(
            self._client.infer, model, inputs, format=format, timeout_s=timeout_s, version=version
        )

    async def status(self) -> dict[str, Any]:
        """As Client.status."""
        return await asyncio.to_thread(self._client.status)

    async def list(self, what: str) -> Rows:
        """As Client.list."""
        return await asyncio.to_thread(self._client.list, what)

    async def load_models(self, model: str = "") -> list[str]:  # type: ignore[valid-type]
        """As Client.load_models."""
        return await asyncio.to_thread(self._client.load_models, model)

    async def stop(self) -> None:
        """As Client.stop."""
        await asyncio.to_thread(self._client.stop)

    async def close(self) -> None:
        """Closes every stream of this client and ends the session. Idempotent."""
        await asyncio.to_thread(self._client.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def sessions(self) -> Sessions:
        """What it talks over."""
        return self._sessions

    async def open_results(
        self, request: OpenResults, timeout_s: float | None = REQUEST_TIMEOUT_S
    ) -> ResultReader:
        """Attaches to results; as mcpd.shm.results.open_results.

        Args:
            timeout_s: How long to wait for a daemon.
        """

        async def attach(session: Connection) -> ResultReader:
            fresh = replace(request)
            answer = await ask(session, fresh, request.wait_s + OPEN_GRACE_S)
            return await in_thread(
                lambda: ResultReader(session, fresh, answer), _close_result_reader
            )

        return await run(self._sessions, attach, timeout_s)

    async def run_binding(self, reader: ResultReader, trace_id: bytes) -> None:
        """Has a `once` binding run on the newest frame."""
        message = RunOnce(reader=reader.stream.reader_id, trace_id=trace_id)
        await ask(reader.connection, message)


def _close_later(stream: WriterStream) -> None:
    asyncio.get_running_loop().run_in_executor(None, stream.close)


def _close_result_reader(reader: ResultReader) -> None:
    reader.stream.close()
