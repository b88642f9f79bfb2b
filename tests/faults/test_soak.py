"""Each labelled step is died at; and the soak's own checkers see what they must."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

import pytest

from mcpd.shm import connect
from mcpd.shm.segment import process_start_ticks
from tests.faults import leftover
from tests.faults.kills import Field, Kill, Lane, is_stopped, rows_of, scenarios
from tests.faults.ledger import Ledger
from tests.faults.soak import Report, Soak, goals
from tests.support.daemon import RunningDaemon
from tests.support.steps import ROOT, TestBuild, all_labels, native_labels


def test_every_step_of_every_role_is_died_at_and_nothing_is_left(tmp_path: Path) -> None:
    soak = Soak(tmp_path, seed=1, kills=1, minutes=4, every=True)
    report = soak.run()
    assert report.all_faults() == []
    assert report.dead_labels() == []
    died = {kill.label for kill in report.died}
    assert [label for label in all_labels() if label not in died] == []


def test_a_stopped_process_goes_on_where_it_was(tmp_path: Path) -> None:
    with Field(tmp_path, TestBuild(), None) as field:
        lane = Lane(field, 0)
        for scenario in scenarios(models=False):
            label = "writer.publish.head" if scenario.role == "writer" else "map.mapped"
            kill = lane.kill(scenario, label, 1, signal.SIGSTOP, 0, go_on=True)
            assert (kill.outcome, kill.faults) == ("went on", []), scenario.name
        lane.close()
        assert field.look_at_bystanders(close=True) == []
        assert field.finish() == []


# ---- labels -------------------------------------------------------------------------------------


def test_labels_are_in_the_page_of_the_docs() -> None:
    page = (ROOT / "docs" / "faults.md").read_text()
    assert [label for label in all_labels() if f"`{label}`" not in page] == []


def test_each_native_label_stands_at_one_place() -> None:
    sources = [*(ROOT / "native" / "src").glob("*.c"), *(ROOT / "native" / "client").glob("*.c")]
    found = re.findall(r'MCPD_STEP\("([^"]+)"\)', "".join(path.read_text() for path in sources))
    assert sorted(found) == sorted(native_labels())


def test_the_product_has_no_steps() -> None:
    from mcpd.native import _core

    assert b"mcpd_test_step" not in Path(_core.__file__).read_bytes()
    assert b"mcpd_test_step" in TestBuild().core.read_bytes()


def test_a_step_that_nobody_comes_to_is_told() -> None:
    report = Report(seed=0)
    report.add_reached(dict.fromkeys(all_labels()[1:], 1))
    assert report.dead_labels() == all_labels()[:1]
    assert not goals(report, 0)[-1]["ok"]


# ---- what is left: each kind, planted and seen --------------------------------------------------


@pytest.fixture
def marker(monkeypatch: pytest.MonkeyPatch) -> str:
    """Of a run that is only this test."""
    monkeypatch.setenv("MCPD_SOAK", f"planted-{os.getpid()}")
    return os.environ["MCPD_SOAK"]


HOLDS = """
import os, sys
kind = sys.argv[1]
if kind == "fd":
    held = os.memfd_create("mcpd:payload:planted")
if kind == "mapping":
    import mmap
    fd = os.memfd_create("mcpd:wctl:planted")
    os.truncate(fd, 4096)
    held = mmap.mmap(fd, 4096)
if kind == "socket":
    import socket
    held = socket.socket(socket.AF_UNIX)
    held.bind(sys.argv[2])
print("ready", flush=True)
sys.stdin.read()
"""


@contextmanager
def held(kind: str, *arguments: str) -> Iterator[None]:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, kind, *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield
        process.kill()


def looked(marker: str, folder: Path, *owners: int) -> dict[str, dict[str, object]]:
    """By the script, as the soak has it."""
    command = [sys.executable, leftover.__file__, "look", marker, "--watch", str(os.getpid())]
    command += ["--folder", str(folder), "--owner", *map(str, owners)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, dict[str, object]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        ("process", "process, 1 more of"),
        ("fd", "memfd, 1 more of: /memfd:mcpd:payload:planted (deleted) open"),
        ("mapping", "memfd, 1 more of: /memfd:mcpd:wctl:planted (deleted) mapped"),
        ("socket", "socket: "),
    ],
)
def test_what_a_process_of_the_run_still_has_is_seen(
    kind: str, word: str, marker: str, tmp_path: Path
) -> None:
    before = looked(marker, tmp_path)
    assert leftover.compare(before, looked(marker, tmp_path)) == []
    with held(kind, str(tmp_path / "planted.sock")):
        found = leftover.compare(before, looked(marker, tmp_path))
    assert [line for line in found if line.startswith(word)], found


def test_a_name_that_a_daemon_of_the_run_left_is_seen_and_anothers_is_not(
    marker: str, tmp_path: Path
) -> None:
    # Of living processes: names of dead ones are swept by any daemon that starts here meanwhile.
    mine, others = os.getpid(), os.getppid()
    before = looked(marker, tmp_path, mine)
    planted = [
        Path(f"/dev/shm/mcpd.{os.geteuid()}.{pid}.{process_start_ticks(pid)}.999")
        for pid in (mine, others)
    ]
    try:
        for path in planted:
            path.touch()
        found = leftover.compare(before, looked(marker, tmp_path, mine))
    finally:
        for path in planted:
            path.unlink()
    assert found == [f"name in /dev/shm: {planted[0].name}"]


def test_descriptors_threads_and_memory_that_a_daemon_keeps_are_seen(
    marker: str, tmp_path: Path
) -> None:
    before = looked(marker, tmp_path)
    kept = [os.open(os.devnull, os.O_RDONLY) for _ in range(2)]
    filled = bytearray(b"x" * (leftover.GROWTH_KIB * 1024 * 2))
    stop = threading.Event()
    threads = [threading.Thread(target=stop.wait) for _ in range(leftover.POOL + 1)]
    for thread in threads:
        thread.start()
    found = " ".join(leftover.compare(before, looked(marker, tmp_path)))
    stop.set()
    for fd in kept:
        os.close(fd)
    del filled
    for word in ("fds of process", "threads of process", "rss_kib of process", "pss_kib of"):
        assert word in found


# ---- the other checkers -------------------------------------------------------------------------


def test_what_a_live_process_has_is_listed(bare_daemon: RunningDaemon) -> None:
    with connect(bare_daemon.socket) as client, connect(bare_daemon.socket) as observer:
        stream = client.create_stream("cam0", slot_nbytes=64)
        assert rows_of(observer, os.getpid()) != []
        stream.close()


def test_a_request_without_an_answer_and_an_answer_too_many_are_seen() -> None:
    ledger = Ledger()
    assert ledger.fault() == ""
    ledger.asked += 1
    assert ledger.fault() != ""
    ledger._answered(Future())
    assert ledger.fault() == ""
    ledger.unasked += 1
    assert ledger.fault() != ""


def test_a_stop_is_told_from_sleep() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        assert not is_stopped(process.pid)
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        assert is_stopped(process.pid)
        process.kill()


def test_a_slow_or_faulty_kill_misses_its_goal() -> None:
    kill = Kill("writer", "memfd", "map.mapped", 1, "SIGKILL", 0, outcome="killed", free_ms=51.0)
    report = Report(seed=0, kills=[kill])
    assert not next(g for g in goals(report, 1) if "p99" in g["name"])["ok"]
    kill.faults.append("left: a name")
    assert not next(g for g in goals(report, 1) if g["name"] == "leftovers")["ok"]
    assert "--only writer/memfd/map.mapped/1/SIGKILL" in report.all_faults()[0]
