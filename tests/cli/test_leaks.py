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
        # Wide enough, whatever else the machine has to be shown.
        shown = run_mcpd("leaks", socket=bare_daemon.socket, env={"COLUMNS": "250"}).out
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


@pytest.fixture
def leftover(dead_pid: int) -> Iterator[Path]:
    """A tensor in shared memory that a dead process made."""
    path = Path(f"/dev/shm/torch_{dead_pid}_{os.getpid()}_0")
    path.write_bytes(bytes(8192))
    yield path
    path.unlink(missing_ok=True)


def test_leftover_of_another_program_is_found_shown_and_removed(leftover: Path) -> None:
    ask = ("--min-age", "0", "--alone", "--json")
    found = run_mcpd("leaks", *ask)
    (entry,) = [e for e in found.document["entries"] if e["name"] == leftover.name]
    assert (found.status, entry["verdict"], entry["program"]) == (1, "orphaned", "PyTorch")
    would = run_mcpd("leaks", *ask, "--fix", "--dry-run", "--name", leftover.name)
    assert [a["outcome"] for a in would.document["actions"]] == ["would remove"]
    assert leftover.exists()
    done = run_mcpd("leaks", *ask, "--fix", "--name", leftover.name)
    assert done.document["actions"] == [
        {"kind": "shm", "name": leftover.name, "outcome": "removed", "reason": ""}
    ]
    assert not leftover.exists()


def test_what_could_not_be_told_is_shown_with_what_would_tell() -> None:
    path = Path(f"/dev/shm/\x1b[2Jno-{os.getpid()}")
    path.write_bytes(bytes(4096))
    try:
        ran = run_mcpd("leaks", "--min-age", "0")
    finally:
        path.unlink()
    assert ran.status in (1, 2)  # 1: something else on this machine is orphaned
    assert "\x1b" not in ran.out
    shown = f"\\x1b[2Jno-{os.getpid()}"
    assert f"{shown}: to settle: `mcpd leaks record` notes who makes what" in ran.out


def test_figures_for_alerts_are_written(tmp_path: Path, leftover: Path) -> None:
    file = tmp_path / "mcpd.prom"
    ran = run_mcpd("leaks", "--min-age", "0", "--alone", "--prometheus", str(file))
    assert ran.status == 1
    lines = file.read_text().splitlines()
    assert "mcpd_leaks_status 1" in lines
    labels = '{kind="shm",program="PyTorch",verdict="orphaned"}'
    assert any(line.startswith(f"mcpd_leaks_objects{labels} ") for line in lines)


def test_options_of_removal_need_it_to_be_asked_for() -> None:
    assert run_mcpd("leaks", "--dry-run").status == 2
    assert run_mcpd("leaks", "--name", "x").status == 2


def test_a_frame_that_is_held_for_long_is_asked_about_with_its_line(
    bare_daemon: RunningDaemon,
) -> None:
    with (
        connect(bare_daemon.socket, name="forgetful", trace=True) as client,
        client.create_stream("pins-test", width=64, height=48, format="rgb24") as writer,
        client.open_stream("pins-test") as reader,
    ):
        with writer.acquire() as slot:
            slot.publish()
        frame = reader.next(10)
        ask = ("--json", "--pin-age")
        long = run_mcpd("leaks", *ask, "0", socket=bare_daemon.socket).document
        short = run_mcpd("leaks", *ask, "3600", socket=bare_daemon.socket).document
        frame.close()
        free = run_mcpd("leaks", *ask, "0", socket=bare_daemon.socket).document
    (pin,) = pins_of(long)
    assert (pin["verdict"], pin["owner"], pin["owner_pid"]) == ("unknown", "forgetful", os.getpid())
    assert "test_leaks.py:" in pin["site"]
    assert pin["site"] in pin["settle"]
    assert [entry["verdict"] for entry in pins_of(short)] == ["in use"]
    assert pins_of(free) == []


def pins_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [e for e in document["entries"] if e["kind"] == "pin" and "pins-test" in e["name"]]


def test_recorder_says_where_it_writes_and_ends_when_told(tmp_path: Path) -> None:
    file = tmp_path / "creators.jsonl"
    command = [sys.executable, "-P", "-m", "mcpd.cli.main", "leaks", "record", "--file", str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(f"recording /dev/shm into {file} by ")
        process.terminate()
    assert process.returncode == 143
    assert file.exists()
