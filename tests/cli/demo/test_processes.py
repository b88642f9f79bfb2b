"""Processes that are started, watched and ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from mcpd.cli.demo.processes import PrivateDaemon, Process, interruptible
from mcpd.shm import connect
from mcpd.shm.errors import DaemonUnavailable, McpdError


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_output_is_collected_line_by_line() -> None:
    lines: list[str] = []
    with Process("child", python("print('one'); print('two')"), on_output=lines.append) as child:
        assert child.wait(20.0) == 0
        assert child.output() == ["one", "two"] == lines


def test_a_failure_tells_the_status_and_the_last_words() -> None:
    with Process("child", python("import sys; sys.exit('no such thing')")) as child:
        assert child.wait(20.0) == 1
        message = child.failure().message
    assert "child ended with status 1" in message
    assert "no such thing" in message


def test_leaving_the_context_ends_it() -> None:
    with Process("child", python("import time; time.sleep(600)")) as child:
        assert child.poll() is None
    assert child.poll() == -signal.SIGTERM


def test_waiting_for_one_that_goes_on_says_so() -> None:
    with (
        Process("child", python("import time; time.sleep(600)")) as child,
        pytest.raises(McpdError, match="child still runs"),
    ):
        child.wait(0.05)


def test_a_child_that_writes_a_lot_is_never_held_back() -> None:
    code = "import sys\nfor _ in range(50_000): print('line', file=sys.stderr)"
    with Process("child", python(code)) as child:
        assert child.wait(60.0) == 0


def test_a_tied_child_dies_with_us(tmp_path: Path) -> None:
    """Even when we die of SIGKILL and can end nothing."""
    code = f"""
import os, signal, sys
from mcpd.cli.demo.processes import Process
child = Process("child", [sys.executable, "-c", "import time; time.sleep(600)"], tied=True)
open({str(tmp_path / "pid")!r}, "w").write(str(child.pid))
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-P", "-c", code], check=False).returncode == -9
    pid = int((tmp_path / "pid").read_text())
    try:
        orphan = psutil.Process(pid)
    except psutil.NoSuchProcess:
        return
    if orphan.status() != psutil.STATUS_ZOMBIE:
        psutil.wait_procs([orphan], timeout=20.0)
        assert not orphan.is_running() or orphan.status() == psutil.STATUS_ZOMBIE


def test_a_private_daemon_serves_and_leaves_nothing(tmp_path: Path) -> None:
    with PrivateDaemon(tmp_path, load="none") as daemon, connect(daemon.socket) as client:
        assert client.status()["daemon"]["pid"] == daemon.pid
    assert daemon.left == []
    assert not daemon.directory.exists()
    assert daemon.poll() == 0


def test_what_a_daemon_left_in_its_folder_is_told(tmp_path: Path) -> None:
    with PrivateDaemon(tmp_path, load="none") as daemon:
        (daemon.directory / "planted").touch()
    assert daemon.left == ["planted"]
    assert not daemon.directory.exists()


def test_a_daemon_that_cannot_start_says_why_and_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ("x" * 100)  # Too long for a socket's path.
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    with pytest.raises(DaemonUnavailable, match=r"(?s)daemon ended with status.*107"):
        PrivateDaemon(tmp_path, load="none")
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_interrupt_once(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    ended = False

    def work() -> None:
        nonlocal ended
        try:
            os.kill(os.getpid(), number)
        finally:
            os.kill(os.getpid(), number)  # Ending is under way: not interrupted again.
            ended = True

    with pytest.raises(KeyboardInterrupt), interruptible():
        work()
    assert ended
    assert signal.getsignal(number) is before
