"""A worker that dies at any step of a frame: each frame has a result, an error, or is run again."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mcpd.shm import Client, DaemonUnavailable, StreamClosed, TensorSpec, WorkerDied, aio, connect
from tests.support.daemon import RunningDaemon, wait_until
from tests.support.faulty import faulty_daemon, write_model
from tests.support.faulty_levels import Fault

SPEC = {"image": TensorSpec("uint8", (1, 8, 8, 3))}
DEATHS = [Fault.CRASH, Fault.DIE_BEFORE_PUBLISH, Fault.DIE_AFTER_PUBLISH]


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A repository with one model that does as frames say."""
    folder = tmp_path / "models"
    folder.mkdir()
    write_model(folder)
    return folder


@pytest.fixture
def running(tmp_path: Path, models: Path) -> Iterator[RunningDaemon]:
    with faulty_daemon(tmp_path, models, "--park-after", "0") as daemon:
        yield daemon


@pytest.fixture
def client(running: RunningDaemon) -> Iterator[Client]:
    with connect(running.socket, name="tester") as made:
        yield made


def worker(client: Client) -> dict[str, Any]:
    """The model's row."""
    return client.list("models")[0]


def image(level: int) -> dict[str, np.ndarray[Any, Any]]:
    """An input of that level."""
    return {"image": np.full((1, 8, 8, 3), level, np.uint8)}


def submit(requests: Any, level: int) -> Any:
    """A request of that level."""
    slot = requests.acquire(30)
    slot.tensors["image"][:] = level
    return requests.submit(slot)


def show(stream: Any, level: int) -> None:
    """Publishes a frame of that level."""
    with stream.acquire(30) as slot:
        slot.planes[0][:] = level


def outcome(pending: Any) -> str:
    """What became of a request."""
    try:
        with pending.collect(30) as result:
            return str(result.tensors["mean"][0][0])
    except WorkerDied:
        return "died"


def test_each_of_many_requests_in_flight_has_its_own_result_or_error(client: Client) -> None:
    with client.requests("trivial", tensors=SPEC, slots=4) as requests:
        for death in DEATHS:
            pending = [submit(requests, level) for level in (1, death, 3, 4)]
            told = [outcome(one) for one in pending]
            died = "205.0" if death is Fault.DIE_AFTER_PUBLISH else "died"
            assert told == ["1.0", died, "died", "died"]
            assert requests.in_flight == 0
        assert [outcome(submit(requests, level)) for level in (5, 6)] == ["5.0", "6.0"]


def test_every_frame_of_a_lossless_stream_has_a_result_or_says_that_its_worker_died(
    client: Client,
) -> None:
    for death in DEATHS:
        name = f"every-{death}"
        stream = client.create_stream(name, width=8, height=8, format="rgb24", slots=32)
        with client.results(name, model="trivial", frames="lossless", timeout_s=60) as results:
            for level in (1, 2, death, 4, 5):
                show(stream, level)
            seen = [results.next() for _ in range(2)]
            while not (seen[-1].ok and seen[-1].source_seq > 5):
                show(stream, 9)
                seen.append(results.next())
        assert [one.source_seq for one in seen] == list(range(1, seen[-1].source_seq + 1))
        third = "ok" if death is Fault.DIE_AFTER_PUBLISH else "worker_died"
        statuses = [one.status for one in seen[:5]]
        assert statuses == ["ok", "ok", third, "worker_died", "worker_died"]
        lost = seen[3]
        assert "worker died" in lost.error
        assert (lost.latency_ns, lost.tensors, lost.detections, lost.stream) == (0, {}, [], name)
        assert lost.to_dict()["status"] == "worker_died"
        with pytest.raises(WorkerDied):
            lost.raise_for_status()


def test_frames_lost_are_told_before_another_frame_comes(client: Client) -> None:
    stream = client.create_stream("quiet", width=8, height=8, format="rgb24")
    with client.results("quiet", model="trivial", frames="lossless") as results:
        with stream.acquire(5) as slot:
            slot.planes[0][:] = Fault.CRASH
        assert (results.next(60).status, results.reopened) == ("worker_died", 1)


def test_results_published_and_not_read_outlive_their_worker(client: Client) -> None:
    stream = client.create_stream("unread", width=8, height=8, format="rgb24")
    with client.results("unread", model="trivial", frames="lossless") as results:
        for level in (1, 2):
            with stream.acquire(5) as slot:
                slot.planes[0][:] = level
        name = "unread@trivial"
        wait_until(
            lambda: next(s["head"] for s in client.list("streams") if s["name"] == name) == 2,
            30,
            "both are published",
        )
        before = worker(client)
        os.kill(before["pid"], signal.SIGKILL)
        wait_until(lambda: worker(client)["restarts"] > before["restarts"], 30, "it is noticed")
        assert [results.next(30).tensors["mean"][0][0] for _ in range(2)] == [1, 2]


