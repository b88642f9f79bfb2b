"""The adapter's connection to the daemon: made when a tool first needs it, kept, and remade."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Self, TypeVar
from weakref import WeakValueDictionary

import anyio

from mcpd.mcp_adapter.manifest import SERVER_NAME
from mcpd.shm import aio
from mcpd.shm.aio import AsyncClient
from mcpd.shm.errors import DaemonUnavailable

T = TypeVar("T")
CONNECT_TIMEOUT_S: Final = 5.0


class Link:
    """Asks the daemon on the default socket ($MCPD_SOCKET); a context manager that closes.

    Belongs to one event loop; questions may be asked at the same time.
    """

    def __init__(self) -> None:
        self._client: AsyncClient | None = None
        self._connecting = anyio.Lock()
        self._turns: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()

    def turn(self, stream: str) -> anyio.Lock:
        """The lock under which one call at a time runs a model on `stream`.

        Each run pins frames of the stream while it lasts, and a stream has few to spare: calls
        that come together would be refused instead of waiting some milliseconds.
        """
        lock = self._turns.get(stream)
        if lock is None:
            lock = self._turns[stream] = anyio.Lock()
        return lock

    async def ask(self, question: Callable[[AsyncClient], Awaitable[T]]) -> T:
        """What `question` makes of a connected client.

        If the connection that was kept turns out to be lost, such as by a restart of the daemon,
        the question is asked once more on a new one: questions only read.

        Raises:
            DaemonUnavailable: No daemon answers; the message names the socket, the hint the way
                to start it.
        """
        kept = self._client
        try:
            return await question(kept or await self._connect(None))
        except DaemonUnavailable:
            if kept is None:
                raise
        return await question(await self._connect(kept))

    async def close(self) -> None:
        """Ends the session, if there is one. Idempotent."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        with anyio.CancelScope(shield=True):
            await self.close()

    async def _connect(self, lost: AsyncClient | None) -> AsyncClient:
        """The client, in place of the one that was lost; others that lost it too share it."""
        async with self._connecting:
            if self._client is lost:
                await self.close()
            if self._client is None:
                self._client = await aio.connect(
                    timeout_s=CONNECT_TIMEOUT_S, name=f"{SERVER_NAME} mcp"
                )
            return self._client
