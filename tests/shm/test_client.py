"""The client against a real daemon: streams, results and requests, and what breaks them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mcpd.shm import (
    AlreadyExists,
    Client,
    DaemonUnavailable,
    InvalidRequest,
    LimitExceeded,
    ModelFailed,
    NotFound,
    StreamClosed,
    TensorSpec,
    TimedOut,
    WorkerDied,
    connect,
)
from mcpd.shm.segment import SHM_DIRECTORY
from tests.support.daemon import RunningDaemon, wait_until
from tests.support.descriptors import no_descriptor_leaked

RED = np.full((16, 24, 3), (255, 0, 0), np.uint8)


@pytest.fixture(scope="module")
def shared(
    tmp_path_factory: pytest.TempPathFactory, model_repository: Path
) -> Iterator[RunningDaemon]:
    """One daemon for the tests that leave it as it was."""
    with RunningDaemon(tmp_path_factory.mktemp("daemon"), model_repository) as running:
        yield running


@pytest.fixture
def client(shared: RunningDaemon) -> Iterator[Client]:
    with no_descriptor_leaked(), connect(shared.socket, name="tester") as made:
        yield made


def worker_pid(client: Client, model: str) -> int:
    return next(int(row["pid"]) for row in client.list("models") if row["name"] == model)


def maps(pid: int | str = "self") -> list[str]:
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return [line for line in lines if "mcpd:" in line or "/dev/shm/mcpd." in line]


# ---- connecting ----------------------------------------------------------------------------------


def test_no_socket_is_a_daemon_that_is_not_there(tmp_path: Path) -> None:
    with no_descriptor_leaked(), pytest.raises(DaemonUnavailable) as caught:
        connect(tmp_path / "none.sock")
    assert "none.sock: No such file" in caught.value.message
    assert "mcpd start" in caught.value.hint


def test_socket_that_nobody_listens_on_is_a_daemon_that_is_not_there() -> None:
    path = f"/tmp/mcpd-dead-{os.getpid()}.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
    try:
        with pytest.raises(DaemonUnavailable, match="refused"):
            connect(path)
    finally:
        os.unlink(path)


def test_socket_path_too_long_is_told_with_the_limit(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"has \d+ bytes, the limit is 107"):
        connect(tmp_path / ("x" * 120))


def test_socket_comes_from_the_environment(
    shared: RunningDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MCPD_SOCKET", shared.socket)
    with connect() as client:
        assert client.socket == shared.socket
        assert client.daemon_pid == shared.pid


def test_daemon_that_does_not_greet_times_out(tmp_path: Path) -> None:
    path = f"/tmp/mcpd-mute-{os.getpid()}.sock"
    with no_descriptor_leaked(), socket.socket(socket.AF_UNIX) as mute:
        mute.bind(path)
        mute.listen()
        try:
            with pytest.raises(TimedOut):
                connect(path, timeout_s=0.05)
        finally:
            os.unlink(path)


def test_status_and_lists_name_this_session(client: Client) -> None:
    assert client.status()["daemon"]["pid"] == client.daemon_pid
    (row,) = [row for row in client.list("sessions") if row["session"] == client.session]
    assert (row["client"], row["pid"]) == ("tester", os.getpid())
    with pytest.raises(InvalidRequest, match="no table 'cats'"):
        client.list("cats")


def test_long_list_comes_in_one_piece(client: Client) -> None:
    streams = [
        client.create_stream(f"many-{number}", slots=4, holds=1, slot_nbytes=1)
        for number in range(130)
    ]
    names = [row["name"] for row in client.list("streams")]
    assert [name for name in names if name.startswith("many-")] == [s.name for s in streams]
    for stream in streams:
        stream.close()


# ---- streams -------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", ["memfd", "posix"])
def test_frames_go_from_writer_to_reader(client: Client, memory: str) -> None:
    with (
        client.create_stream("cam0", width=64, height=48, format="i420", memory=memory) as stream,
        client.open_stream("cam0", policy="lossless") as reader,
    ):
        for number in range(20):
            with stream.acquire() as slot:
                slot.planes[0][...] = number
                slot.pts_ns = number
            with reader.next(5) as frame:
                assert (frame.planes[0] == number).all()
                assert frame.pts_ns == number
        assert (stream.stats()["published"], reader.stats()["received"]) == (20, 20)


def test_name_is_free_again_when_close_returns(client: Client) -> None:
    for _ in range(3):
        with client.create_stream("again", width=64, height=48, format="gray8") as stream:
            with pytest.raises(AlreadyExists):
                client.create_stream("again", width=64, height=48, format="gray8")
            assert stream.name == "again"


def test_posix_stream_has_a_name_while_it_lives(client: Client) -> None:
    with client.create_stream("p", width=64, height=48, format="gray8", memory="posix") as stream:
        name = stream.grant.shm_name
        assert (SHM_DIRECTORY / name.lstrip("/")).exists()
        assert f".{client.daemon_pid}." in name
    assert not (SHM_DIRECTORY / name.lstrip("/")).exists()


def test_bundles_of_fixed_tensors_travel(client: Client) -> None:
    specs = {"x": TensorSpec("float32", (2, 3)), "y": TensorSpec("int64", ())}
    with client.create_stream("t", tensors=specs) as stream, client.open_stream("t") as reader:
        with stream.acquire() as slot:
            slot.tensors["x"][...] = [[1, 2, 3], [4, 5, 6]]
            slot.tensors["y"][...] = -7
        with reader.next(5) as frame:
            assert frame.tensors["x"].tolist() == [[1, 2, 3], [4, 5, 6]]
            assert frame.tensors["y"] == -7


@pytest.mark.parametrize(
    ("arguments", "kind", "said"),
    [
        ({"width": 641, "height": 480, "format": "i420"}, InvalidRequest, "641 is odd"),
        ({"width": 640, "height": 480}, InvalidRequest, "without a format"),
        ({"width": 640, "height": 480, "format": "cmyk"}, InvalidRequest, "cmyk"),
        ({}, InvalidRequest, "no slot_nbytes"),
        ({"format": "jpeg", "width": 8, "height": 8}, InvalidRequest, "no fixed size"),
        (
            {"width": 640, "height": 480, "format": "rgb24", "slot_nbytes": 1000},
            LimitExceeded,
            "takes 921600 bytes, slot_nbytes is 1000",
        ),
        ({"slot_nbytes": 1, "slots": 0}, InvalidRequest, "slots is 0"),
        ({"slot_nbytes": 1, "slots": 2**40}, InvalidRequest, str(2**40)),
        ({"slot_nbytes": 1, "slots": 2**70}, InvalidRequest, "cannot be encoded"),
        ({"slot_nbytes": 1, "memory": "disk"}, InvalidRequest, "'disk'"),
        ({"slot_nbytes": 1, "kind": "cats"}, InvalidRequest, "'cats'"),
        ({"slot_nbytes": 0}, InvalidRequest, "slot_nbytes is 0"),
    ],
)
def test_stream_that_cannot_be_is_refused_and_leaves_nothing(
    client: Client, arguments: dict[str, Any], kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind, match=said):
        client.create_stream("bad", **arguments)
    assert "bad" not in [row["name"] for row in client.list("streams")]
    assert maps() == []


@pytest.mark.parametrize("name", ["", "a/b", ".hidden", "x" * 64, "~1-1", "a b", "\0"])
def test_name_that_cannot_be_is_refused(client: Client, name: str) -> None:
    with pytest.raises(InvalidRequest, match="name"):
        client.create_stream(name, slot_nbytes=1)


def test_reader_of_nothing_is_not_found(client: Client) -> None:
    with pytest.raises(NotFound, match="'nobody'"):
        client.open_stream("nobody")


def test_too_many_pins_are_refused_and_the_stream_goes_on(client: Client) -> None:
    with client.create_stream("few", width=8, height=8, format="gray8") as stream:
        with pytest.raises(LimitExceeded):
            client.open_stream("few", max_pins=20)
        with client.open_stream("few") as reader, stream.acquire():
            pass
        assert reader.ended == "closed"


def test_closing_the_client_closes_its_streams(shared: RunningDaemon) -> None:
    with no_descriptor_leaked():
        client = connect(shared.socket)
        stream = client.create_stream("mine", width=8, height=8, format="gray8")
        reader = client.open_stream("mine")
        client.close()
        client.close()
        with pytest.raises(StreamClosed):
            stream.acquire(0)
        with pytest.raises(StreamClosed):
            reader.next(0)
        assert maps() == []
        with pytest.raises(DaemonUnavailable):
            client.status()


def test_hundred_streams_leave_neither_memory_nor_descriptors(client: Client) -> None:
    for number in range(100):
        with client.create_stream("s", width=64, height=48, format="i420") as stream:
            with client.open_stream("s") as reader, stream.acquire():
                pass
            assert reader.name == "s", number
    assert maps() == []
    assert [row for row in client.list("leases") if row["session"] == client.session] == []


WRITER = """
import sys, time
from mcpd.shm import connect
client = connect(sys.argv[1])
stream = client.create_stream("theirs", width=64, height=48, format="gray8")
for number in range(5):
    with stream.acquire() as slot:
        slot.planes[0][...] = number
print("ready", flush=True)
time.sleep(1000)
"""


def test_reader_learns_that_its_writer_died(client: Client, shared: RunningDaemon) -> None:
    with subprocess.Popen(
        [sys.executable, "-P", "-c", WRITER, shared.socket], stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
        with client.open_stream("theirs") as reader:
            with reader.next(5) as frame:
                assert (frame.planes[0] == 4).all()
                writer.kill()
                with pytest.raises(StreamClosed) as caught:
                    reader.next(10)
                assert (frame.planes[0] == 4).all()
            assert caught.value.reason == "writer_died"
    with client.create_stream("theirs", width=8, height=8, format="gray8"):
        pass


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
