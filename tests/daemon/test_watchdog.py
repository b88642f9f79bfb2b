"""A worker that makes no progress is found, tells its stacks, and is replaced; callers hear why."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mcpd.shm import Client, ModelFailed, TensorSpec, WorkerDied, aio, connect
from tests.support.daemon import RunningDaemon, wait_until
from tests.support.faulty import faulty_daemon, write_model
from tests.support.faulty_levels import Fault

SPEC = {"image": TensorSpec("uint8", (1, 8, 8, 3))}
LIMIT = "time_limit_s = 0.5"


def model(client: Client, name: str = "trivial") -> dict[str, Any]:
    """The model's row."""
    return next(row for row in client.list("models") if row["name"] == name)


def image(level: int) -> dict[str, np.ndarray[Any, Any]]:
    """An input of that level."""
    return {"image": np.full((1, 8, 8, 3), level, np.uint8)}


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A repository with one model that has little time."""
    folder = tmp_path / "models"
    folder.mkdir()
    write_model(folder, run=LIMIT)
    return folder


@pytest.fixture
def running(tmp_path: Path, models: Path) -> Iterator[RunningDaemon]:
    """A daemon whose workers do as frames say."""
    with faulty_daemon(tmp_path, models, "--park-after", "0") as daemon:
        yield daemon


@pytest.fixture
def client(running: RunningDaemon) -> Iterator[Client]:
    with connect(running.socket) as made:
        yield made


def submit(requests: Any, level: int) -> Any:
    """A request of that level."""
    slot = requests.acquire(30)
    slot.tensors["image"][:] = level
    return requests.submit(slot)


def test_worker_that_hangs_is_replaced_and_its_caller_is_told_why(
    running: RunningDaemon, client: Client
) -> None:
    stacks = {Fault.HANG: "faulty_run", Fault.HANG_IN_C: "stick_in_c", Fault.STOP: "tells no"}
    with client.requests("trivial", tensors=SPEC) as requests:
        assert submit(requests, 1).collect(30).ok
        for times, (fault, told) in enumerate(stacks.items(), 1):
            first = model(client)["pid"]
            for one in [submit(requests, level) for level in (fault, 2)]:
                with pytest.raises(WorkerDied, match=r"time_limit_s=0\.5") as caught:
                    one.collect(30)
                assert "stacks" in str(caught.value)
            assert submit(requests, 3).collect(30).ok
            assert model(client)["pid"] != first
            assert model(client)["restarts"] == times
            assert told in running.stderr
    assert running.stderr.count("most recent call first") >= 2


def test_worker_that_is_stopped_between_frames_is_replaced(client: Client) -> None:
    stream = client.create_stream("cam", width=8, height=8, format="rgb24")
    with client.results("cam", model="trivial", frames="lossless") as results:
        pid = model(client)["pid"]
        os.kill(pid, signal.SIGSTOP)
        with stream.acquire(5) as slot:
            slot.planes[0][:] = 1
        wait_until(lambda: model(client)["restarts"] == 1, 30, "it is replaced")
        wait_until(lambda: gives(results, stream), 30, "results go on")


def gives(results: Any, stream: Any) -> bool:
    """Whether a frame has its result."""
    with stream.acquire(5) as slot:
        slot.planes[0][:] = 1
    return bool(results.next(30).ok)


def test_worker_that_does_not_begin_on_a_stream_because_it_is_stopped_is_replaced(
    client: Client,
) -> None:
    client.infer("trivial", image(1)).close()
    os.kill(model(client)["pid"], signal.SIGSTOP)
    stream = client.create_stream("cam", width=8, height=8, format="rgb24")
    with stream.acquire(5) as slot:
        slot.planes[0][:] = 9
    with client.results("cam", model="trivial") as results:
        assert results.next(30).ok
    assert model(client)["restarts"] == 1


def test_slow_frames_within_the_limit_are_left_alone(client: Client) -> None:
    with client.requests("trivial", tensors=SPEC) as requests:
        for pending in [submit(requests, Fault.SLOW) for _ in range(4)]:
            assert pending.collect(30).ok
    assert model(client)["restarts"] == 0


def test_idle_bindings_and_results_that_nobody_reads_are_not_taken_for_a_worker_that_hangs(
    client: Client,
) -> None:
    stream = client.create_stream("cam", width=8, height=8, format="rgb24")
    with (
        client.results("cam", model="trivial", frames="lossless") as results,
        client.results("cam", model="trivial", once=True) as once,
    ):
        with stream.acquire(5) as slot:
            slot.planes[0][:] = 9
        once.run_once()
        assert once.next(30).ok
        wait_past = time.monotonic() + 1.5

        def full_or_over() -> bool:
            try:
                with stream.acquire(0.05) as slot:
                    slot.planes[0][:] = 9
            except Exception:
                pass
            return time.monotonic() > wait_past

        wait_until(full_or_over, 30, "three times the limit is over")
        assert results.next(30).ok
        once.run_once()
        assert once.next(30).ok
    assert model(client)["restarts"] == 0


def test_run_that_hangs_is_told_as_well(client: Client) -> None:
    stream = client.create_stream("cam", width=8, height=8, format="rgb24")
    with stream.acquire(5) as slot:
        slot.planes[0][:] = Fault.HANG
    with client.results("cam", model="trivial", once=True) as results:
        results.run_once()
        with pytest.raises(WorkerDied, match="run_once"):
            results.next(30)


def test_asyncio_caller_of_a_worker_that_hangs_is_told_why(running: RunningDaemon) -> None:
    async def body() -> None:
        async with (
            aio.connect(running.socket) as client,
            client.requests("trivial", tensors=SPEC) as requests,
        ):
            slot = await requests.acquire(30)
            slot.tensors["image"][:] = Fault.HANG
            with pytest.raises(WorkerDied, match=r"time_limit_s=0\.5"):
                await requests.collect(requests.submit(slot), 30)

    asyncio.run(body())


def test_worker_that_never_says_that_its_model_is_loaded_is_replaced(
    tmp_path: Path,
) -> None:
    models = tmp_path / "models"
    models.mkdir()
    folder = write_model(models, run="load_limit_s = 3", fault="hang")
    with faulty_daemon(tmp_path, models) as daemon, connect(daemon.socket) as client:
        with pytest.raises(ModelFailed, match="load_limit_s=3"):
            client.infer("trivial", image(1))
        assert "faulty_load" in daemon.stderr
        (folder / "fault").unlink()
        wait_until(lambda: model(client)["state"] == "ready", 60, "the next one is loaded")


def test_worker_whose_loop_is_stuck_between_frames_is_replaced(client: Client) -> None:
    stream = client.create_stream("cam", width=8, height=8, format="rgb24")
    with client.results("cam", model="trivial", frames="lossless") as results:
        with stream.acquire(5) as slot:
            slot.planes[0][:] = Fault.STUCK_AFTERWARDS
        assert results.next(30).ok
        with stream.acquire(5) as slot:
            slot.planes[0][:] = 1
        with pytest.raises(WorkerDied, match="took no frame"):
            results.next(30).raise_for_status()
        assert gives(results, stream)


def test_worker_that_was_held_up_together_with_the_daemon_is_left_alone(
    running: RunningDaemon, client: Client
) -> None:
    with client.requests("trivial", tensors=SPEC) as requests:
        assert submit(requests, 1).collect(30).ok
        pending = submit(requests, Fault.SLOW)
        both = (model(client)["pid"], running.pid)
        for pid in both:
            os.kill(pid, signal.SIGSTOP)
        threading.Event().wait(1.2)
        for pid in reversed(both):
            os.kill(pid, signal.SIGCONT)
        assert pending.collect(30).ok
    assert model(client)["restarts"] == 0


def test_worker_that_does_not_begin_on_a_stream_tells_its_stacks_and_is_replaced(
    tmp_path: Path, models: Path
) -> None:
    with (
        faulty_daemon(tmp_path, models, serve_s=1.0) as daemon,
        connect(daemon.socket) as client,
    ):
        assert client.infer("trivial", image(1)).ok
        (models / "trivial" / "fault").write_text("hang-at-serve")
        stream = client.create_stream("cam", width=8, height=8, format="rgb24")
        with stream.acquire(5) as slot:
            slot.planes[0][:] = 9
        with client.results("cam", model="trivial") as results:
            assert results.next(30).ok
            assert results.reopened == 0
        assert "did not begin on a stream within 1 s" in daemon.stderr
        assert "faulty_open" in daemon.stderr
        assert model(client)["restarts"] == 1
