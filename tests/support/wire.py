"""Raw JSON-RPC lines to and from the adapter's process, beside what the official client sends."""

from __future__ import annotations

import json
from typing import Any

from tests.support.adapter import start_adapter

CLAUDE = {"name": "claude-code", "version": "2.0.0"}
INITIALIZE: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"roots": {}, "elicitation": {}},
        "clientInfo": CLAUDE,
    },
}
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}


class Wire:
    """Raw lines to and from an adapter; a context manager that kills what is left of it."""

    def __init__(self, socket_path: str, **popen: Any) -> None:
        self.process = start_adapter(socket_path, **popen)

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for file in (self.process.stdin, self.process.stdout, self.process.stderr):
            if file is not None:
                file.close()

    def send(self, *messages: object) -> None:
        assert self.process.stdin is not None
        for message in messages:
            line = message if isinstance(message, bytes) else json.dumps(message).encode() + b"\n"
            self.process.stdin.write(line)
        self.process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        message: dict[str, Any] = json.loads(self.process.stdout.readline())
        assert message["jsonrpc"] == "2.0"
        return message

    def receive_error(self) -> tuple[object, int]:
        """Whom the next line is for, and the code of the error that it is."""
        message = self.receive()
        return message["id"], message["error"]["code"]

    def greet(self) -> None:
        self.send(INITIALIZE, INITIALIZED)
        assert self.receive()["result"]["serverInfo"]["name"] == "mcpd"


def call(number: int, tool: str, arguments: object) -> dict[str, Any]:
    params = {"name": tool, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
