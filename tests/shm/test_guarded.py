"""Memory of a stream that a peer takes away while it is read, through a daemon."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mcpd.shm import Client, SegmentLost, WriterStream, connect
from tests.support.daemon import RunningDaemon
from tests.support.models import write_whole

WIDTH, HEIGHT = 1024, 768
NBYTES = WIDTH * HEIGHT * 3


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client of a daemon with a model that reads every pixel."""
    folder = tmp_path_factory.mktemp("whole")
    write_whole(folder / "models")
    with RunningDaemon(folder, folder / "models") as running, connect(running.socket) as client:
        yield client


def make(client: Client, name: str = "cam") -> WriterStream:
    return client.create_stream(
        name, width=WIDTH, height=HEIGHT, format="rgb24", slots=6, memory="posix"
    )


def named(stream: WriterStream) -> Path:
    """Its payload, as anybody of this user may open it."""
    return Path("/dev/shm") / stream.grant.shm_name.removeprefix("/")


def publish(stream: WriterStream, level: int) -> None:
    with stream.acquire() as slot:
        slot.planes[0][...] = level


def test_a_frame_that_lost_its_memory_is_an_error_and_not_data(client: Client) -> None:
    with make(client) as stream, client.open_stream("cam") as reader:
        publish(stream, 7)
        frame = reader.next()
        plane = frame.planes[0]
        assert int(plane[0, 0, 0]) == 7
        assert frame.intact
        os.truncate(named(stream), 0)
        assert int(plane.max()) == 0
        assert not frame.intact
        with pytest.raises(SegmentLost, match="cannot be trusted"):
            frame.check()
        with pytest.raises(SegmentLost):
            _ = frame.buffer
        del plane
        with pytest.raises(SegmentLost):
            frame.close()
        frame.close()
        assert not frame.intact


def test_leaving_the_block_reports_lost_memory_unless_something_was_raised(client: Client) -> None:
    def read(error: Exception | None) -> None:
        with reader.next() as frame:
            os.truncate(named(stream), 0)
            assert int(frame.planes[0].max()) == 0
            if error is not None:
                raise error

    with make(client) as stream, client.open_stream("cam") as reader:
        for raised in (KeyError("its own"), None):
            publish(stream, 7)
            with pytest.raises(KeyError if raised else SegmentLost):
                read(raised)
            stream.resize()


def test_a_frame_that_nobody_looked_at_is_closed_in_peace(client: Client) -> None:
    with make(client) as stream, client.open_stream("cam") as reader:
        for level in (1, 2):
            publish(stream, level)
        os.truncate(named(stream), 0)
        frame = reader.next()
        frame.close()
        assert frame.intact


def test_a_writer_learns_that_its_memory_is_gone_and_resizes(client: Client) -> None:
    with make(client) as stream, client.open_stream("cam") as reader:
        os.truncate(named(stream), 0)
        with pytest.raises(SegmentLost, match="Resize the stream"):
            publish(stream, 7)
        with pytest.raises(SegmentLost):
            stream.acquire(0)
        stream.resize()
        publish(stream, 8)
        with reader.next(10) as frame:
            assert int(frame.planes[0].min()) == 8


def test_a_system_call_that_is_given_lost_memory_fails(client: Client, tmp_path: Path) -> None:
    with make(client) as stream, client.open_stream("cam") as reader:
        publish(stream, 7)
        frame = reader.next()
        os.truncate(named(stream), 0)
        file = (tmp_path / "copy").open("wb", buffering=0)
        with file, pytest.raises(OSError, match="Bad address"):
            file.write(frame.buffer)
        frame.close()


def _truncate(path: Path) -> None:
    os.truncate(path, 0)
    os.truncate(path, 6 * NBYTES)


def _punch(path: Path) -> None:
    subprocess.run(["fallocate", "-p", "-o", "0", "-l", str(6 * NBYTES), str(path)], check=True)


