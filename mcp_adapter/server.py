"""Binds the manifest and the tools to the official MCP SDK, for both eras of the protocol."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Any, Final

import anyio
import mcp_types as types
from mcp.server.caching import CacheHint
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError

from mcpd.mcp_adapter import manifest
from mcpd.mcp_adapter.arguments import checked
from mcpd.mcp_adapter.link import Link
from mcpd.mcp_adapter.reply import Reply, failure
from mcpd.mcp_adapter.tools import get_status, list_models, list_streams, run_inference
from mcpd.shm.errors import Internal, McpdError, TimedOut

_log = logging.getLogger("mcpd.mcp_adapter")

Handler = Callable[[Link, dict[str, Any]], Awaitable[Reply]]

HANDLERS: Final[dict[str, Handler]] = {
    "get_status": get_status.call,
    "list_streams": list_streams.call,
    "list_models": list_models.call,
    "run_inference": run_inference.call,
}
"""The function behind each tool of the manifest."""

_LIST_TTL_MS: Final = 3_600_000
"""How long a client may keep the tool list: it changes only with the program."""


def make_server(link: Link) -> Server[Any]:
    """An MCP server whose tools ask the daemon through `link`; touches neither until a call."""
    tools = [types.Tool.model_validate(entry) for entry in manifest.TOOLS]

    async def list_tools(
        ctx: ServerRequestContext[Any], params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return types.ListToolsResult(tools=tools)

    async def call_tool(
        ctx: ServerRequestContext[Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        reply = await _call(link, params.name, params.arguments)
        content: list[types.ContentBlock] = [types.TextContent(type="text", text=reply.text)]
        if reply.structured is None:
            return types.CallToolResult(content=content, is_error=True)
        return types.CallToolResult(content=content, structured_content=reply.structured)

    return Server(
        manifest.SERVER_NAME,
        version=version("mcpd-inference"),
        title=manifest.SERVER_TITLE,
        instructions=manifest.INSTRUCTIONS,
        cache_hints={"tools/list": CacheHint(ttl_ms=_LIST_TTL_MS, scope="public")},
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


async def serve(link: Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serves the one host whose lines come from `reader`, until it closes its end."""
    wire: Any = _Wire(reader, writer)
    server = make_server(link)
    # The SDK wants text files; of those it reads lines, and writes and flushes.
    try:
        async with stdio_server(wire, wire) as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())
    except* ConnectionError:
        pass  # the host went while it was being answered
    finally:
        writer.close()


class _Wire:
    """A connection as the SDK's transport wants its text files."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def __aiter__(self) -> _Wire:
        return self

    async def __anext__(self) -> str:
        try:
            line = await self._reader.readline()
        except ConnectionError:
            line = b""
        if not line.endswith(b"\n"):  # the end; half a message is none
            raise StopAsyncIteration
        return line.decode("utf-8", "replace")

    async def write(self, text: str) -> int:
        """Hands `text` over; waits while the other end does not read."""
        self._writer.write(text.encode("utf-8"))
        await self._writer.drain()
        return len(text)

    async def flush(self) -> None:
        """Does nothing: `write` leaves nothing behind."""


async def _call(link: Link, name: str, arguments: object) -> Reply:
    entry = manifest.tool(name)
    if entry is None:
        known = ", ".join(HANDLERS)
        raise MCPError(types.INVALID_PARAMS, f"there is no tool {name!r}; the tools are: {known}")
    try:
        with anyio.fail_after(manifest.TIME_LIMIT_S):
            return await HANDLERS[name](link, checked(entry, arguments))
    except McpdError as error:
        return failure(error)
    except TimeoutError:
        return failure(
            TimedOut(
                f"{name} took longer than {manifest.TIME_LIMIT_S:.0f} s and was given up",
                "Call get_status to see what is slow",
            )
        )
    except Exception as error:
        # The outermost loop of the process: a fault of ours must reach the log and the reader.
        _log.exception("tool failed tool=%s", name)
        return failure(
            Internal(f"mcpd has a fault: {type(error).__name__}: {error}", "Please report it")
        )