def test_asyncio_results_tell_lost_frames_too(running: RunningDaemon) -> None:
    async def body() -> None:
        async with (
            aio.connect(running.socket) as client,
            client.create_stream("cam", width=8, height=8, format="rgb24") as stream,
            client.results("cam", model="trivial", frames="lossless") as results,
        ):
            for level in (1, Fault.CRASH, 3):
                async with stream.acquire(5) as slot:
                    slot.planes[0][:] = level
            told = [await results.next(60) for _ in range(3)]
            assert [one.status for one in told] == ["ok", "worker_died", "worker_died"]
            assert [one.source_seq for one in told] == [1, 2, 3]

    asyncio.run(body())


def test_infer_is_run_once_more_by_the_next_worker_and_not_for_ever(client: Client) -> None:
    assert client.infer("trivial", image(1)).ok
    restarts = worker(client)["restarts"]
    os.kill(worker(client)["pid"], signal.SIGSTOP)
    answers: list[Any] = []
    caller = threading.Thread(target=lambda: answers.append(client.infer("trivial", image(6))))
    caller.start()
    threading.Event().wait(0.2)  # the request is in flight, or not yet: both come back
    os.kill(worker(client)["pid"], signal.SIGKILL)
    caller.join(60)
    assert answers[0].tensors["mean"][0][0] == 6
    assert worker(client)["restarts"] == restarts + 1
    with pytest.raises(WorkerDied):
        client.infer("trivial", image(Fault.CRASH))
    wait_until(lambda: worker(client)["restarts"] == restarts + 3, 30, "two workers died of it")
    assert client.infer("trivial", image(8)).ok


def test_run_once_is_run_once_more_by_the_next_worker_and_not_for_ever(
    running: RunningDaemon, client: Client
) -> None:
    stream = client.create_stream("still", width=8, height=8, format="rgb24")
    with stream.acquire(5) as slot:
        slot.planes[0][:] = Fault.CRASH
    restarts = worker(client)["restarts"]
    with pytest.raises(WorkerDied):
        client.run_once("still", model="trivial")
    wait_until(lambda: worker(client)["restarts"] == restarts + 2, 30, "two workers died of it")

    async def body() -> None:
        async with aio.connect(running.socket) as other:
            with pytest.raises(WorkerDied):
                await other.run_once("still", model="trivial")

    asyncio.run(body())
    wait_until(lambda: worker(client)["restarts"] == restarts + 4, 30, "and two more")
    with stream.acquire(5) as slot:
        slot.planes[0][:] = 4
    assert client.run_once("still", model="trivial").ok


def test_worker_that_dies_when_it_is_to_begin_on_a_stream_is_followed_by_the_next(
    client: Client, models: Path
) -> None:
    assert client.infer("trivial", image(1)).ok
    (models / "trivial" / "fault").write_text("crash-at-serve")
    stream = client.create_stream("begin", width=8, height=8, format="rgb24")
    with stream.acquire(5) as slot:
        slot.planes[0][:] = 4
    with client.results("begin", model="trivial") as results:
        assert results.next(30).ok
        assert results.reopened == 0
    assert not (models / "trivial" / "fault").exists()


def test_idle_requests_let_go_of_a_dead_worker_at_once(client: Client) -> None:
    def mine() -> list[dict[str, Any]]:
        rows = client.list("leases")
        return [r for r in rows if r["session"] == client.session and r["kind"] == "reader"]

    with client.requests("trivial", tensors=SPEC) as requests:
        assert outcome(submit(requests, 1)) == "1.0"
        assert len(mine()) == 1
        os.kill(worker(client)["pid"], signal.SIGKILL)
        wait_until(lambda: not mine(), 30, "its results are let go of")
        assert "@trivial" not in Path("/proc/self/maps").read_text()
        assert outcome(submit(requests, 2)) == "2.0"


def test_requests_in_flight_that_nobody_collects_are_taken_in_when_their_worker_dies(
    client: Client,
) -> None:
    with client.requests("trivial", tensors=SPEC) as requests:
        pending = [submit(requests, level) for level in (1, Fault.CRASH, 3)]
        wait_until(lambda: all(one.done for one in pending), 30, "each is told")
        assert [outcome(one) for one in pending] == ["1.0", "died", "died"]


@pytest.mark.parametrize("how", ["client", "requests"])
def test_collecting_from_a_client_that_is_closed_meanwhile_says_so(
    running: RunningDaemon, how: str
) -> None:
    client = connect(running.socket)
    requests = client.requests("trivial", tensors=SPEC)
    pid = worker(client)["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        pending = submit(requests, 1)
        errors: list[BaseException] = []

        def collect() -> None:
            try:
                pending.collect(30)
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=collect)
        thread.start()
        threading.Event().wait(0.1)
        (client if how == "client" else requests).close()
        thread.join(30)
        assert [type(error) for error in errors] == [StreamClosed]
        assert "closed" in str(errors[0])
    finally:
        os.kill(pid, signal.SIGCONT)
        client.close()


def test_collecting_when_the_daemon_dies_says_so(tmp_path: Path, models: Path) -> None:
    daemon = faulty_daemon(tmp_path, models)
    with daemon, connect(daemon.socket) as client:
        requests = client.requests("trivial", tensors=SPEC)
        pid = worker(client)["pid"]
        os.kill(pid, signal.SIGSTOP)
        pending = submit(requests, 1)
        daemon.note(pid)
        daemon.kill()
        with pytest.raises((DaemonUnavailable, WorkerDied)):
            pending.collect(30)
        daemon.start()
