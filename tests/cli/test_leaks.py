"""leaks: what is in use is not called a leak, and what is one is found.

The machine may have other daemons at work, so each test looks at its own entries.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mcpd.shm import connect
from tests.cli.command import run_mcpd
from tests.support.daemon import RunningDaemon


@pytest.fixture
def dead_pid() -> int:
    """Of a process that was."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    return process.pid


@pytest.fixture
def orphan(dead_pid: int) -> Iterator[subprocess.Popen[bytes]]:
    """A process that looks like a worker whose daemon is dead."""
    looks = ("-m", "mcpd.daemon.worker", "--parent", str(dead_pid))
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()", *looks], stdin=subprocess.PIPE
    ) as process:
        yield process
        process.communicate()


def entries_of(document: dict[str, Any], pid: int) -> list[dict[str, Any]]:
    return [
        entry for entry in document["entries"] if pid in (entry["owner_pid"], *entry["held_by"])
    ]


def test_every_segment_stream_and_reader_is_listed_with_its_owner(
    bare_daemon: RunningDaemon,
) -> None:
    with (
        connect(bare_daemon.socket, name="test-program") as client,
        client.create_stream("leaks-test", width=64, height=48, format="rgb24"),
        client.open_stream("leaks-test"),
    ):
        document = run_mcpd("leaks", "--json", socket=bare_daemon.socket).document
        shown = run_mcpd("leaks", socket=bare_daemon.socket).out
    assert document["daemon"] is True
    mine = [entry for entry in document["entries"] if "leaks-test" in entry["name"]]
    assert {entry["verdict"] for entry in mine} == {"in use"}
    leases = [entry for entry in mine if entry["kind"] == "lease"]
    assert {entry["details"]["kind"] for entry in leases} == {"stream", "segment", "reader"}
    for entry in leases:
        assert entry["owner_pid"] == os.getpid()
        assert entry["owner_alive"] is True
        assert entry["owner"] == "test-program"
        assert entry["age_s"] >= 0
    assert sum(entry["nbytes"] for entry in leases) > 8 * 64 * 48 * 3
    memfds = {entry["name"] for entry in mine if entry["kind"] == "memfd"}
    assert "mcpd:payload:leaks-test" in memfds
    assert "leaks-test" in shown
    assert "test-program" in shown


def test_daemon_at_work_has_nothing_orphaned(daemon: RunningDaemon) -> None:
    with (
        connect(daemon.socket) as client,
        client.create_stream("leaks-test", width=64, height=48, format="rgb24", memory="posix"),
    ):
        document = run_mcpd("leaks", "--json", socket=daemon.socket).document
    for pid in (daemon.pid, os.getpid()):
        assert entries_of(document, pid)
        assert {entry["verdict"] for entry in entries_of(document, pid)} == {"in use"}


def test_name_that_a_dead_daemon_left_is_found(dead_pid: int) -> None:
    path = Path(f"/dev/shm/mcpd.{os.getuid()}.{dead_pid}.1.1")
    path.write_bytes(bytes(4096))
    ran = run_mcpd("leaks", "--json", "--min-age", "0", "--alone")
    while not path.exists():  # another daemon on this machine has swept it meanwhile
        path.write_bytes(bytes(4096))
        ran = run_mcpd("leaks", "--json", "--min-age", "0", "--alone")
    path.unlink()
    assert ran.status == 1
    (entry,) = [one for one in ran.document["entries"] if one["name"] == path.name]
    assert entry["verdict"] == "orphaned"
    assert entry["owner_alive"] is False
    assert entry["nbytes"] == 4096
    assert ran.document["orphaned"] >= 1
    assert ran.document["daemon"] is False


def test_worker_that_outlived_its_daemon_is_shown(orphan: subprocess.Popen[bytes]) -> None:
    ran = run_mcpd("leaks", env={"COLUMNS": "200"})
    assert ran.status == 1
    (line,) = [line for line in ran.out.splitlines() if f"worker {orphan.pid}" in line]
    assert "orphaned" in line
    assert "(dead)" in line
    assert ran.out.splitlines()[-1].startswith("orphaned: ")


def test_exit_status_agrees_with_what_is_shown() -> None:
    ran = run_mcpd("leaks", "--json")
    found = ran.document
    assert ran.status == (1 if found["orphaned"] else 2 if found["unknown"] else 0)
    verdicts = [entry["verdict"] for entry in found["entries"]]
    for verdict in ("orphaned", "unknown"):
        assert verdicts.count(verdict) == found[verdict]


def test_without_a_daemon_it_says_so() -> None:
    assert run_mcpd("leaks").out.startswith("no daemon answers")
