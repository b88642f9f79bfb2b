"""Folders of private daemons are swept when their command is dead, and only then."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

from mcpd.cli.demo.folders import make_folder, sweep_folders
from mcpd.cli.demo.processes import PrivateDaemon
from tests.support.daemon import wait_until

DEAD = "mcpd-demo.1.99999999999."
"""Of a process that never was: number 1 has not started then."""


def test_folder_of_a_dead_command_is_swept_and_others_are_not(tmp_path: Path) -> None:
    (tmp_path / f"{DEAD}ab").mkdir()
    (tmp_path / f"{DEAD}cd").mkdir()
    (tmp_path / f"{DEAD}cd" / "mcpd.sock").touch()
    used = tmp_path / f"{DEAD}used"
    used.mkdir()
    (used / "mcpd.sock.lock").touch()
    (tmp_path / f"{DEAD}link").symlink_to(tmp_path)
    for name in ("mcpd-demo", "mcpd-demo.x.y.z", "mcpd-1000"):
        (tmp_path / name).mkdir()
    with open(used / "mcpd.sock.lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert sweep_folders(tmp_path) == [], "they are young"
        swept = sweep_folders(tmp_path, young_s=0)
    assert sorted(path.name for path in swept) == [f"{DEAD}ab", f"{DEAD}cd"]
    assert len(list(tmp_path.iterdir())) == 5


def test_folder_of_a_living_command_is_not_swept(tmp_path: Path, monkeypatch: object) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # type: ignore[attr-defined]
    folder = make_folder()
    assert sweep_folders(tmp_path, young_s=0) == []
    assert folder.stat().st_mode & 0o777 == 0o700


def test_killed_command_leaves_a_folder_that_the_next_one_sweeps(short_path: Path) -> None:
    program = (
        "import sys, signal\n"
        "from pathlib import Path\n"
        "from mcpd.cli.demo.processes import PrivateDaemon\n"
        "daemon = PrivateDaemon(Path(sys.argv[1]), load='none')\n"
        "print(daemon.pid, flush=True)\n"
        "signal.pause()\n"
    )
    environment = {**os.environ, "TMPDIR": str(short_path)}
    with subprocess.Popen(
        [sys.executable, "-P", "-c", program, str(short_path)],
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    ) as command:
        assert command.stdout is not None
        daemon_pid = int(command.stdout.readline())
        command.send_signal(signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{daemon_pid}").exists(), 30, "its daemon drains")
    (left,) = short_path.glob("mcpd-demo.*")
    assert list(left.iterdir()) == []
    assert sweep_folders(short_path, young_s=0) == [left]


def test_private_daemon_has_such_a_folder(tmp_path: Path) -> None:
    with PrivateDaemon(tmp_path, load="none") as daemon:
        assert daemon.directory.name.startswith(f"mcpd-demo.{os.getpid()}.")
