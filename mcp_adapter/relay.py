"""The process that a host starts: carries JSON-RPC lines between the host and the MCP server.

It answers at once what is the same whoever asks (mcpd.mcp_adapter.answers), while the server, which
takes a second to load the MCP SDK, is being started or found; the rest it forwards. It owns the
wire, the limits and its own end:

- Nothing but whole JSON-RPC lines gets to standard output, and nothing is written that the host
  has no room for: what it does not read is not asked for, so memory stays flat.
- Lines that are no JSON-RPC message are refused here, and so are those above MAX_LINE_NBYTES.
- It ends at end-of-file, when the host closes standard output, when its parent is gone, and at
  SIGINT, SIGTERM and SIGHUP by the kernel's own action.
- A server that is lost is replaced at the next request: the handshake is replayed to the new one,
  and requests that it had are answered with an error.

Started by `mcpd mcp` as `python -I -S`, and imports only what the interpreter has at hand: `json`,
`socket`, `signal` or `typing` would each take as long to load as everything here.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import os
import select
import stat
import sys
from _json import make_scanner

from mcpd.mcp_adapter import answers, recorded, rendezvous
from mcpd.mcp_adapter.stdio import MAX_LINE_NBYTES, Lines, take_wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

MAX_IN_FLIGHT = 256
"""Requests that the server may have unanswered; above it, the host's next ones wait."""
_ROOM_NBYTES = 256 * 1024
"""What may wait for the host, or for the server, before more is taken from the other side."""
_PIECE_NBYTES = 64 * 1024
_PIPE_NBYTES = select.PIPE_BUF
"""What a pipe that polls writable takes without blocking."""
_GRACE_MS = 1000
"""How long a host that has closed standard input may take for what it has asked before."""
_GONE = select.POLLERR | select.POLLHUP | select.POLLNVAL

PARSE_ERROR, INVALID_REQUEST, INTERNAL_ERROR = -32700, -32600, -32603


def main() -> NoReturn:
    """Relays until the host has gone; does not return."""
    for number in (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP):
        _signal.signal(number, _signal.SIG_DFL)
    _signal.signal(_signal.SIGCHLD, _signal.SIG_IGN)
    try:
        wire_in, wire_out = take_wire()
    except OSError as error:
        sys.exit(f"mcpd mcp: standard input and output are the protocol and are closed: {error}")
    Relay(wire_in, wire_out, _parent()).run()
    os._exit(0)


