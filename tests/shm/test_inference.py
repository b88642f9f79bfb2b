"""Models through the client, against a real daemon: infer, requests, results, and deaths."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mcpd.shm import (
    Client,
    DaemonUnavailable,
    InvalidRequest,
    ModelFailed,
    NotFound,
    StreamClosed,
    TensorSpec,
    TimedOut,
    WorkerDied,
    connect,
)
from tests.support.daemon import RunningDaemon, wait_until
from tests.support.descriptors import no_descriptor_leaked

RED = np.full((16, 24, 3), (255, 0, 0), np.uint8)


def worker_pid(client: Client, model: str) -> int:
    return next(int(row["pid"]) for row in client.list("models") if row["name"] == model)


def maps(pid: int | str = "self") -> list[str]:
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return [line for line in lines if "mcpd:" in line or "/dev/shm/mcpd." in line]


# ---- models --------------------------------------------------------------------------------------


def test_infer_gives_the_models_outputs(client: Client) -> None:
    image = np.zeros((480, 640, 3), np.uint8)
    image[:4, :4] = (10, 20, 30)
    with client.infer("trivial", image) as result:
        assert result["mean"].tolist() == [[10, 20, 30]]
        assert (result.model, result.version, result.status) == ("trivial", 1, "ok")
    assert client.infer("trivial", {"image": image[None]})["mean"].tolist() == [[10, 20, 30]]
    assert client.infer("trivial", {"any": image})["mean"].tolist() == [[10, 20, 30]]


def test_infer_finds_objects_in_source_pixels(client: Client) -> None:
    (found,) = client.infer("tiny-image", RED).detections
    assert (found.label, found.class_id) == ("red", 0)
    assert (found.x0, found.y0, found.x1, found.y1) == pytest.approx((0, 0, 24, 16))
    assert found.score == pytest.approx(1.0)
    assert client.infer("tiny-image", RED[:, :, ::-1], format="bgr24").detections == [found]
    assert client.infer("tiny-image", np.zeros_like(RED)).detections == []


@pytest.mark.parametrize("format", ["i420", "nv12"])
def test_infer_takes_stacked_planes(client: Client, format: str) -> None:
    image = np.full((16 * 3 // 2, 24), 128, np.uint8)
    image[:16] = 81  # BT.601 or 709 red is near: Y 81 or 63, Cb 90 or 102, Cr 240
    if format == "i420":
        image[16:].reshape(-1)[:96], image[16:].reshape(-1)[96:] = 90, 240
    else:
        image[16:].reshape(-1)[::2], image[16:].reshape(-1)[1::2] = 90, 240
    (found,) = client.infer("tiny-image", image, format=format).detections
    assert found.label == "red"


def test_infer_keeps_its_streams_for_the_next_time(client: Client) -> None:
    for _ in range(3):
        client.infer("trivial", RED)
    owned = {row["name"] for row in client.list("leases") if row["session"] == client.session}
    assert len([name for name in owned if name.startswith("mcpd:payload:~")]) == 1
    for side in range(8, 28):
        client.infer("trivial", np.zeros((side, 8, 3), np.uint8))
    owned = {row["name"] for row in client.list("leases") if row["session"] == client.session}
    assert len([name for name in owned if name.startswith("mcpd:payload:~")]) == 8


def test_infer_of_many_threads_gives_each_its_own_result(client: Client) -> None:
    wrong: list[object] = []

    def work(level: int) -> None:
        image = np.full((8, 8, 3), level, np.uint8)
        for _ in range(20):
            mean = client.infer("trivial", image)["mean"].tolist()
            if mean != [[level] * 3]:
                wrong.append((level, mean))

    threads = [threading.Thread(target=work, args=(level,)) for level in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize(
    ("inputs", "format", "said"),
    [
        ({}, None, "no inputs"),
        ({"image": [[1, 2]]}, None, "is a list, not an array"),
        (np.zeros((4, 4), np.float32), "rgb24", "needs uint8"),
        (np.zeros((4, 5, 3), np.uint8), "i420", "odd"),
        (np.zeros((6, 4, 3), np.uint8), "nv12", "needs uint8"),
        (np.zeros(4, np.uint8), "jpeg", "encoded"),
        (np.zeros((4, 4, 3), np.uint8), "cmyk", "cmyk"),
        (np.array(["a"]), None, "unknown dtype"),
    ],
)
def test_infer_refuses_what_is_no_input(
    client: Client, inputs: Any, format: str | None, said: str
) -> None:
    with pytest.raises(InvalidRequest, match=said):
        client.infer("trivial", inputs, format=format)


def test_infer_tells_what_the_model_does_not_take(client: Client) -> None:
    with pytest.raises(InvalidRequest, match="trivial"):
        client.infer("trivial", {"image": np.zeros((1, 4, 4, 3), np.float32)})
    assert client.infer("trivial", RED).ok


def test_unknown_model_is_not_found_and_leaves_no_stream(client: Client) -> None:
    with pytest.raises(NotFound, match="'gpt'"):
        client.infer("gpt", RED)
    with pytest.raises(NotFound):
        client.infer("trivial", RED, version=9)
    assert maps() == []


def test_requests_in_flight_are_matched_in_any_order(client: Client) -> None:
    with client.requests("trivial", width=8, height=8, format="rgb24", slots=4) as requests:
        pending = []
        for level in range(4):
            slot = requests.acquire(5)
            slot.planes[0][...] = level
            pending.append(requests.submit(slot))
        means = [one.collect(5)["mean"][0, 0] for one in reversed(pending)]
        assert means == [3, 2, 1, 0]
        assert requests.in_flight == 0
        assert (requests.model, requests.version, requests.labels) == ("trivial", 1, [])


def test_request_that_is_given_up_does_not_disturb_the_next(client: Client) -> None:
    with client.requests("trivial", width=8, height=8, format="rgb24") as requests:
        pending = requests.submit(requests.acquire(5))
        with suppress(TimedOut):  # the worker may be faster
            pending.collect(0)
        with requests.acquire(5) as slot:
            slot.planes[0][...] = 9
            other = requests.submit(slot)
        assert other.collect(5)["mean"].tolist() == [[9, 9, 9]]


def test_results_flow_for_every_frame_of_a_stream(client: Client) -> None:
    with (
        client.create_stream("red", width=24, height=16, format="rgb24") as stream,
        client.results("red", model="tiny-image", frames="lossless", timeout_s=20) as results,
    ):
        assert results.labels == ["red", "green", "blue"]
        for number in range(10):
            with stream.acquire(5) as slot:
                slot.planes[0][...] = RED
                slot.pts_ns = number
            result = results.next()
            assert (result.source_seq, result.pts_ns) == (number + 1, number)
            assert (result.stream, result.source_stream) == ("red", stream.stream_id)
            assert result.source_publish_ns == slot.publish_ns
            assert result.source_publish_ns < result.awake_ns <= result.finish_ns
            assert result.latency_ns > 0
            assert [found.label for found in result.detections] == ["red"]
        stream.end()
        assert list(results) == []


def test_two_callers_share_a_binding(client: Client) -> None:
    with (
        client.create_stream("twice", width=24, height=16, format="rgb24") as stream,
        client.results("twice", model="tiny-image") as one,
        client.results("twice", model="tiny-image") as other,
    ):
        bindings = [row for row in client.list("leases") if row["kind"] == "binding"]
        assert len([row for row in bindings if row["stream"] == "twice"]) == 1
        with stream.acquire() as slot:
            slot.planes[0][...] = RED
        assert one.next(10).detections == other.next(10).detections != []


def test_run_once_takes_the_newest_frame_alone(client: Client) -> None:
    with client.create_stream("still", width=24, height=16, format="rgb24") as stream:
        for level in (0, 0, 255):
            with stream.acquire() as slot:
                slot.planes[0][...] = (level, 0, 0)
        result = client.run_once("still", model="tiny-image", trace_id=b"r" * 16)
        assert result.source_seq == 3
        assert [found.label for found in result.detections] == ["red"]
        with client.results("still", model="tiny-image", once=True, timeout_s=20) as results:
            for _ in range(3):
                results.run_once()
                assert results.next().source_seq == 3
    with (
        client.create_stream("idle", width=24, height=16, format="rgb24"),
        client.results("idle", model="tiny-image") as results,
        pytest.raises(InvalidRequest, match="once"),
    ):
        results.run_once()


def test_frame_that_the_model_refuses_is_a_result_with_an_error(client: Client) -> None:
    with (
        client.create_stream("odd", tensors={"x": TensorSpec("float32", (3,))}) as stream,
        client.results("odd", model="trivial", timeout_s=20) as results,
    ):
        with stream.acquire():
            pass
        result = results.next()
        assert (result.status, result.ok, result.detections) == ("invalid", False, [])
        assert "takes image uint8" in result.error
        with pytest.raises(InvalidRequest, match="trivial"):
            result.raise_for_status()


def test_model_file_that_is_none_is_a_clear_failure(tmp_path: Path) -> None:
    from tests.support.models import write_repository

    repository = tmp_path / "models"
    repository.mkdir()
    write_repository(repository)
    (repository / "trivial" / "1" / "model.onnx").write_bytes(b"not a model")
    with RunningDaemon(tmp_path, repository) as daemon, connect(daemon.socket) as client:
        with pytest.raises(ModelFailed, match="trivial"):
            client.infer("trivial", RED, timeout_s=20)
        assert client.infer("tiny-image", RED).ok


# ---- deaths --------------------------------------------------------------------------------------


def test_results_go_on_after_their_worker_died(client: Client) -> None:
    with (
        client.create_stream("cam", width=24, height=16, format="rgb24") as stream,
        client.results("cam", model="tiny-image", timeout_s=30) as results,
    ):
        seen = []
        stop = threading.Event()

        def write() -> None:
            while not stop.wait(0.002):
                with stream.acquire() as slot:
                    slot.planes[0][...] = RED

        thread = threading.Thread(target=write)
        thread.start()
        try:
            for result in results:
                seen.append(result.source_seq)
                if len(seen) == 5:
                    os.kill(worker_pid(client, "tiny-image"), signal.SIGKILL)
                if len(seen) == 20:
                    break
        finally:
            stop.set()
            thread.join()
        assert results.reopened >= 1
        assert seen == sorted(set(seen))


def test_requests_in_flight_fail_with_their_worker_and_the_next_one_succeeds(
    client: Client,
) -> None:
    with client.requests("trivial", width=8, height=8, format="rgb24") as requests:
        assert requests.submit(requests.acquire(5)).collect(5).ok
        pid = worker_pid(client, "trivial")
        os.kill(pid, signal.SIGSTOP)
        pending = [requests.submit(requests.acquire(5)) for _ in range(2)]
        os.kill(pid, signal.SIGKILL)
        for one in pending:
            with pytest.raises(WorkerDied, match="in flight"):
                one.collect(10)
        assert requests.submit(requests.acquire(5)).collect(30).ok
    assert client.infer("trivial", RED).ok


def test_worker_that_died_idle_is_not_noticed_by_the_next_request(client: Client) -> None:
    client.infer("trivial", RED)
    pid = worker_pid(client, "trivial")
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: worker_pid(client, "trivial") != pid, 20, "the worker is another one")
    assert client.infer("trivial", RED).ok


def test_death_of_the_daemon_wakes_everybody_and_unmaps(
    tmp_path: Path, model_repository: Path
) -> None:
    with no_descriptor_leaked(), RunningDaemon(tmp_path, model_repository) as daemon:
        client = connect(daemon.socket)
        stream = client.create_stream("cam", width=64, height=48, format="rgb24")
        reader = client.open_stream("cam")
        results = client.results("cam", model="trivial", frames="lossless")
        requests = client.requests("trivial", width=8, height=8, format="rgb24")
        reasons: list[str] = []

        def wait_for_frame() -> None:
            try:
                reader.next()
            except StreamClosed as error:
                reasons.append(error.reason)

        def wait_for_result() -> None:
            try:
                results.next()
            except StreamClosed as error:
                reasons.append(error.reason)

        threads = [threading.Thread(target=f) for f in (wait_for_frame, wait_for_result)]
        for thread in threads:
            thread.start()
        pending = requests.submit(requests.acquire(5))
        pending.collect(10)
        daemon.kill()
        for thread in threads:
            thread.join(10)
        assert reasons in (
            ["shutdown"] * 2,
            ["shutdown", "writer_died"],
            ["writer_died", "shutdown"],
        )
        with pytest.raises(StreamClosed):
            stream.acquire(0)
        with pytest.raises((DaemonUnavailable, StreamClosed, WorkerDied)):
            requests.submit(requests.acquire(1)).collect(5)
        with pytest.raises(DaemonUnavailable):
            client.status()
        client.close()
        wait_until(lambda: maps() == [], 5, "everything is unmapped")
        daemon.start()
        with connect(daemon.socket) as other:
            assert other.infer("trivial", RED).ok
