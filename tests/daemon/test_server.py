"""One daemon a socket; who connects is known; tables come in pages; nothing heavy is loaded."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mcpd.shm import InvalidRequest, connect
from mcpd.shm.messages import List
from tests.support.daemon import RunningDaemon, wait_until
from tests.support.raw import RawSession

HEAVY = ("numpy", "torch", "onnxruntime", "av", "PIL", "mcp")


def test_hello_tells_version_session_and_daemon(bare_daemon: RunningDaemon) -> None:
    with RawSession(bare_daemon.socket) as session:
        greeting = session.greeting["result"]
        assert greeting["version"] == 1
        assert greeting["daemon_pid"] == bare_daemon.pid
        assert greeting["socket"] == bare_daemon.socket
        assert greeting["session"] > 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root looks into a process not dumpable")
def test_daemon_loads_nothing_heavy(daemon: RunningDaemon) -> None:
    """Its mapped libraries tell, after it has done all that it does."""
    with (
        connect(daemon.socket) as client,
        client.create_stream("cam0", width=64, height=48, format="rgb24") as stream,
        client.results("cam0", model="trivial") as results,
    ):
        with stream.acquire() as slot:
            slot.planes[0][:] = 1
        results.next(30).close()
        for what in ("streams", "models", "sessions", "leases", "workers"):
            client.list(what)
    mapped = Path(f"/proc/{daemon.pid}/maps").read_text()
    assert "_core.abi3" in mapped  # the check sees libraries at all
    assert not [name for name in HEAVY if f"/{name}/" in mapped]


def test_daemon_imports_nothing_heavy() -> None:
    code = (
        "import sys, mcpd.daemon.__main__, mcpd.daemon.reaper;"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_socket_is_only_for_its_user(bare_daemon: RunningDaemon) -> None:
    path = Path(bare_daemon.socket)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(Path(f"{path}.lock").stat().st_mode) == 0o600


def test_folder_of_the_socket_is_made_for_its_user_alone(tmp_path: Path) -> None:
    with RunningDaemon(tmp_path) as running:
        home = Path(running.socket).parent
        deeper = RunningDaemon(tmp_path)
        socket_path = str(home / "sub" / "mcpd.sock")
        deeper.command[deeper.command.index(deeper.socket)] = socket_path
        os.rmdir(Path(deeper.socket).parent)
        deeper.start()
        assert stat.S_IMODE((home / "sub").stat().st_mode) == 0o700
        assert deeper.stop() == 0
        os.rmdir(home / "sub")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_other_user_is_refused(bare_daemon: RunningDaemon) -> None:
    path = Path(bare_daemon.socket)
    path.parent.chmod(0o755)
    path.chmod(0o666)
    code = (
        "import os, sys, socket; os.setuid(65534);"
        "s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); print(s.recv(4096))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True)
    assert "not_permitted" in done.stdout
    assert "65534" in done.stdout


def test_stale_socket_of_a_killed_daemon_does_not_block_the_next(
    bare_daemon: RunningDaemon,
) -> None:
    bare_daemon.kill()
    assert Path(bare_daemon.socket).exists()
    bare_daemon.start()
    with connect(bare_daemon.socket) as client:
        assert client.daemon_pid == bare_daemon.pid


def test_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    daemon = RunningDaemon(tmp_path)
    path = Path(daemon.socket)
    path.write_text("mine")
    ended = subprocess.run(daemon.command, capture_output=True, text=True, env=daemon.env)
    assert ended.returncode == 1
    assert "is not a socket" in ended.stderr
    assert path.read_text() == "mine"
    path.unlink()
    os.rmdir(path.parent)


def test_missing_folder_that_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    command = [sys.executable, "-P", "-m", "mcpd.daemon", "--socket", f"{blocker}/x/mcpd.sock"]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 1
    assert ended.stderr.startswith("mcpd: error: socket ")
    assert "--socket" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_missing_repository_is_only_a_warning(tmp_path: Path) -> None:
    with RunningDaemon(tmp_path, tmp_path / "nowhere") as running:
        wait_until(lambda: "does not exist" in running.stderr, 10, "a warning")
        with connect(running.socket) as client:
            assert client.list("models") == []


def test_json_log_is_one_object_a_line(tmp_path: Path) -> None:
    with RunningDaemon(tmp_path, arguments=["--json-log"]) as running:
        with connect(running.socket, name="logger"):
            pass
        wait_until(lambda: "logger" in running.stderr, 10, "the session is logged")
        lines = [line for line in running.lines if not line.startswith("mcpd ready")]
        assert all("message" in json.loads(line) for line in lines)


def test_status_tells_what_the_process_uses(bare_daemon: RunningDaemon) -> None:
    with connect(bare_daemon.socket) as client:
        status = client.status()
        daemon = status["daemon"]
        assert daemon["pid"] == bare_daemon.pid
        assert daemon["sessions"] == 1
        assert daemon["rss_bytes"] > 0
        assert daemon["cpu_s"] > 0
        assert daemon["io"]["rchar"] > 0
        with client.create_stream("cam0", slot_nbytes=8192, slots=8):
            after = client.status()
            assert after["streams"] == status["streams"] + 1
            assert after["daemon"]["memory_bytes"] >= 8 * 8192


def test_daemon_cannot_be_looked_into_by_its_own_user(bare_daemon: RunningDaemon) -> None:
    """Not dumpable: the files under its /proc folder are root's, whoever runs it."""
    assert Path(f"/proc/{bare_daemon.pid}/fd").stat().st_uid == 0


