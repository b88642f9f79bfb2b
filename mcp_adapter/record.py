"""Writes mcpd.mcp_adapter.recorded: what the SDK's server answers, asked once.

Run it after a change of the manifest, the version or the SDK:
`python -P -m mcpd.mcp_adapter.record`
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from pathlib import Path
from typing import Any, Final

from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS

from mcpd.mcp_adapter.link import Link
from mcpd.mcp_adapter.server import serve

MARK: Final = "<protocol version>"
INFO: Final = {"name": "record", "version": "1"}


def recorded() -> str:
    """The text of the module.

    Raises:
        RuntimeError: An answer depends on more than the relay takes into account.
    """
    handshakes = [asyncio.run(_handshake(version)) for version in HANDSHAKE_PROTOCOL_VERSIONS]
    if len(set(handshakes)) != 1:
        raise RuntimeError("the answers differ by more than the version of the handshake")
    (initialize, listed), (discover, modern) = handshakes[0], asyncio.run(_modern())
    constants = {
        "HANDSHAKE_VERSIONS": HANDSHAKE_PROTOCOL_VERSIONS,
        "LATEST_HANDSHAKE": HANDSHAKE_PROTOCOL_VERSIONS[-1],
        "MODERN_VERSION": MODERN_PROTOCOL_VERSIONS[-1],
        "VERSION_MARK": MARK,
        "INITIALIZE": initialize,
        "DISCOVER": discover,
        "TOOLS_HANDSHAKE": listed,
        "TOOLS_MODERN": modern,
    }
    lines = [
        '"""What the SDK\'s server answers; mcpd.mcp_adapter.record writes this file."""\n\n',
        "# fmt: off\n# ruff: noqa: E501\n",
        *(f"{name} = {value!r}\n" for name, value in constants.items()),
    ]
    return "".join(lines)


async def ask(*messages: dict[str, Any]) -> list[str]:
    """The lines that a fresh session of the SDK's server answers to requests, one by one."""
    ours, theirs = socket.socketpair()
    async with Link() as link:
        session = asyncio.create_task(serve(link, *await asyncio.open_connection(sock=theirs)))
        reader, writer = await asyncio.open_connection(sock=ours, limit=1 << 24)
        lines = []
        for message in messages:
            writer.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
            if "id" in message:
                lines.append((await reader.readline()).decode())
        writer.close()
        await session
    return lines


async def _handshake(version: str) -> tuple[str, str]:
    params = {"protocolVersion": version, "capabilities": {}, "clientInfo": INFO}
    lines = await ask(
        {"id": 0, "method": "initialize", "params": params},
        {"method": "notifications/initialized"},
        {"id": 0, "method": "tools/list"},
    )
    initialize, listed = map(_result, lines)
    return initialize.replace(f'"{version}"', f'"{MARK}"'), listed


async def _modern() -> tuple[str, str]:
    prefix = "io.modelcontextprotocol/"
    meta = {
        f"{prefix}protocolVersion": MODERN_PROTOCOL_VERSIONS[-1],
        f"{prefix}clientInfo": INFO,
        f"{prefix}clientCapabilities": {},
    }
    methods = ("server/discover", "tools/list")
    lines = await ask(*({"id": 0, "method": each, "params": {"_meta": meta}} for each in methods))
    discover, listed = map(_result, lines)
    return discover, listed


def _result(line: str) -> str:
    head = '{"jsonrpc":"2.0","id":0,"result":'
    if not line.startswith(head):
        raise RuntimeError(f"not the answer that was asked for: {line}")
    return line.removeprefix(head).removesuffix("}\n")


if __name__ == "__main__":
    Path(__file__).with_name("recorded.py").write_text(recorded(), encoding="utf-8")
    sys.stdout.write("recorded.py is written\n")
