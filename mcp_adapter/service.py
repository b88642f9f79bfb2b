"""The MCP server's process: loads the SDK once, and serves each relay that connects.

Started by mcpd.mcp_adapter.rendezvous, not by hand, with the descriptors it is to use:

- `--listen PATH LISTENER LOCK` serves every relay of a user with the same settings. It ends when
  no relay has been connected for IDLE_S, which $MCPD_MCP_IDLE_S may change.
- `--serve CONNECTION PARENT` serves one relay, where no socket can be made, and ends with it.

It holds nothing that outlives it: the daemon takes back at end-of-file what its session had, and a
child is tied to it (mcpd.mcp_adapter.tether).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from typing import Final

from mcpd.mcp_adapter.link import Link
from mcpd.mcp_adapter.server import serve
from mcpd.mcp_adapter.stdio import MAX_LINE_NBYTES
from mcpd.native import _core

IDLE_S: Final = 60.0
_FIRST_IDLE_S: Final = 5.0
"""The least for the relay that started it, which connects before it listens."""
_LAST_CALL_S: Final = 0.05

_log = logging.getLogger("mcpd.mcp_adapter")


class Service:
    """Sessions of the relays that connect to one socket.

    Args:
        path: The socket's, unlinked when the service retires.
        lock_fd: Holds the path; closed then, so that a next server can take it.
        idle_s: How long to stay without a relay.
    """

    def __init__(self, path: str, lock_fd: int, idle_s: float) -> None:
        self._path = path
        self._lock_fd = lock_fd
        self._idle_s = idle_s
        self._sessions = 0
        self._changed = asyncio.Event()

    async def run(self, listener: socket.socket) -> None:
        """Serves until it has been idle for long enough."""
        async with Link() as link:

            async def session(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                self._count(+1)
                try:
                    await serve(link, reader, writer)
                except Exception:
                    _log.exception("session failed")
                finally:
                    self._count(-1)

            async with await asyncio.start_unix_server(
                session, sock=listener, limit=MAX_LINE_NBYTES + 1
            ):
                await self._idle(max(self._idle_s, _FIRST_IDLE_S))
                self._retire()
                # Whoever connected before the path went is served; nobody else can come.
                await asyncio.sleep(_LAST_CALL_S)
                while self._sessions:
                    await self._change()

    def _count(self, step: int) -> None:
        self._sessions += step
        self._changed.set()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def _idle(self, first_s: float) -> None:
        patience_s = first_s
        while True:
            if self._sessions:
                await self._change()
                patience_s = self._idle_s
                continue
            try:
                async with asyncio.timeout(patience_s):
                    await self._change()
            except TimeoutError:
                return

    def _retire(self) -> None:
        """Gives the path up; takes the log away too, unless something is in it."""
        base = self._path.removesuffix(".sock")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        with contextlib.suppress(FileNotFoundError):
            if os.path.getsize(f"{base}.log") == 0:
                os.unlink(f"{base}.log")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{base}.lock")  # while it is held: whoever waits for it sees that it is gone
        os.close(self._lock_fd)


async def serve_one(connection: socket.socket) -> None:
    """Serves the relay at the other end of `connection` until it is gone."""
    reader, writer = await asyncio.open_connection(sock=connection, limit=MAX_LINE_NBYTES + 1)
    async with Link() as link:
        await serve(link, reader, writer)


def main(arguments: list[str]) -> None:
    """Serves as the module's text says; does not return."""
    code = 0
    try:
        if arguments[0] == "--serve":
            _core.die_with_parent(signal.SIGKILL, int(arguments[2]))
            asyncio.run(serve_one(_inherited(arguments[1])))
        else:
            os.set_inheritable(int(arguments[3]), False)
            service = Service(arguments[1], int(arguments[3]), idle_s())
            asyncio.run(service.run(_inherited(arguments[2])))
    except Exception as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    sys.stderr.flush()
    # Not a return: the interpreter would wait for threads that still wait for the daemon.
    os._exit(code)


def idle_s() -> float:
    """IDLE_S, or what $MCPD_MCP_IDLE_S says."""
    try:
        return max(0.0, float(os.environ.get("MCPD_MCP_IDLE_S", IDLE_S)))
    except ValueError:
        return IDLE_S


def _inherited(fd: str) -> socket.socket:
    os.set_inheritable(int(fd), False)
    return socket.socket(fileno=int(fd))


if __name__ == "__main__":
    main(sys.argv[1:])
