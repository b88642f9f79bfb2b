"""start, status and stop against real daemons."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from mcpd.cli.stop import wait_until_gone
from mcpd.shm.client import connect
from mcpd.shm.errors import TimedOut
from tests.cli.command import run_mcpd, start_mcpd
from tests.support.daemon import RunningDaemon


@pytest.fixture
def socket() -> Iterator[str]:
    """A short path that nobody listens on."""
    with tempfile.TemporaryDirectory(prefix="mcpd-", dir="/tmp") as folder:
        yield f"{folder}/mcpd.sock"


def wait_until_ready(process: subprocess.Popen[str]) -> list[str]:
    """Reads standard error up to the line that says that the daemon serves."""
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if line.startswith("mcpd ready"):
            return lines
    raise AssertionError(f"the daemon did not start: {lines}")


def test_start_becomes_the_daemon_and_ends_in_order(socket: str, tmp_path: Path) -> None:
    with start_mcpd("start", "--socket", socket, "--models", str(tmp_path)) as process:
        ready = wait_until_ready(process)[-1]
        assert socket in ready
        assert f"pid {process.pid}" in ready
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert not os.path.exists(socket)


def test_start_with_json_logs_json_lines(socket: str, tmp_path: Path) -> None:
    with start_mcpd("start", "--socket", socket, "--models", str(tmp_path), "--json") as process:
        wait_until_ready(process)
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        logged = [json.loads(line) for line in process.stderr]
        assert process.wait(30) == 0
    assert logged


def test_second_start_on_a_socket_fails_and_says_why(bare_daemon: RunningDaemon) -> None:
    ran = run_mcpd("start", "--socket", bare_daemon.socket)
    assert ran.status == 1
    assert str(bare_daemon.pid) in ran.err or bare_daemon.socket in ran.err
    assert run_mcpd("status", socket=bare_daemon.socket).status == 0


def test_start_that_fails_tells_it_as_every_command_does(bare_daemon: RunningDaemon) -> None:
    taken = run_mcpd("start", socket=bare_daemon.socket)
    error, hint = taken.err.splitlines()
    assert error.startswith("mcpd: error: ")
    assert hint.startswith("hint: ")
    taken = run_mcpd("start", "--json", socket=bare_daemon.socket)
    assert (taken.status, taken.err) == (1, "")
    assert "already" in taken.document["error"]["message"]


def test_memory_limit_that_is_none_is_wrong_usage(socket: str) -> None:
    wrong = run_mcpd("start", "--memory-limit", "much", socket=socket)
    assert wrong.status == 2
    error, hint = wrong.err.splitlines()
    assert error.startswith("mcpd: error: ")
    assert "'much' is not a size" in error
    assert "mcpd start --help" in hint
    wrong = run_mcpd("start", "--json", socket=socket, env={"MCPD_MEMORY_LIMIT": "much"})
    assert (wrong.status, wrong.err) == (2, "")
    assert wrong.document["error"]["code"] == "usage"


def test_status_shows_models_and_streams(daemon: RunningDaemon) -> None:
    with (
        connect(daemon.socket, name="test-writer") as client,
        client.create_stream("cam0", width=64, height=48, format="rgb24"),
    ):
        ran = run_mcpd("status", socket=daemon.socket)
    assert ran.status == 0
    assert ran.err == ""
    for shown in (f"pid {daemon.pid}", "cam0", "64x48 rgb24", "test-writer", "trivial"):
        assert shown in ran.out


def test_status_with_json_has_whole_tables(daemon: RunningDaemon) -> None:
    with (
        connect(daemon.socket) as client,
        client.create_stream("cam0", width=64, height=48, format="rgb24") as stream,
    ):
        with stream.acquire():
            pass
        document = run_mcpd("status", "--json", socket=daemon.socket).document
    assert document["daemon"]["pid"] == daemon.pid
    assert {model["name"] for model in document["models"]} == {"trivial", "tiny-image"}
    (row,) = document["streams"]
    assert (row["name"], row["width"], row["height"], row["published"]) == ("cam0", 64, 48, 1)
    assert document["workers"] == []
    assert len(document["sessions"]) == 2


def test_status_fits_a_terminal_of_80_columns(daemon: RunningDaemon) -> None:
    with (
        connect(daemon.socket, name="mcpd-source") as client,
        client.create_stream("front-door-camera", width=1920, height=1080, format="i420"),
    ):
        ran = run_mcpd("status", socket=daemon.socket, env={"COLUMNS": "80"})
    assert all(len(line) <= 80 for line in ran.out.splitlines()), ran.out
    assert "front-door-camera" in ran.out


def test_stop_returns_when_the_daemon_is_gone(tmp_path: Path) -> None:
    with RunningDaemon(tmp_path) as running:
        pid = running.pid
        ran = run_mcpd("stop", "--json", socket=running.socket)
        assert ran.status == 0
        assert ran.document["stopped"] is True
        assert ran.document["pid"] == pid
        # Gone, or a zombie that this process has yet to wait for.
        assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie"
        assert run_mcpd("status", socket=running.socket).status == 3


def test_stop_that_takes_too_long_says_so_and_how_to_go_on() -> None:
    process = os.pidfd_open(os.getpid())
    try:
        with pytest.raises(TimedOut, match=f"pid {os.getpid()}.*0.01 s") as told:
            wait_until_gone(process, os.getpid(), 0.01)
    finally:
        os.close(process)
    assert "--timeout" in told.value.hint
