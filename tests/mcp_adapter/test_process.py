"""The adapter's process: what is on its wire, and that nothing keeps it alive."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.adapter import COMMAND, TIMEOUT_S, settings
from tests.support.daemon import wait_until
from tests.support.wire import INITIALIZE, INITIALIZED, Wire, call


def test_initialize_is_answered_with_no_daemon_there(no_daemon: str) -> None:
    with Wire(no_daemon) as wire:
        wire.greet()


@pytest.mark.parametrize("version", ["2024-11-05", "2025-06-18", "2099-01-01"])
def test_every_handshake_version_is_served(no_daemon: str, version: str) -> None:
    params = {**INITIALIZE["params"], "protocolVersion": version}
    with Wire(no_daemon) as wire:
        wire.send({**INITIALIZE, "params": params}, INITIALIZED)
        chosen = wire.receive()["result"]["protocolVersion"]
        assert chosen == (version if version != "2099-01-01" else "2025-11-25")
        wire.send({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
        assert len(wire.receive()["result"]["tools"]) == 4


def test_end_of_file_ends_it(no_daemon: str) -> None:
    with Wire(no_daemon) as wire:
        wire.greet()
        assert wire.process.communicate(timeout=TIMEOUT_S) == (b"", b"")
        assert wire.process.returncode == 0


def test_end_of_file_before_the_first_message_ends_it(no_daemon: str) -> None:
    with Wire(no_daemon) as wire:
        assert wire.process.communicate(timeout=TIMEOUT_S) == (b"", b"")
        assert wire.process.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_ends_it_at_once_though_it_was_ignored_before(
    no_daemon: str, number: signal.Signals
) -> None:
    previous = signal.signal(number, signal.SIG_IGN)
    try:
        wire = Wire(no_daemon)
    finally:
        signal.signal(number, previous)
    with wire:
        wire.greet()
        wire.process.send_signal(number)
        assert wire.process.wait(TIMEOUT_S) == -number
        assert wire.process.communicate() == (b"", b"")


def test_host_that_closes_its_end_of_stdout_ends_it(no_daemon: str) -> None:
    with Wire(no_daemon) as wire:
        wire.greet()
        assert wire.process.stdout is not None
        wire.process.stdout.close()
        wire.send({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
        assert wire.process.wait(TIMEOUT_S) == 0


def test_death_of_the_host_ends_it_though_its_stdin_stays_open(no_daemon: str) -> None:
    reading, writing = os.pipe()
    host_code = (
        "import subprocess, sys, time\n"
        f"adapter = subprocess.Popen({COMMAND!r}, stdin={reading}, stdout=subprocess.PIPE)\n"
        "print(adapter.pid, flush=True)\n"
        "adapter.stdout.readline()\n"
        "print('greeted', flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", host_code],
        stdout=subprocess.PIPE,
        pass_fds=[reading],
        env={**os.environ, **settings(no_daemon)},
    ) as host:
        os.close(reading)
        assert host.stdout is not None
        adapter = psutil.Process(int(host.stdout.readline()))
        os.write(writing, json.dumps(INITIALIZE).encode() + b"\n")
        assert host.stdout.readline() == b"greeted\n"
        host.kill()
    wait_until(lambda: not adapter.is_running(), TIMEOUT_S, "the adapter is gone")
    os.close(writing)


def test_garbage_is_survived_and_nothing_but_protocol_is_written(no_daemon: str) -> None:
    with Wire(no_daemon) as wire:
        wire.send(b"garbage\n", b"\xff\xfe\x00\n", b"\n", b"[]\n", b'{"jsonrpc":"1.0"}\n')
        assert [wire.receive_error() for _ in range(4)] == [
            *[(None, -32700)] * 2,
            *[(None, -32600)] * 2,
        ]
        wire.greet()
        wire.send(b"x" * 20_000_000 + b"\n", b'{"jsonrpc":"2.0","id":7}\n', b"null\n")
        assert [wire.receive_error() for _ in range(3)] == [
            (None, -32600),
            (7, -32600),
            (None, -32600),
        ]
        wire.send(call(1, "list_streams", {}))
        assert wire.receive()["result"]["isError"] is True


NO_CALLS: list[object] = [
    {"name": "list_streams", "arguments": [1]},
    {"name": "list_streams", "arguments": "x"},
    {"name": 7},
    {"arguments": {}},
    {},
    {"name": "no_such_tool", "arguments": {}},
]


def test_call_that_is_none_gets_a_protocol_error(no_daemon: str) -> None:
    with Wire(no_daemon) as wire:
        wire.greet()
        for number, params in enumerate(NO_CALLS, 1):
            wire.send({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params})
            answer = wire.receive()
            assert answer["id"] == number
            assert answer["error"]["code"] == -32602


def test_unknown_method_gets_a_protocol_error(no_daemon: str) -> None:
    with Wire(no_daemon) as wire:
        wire.greet()
        wire.send({"jsonrpc": "2.0", "id": 1, "method": "tools/listen"})
        assert wire.receive()["error"]["code"] == -32601


def test_stdio_may_be_a_socket(no_daemon: str) -> None:
    ours, theirs = socket.socketpair()
    with ours, Wire(no_daemon, stdin=theirs.fileno(), stdout=theirs.fileno()) as wire:
        theirs.close()
        ours.sendall(json.dumps(INITIALIZE).encode() + b"\n")
        with ours.makefile("rb") as lines:
            assert json.loads(lines.readline())["result"]["serverInfo"]["name"] == "mcpd"
            ours.shutdown(socket.SHUT_WR)
            assert lines.read() == b""
        assert wire.process.wait(TIMEOUT_S) == 0


def test_stdin_may_be_a_file(no_daemon: str, tmp_path: Path) -> None:
    (tmp_path / "in").write_text(json.dumps(INITIALIZE) + "\n")
    with open(tmp_path / "in") as file, Wire(no_daemon, stdin=file) as wire:
        assert wire.receive()["id"] == 0
        assert wire.process.wait(TIMEOUT_S) == 0


def test_closed_stdin_is_an_error_in_words(no_daemon: str) -> None:
    def close_stdin() -> None:
        os.close(0)

    with Wire(no_daemon, stdin=None, preexec_fn=close_stdin) as wire:
        _, errors = wire.process.communicate(timeout=TIMEOUT_S)
        assert wire.process.returncode == 1
        assert b"standard input and output are the protocol and are closed" in errors


def test_serving_a_call_loads_neither_numpy_nor_an_engine(no_daemon: str) -> None:
    code = (
        "import asyncio, sys\n"
        "from mcp import Client\n"
        "from mcpd.mcp_adapter.link import Link\n"
        "from mcpd.mcp_adapter.server import make_server\n"
        "async def main():\n"
        "    async with Link() as link, Client(make_server(link)) as client:\n"
        "        for name in ('get_status', 'list_streams', 'list_models'):\n"
        "            assert (await client.call_tool(name, {})).is_error\n"
        "        arguments = {'model': 'm', 'stream': 's'}\n"
        "        assert (await client.call_tool('run_inference', arguments)).is_error\n"
        "asyncio.run(main())\n"
        "print(*sorted({'numpy', 'torch', 'av', 'onnx', 'onnxruntime'} & sys.modules.keys()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={**os.environ, "MCPD_SOCKET": no_daemon},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.stdout == "\n", done.stdout + done.stderr
