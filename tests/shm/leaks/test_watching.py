"""watching: real processes that leak one thing each, and one that leaks nothing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from mcpd.shm import connect
from mcpd.shm.errors import NotFound
from mcpd.shm.leaks.growth import FLAT, GROWING, Judged
from mcpd.shm.leaks.watching import Watch, paces
from tests.support.daemon import RunningDaemon, wait_until

LEAKS = {
    "list": ("private", "kept.append(bytes(40_000))"),
    "descriptor": ("fds", "kept.append(os.dup(0))"),
    "mapping": ("mappings", "kept.append(mmap.mmap(-1, 4096, prot=1 + len(kept) % 2 * 2))"),
    "thread": ("threads", "threading.Thread(target=stop.wait, daemon=True).start()"),
    "shared memory": (
        "shared",
        "fd = os.memfd_create('leak'); os.ftruncate(fd, 1 << 20); m = mmap.mmap(fd, 1 << 20); "
        "m.write(bytes(1 << 20)); kept.append(m); os.close(fd)",
    ),
    "nothing": ("", "bytes(40_000)"),
}
READINGS = 60
PROGRAM = """
import mmap, os, sys, threading, time
kept, stop = [], threading.Event()
print("ready", flush=True)
while not stop.wait(0.02):
    {leak}
"""


@contextmanager
def running(leak: str) -> Iterator[int]:
    command = [sys.executable, "-c", PROGRAM.format(leak=leak)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process.pid
        finally:
            process.kill()


@pytest.fixture(scope="module")
def judged() -> dict[str, Judged]:
    """All of them, read sixty times together."""
    with ExitStack() as stack:
        pids = {name: stack.enter_context(running(leak)) for name, (_, leak) in LEAKS.items()}
        with Watch(pids.values()) as watch:
            for _ in zip(range(READINGS), paces(0.03, 60.0), strict=False):
                watch.look()
            found = {one.series.pid: one for one in watch.judge()}
    return {name: found[pid] for name, pid in pids.items()}


@pytest.mark.parametrize("name", [name for name in LEAKS if name != "nothing"])
def test_a_planted_leak_is_found_and_named(judged: dict[str, Judged], name: str) -> None:
    figure = LEAKS[name][0]
    (found,) = (one for one in judged[name].findings if one.figure == figure)
    assert found.verdict == GROWING, found.sentence()
    assert found.trend.low > 0


def test_a_process_that_leaks_nothing_is_flat(judged: dict[str, Judged]) -> None:
    # Its kernel may take a page or two for it meanwhile: what is counted does not move at all.
    counted = [f for f in judged["nothing"].findings if f.figure in ("fds", "mappings", "threads")]
    assert [finding.verdict for finding in counted] == [FLAT] * 3
    assert judged["nothing"].verdict != GROWING


def test_a_growing_list_is_private_memory(judged: dict[str, Judged]) -> None:
    (found,) = (one for one in judged["list"].findings if one.figure == "private")
    assert {kind for kind, _ in found.kinds} <= {"heap", "anonymous memory"}


def test_streams_that_are_made_and_never_closed_are_leases(bare_daemon: RunningDaemon) -> None:
    with (
        connect(bare_daemon.socket) as client,
        Watch(daemon=True, connect=lambda: connect(bare_daemon.socket)) as watch,
    ):
        for number in range(40):
            client.create_stream(f"left-{number}", width=64, height=48, format="rgb24")
            watch._leases_due_s = 0.0  # asked each time, or the test would take long
            watch.look()
        for series in watch.series:  # how long a look takes depends on what else runs here
            series.times_s = [float(number) for number in range(len(series.times_s))]
        (daemon,) = (j for j in watch.judge(warm_up_s=0) if j.series.label.startswith("daemon"))
    found = {finding.figure: finding for finding in daemon.findings}
    assert found["leases"].verdict == GROWING
    assert found["lent"].verdict == GROWING


def test_a_process_that_ends_is_told_and_another_is_not_taken_for_it() -> None:
    with running("pass") as first, running("pass") as second, Watch([first, second]) as watch:
        watch.look()
        watch._live[first].start_ticks += 1  # as if its number had been given again
        watch.look()
        assert [series.ended_s is not None for series in watch.series] == [True, False]
        assert watch.alive


def test_children_are_watched_too() -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    with (
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as parent,
        Watch([parent.pid], children=True) as watch,
    ):

        def seen() -> bool:
            watch._children_due_s = 0.0
            watch.look()
            return any(series.label.endswith(", child") for series in watch.series)

        wait_until(seen, 20, "its child was not found")
        parent.communicate()


def test_a_process_that_is_not_there_is_an_error(tmp_path: object) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    with pytest.raises(NotFound, match=str(process.pid)):
        Watch([process.pid])
