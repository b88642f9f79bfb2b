"""The census: every kind of leftover is planted and found, and what is in use is left alone."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mcpd.shm import connect
from mcpd.shm.leaks import IN_USE, ORPHANED, Entry, scan
from mcpd.shm.segment import (
    SHM_DIRECTORY,
    Owner,
    create_posix,
    current_owner,
    process_start_ticks,
)
from tests.support.daemon import RunningDaemon, wait_until
from tests.support.segments import leave_segment

HOLDER = """
import os, sys, time
fd = os.memfd_create(sys.argv[1])
os.ftruncate(fd, 12288)
if sys.argv[2] == "mapped":
    import mmap
    kept = mmap.mmap(fd, 12288)
    os.close(fd)
print("ready", flush=True)
time.sleep(1000)
"""


@contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A Python process that has said that it is ready."""
    with subprocess.Popen(
        [sys.executable, "-P", *arguments], stdout=subprocess.PIPE, text=True
    ) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == "ready\n"
        try:
            yield started
        finally:
            started.kill()


def find(entries: list[Entry], name: str) -> Entry:
    """The one entry of that name."""
    (entry,) = [entry for entry in entries if entry.name == name]
    return entry


@pytest.fixture
def dead_owner() -> Owner:
    child = subprocess.Popen(["/bin/true"])
    ticks = process_start_ticks(child.pid)
    child.wait()
    return Owner(os.getuid(), child.pid, ticks or 1)


def test_segment_of_a_dead_daemon_is_orphaned(dead_owner: Owner) -> None:
    with create_posix(dead_owner, 5, 8192) as made:
        held = find(scan(), made.name)
        made.unlink()
    name = leave_segment(dead_owner, 5, 8192)
    entry = find(scan(min_age_s=0, alone=True), name)
    (SHM_DIRECTORY / name).unlink()
    assert (held.verdict, held.held_by) == (IN_USE, [os.getpid()])
    assert f"its maker mcpd {dead_owner.pid} is dead" in held.reason
    assert (entry.kind, entry.verdict, entry.owner_alive) == ("segment", ORPHANED, False)
    assert (entry.owner_pid, entry.nbytes) == (dead_owner.pid, 8192)
    assert f"its maker mcpd {dead_owner.pid} is dead" in entry.reason
    assert entry.fixable
    assert entry.age_s is not None
    assert 0 <= entry.age_s < 3600


def test_segment_of_a_living_process_is_in_use() -> None:
    with create_posix(current_owner(), 6, 4096) as made:
        entry = find(scan(), made.name)
        made.unlink()
    assert (entry.verdict, entry.owner_alive) == (IN_USE, True)


def test_files_that_only_look_like_ours_are_not(tmp_path: Path) -> None:
    for name in ("mcpd", "sem.mcpd", "mcpd.conf", "other.1.2.3.4"):
        (tmp_path / name).touch()
    assert [entry for entry in scan(directory=tmp_path) if entry.kind == "segment"] == []


@pytest.mark.parametrize("how", ["open", "mapped"])
def test_memfd_that_no_daemon_knows_of_is_orphaned(how: str) -> None:
    name = f"mcpd:payload:planted-{how}-{os.getpid()}"
    with process("-c", HOLDER, name, how) as holder:
        entry = find(scan(leases=[]), name)
    assert (entry.kind, entry.verdict) == ("memfd", ORPHANED)
    assert (entry.held_by, entry.nbytes) == ([holder.pid], 12288)
    assert name not in [entry.name for entry in scan()]


def test_memfd_that_a_daemon_names_in_its_table_is_in_use() -> None:
    name = f"mcpd:payload:named-{os.getpid()}"
    with process("-c", HOLDER, name, "open"):
        rows = [{"kind": "segment", "name": name, "pid": os.getpid()}]
        entry = find([e for e in scan(leases=rows) if e.kind == "memfd"], name)
    assert entry.verdict == IN_USE


