"""A worker makes one result of each frame, is fair, sleeps when idle, and survives bad frames."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mcpd.shm import Client, InvalidRequest, StreamClosed, TensorSpec, WouldBlock, connect
from mcpd.shm.stream import WriterStream
from tests.support.daemon import RunningDaemon, wait_until

TRACE = bytes(range(16))


@pytest.fixture
def client(daemon: RunningDaemon) -> Iterator[Client]:
    """A session with the daemon that has the small models."""
    with connect(daemon.socket) as client:
        yield client


def make_camera(client: Client, name: str = "cam0", **options: Any) -> WriterStream:
    """A stream of small pictures."""
    return client.create_stream(name, width=64, height=48, format="rgb24", **options)


def show(stream: WriterStream, level: int) -> int:
    """Publishes one picture of that grey; its sequence number."""
    with stream.acquire(30) as slot:
        slot.planes[0][:] = level
        slot.pts_ns = 1000 * level
        slot.trace_id = TRACE
    return slot.seq


def test_result_carries_its_frames_numbers_and_times(client: Client) -> None:
    stream = make_camera(client)
    with client.results("cam0", model="tiny-image", frames="lossless") as results:
        seq = show(stream, 255)
        result = results.next(30)
        assert (result.source_seq, result.source_stream) == (seq, stream.stream_id)
        assert (result.status, result.model, result.version) == ("ok", "tiny-image", 1)
        assert result.pts_ns == 255_000
        assert result.source_publish_ns <= result.awake_ns <= result.finish_ns <= result.publish_ns
        assert [(d.label, d.score) for d in result.detections] == [
            ("red", 1.0), ("green", 1.0), ("blue", 1.0)
        ]  # fmt: skip
        assert (result.detections[0].x1, result.detections[0].y1) == (64, 48)


def test_lossless_gives_every_frame_its_result_from_the_first_on(client: Client) -> None:
    stream = make_camera(client)

    def feed() -> None:
        for level in range(200):
            show(stream, level)
        stream.end()

    with client.results("cam0", model="trivial", frames="lossless") as results:
        feeder = threading.Thread(target=feed)
        feeder.start()
        seen = [(result.source_seq, int(result.tensors["mean"][0][0])) for result in results]
        feeder.join()
    assert seen == [(level + 1, level) for level in range(200)]


def test_frame_that_the_model_refuses_is_a_failed_result_and_the_next_works(
    client: Client,
) -> None:
    stream = client.create_stream("mixed", slot_nbytes=65536)
    with client.results("mixed", model="trivial", frames="lossless") as results:
        for array in (np.zeros((1, 8, 8, 3), np.float32), np.full((1, 8, 8, 3), 4, np.uint8)):
            with stream.acquire(30) as slot:
                slot.set_tensors({"image": array})
        bad, good = results.next(30), results.next(30)
        assert (bad.status, bad.source_seq) == ("invalid", 1)
        assert "float32" in bad.error
        assert (good.status, good.tensors["mean"][0].tolist()) == ("ok", [4, 4, 4])
        (worker,) = client.list("workers")
        assert worker["bindings"] == 1


def test_callers_who_want_the_same_share_one_binding(client: Client) -> None:
    def bindings() -> list[dict[str, Any]]:
        return [lease for lease in client.list("leases") if lease["kind"] == "binding"]

    stream = make_camera(client)
    first = client.results("cam0", model="trivial", frames="lossless")
    second = client.results("cam0", model="trivial", frames="lossless")
    assert [binding["name"] for binding in bindings()] == ["cam0@trivial"]
    other = client.results("cam0", model="trivial", frames="latest")
    assert len(bindings()) == 2
    other.close()
    show(stream, 5)
    for results in (first, second):
        assert results.next(30).source_seq == 1
    first.close()
    show(stream, 6)
    assert second.next(30).source_seq == 2
    second.close()
    wait_until(lambda: not bindings(), 30, "the binding ends with its last reader")
    wait_until(
        lambda: not [row for row in client.list("streams") if row["kind"] == "results"],
        30,
        "its results stream as well",
    )
    with client.results("cam0", model="trivial") as again:
        assert again.next(30).source_seq == 2  # the newest frame there is
        show(stream, 8)
        assert again.next(30).source_seq == 3


def test_binding_of_a_dead_reader_ends(daemon: RunningDaemon, client: Client) -> None:
    make_camera(client)
    other = connect(daemon.socket)
    other.results("cam0", model="trivial")
    assert [lease for lease in client.list("leases") if lease["kind"] == "binding"]
    other.connection.close()  # without a word
    wait_until(
        lambda: not [lease for lease in client.list("leases") if lease["kind"] == "binding"],
        30,
        "the binding ends",
    )
    other.close()


def test_slow_reader_of_results_holds_back_its_own_stream_alone(client: Client) -> None:
    blocked, free = make_camera(client, "blocked"), make_camera(client, "free")
    # Nobody reads these results: once their slots are full the worker takes no more frames.
    stuck = client.results("blocked", model="trivial", frames="lossless")

    def is_full() -> bool:
        try:
            with blocked.acquire(0) as slot:
                slot.planes[0][:] = 1
        except WouldBlock:
            return True
        return False

    wait_until(is_full, 60, "the frames pile up")
    with client.results("free", model="trivial", frames="lossless") as results:
        for level in range(50):
            show(free, level)
            assert results.next(30).tensors["mean"][0][0] == level
    # Once they are read, everything moves again and nothing was lost.
    published = blocked.stats()["published"]
    seen = [stuck.next(30).source_seq for _ in range(published)]
    assert seen == list(range(1, published + 1))
    stuck.close()


def test_once_runs_on_the_newest_frame_when_asked(client: Client) -> None:
    stream = make_camera(client)
    show(stream, 1)
    newest = show(stream, 2)
    with client.results("cam0", model="trivial", once=True) as results:
        for _ in range(2):  # a still picture can be asked about twice
            results.run_once(TRACE)
            result = results.next(30)
            assert (result.source_seq, result.tensors["mean"][0][0]) == (newest, 2)
            assert result.trace_id == TRACE
        newest = show(stream, 3)
        results.run_once()
        assert results.next(30).source_seq == newest
        with pytest.raises(WouldBlock):
            results.next(0)


def test_run_once_needs_results_opened_for_it(client: Client) -> None:
    make_camera(client)
    with (
        client.results("cam0", model="trivial") as results,
        pytest.raises(InvalidRequest, match="once"),
    ):
        results.run_once()


@pytest.mark.parametrize("nbytes", [1, 15, 17, 60000])
def test_trace_id_of_another_length_is_refused_and_the_worker_lives(
    client: Client, nbytes: int
) -> None:
    stream = make_camera(client)
    show(stream, 9)
    with client.results("cam0", model="trivial", once=True) as results:
        with pytest.raises(InvalidRequest, match=f"{nbytes} bytes"):
            results.run_once(b"t" * nbytes)
        results.run_once(TRACE[::-1])
        assert results.next(30).trace_id == TRACE[::-1]
        assert results.reopened == 0


def test_results_end_as_their_stream_does(client: Client) -> None:
    stream = make_camera(client)
    with client.results("cam0", model="trivial", frames="lossless") as results:
        show(stream, 1)
        stream.close()
        assert results.next(30).source_seq == 1
        with pytest.raises(StreamClosed) as caught:
            results.next(30)
        assert caught.value.reason == "closed"


def test_infer_runs_arrays_without_a_stream(client: Client) -> None:
    image = np.full((16, 16, 3), 11, np.uint8)
    for _ in range(3):
        result = client.infer("trivial", {"image": image[None]})
        assert result.tensors["mean"][0].tolist() == [11, 11, 11]
    assert client.list("streams") == []


def test_many_requests_in_flight_are_matched(client: Client) -> None:
    spec = {"image": TensorSpec("uint8", (1, 16, 16, 3))}
    with client.requests("trivial", tensors=spec, slots=4) as requests:
        for _ in range(10):
            pending = []
            for level in range(4):
                slot = requests.acquire(30)
                slot.tensors["image"][:] = level
                pending.append(requests.submit(slot))
            levels = [one.collect(30).tensors["mean"][0][0] for one in reversed(pending)]
            assert levels == [3, 2, 1, 0]


def switches(pid: int) -> int:
    """How often any thread of the process has gone to sleep by itself."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        for line in (task / "status").read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches"):
                total += int(line.split()[1])
    return total


