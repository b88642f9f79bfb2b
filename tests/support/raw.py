"""The control socket by hand, for messages that the client library would never send."""

from __future__ import annotations

import socket
import struct
from types import TracebackType
from typing import Any, Self

import msgspec

TIMEOUT_S = 20.0


class RawSession:
    """A connected socket; a context manager that closes it.

    Args:
        path: The daemon's socket.
        hello: Whether to say hello and wait for the answer.
    """

    def __init__(self, path: str, *, hello: bool = True) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(TIMEOUT_S)
        self.sock.connect(path)
        self.greeting: dict[str, Any] = {}
        if hello:
            self.greeting = self.ask(type="hello", versions=[1], client="raw")

    def send(self, **fields: Any) -> None:
        """Sends one message."""
        self.send_body(msgspec.msgpack.encode(fields))

    def send_body(self, body: bytes) -> None:
        """Sends bytes with their length before them."""
        self.sock.sendall(struct.pack("<I", len(body)) + body)

    def receive(self) -> dict[str, Any]:
        """The next message; {} at end-of-file. Descriptors that come along are lost."""
        header = self._exactly(4)
        if not header:
            return {}
        body = self._exactly(struct.unpack("<I", header)[0])
        message: dict[str, Any] = msgspec.msgpack.decode(body)
        return message

    def ask(self, **fields: Any) -> dict[str, Any]:
        """Sends a request with id 1 and returns its answer."""
        self.send(id=1, **fields)
        answer = self.receive()
        while answer and answer.get("id") != 1:
            answer = self.receive()
        return answer

    def close(self) -> None:
        """Closes the socket."""
        self.sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _exactly(self, nbytes: int) -> bytes:
        data = b""
        while len(data) < nbytes:
            try:
                more = self.sock.recv(nbytes - len(data))
            except ConnectionResetError:
                more = b""
            if not more:
                return b""
            data += more
        return data
