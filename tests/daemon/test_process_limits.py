"""A daemon or client that was started under limits says so, and goes on or does not begin."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mcpd.daemon.process_limits import MIN_RESERVE, budget
from mcpd.shm import Client, LimitExceeded, OutOfMemory, WriterStream, connect
from tests.support.bystander import Bystander
from tests.support.daemon import RunningDaemon


@contextmanager
def daemon_under(folder: Path, ulimit: str) -> Iterator[RunningDaemon]:
    """A daemon of a shell with that limit."""
    daemon = RunningDaemon(folder)
    daemon.command = ["sh", "-c", f'ulimit {ulimit} && exec "$@"', "sh", *daemon.command]
    with daemon:
        yield daemon


def refusal(folder: Path, ulimit: str) -> str:
    """What a daemon says that does not start under that limit."""
    daemon = RunningDaemon(folder)
    command = ["sh", "-c", f'ulimit {ulimit} && exec "$@"', "sh", *daemon.command]
    done = subprocess.run(command, env=daemon.env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert not Path(daemon.socket).exists()
    return done.stderr


def small(client: Client, number: int) -> WriterStream:
    return client.create_stream(f"cam{number}", width=64, height=16, format="gray8", slots=12)


def test_few_open_files_are_told_at_start_and_used_up_by_nobody(tmp_path: Path) -> None:
    with daemon_under(tmp_path, "-n 128") as daemon, Bystander(daemon.socket) as bystander:
        with connect(daemon.socket) as client:
            streams: list[WriterStream] = []
            with pytest.raises(LimitExceeded) as caught:
                streams.extend(small(client, number) for number in range(100))
            assert "descriptors of the daemon" in caught.value.message
            with connect(daemon.socket) as other:
                small(other, 1000)
            rows = {row["scope"]: row for row in client.list("limits")}
            assert rows["all"]["allowed"]["fds"] <= 128 - MIN_RESERVE
            assert client.status()["daemon"]["fds"] < 128 - MIN_RESERVE
        bystander.check()
    assert "limit of open files is 128: room for about" in daemon.stderr
    assert "ulimit -Hn" in daemon.stderr


def test_many_clients_under_few_open_files_are_told_and_not_left_waiting(tmp_path: Path) -> None:
    with daemon_under(tmp_path, "-n 96") as daemon, Bystander(daemon.socket) as bystander:
        clients: list[Client] = []
        with pytest.raises(LimitExceeded, match="descriptors of the daemon"):
            clients.extend(connect(daemon.socket) for _ in range(100))
        assert len(clients) >= 10
        bystander.check()
        for client in clients:
            client.close()


def test_too_few_open_files_to_serve_anybody_are_an_error_at_start(tmp_path: Path) -> None:
    said = refusal(tmp_path, "-n 40")
    assert "the limit of open files is 40; the daemon needs 64 or more" in said
    assert "LimitNOFILE=" in said


def test_no_room_for_threads_is_an_error_at_start(tmp_path: Path) -> None:
    said = refusal(tmp_path, "-d 30000")
    assert "cannot start a thread; its limits: RLIMIT_AS" in said
    assert "RLIMIT_DATA 29.3 MiB" in said


def test_limit_of_a_files_size_bounds_a_stream_and_is_named(tmp_path: Path) -> None:
    with (
        daemon_under(tmp_path, "-f 2000") as daemon,
        Bystander(daemon.socket) as bystander,
        connect(daemon.socket) as client,
    ):
        with pytest.raises(OutOfMemory, match="RLIMIT_FSIZE, ulimit -f"):
            client.create_stream("big", slots=8, slot_nbytes=1 << 20)
        bystander.check()
        assert client.status()["daemon"]["memory_bytes"] < 1 << 20


def test_locked_memory_is_not_needed(tmp_path: Path) -> None:
    with daemon_under(tmp_path, "-l 0") as daemon, Bystander(daemon.socket) as bystander:
        bystander.check()


CLIENT = """
import resource, sys
from mcpd.shm import McpdError, connect
with connect(sys.argv[1]) as client:
    client.create_stream("small", slots=8, slot_nbytes=4096)
    used = int(open("/proc/self/statm").read().split()[0]) * 4096
    resource.setrlimit(resource.RLIMIT_AS, (used + (8 << 20), used + (8 << 20)))
    try:
        client.create_stream("big", slots=8, slot_nbytes=8 << 20)
    except McpdError as error:
        print(error.code, error)
    try:
        client.open_stream("cam")
    except McpdError as error:
        print(error.code, error)
    client.create_stream("other", slots=8, slot_nbytes=4096)
    print(sorted(row["name"] for row in client.list("streams")))
"""


def test_client_without_room_for_a_mapping_is_told_and_holds_nothing(tmp_path: Path) -> None:
    with RunningDaemon(tmp_path) as daemon, connect(daemon.socket) as client:
        client.create_stream("cam", slots=8, slot_nbytes=8 << 20)
        done = subprocess.run(
            [sys.executable, "-P", "-c", CLIENT, daemon.socket],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        first, second, streams = done.stdout.splitlines()
        for line, name in ((first, "big"), (second, "cam")):
            assert line.startswith(f"no_memory stream '{name}' cannot be mapped"), done.stdout
            assert "vm.max_map_count" in line
        assert streams == "['cam', 'other', 'small']"


def test_budget_leaves_a_reserve_for_the_daemon_itself() -> None:
    assert budget(1000, opened=20) == 1000 - 20 - 62
    assert budget(100, opened=20) == 100 - 20 - MIN_RESERVE
    assert budget(30, opened=20) == 0