def test_idle_worker_and_daemon_do_not_wake_up(daemon: RunningDaemon, client: Client) -> None:
    stream = make_camera(client)
    with client.results("cam0", model="trivial", frames="lossless") as results:
        show(stream, 1)
        results.next(30).close()
        worker = client.list("workers")[0]["pid"]
        # The counters go out once within a second; after that there is nothing to do.
        wait_until(lambda: client.list("workers")[0]["frames"] == 1, 30, "counters have come")
        assert sleeps_through(worker, 1.5)
        assert sleeps_through(daemon.pid, 1.5)


def sleeps_through(pid: int, seconds: float) -> bool:
    """Whether a process sleeps that long without a break; what ends its work may still come."""
    pause = threading.Event()
    for _ in range(4):
        before = switches(pid)
        pause.wait(seconds)
        if switches(pid) == before:
            return True
    return False


def test_worker_counts_what_it_does(client: Client) -> None:
    stream = make_camera(client)
    with client.results("cam0", model="tiny-image", frames="lossless") as results:
        for level in range(5):
            show(stream, level)
            results.next(30).close()
        wait_until(lambda: client.list("workers")[0]["frames"] == 5, 30, "counters have come")
        (worker,) = client.list("workers")
        assert worker["errors"] == 0
        assert worker["prepare_ns"] + worker["infer_ns"] + worker["decode_ns"] > 0
        assert worker["busy_ns"] >= worker["infer_ns"]