class Relay:
    """One host's wire and its connection to the server.

    Args:
        wire_in, wire_out: The host's; of any kind, and their flags are left as they are, since
            others may share them.
        parent: Readable when the process that started this one is gone.
    """

    def __init__(self, wire_in: int, wire_out: int, parent: int) -> None:
        self._wire_in, self._wire_out, self._parent = wire_in, wire_out, parent
        self._out_is_socket = stat.S_ISSOCK(os.fstat(wire_out).st_mode)
        self._from_host, self._from_server = Lines(), Lines()
        self._to_host, self._to_server = bytearray(), bytearray()
        self._ended = False  # the host's input is at its end
        self._server: _socket.socket | None = None
        self._wanted = False
        self._era = answers.OPENING
        self._handshake: list[bytes] = []
        self._replayed: int | str | None = None  # id of the opening, whose answer the host has
        self._in_flight: set[int | str] = set()

    def run(self) -> None:
        """Carries lines until the host has gone."""
        while True:
            while self._has_room() and (line := self._from_host.next()) is not None:
                self._take(line)
            if self._ended:
                return self._finish()
            if self._wanted and self._server is None and not self._to_host:
                self._reach()
            if not self._turn():
                return None

    def _has_room(self) -> bool:
        return (
            max(len(self._to_host), len(self._to_server)) < _ROOM_NBYTES
            and len(self._in_flight) < MAX_IN_FLIGHT
        )

    def _turn(self) -> bool:
        """Waits until some side can go on, and moves what can be moved; False at the end."""
        poll = select.poll()
        poll.register(self._parent, select.POLLIN)
        poll.register(self._wire_out, select.POLLOUT if self._to_host else 0)
        reading = self._has_room()
        poll.register(self._wire_in, select.POLLIN if reading else select.POLLRDHUP)
        server = -1
        if self._server is not None:
            server = self._server.fileno()
            listening = select.POLLIN if len(self._to_host) < _ROOM_NBYTES else 0
            poll.register(server, listening | (select.POLLOUT if self._to_server else 0))
        for fd, events in poll.poll():
            if fd == self._parent or (fd == self._wire_out and events & _GONE):
                return False
            if fd == self._wire_out and not self._write_host():
                return False
            if fd == self._wire_in and not reading:
                return False  # it has gone without waiting for its answers
            if fd == self._wire_in:
                self._read_host()
            if fd == server and self._server is not None:
                self._exchange(events)
        return True

    def _take(self, line: bytes) -> None:
        """Answers, refuses or forwards a line of the host's."""
        if line.isspace():
            return
        message = parsed(line)
        if (refusal := refused(line, message)) is not None:
            self._to_host += refusal
            return
        if "method" in message:
            opens = self._era == answers.OPENING
            answer = answers.answer(self._era, message) if not opens else None
            if opens:
                era = answers.era_opened_by(message)
                opening = answers.OPENING if era == answers.HANDSHAKE else era
                answer = answers.answer(opening, message)
                self._era = era
            elif self._era == answers.HANDSHAKE and message["method"] == "initialize":
                self._era = answers.FOREIGN
            if answer is not None:
                self._to_host += answer
                self._wanted = True
                if opens:
                    self._handshake.append(line)
                return
            if message["method"] == "notifications/initialized" and len(self._handshake) == 1:
                self._handshake.append(line)
                self._wanted = True
                if self._server is None:
                    return  # it goes with the handshake
            elif "id" in message:
                self._in_flight.add(message["id"])
        if self._server is None:
            self._reach()
        if self._server is not None:
            self._to_server += line

    def _reach(self) -> None:
        """Connects to the server and has the handshake replayed first."""
        self._wanted = False
        try:
            self._server = rendezvous.reach(os.environ, recorded.INITIALIZE)
        except OSError as error:
            print(f"mcpd mcp: the MCP server cannot be started: {error}", file=sys.stderr)
            self._fail("mcpd's MCP server cannot be started; `mcpd mcp` logs why")
            return
        self._server.setblocking(False)
        if self._handshake:
            self._replayed = parsed(self._handshake[0])["id"]
            self._to_server[:0] = b"".join(self._handshake)

    def _lose(self) -> None:
        """Does without the server from now on, until the next request."""
        if self._server is not None:
            self._server.close()
        self._server, self._from_server, self._replayed = None, Lines(), None
        self._fail("mcpd's MCP server ended before it had answered; ask again")

    def _fail(self, words: str) -> None:
        self._to_server.clear()
        for identity in self._in_flight:
            self._to_host += answers.error(_plain(identity), INTERNAL_ERROR, words)
        self._in_flight.clear()
        # What it knew of this connection cannot be told to another.
        self._ended |= self._era == answers.FOREIGN

    def _exchange(self, events: int) -> None:
        server = self._server
        if server is None:
            return
        try:
            if self._to_server and events & (select.POLLOUT | _GONE):
                del self._to_server[: server.send(self._to_server)]
            if events & (select.POLLIN | _GONE):
                received = server.recv(_PIECE_NBYTES)
                if not received:
                    return self._lose()
                self._from_server.feed(received)
        except BlockingIOError:
            return None
        except OSError:
            return self._lose()
        while (line := self._from_server.next()) is not None:
            self._pass_on(line)
        return None

    def _pass_on(self, line: bytes) -> None:
        """Gives a line of the server's to the host, unless the host has had it."""
        found, identity = answered_id(line)
        if found:
            if self._replayed is not None and identity == self._replayed:
                self._replayed = None
                return
            self._in_flight.discard(identity)
        self._to_host += line

    def _read_host(self) -> None:
        try:
            received = os.read(self._wire_in, _PIECE_NBYTES)
        except ConnectionResetError:
            received = b""
        self._ended = not received
        self._from_host.feed(received)

    def _write_host(self) -> bool:
        try:
            if self._out_is_socket:
                # A socket that polls writable has room, but not for how much: do not wait.
                sock = _socket.socket(fileno=os.dup(self._wire_out))
                try:
                    count = sock.send(self._to_host, _socket.MSG_DONTWAIT)
                finally:
                    sock.close()
            else:
                count = os.write(self._wire_out, self._to_host[:_PIPE_NBYTES])
        except BlockingIOError:
            return True
        except (BrokenPipeError, ConnectionResetError):
            return False
        del self._to_host[:count]
        return True

    def _finish(self) -> None:
        """Gives the host what is ready for it, if it still takes it."""
        poll = select.poll()
        poll.register(self._wire_out, select.POLLOUT)
        poll.register(self._parent, select.POLLIN)
        while self._to_host:
            ready = dict(poll.poll(_GRACE_MS))
            if self._parent in ready or ready.get(self._wire_out, _GONE) & _GONE:
                return
            if not self._write_host():
                return