def test_long_tables_come_in_pages_that_fit(bare_daemon: RunningDaemon) -> None:
    with connect(bare_daemon.socket) as client:
        names = {f"{'long' * 12}-{number}" for number in range(150)}
        for name in names:
            client.create_stream(name, slot_nbytes=64, slots=5)
        pages: list[list[dict[str, Any]]] = []
        cursor = ""
        while cursor or not pages:
            page, _ = client.connection.request(List(what="streams", cursor=cursor))
            pages.append(page["items"])
            cursor = page["cursor"]
        assert len(pages) > 1
        assert {row["name"] for items in pages for row in items} == names
        assert len(client.list("leases")) == 450


def test_unknown_table_or_cursor_is_refused(bare_daemon: RunningDaemon) -> None:
    with connect(bare_daemon.socket) as client:
        with pytest.raises(InvalidRequest, match="no table 'secrets'"):
            client.list("secrets")
        with pytest.raises(InvalidRequest, match="cursor"):
            client.connection.request(List(what="streams", cursor="-3"))


def test_three_hundred_connections_leave_no_descriptor(bare_daemon: RunningDaemon) -> None:
    def cycle(count: int) -> None:
        for _ in range(count):
            with connect(bare_daemon.socket) as client:
                stream = client.create_stream("cam0", slot_nbytes=64)
                reader = client.open_stream("cam0", policy="lossless")
                reader.close()
                stream.close()

    def descriptors() -> int:
        with connect(bare_daemon.socket) as client:
            return int(client.status()["daemon"]["fds"])

    cycle(3)
    before = descriptors()
    cycle(300)
    wait_until(lambda: descriptors() == before, 10, "as many descriptors as before")


def test_connections_dropped_in_the_middle_leave_no_descriptor(
    bare_daemon: RunningDaemon,
) -> None:
    def descriptors() -> int:
        with connect(bare_daemon.socket) as client:
            return int(client.status()["daemon"]["fds"])

    before = descriptors()
    for number in range(50):
        with RawSession(bare_daemon.socket) as session:
            session.send(
                type="create_stream", id=1, name=f"s{number}", spec={"slots": 8, "slot_nbytes": 64}
            )
        with socket.socket(socket.AF_UNIX) as half:
            half.connect(bare_daemon.socket)
            half.sendall(b"\x10\0\0\0half")
    wait_until(lambda: descriptors() == before, 10, "as many descriptors as before")
    with connect(bare_daemon.socket) as client:
        assert client.list("streams") == []


def test_peer_that_hands_over_its_own_end_cannot_keep_its_session_open(
    bare_daemon: RunningDaemon,
) -> None:
    with connect(bare_daemon.socket) as client:
        before = client.status()["daemon"]["fds"]
        for _ in range(3):
            with RawSession(bare_daemon.socket) as session:
                socket.send_fds(session.sock, [b"\x10\0\0"], [session.sock.fileno()])
        wait_until(lambda: len(client.list("sessions")) == 1, 10, "their sessions end")
        assert client.status()["daemon"]["fds"] == before


def test_second_signal_ends_it_at_once(bare_daemon: RunningDaemon) -> None:
    with RawSession(bare_daemon.socket):
        process = bare_daemon.process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGCONT)
        assert process.wait(20) in (128 + signal.SIGINT, 128 + signal.SIGTERM)
    assert not Path(bare_daemon.socket).exists()
    bare_daemon.kill()
