"""The real adapter as a process, and the official client that drives it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import IO, Any

import anyio
import mcp_types as types
import psutil
from jsonschema import Draft202012Validator
from mcp import Client, StdioServerParameters

from mcpd.cli.launch import relay_command
from mcpd.mcp_adapter import manifest

COMMAND = relay_command()
MODES = ("legacy", "auto")
TIMEOUT_S = 60.0


def settings(socket: str) -> dict[str, str]:
    """The environment of an adapter of the daemon on `socket`; its server does not linger."""
    return {"MCPD_SOCKET": socket, "MCPD_MCP_IDLE_S": "0"}


def servers_of(socket: str) -> list[psutil.Process]:
    """The MCP servers that adapters of the daemon on `socket` have started."""
    found = []
    for process in psutil.process_iter():
        try:
            if (
                "mcpd.mcp_adapter.service" in process.cmdline()
                and process.environ()["MCPD_SOCKET"] == socket
            ):
                found.append(process)
        except psutil.Error:
            continue  # it has ended meanwhile
    return found


def children_running(*words: str) -> list[psutil.Process]:
    """The living children of this process that have all these words on their command line."""
    found = []
    for process in psutil.Process().children():
        try:
            if set(words) <= set(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue  # it has ended, waited for or not
    return found


@asynccontextmanager
async def connected(
    socket: str, mode: str = "auto", env: Mapping[str, str] | None = None
) -> AsyncIterator[Client]:
    """A client of the official SDK, connected to an adapter that uses the daemon on `socket`."""
    server = StdioServerParameters(
        command=COMMAND[0], args=COMMAND[1:], env={**settings(socket), **(env or {})}, cwd="/"
    )
    with anyio.fail_after(TIMEOUT_S):
        async with Client(server, mode=mode) as client:
            yield client


async def answered(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """What a tool answers, checked: no error, valid by its schema, and the same as JSON text."""
    result = await client.call_tool(tool, arguments)
    text = text_of(result)
    assert not result.is_error, text
    entry = manifest.tool(tool)
    assert entry is not None
    Draft202012Validator(entry["outputSchema"]).validate(result.structured_content)
    assert json.loads(text) == result.structured_content
    assert len(text) <= manifest.MAX_RESULT_NBYTES
    content: dict[str, Any] = result.structured_content
    return content


async def refused(client: Client, tool: str, **arguments: Any) -> str:
    """The words of a tool's error."""
    result = await client.call_tool(tool, arguments)
    assert result.is_error, text_of(result)
    assert result.structured_content is None
    return text_of(result)


def text_of(result: types.CallToolResult) -> str:
    (block,) = result.content
    assert isinstance(block, types.TextContent)
    return block.text


def start_adapter(
    socket: str,
    *,
    stdin: int | IO[Any] | None = subprocess.PIPE,
    stdout: int | None = subprocess.PIPE,
    preexec_fn: Callable[[], None] | None = None,
) -> subprocess.Popen[bytes]:
    """The adapter as a process, by default with pipes for raw bytes; for the caller to wait for."""
    return subprocess.Popen(
        COMMAND,
        stdin=stdin,
        stdout=stdout,
        stderr=subprocess.PIPE,
        env={**os.environ, **settings(socket)},
        cwd="/",
        preexec_fn=preexec_fn,
    )