class _Decoding:
    """How the C half of `json` is to read: as json.loads does."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float
    memo: dict[str, str] = {}  # noqa: RUF012  (the scanner clears it)


_scan = make_scanner(_Decoding())  # type: ignore[arg-type]


def parsed(line: bytes) -> Any:
    """The JSON value that the line is; None if it is none, which no message is."""
    try:
        text = line.decode().strip(" \t\r\n")
        value, end = _scan(text, 0)
    except (ValueError, StopIteration, RecursionError):
        return None
    return value if end == len(text) else None


def refused(line: bytes, message: Any) -> bytes | None:
    """The error that answers a line which is no JSON-RPC message; None if it is one."""
    if not line:
        words = f"the line has more than {MAX_LINE_NBYTES} bytes, the most that a message may have"
        return answers.error(None, INVALID_REQUEST, words)
    if message is None and line.strip() != b"null":
        return answers.error(None, PARSE_ERROR, "the line is not JSON in UTF-8")
    if not isinstance(message, dict):
        return answers.error(None, INVALID_REQUEST, "a message is a JSON object on one line")
    identity = message.get("id")
    if message.get("jsonrpc") != "2.0":
        words = "the message lacks jsonrpc: 2.0"
    elif "id" in message and type(identity) not in (int, str):
        words = "an id is a string or a whole number"
    elif "method" not in message:
        if "id" in message and ("result" in message) != ("error" in message):
            return None
        words = "the message has no method, and is no answer"
    elif not isinstance(message["method"], str):
        words = "a method is a string"
    elif not isinstance(message.get("params", {}), dict):
        words = "params are an object"
    else:
        return None
    return answers.error(_plain(identity), INVALID_REQUEST, words)


def answered_id(line: bytes) -> tuple[bool, int | str | None]:
    """Whether a line of the server's answers a request, and the request's id.

    The SDK writes the id before the rest, so a result of 50 KB is not parsed for it.
    """
    head = b'{"jsonrpc":"2.0","id":'
    if not line.startswith(head):
        return False, None
    start = line[len(head) : len(head) + 4096].decode("utf-8", "replace")
    try:
        identity, end = _scan(start, 0)
    except (ValueError, StopIteration):
        return False, None
    return start.startswith((',"result"', ',"error"'), end), identity


def _plain(identity: object) -> int | str | None:
    return answers.request_id({"id": identity})


def _parent() -> int:
    """A descriptor that polls readable when the process that started this one is gone.

    End-of-file alone is not enough: a process that inherited the other end of our standard input,
    such as a second server started by the same host, keeps it open after the host has died.
    """
    parent = os.getppid()
    try:
        watched = os.pidfd_open(parent)
    except ProcessLookupError:
        os._exit(0)
    if os.getppid() != parent:  # it died and its number was taken before it was opened
        os._exit(0)
    return watched
