"""The real adapter as a process, and the official client that drives it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import IO, Any

import anyio
import mcp_types as types
from jsonschema import Draft202012Validator
from mcp import Client, StdioServerParameters

from mcpd.mcp_adapter import manifest

COMMAND = [sys.executable, "-P", "-m", "mcpd.mcp_adapter"]
MODES = ("legacy", "auto")
TIMEOUT_S = 60.0


@asynccontextmanager
async def connected(
    socket: str, mode: str = "auto", env: Mapping[str, str] | None = None
) -> AsyncIterator[Client]:
    """A client of the official SDK, connected to an adapter that uses the daemon on `socket`."""
    server = StdioServerParameters(
        command=COMMAND[0], args=COMMAND[1:], env={"MCPD_SOCKET": socket, **(env or {})}, cwd="/"
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
        env={**os.environ, "MCPD_SOCKET": socket},
        cwd="/",
        preexec_fn=preexec_fn,
    )