def test_memfds_of_other_programs_are_in_use_by_those_who_have_them() -> None:
    with process("-c", HOLDER, "somebody:mcpd:payload", "open") as holder:
        entry = find(scan(leases=[]), "somebody:mcpd:payload")
    assert (entry.kind, entry.verdict, entry.program) == ("memfd", IN_USE, "")
    assert (entry.held_by, entry.nbytes, entry.resident_nbytes) == ([holder.pid], 12288, 0)


# Processes that look like parts of mcpd, without being any: a census goes by the command line.
PRETEND = "import time; print('ready', flush=True); time.sleep(1000)"


@pytest.mark.parametrize("part", ["worker", "source"])
def test_process_that_outlived_its_daemon_is_orphaned(
    tmp_path: Path, dead_owner: Owner, part: str
) -> None:
    arguments = {
        "worker": ["--fd", "3", "--model", "m", "--parent", str(dead_owner.pid)],
        "source": ["x.mp4", "--stream", "s", f"--socket={tmp_path}/none.sock"],
    }[part]
    with process("-c", PRETEND, "-m", f"mcpd.daemon.{part}", *arguments) as started:
        entry = find(scan(), f"{part} {started.pid}")
        assert (entry.kind, entry.verdict) == ("process", ORPHANED)
        assert entry.nbytes > 0
        assert entry.age_s is not None
        assert part == "worker" or f"no daemon listens on {tmp_path}/none.sock" in entry.reason


def test_source_whose_daemon_listens_is_in_use() -> None:
    path = f"/tmp/mcpd-leaks-{os.getpid()}.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        try:
            with process(
                "-c", PRETEND, "-m", "mcpd.daemon.source", "x", "--socket", path
            ) as started:
                assert find(scan(), f"source {started.pid}").verdict == IN_USE
        finally:
            os.unlink(path)


def test_lease_of_a_dead_process_is_orphaned(dead_owner: Owner) -> None:
    rows = [
        {"kind": "reader", "name": "cam0", "pid": dead_owner.pid, "state": "live", "bytes": 4096},
        {"kind": "stream", "name": "cam0", "pid": os.getpid(), "state": "live", "since": 1.0},
    ]
    entries = [entry for entry in scan(leases=rows) if entry.kind == "lease"]
    assert [(entry.name, entry.verdict) for entry in entries] == [
        ("reader cam0", ORPHANED),
        ("stream cam0", IN_USE),
    ]
    assert entries[0].nbytes == 4096
    assert json.loads(json.dumps([entry.to_dict() for entry in entries]))


def test_everything_of_a_running_daemon_is_in_use(daemon: RunningDaemon) -> None:
    with (
        connect(daemon.socket) as client,
        client.create_stream("cam0", width=64, height=48, format="rgb24", memory="posix"),
        client.results("cam0", model="trivial"),
    ):
        own = {daemon.pid, os.getpid()}
        # "deleted" are files that other tests of this process left open.
        entries = [
            entry
            for entry in scan(client.list("leases"))
            if own & {entry.owner_pid, *entry.held_by} and entry.kind != "deleted"
        ]
        assert {entry.kind for entry in entries} == {"segment", "memfd", "process", "lease"}
        assert [entry for entry in entries if entry.verdict != IN_USE] == []


def test_memory_kept_after_the_daemon_was_killed_is_orphaned_until_it_is_let_go(
    tmp_path: Path,
) -> None:
    with RunningDaemon(tmp_path) as daemon, connect(daemon.socket) as client:
        stream = client.create_stream("kept", width=64, height=48, format="rgb24")
        plane = stream.acquire().planes[0]
        assert find_memfd("kept").verdict == IN_USE
        daemon.kill()
        wait_until(lambda: client.connection.lost, 10, "the client knows")
        entry = find_memfd("kept")
        assert (entry.verdict, entry.held_by) == (ORPHANED, [os.getpid()])
        del plane
        wait_until(lambda: not list_memfds("kept"), 10, "it is unmapped")


def list_memfds(stream: str) -> list[Entry]:
    return [entry for entry in scan(leases=[]) if entry.name == f"mcpd:payload:{stream}"]


def find_memfd(stream: str) -> Entry:
    (entry,) = list_memfds(stream)
    return entry