def _rewrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(bytes(range(256)) * (NBYTES // 256))


def _unlink(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("harm", [_truncate, _punch, _rewrite, _unlink], ids=lambda f: f.__name__)
def test_reading_survives_a_peer_that_harms_the_memory(client: Client, harm: Any) -> None:
    lost = 0
    for _ in range(5):
        with make(client) as stream, client.open_stream("cam") as reader:
            path = named(stream)
            for _ in range(3):
                publish(stream, 200)
                frame = reader.next()
                at_once = threading.Thread(target=harm, args=(path,))
                at_once.start()
                try:
                    with frame:
                        for _ in range(20):
                            frame.planes[0].sum()
                except SegmentLost:
                    lost += 1
                at_once.join()
                if harm is not _rewrite:
                    break
    if harm in (_rewrite, _unlink, _punch):
        assert lost == 0


def worker_pid(client: Client, model: str) -> int:
    return next(int(row["pid"]) for row in client.list("models") if row["name"] == model)


def test_a_model_fails_on_frames_that_lose_their_memory_and_its_worker_lives(
    whole: Client,
) -> None:
    """The engine's own threads read the slot: a tensor model is given views of it."""
    statuses: list[str] = []
    with (
        make(whole) as stream,
        whole.create_stream("other", width=8, height=8, format="rgb24") as other,
        whole.results("cam", model="whole", frames="lossless", timeout_s=30) as results,
        whole.results("other", model="whole", timeout_s=30) as others,
    ):
        publish(stream, 40)
        assert next(results)["mean"][0].tolist() == [40, 40, 40]
        pid = worker_pid(whole, "whole")
        for number in range(12):
            slot = stream.acquire()
            slot.planes[0][...] = 40
            takes = threading.Thread(target=os.truncate, args=(named(stream), 0))
            if number % 4:
                slot.publish()
                takes.start()
                takes.join()
            else:
                takes.start()
                takes.join()
                slot.publish()
            result = next(results)
            statuses.append(result.status)
            if result.ok:
                assert result["mean"][0].tolist() == [40, 40, 40]
            else:
                assert "cannot be trusted" in result.error
                with pytest.raises(SegmentLost):
                    result.raise_for_status()
            publish(other, 50)
            assert next(others)["mean"][0].tolist() == [50, 50, 50]
            stream.resize()
            publish(stream, 30)
            assert next(results)["mean"][0].tolist() == [30, 30, 30]
        assert worker_pid(whole, "whole") == pid
    assert set(statuses[::4]) == {"segment_lost"}
    assert set(statuses) <= {"ok", "segment_lost"}


def test_memory_that_is_gone_before_it_is_mapped_is_an_error_as_well(whole: Client) -> None:
    with (
        make(whole) as stream,
        whole.create_stream("other", width=8, height=8, format="rgb24") as other,
        whole.results("other", model="whole", timeout_s=30) as others,
    ):
        publish(other, 50)
        assert next(others)["mean"][0].tolist() == [50, 50, 50]
        pid = worker_pid(whole, "whole")
        os.truncate(named(stream), NBYTES)
        with pytest.raises(SegmentLost, match="took away memory"):
            whole.open_stream("cam")
        with pytest.raises(SegmentLost, match="took away memory"):
            whole.results("cam", model="whole")
        publish(other, 60)
        assert next(others)["mean"][0].tolist() == [60, 60, 60]
        assert worker_pid(whole, "whole") == pid


WATCHFUL = """
import faulthandler, sys
from mcpd.shm import SegmentLost, connect
import os
when, socket = sys.argv[1:]
if when == "before":
    faulthandler.enable()
with connect(socket) as client:
    with client.create_stream("own", width=64, height=64, format="rgb24", memory="posix") as stream:
        with client.open_stream("own") as reader:
            if when == "after":
                faulthandler.enable()
            with stream.acquire() as slot:
                slot.planes[0][...] = 9
            frame = reader.next()
            os.truncate("/dev/shm" + stream.grant.shm_name, 0)
            assert frame.planes[0].max() == 0
            try:
                frame.close()
            except SegmentLost:
                print("lost")
if when == "dies":
    import mmap
    faulthandler.enable()
    fd = os.memfd_create("x")
    os.ftruncate(fd, 4096)
    view = mmap.mmap(fd, 4096)
    os.ftruncate(fd, 0)
    print("reads", flush=True)
    view[0]
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_faulthandler_and_guarded_memory_go_together(shared: RunningDaemon, when: str) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", WATCHFUL, when, shared.socket],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "lost\n", "")


def test_a_fault_elsewhere_is_still_faulthandlers(shared: RunningDaemon) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", WATCHFUL, "dies", shared.socket],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == -7  # SIGBUS
    assert done.stdout == "lost\nreads\n"
    assert "Fatal Python error: Bus error" in done.stderr
