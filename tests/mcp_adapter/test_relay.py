"""The relay answers as the SDK's server would, keeps its memory flat, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.mcp_adapter import answers, record, recorded, rendezvous
from mcpd.mcp_adapter.relay import answered_id, parsed, refused
from mcpd.shm.paths import default_socket
from tests.support.adapter import TIMEOUT_S, answered, connected, servers_of
from tests.support.daemon import RunningDaemon, wait_until
from tests.support.wire import INITIALIZE, INITIALIZED, Wire, call

Message = dict[str, Any]

PREFIX = "io.modelcontextprotocol/"
META = {
    f"{PREFIX}protocolVersion": "2026-07-28",
    f"{PREFIX}clientInfo": {"name": "host", "version": "1"},
    f"{PREFIX}clientCapabilities": {},
}


def request(identity: object, method: str, **params: Any) -> Message:
    message = {"jsonrpc": "2.0", "id": identity, "method": method}
    return {**message, "params": params} if params else message


def initialize(identity: object, **changes: Any) -> Message:
    return {**INITIALIZE, "id": identity, "params": {**INITIALIZE["params"], **changes}}


HANDSHAKES = [
    [initialize("a", protocolVersion=version), INITIALIZED, request(1, "tools/list"),
     request(-7, "ping", _meta={"progressToken": 1})]
    for version in [*recorded.HANDSHAKE_VERSIONS, "2099-01-01"]
]  # fmt: skip
CONVERSATIONS = [
    *HANDSHAKES,
    [request(1, "server/discover", _meta=META), request("list", "tools/list", _meta=META)],
    [request(1, "tools/list", _meta=META), request(2, "ping", _meta=META)],
    [request(1, "tools/list", _meta=META), initialize(2), request(3, "tools/list")],
    [request(1, "server/discover"), request(2, "server/discover", _meta=META), initialize(3)],
    [request(1, "server/discover", _meta={**META, f"{PREFIX}protocolVersion": "2099-01-01"})],
    [request(1, "server/discover", _meta={f"{PREFIX}protocolVersion": "2026-07-28"})],
    [request(1, "ping"), initialize(2), INITIALIZED, request(3, "tools/list")],
    [request(1, "tools/list"), initialize(2), request(3, "tools/list", cursor="x")],
    [initialize(1, capabilities=7), initialize(2), request(3, "tools/list")],
    [initialize(1, clientInfo={}), request(2, "ping")],
    [initialize(1), initialize(2, protocolVersion="2025-03-26"), request(3, "tools/list")],
    [initialize(1), INITIALIZED, request(2, "tools/list", _meta=META), request(3, "no/such")],
    [initialize(1), INITIALIZED, request("x" * 300, "ping"), request("ü\"", "ping")],
    [INITIALIZED, initialize(1), request(2, "ping")],
]  # fmt: skip


@pytest.mark.parametrize("conversation", CONVERSATIONS)
def test_answers_are_the_sdks_byte_for_byte(no_daemon: str, conversation: list[Message]) -> None:
    with Wire(no_daemon) as wire:
        lines = []
        for message in conversation:
            wire.send(message)
            if "id" in message:
                assert wire.process.stdout is not None
                lines.append(wire.process.stdout.readline().decode())
    assert lines == asyncio.run(record.ask(*conversation))


def test_recorded_answers_are_current() -> None:
    # Else: python -P -m mcpd.mcp_adapter.record
    assert Path(str(recorded.__file__)).read_text(encoding="utf-8") == record.recorded()


@pytest.mark.parametrize("conversation", CONVERSATIONS[:7])
def test_what_opens_a_connection_is_answered_without_a_server(conversation: list[Message]) -> None:
    opening = conversation[0]
    era = answers.era_opened_by(opening)
    assert era in (answers.HANDSHAKE, answers.MODERN)
    assert answers.answer(answers.OPENING if era == answers.HANDSHAKE else era, opening)


def test_relay_loads_nothing_slow(no_daemon: str) -> None:
    code = "import sys; import mcpd.mcp_adapter.relay; print(*sys.modules)"
    root = Path(answers.__file__).resolve().parents[1]
    boot = (
        f"import sys; m = sys.modules['mcpd'] = type(sys)('mcpd'); m.__path__ = [{str(root)!r}]\n"
    )
    command = [sys.executable, "-I", "-S", "-c", boot + code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, cwd="/")
    loaded = set(done.stdout.split())
    assert "mcpd.mcp_adapter.relay" in loaded, done.stderr
    slow = {"json", "re", "typing", "enum", "socket", "signal", "subprocess", "asyncio", "pathlib"}
    assert loaded & slow == set()


def test_daemons_socket_is_where_the_library_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    for env in [{"MCPD_SOCKET": "/x/y"}, {"XDG_RUNTIME_DIR": "/run/user/7"}, {}]:
        for name in ("MCPD_SOCKET", "XDG_RUNTIME_DIR"):
            monkeypatch.delenv(name, raising=False)
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        assert rendezvous.daemon_socket(os.environ, os.getuid()) == default_socket()


def rss_nbytes(process: subprocess.Popen[bytes]) -> int:
    nbytes: int = psutil.Process(process.pid).memory_info().rss
    return nbytes


def test_line_of_twenty_megabytes_is_refused_and_not_kept(no_daemon: str) -> None:
    with Wire(no_daemon) as wire:
        wire.greet()
        before = rss_nbytes(wire.process)
        wire.send(b"x" * 20_000_000 + b"\n")
        assert wire.receive_error() == (None, -32600)
        assert rss_nbytes(wire.process) - before < 6_000_000


@pytest.mark.parametrize("method", ["tools/list", "tools/call"])
def test_host_that_does_not_read_is_not_read_from(no_daemon: str, method: str) -> None:
    with Wire(no_daemon) as wire:
        wire.greet()
        wire.send(call(0, "list_streams", {}))
        wire.receive()
        before = rss_nbytes(wire.process)
        (server,) = servers_of(no_daemon)
        server_before = server.memory_info().rss
        params = {"name": "list_streams", "arguments": {}} if method == "tools/call" else {}
        lines = [json.dumps(request(n, method, **params)).encode() + b"\n" for n in range(10_000)]
        unsent = memoryview(b"".join(lines))
        assert wire.process.stdin is not None
        assert wire.process.stdout is not None
        os.set_blocking(wire.process.stdin.fileno(), False)
        refusals = 0
        while refusals < 20:  # it takes no more
            try:
                unsent = unsent[os.write(wire.process.stdin.fileno(), unsent) :]
                refusals = 0
            except BlockingIOError:
                refusals += 1
                time.sleep(0.02)
        assert len(unsent) > 100_000
        assert rss_nbytes(wire.process) - before < 4_000_000
        assert server.memory_info().rss - server_before < 20_000_000
        os.set_blocking(wire.process.stdin.fileno(), True)
        heard = set()
        rest = threading.Thread(target=wire.send, args=(bytes(unsent),))
        rest.start()
        for _ in lines:
            heard.add(wire.receive()["id"])
        rest.join()
        assert heard == set(range(10_000))
        assert rss_nbytes(wire.process) - before < 4_000_000


def test_relays_with_the_same_settings_share_a_server(no_daemon: str) -> None:
    with Wire(no_daemon) as first, Wire(no_daemon) as second:
        for wire in (first, second):
            wire.greet()
        for wire in (first, second):
            wire.send(call(1, "list_models", {}))
        for wire in (first, second):
            assert wire.receive()["id"] == 1
        assert len(servers_of(no_daemon)) == 1
    wait_until(lambda: not servers_of(no_daemon), TIMEOUT_S, "the server is gone")
    assert os.listdir(os.path.dirname(no_daemon)) == []


def test_relays_with_other_settings_do_not(no_daemon: str) -> None:
    shared = rendezvous.settings({"MCPD_SOCKET": no_daemon, "SECRET": "x"}, 0)
    assert shared == {"MCPD_SOCKET": no_daemon}
    base = rendezvous.base_path(shared, "1")
    assert base == rendezvous.base_path(dict(shared), "1")
    assert base != rendezvous.base_path({**shared, "MCPD_MCP_ROOTS": "/"}, "1")
    assert base != rendezvous.base_path(shared, "2")
    assert os.path.dirname(base) == os.path.dirname(no_daemon)


def test_relay_that_only_opens_is_served_by_a_server_that_ends_with_it(no_daemon: str) -> None:
    with Wire(no_daemon) as wire:
        wire.greet()
        wait_until(lambda: len(servers_of(no_daemon)) == 1, TIMEOUT_S, "the server is there")
        wire.process.kill()
    wait_until(lambda: not servers_of(no_daemon), TIMEOUT_S, "the server is gone")


def test_server_in_no_folder_of_ours_is_the_relays_own() -> None:
    socket = f"/tmp/mcpd-test-{os.getpid()}.sock"  # anybody may put sockets there
    with Wire(socket) as wire:
        wire.greet()
        wire.send(call(1, "list_models", {}))
        assert wire.receive()["result"]["isError"] is True
        (server,) = servers_of(socket)
        assert server.ppid() == wire.process.pid
        wire.process.kill()
    wait_until(lambda: not server.is_running(), TIMEOUT_S, "the server is gone")


def test_server_that_is_killed_is_replaced_and_knows_the_handshake(no_daemon: str) -> None:
    with Wire(no_daemon) as wire:
        wire.greet()
        for number in (1, 2):
            wire.send(call(number, "list_models", {}))
            assert wire.receive()["result"]["isError"] is True
            (server,) = servers_of(no_daemon)
            server.kill()
            server.wait()


def test_request_that_the_killed_server_had_gets_an_error(no_daemon: str) -> None:
    with Wire(no_daemon) as wire:
        wire.greet()
        wait_until(lambda: len(servers_of(no_daemon)) == 1, TIMEOUT_S, "the server is there")
        (server,) = servers_of(no_daemon)
        server.suspend()
        wire.send(call(1, "list_models", {}))
        wire.send(request(2, "ping"))
        assert wire.receive()["id"] == 2
        server.kill()
        assert wire.receive_error() == (1, -32603)
        wire.send(call(3, "list_models", {}))
        assert wire.receive()["result"]["isError"] is True


def test_killed_server_is_not_noticed_by_the_official_client(
    bare_daemon: RunningDaemon, mode: str
) -> None:
    async def main() -> None:
        async with connected(bare_daemon.socket, mode) as client:
            await answered(client, "list_models")
            (server,) = servers_of(bare_daemon.socket)
            server.kill()
            await asyncio.to_thread(server.wait)
            await answered(client, "list_models")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"", -32600),
        (b"{\n", -32700),
        (b"[" * 100_000 + b"\n", -32700),
        (b'{"jsonrpc":"2.0"} {}\n', -32700),
        (b'"\xff"\n', -32700),
        (b"null\n", -32600),
        (b"[]\n", -32600),
        (b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}\n', -32600),
        (b'{"jsonrpc":"2.0","id":true,"method":"ping"}\n', -32600),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}\n', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":7}\n', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":[1]}\n', -32600),
        (b'{"id":1,"method":"ping"}\n', -32600),
    ],
)
def test_line_that_is_no_message_is_refused(line: bytes, code: int) -> None:
    refusal = refused(line, parsed(line))
    assert refusal is not None
    assert json.loads(refusal)["error"]["code"] == code


@given(st.binary(max_size=100) | st.text(max_size=100).map(str.encode))
def test_any_line_is_refused_or_a_message(line: bytes) -> None:
    message = parsed(line)
    if refused(line, message) is None:
        assert message == json.loads(line)
        assert message["jsonrpc"] == "2.0"


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda each:
    st.lists(each) | st.dictionaries(st.text(), each), max_leaves=10))  # fmt: skip
def test_json_is_read_as_json_reads_it(value: object) -> None:
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1)):
        assert parsed(text.encode(errors="replace")) == json.loads(text.encode(errors="replace"))


@given(st.integers() | st.text(), st.sampled_from(["result", "error", "method"]))
def test_answers_are_known_by_their_id(identity: int | str, key: str) -> None:
    line = json.dumps({"jsonrpc": "2.0", "id": identity, key: {}}, separators=(",", ":"))
    assert answered_id(line.encode() + b"\n") == (key != "method", identity)
    assert answered_id(b'{"jsonrpc":"2.0","method":"x"}\n') == (False, None)
