"""However the daemon ends, nothing of it is left and everybody is told."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import psutil
import pytest

from mcpd.shm import DaemonUnavailable, StreamClosed, WriterStream, connect
from mcpd.shm.segment import process_start_ticks
from tests.support.actor import Actor
from tests.support.daemon import RunningDaemon, wait_until
from tests.support.raw import RawSession


def load_trivial(daemon: RunningDaemon) -> int:
    """Has the daemon load a model; its worker's pid."""
    with connect(daemon.socket) as client:
        with client.create_stream("cam0", width=64, height=48, format="rgb24"):
            client.results("cam0", model="trivial").close()
        return int(client.list("workers")[0]["pid"])


def named_segments(daemon: RunningDaemon) -> list[str]:
    """Names in /dev/shm that the daemon gave."""
    prefix = f"mcpd.{os.geteuid()}.{daemon.pid}."
    return [name for name in os.listdir("/dev/shm") if name.startswith(prefix)]


def acquire_for_ever(stream: WriterStream) -> None:
    """Takes slots and gives them back; raises StreamClosed when the stream has ended."""
    while True:
        stream.acquire(30).abandon()


def is_gone(process: psutil.Process) -> bool:
    """Whether it runs no more; who adopts it may take a while to notice."""
    return process_start_ticks(process.pid) is None


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_signal_drains_and_leaves_nothing(daemon: RunningDaemon, signum: int) -> None:
    worker = psutil.Process(load_trivial(daemon))
    with connect(daemon.socket) as client:
        stream = client.create_stream("cam0", slot_nbytes=4096, memory="posix")
        reader = client.open_stream("cam0")
        assert named_segments(daemon)
        assert daemon.process is not None
        daemon.process.send_signal(signum)
        with pytest.raises(StreamClosed) as caught:
            reader.next(30)
        assert caught.value.reason == "shutdown"
        with pytest.raises(StreamClosed):
            acquire_for_ever(stream)
        assert daemon.process.wait(30) == 0
        assert not named_segments(daemon)
        assert is_gone(worker)
        assert not Path(daemon.socket).exists()
        with pytest.raises(DaemonUnavailable):
            client.status()
    assert daemon.stop() == 0


def test_stop_request_drains_too(daemon: RunningDaemon) -> None:
    with connect(daemon.socket) as client:
        client.stop()
    assert daemon.process is not None
    assert daemon.process.wait(30) == 0
    assert daemon.stop() == 0


def test_waiting_callers_are_not_left_waiting(daemon: RunningDaemon) -> None:
    with connect(daemon.socket) as client:
        client.create_stream("cam0", slot_nbytes=64)
        reader = client.open_stream("cam0")
        outcome: list[BaseException] = []

        def wait() -> None:
            try:
                reader.next(60)
            except StreamClosed as error:
                outcome.append(error)

        waiter = threading.Thread(target=wait)
        waiter.start()
        daemon.stop()
        waiter.join(30)
        assert len(outcome) == 1


def test_client_that_does_not_read_does_not_hold_up_the_end(daemon: RunningDaemon) -> None:
    with RawSession(daemon.socket) as session:
        for number in range(200):
            session.send(type="status", id=number + 1)
        assert daemon.stop() == 0


def test_stopped_worker_is_killed_after_a_grace(daemon: RunningDaemon) -> None:
    worker = psutil.Process(load_trivial(daemon))
    worker.suspend()
    assert daemon.stop() == 0
    assert is_gone(worker)


def test_killed_daemon_takes_workers_along_and_tells_clients(daemon: RunningDaemon) -> None:
    worker = psutil.Process(load_trivial(daemon))
    with connect(daemon.socket) as client:
        client.create_stream("cam0", slot_nbytes=4096, memory="posix")
        reader = client.open_stream("cam0")
        pid = daemon.pid
        assert named_segments(daemon)
        daemon.kill()
        with pytest.raises(StreamClosed):
            reader.next(30)
        with pytest.raises(DaemonUnavailable):
            client.status()
    assert is_gone(worker)
    assert not [name for name in os.listdir("/dev/shm") if f".{pid}." in name]
    daemon.start()
    with connect(daemon.socket) as client:
        assert client.list("leases") == []


def test_worker_leaves_when_its_daemon_is_gone_even_if_it_cannot_be_signalled(
    daemon: RunningDaemon,
) -> None:
    """End-of-file alone is enough: here the parent-death signal is what would come second."""
    worker = psutil.Process(load_trivial(daemon))
    daemon.kill()
    wait_until(lambda: is_gone(worker), 10, "the worker is gone")


def test_leftovers_of_a_dead_daemon_are_swept_at_start(tmp_path: Path) -> None:
    name = f"mcpd.{os.geteuid()}.1.0.77"  # process 1 lives, but has not started at tick 0
    path = Path("/dev/shm") / name
    path.write_bytes(b"left")
    try:
        with RunningDaemon(tmp_path):
            wait_until(lambda: not path.exists(), 10, "it is swept")
    finally:
        path.unlink(missing_ok=True)


def test_reaper_that_was_killed_is_replaced(bare_daemon: RunningDaemon) -> None:
    with connect(bare_daemon.socket) as client:
        client.create_stream("cam0", slot_nbytes=4096, memory="posix")
        first = client.status()["daemon"]["reaper_pid"]
        os.kill(first, signal.SIGKILL)
        wait_until(
            lambda: client.status()["daemon"]["reaper_pid"] not in (0, first), 10, "a new one"
        )
        pid = bare_daemon.pid
        bare_daemon.kill()
    assert not [name for name in os.listdir("/dev/shm") if f".{pid}." in name]


def test_actor_that_cannot_start_is_reported() -> None:
    """The fault planted: the helper of these tests notices a client that does not come up."""
    with Actor("/nowhere/mcpd.sock", "write", "x") as actor, pytest.raises(AssertionError):
        actor.wait_ready()


def test_daemon_that_cannot_start_is_reported_with_its_stderr(tmp_path: Path) -> None:
    """The fault planted: the fixture notices a daemon that does not come up."""
    with RunningDaemon(tmp_path) as first:
        second = RunningDaemon(tmp_path)
        os.rmdir(os.path.dirname(second.socket))
        second.command = first.command
        with pytest.raises(AssertionError, match=r"serves .* already"):
            second.start()


def test_process_left_behind_is_noticed(bare_daemon: RunningDaemon) -> None:
    """The fault planted: a child that outlives the daemon is in `leftovers`."""
    with psutil.Popen(["sleep", "60"]) as child:
        bare_daemon.note(child.pid)
        left = bare_daemon.leftovers()
        child.kill()
        assert any(f"process {child.pid}:" in entry for entry in left)
    path = Path("/dev/shm") / f"mcpd.{os.geteuid()}.{bare_daemon.pid}.1.1"
    path.write_bytes(b"")
    assert str(path) in bare_daemon.leftovers()
    path.unlink()
