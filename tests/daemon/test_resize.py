"""A writer goes on in other memory: no reader loses a frame, and nothing of the old is left."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest

from mcpd.shm import (
    Client,
    DaemonUnavailable,
    InvalidRequest,
    LimitExceeded,
    StreamClosed,
    TensorSpec,
    WouldBlock,
    WriterStream,
    connect,
)
from tests.support.actor import Actor
from tests.support.daemon import RunningDaemon, wait_until
from tests.support.descriptors import no_descriptor_leaked, open_descriptors
from tests.support.numbered import NumberedReader, NumberedWriter, check_numbered, write_numbered


def generations(client: Client, name: str) -> set[int]:
    """Of which there are segments."""
    rows = client.list("leases")
    return {r["generation"] for r in rows if r["kind"] == "stream" and r["name"] == name}


def publish_for_ever(stream: WriterStream) -> None:
    """Until there is no room."""
    while True:
        stream.acquire(0).publish()


def resize_for_ever(stream: WriterStream) -> None:
    """Until that is refused."""
    while True:
        write_numbered(stream)
        stream.resize(slots=16)


def test_every_policy_goes_on_across_resizes_under_load(bare_daemon: RunningDaemon) -> None:
    with (
        no_descriptor_leaked(),
        connect(bare_daemon.socket) as writing,
        connect(bare_daemon.socket) as reading,
    ):
        stream = writing.create_stream("cam0", width=64, height=16, format="gray8", slots=48)
        lossless = [
            NumberedReader(reading.open_stream("cam0", policy="lossless"), pause_s)
            for pause_s in (0.0, 0.0005, 0.002)
        ]
        fifo = NumberedReader(reading.open_stream("cam0", policy="fifo", depth=4))
        latest = NumberedReader(reading.open_stream("cam0"))
        members = [
            NumberedReader(reading.open_stream("cam0", policy="lossless", group="g"))
            for _ in range(3)
        ]
        with NumberedWriter(stream) as writer:
            for number in range(1, 11):
                writer.wait_frames(10)
                size = 64 + 8 * number
                writer.between_frames(lambda size=size: stream.resize(width=size))  # type: ignore[misc]
                assert (stream.generation, stream.grant.spec.width) == (number + 1, size)
            last = writer.stop()
        every = list(range(1, last + 1))
        for reader in lossless:
            assert reader.finish() == every
            assert {generation for generation, _ in reader.seen} == set(range(1, 12))
            assert reader.reason == "closed"
            assert reader.stream.stats()["received"] == last
        for some in (fifo, latest):
            assert set(some.finish()) <= set(every)
            assert some.numbers[-1] == last
        parts = [number for member in members for number in member.finish()]
        assert sorted(parts) == every
        assert stream.stats()["published"] == last
        for one in (*lossless, fifo, latest, *members):
            one.stream.close()
        stream.close()
        assert reading.list("leases") == []
        assert reading.status()["daemon"]["memory_bytes"] == 0


def test_frames_carry_the_geometry_of_their_generation(bare_daemon: RunningDaemon) -> None:
    with connect(bare_daemon.socket) as client:
        stream = client.create_stream("cam0", width=64, height=16, format="rgb24", slots=8)
        reader = client.open_stream("cam0", policy="lossless")
        write = [
            ({"width": 32, "height": 8}, ("rgb24", 32, 8)),
            ({"format": "gray8"}, ("gray8", 32, 8)),
            ({"slots": 12}, ("gray8", 32, 8)),
            ({"width": 640, "height": 480, "format": "nv12", "slots": 9}, ("nv12", 640, 480)),
        ]
        stream.acquire().publish()
        for changes, _ in write:
            stream.resize(**changes)  # type: ignore[arg-type]
            stream.acquire().publish()
        held = reader.next(10)
        assert (held.format, held.width, held.height, held.generation) == ("rgb24", 64, 16, 1)
        for number, (_, geometry) in enumerate(write, 2):
            with reader.next(10) as frame:
                assert (frame.format, frame.width, frame.height) == geometry
                assert (frame.generation, frame.seq) == (number, number)
                assert reader.generation == number
        assert held.planes[0].shape == (16, 64, 3)  # a frame outlives its generation
        held.close()
        stream.resize(tensors={"x": TensorSpec("float32", (3, 5))})
        with stream.acquire() as slot:
            slot.tensors["x"][:] = 2.5
        with reader.next(10) as frame:
            assert float(frame.tensors["x"].sum()) == 2.5 * 15
        (row,) = client.list("streams")
        assert (row["generation"], row["first_seq"], row["head"]) == (6, 6, 6)


def test_old_memory_is_freed_when_the_last_reader_has_left_it(bare_daemon: RunningDaemon) -> None:
    with connect(bare_daemon.socket) as client:
        stream = client.create_stream("cam0", width=64, height=16, format="gray8", slots=16)
        slow, quick = (client.open_stream("cam0", policy="lossless") for _ in range(2))
        write_numbered(stream, 4)
        stream.resize(width=128)
        write_numbered(stream)
        assert generations(client, "cam0") == {1, 2}
        both = client.status()["daemon"]["memory_bytes"]
        assert [check_numbered(quick.next(10)) for _ in range(4)] == [1, 2, 3, 4]
        with quick.next(10) as frame:
            assert frame.seq == 5
        assert generations(client, "cam0") == {1, 2}
        for number in range(1, 6):
            with slow.next(10) as frame:
                assert check_numbered(frame) == number
        wait_until(lambda: generations(client, "cam0") == {2}, 10, "the old memory is free")
        assert client.status()["daemon"]["memory_bytes"] < both
        leases = {row["kind"] for row in client.list("leases") if row.get("generation") == 1}
        assert leases == set()


def test_resize_that_fails_changes_nothing(bare_daemon: RunningDaemon) -> None:
    with connect(bare_daemon.socket) as client:
        stream = client.create_stream("cam0", width=64, height=16, format="gray8", slots=16)
        reader = client.open_stream("cam0", policy="lossless", max_pins=6)
        client.open_stream("cam0", policy="fifo", depth=4, max_pins=1)
        before = client.list("leases")
        memory = client.status()["daemon"]["memory_bytes"]
        refused = [
            ({"slots": 10}, LimitExceeded, "10 slots and would need 14"),
            ({"slots": 1 << 20}, InvalidRequest, "slots is 1048576"),
            ({"width": 0}, InvalidRequest, "0"),
            ({"format": "rgb8"}, InvalidRequest, "rgb8"),
            ({"memory": "disk"}, InvalidRequest, "disk"),
            ({"slot_nbytes": 1 << 39}, Exception, "asks for"),
        ]
        for changes, kind, text in refused:
            with pytest.raises(kind, match=text):
                stream.resize(**changes)  # type: ignore[arg-type]
            assert stream.generation == 1
        assert client.list("leases") == before
        assert client.status()["daemon"]["memory_bytes"] == memory
        write_numbered(stream, 3)
        stream.resize(width=128)
        write_numbered(stream)
        for number in range(1, 5):
            with reader.next(10) as frame:
                assert check_numbered(frame) == number


def test_slot_acquired_before_a_resize_cannot_be_published_after_it(
    bare_daemon: RunningDaemon,
) -> None:
    with connect(bare_daemon.socket) as client:
        stream = client.create_stream("cam0", width=64, height=16, format="gray8", slots=8)
        old = stream.acquire()
        stream.resize(width=32)
        with pytest.raises(
            InvalidRequest, match="slot 0 cannot be published: the writer is closed"
        ):
            old.publish()
        with pytest.raises(InvalidRequest, match="'moved' is not one of"):
            stream.end("moved")
        assert write_numbered(stream) == 1


def test_writer_that_waits_for_room_goes_on_in_the_new_memory(bare_daemon: RunningDaemon) -> None:
    with connect(bare_daemon.socket) as client:
        stream = client.create_stream("cam0", width=64, height=16, format="gray8", slots=8)
        reader = client.open_stream("cam0", policy="lossless", max_pins=1)
        with pytest.raises(WouldBlock):
            publish_for_ever(stream)
        count = stream.stats()["head"]
        done = threading.Event()

        def wait_for_room() -> None:
            stream.acquire(30).publish()
            done.set()

        thread = threading.Thread(target=wait_for_room)
        thread.start()
        wait_until(lambda: stream.stats()["blocked_since_ns"] > 0, 10, "the writer waits")
        stream.resize(slots=16)
        thread.join(30)
        assert done.is_set()
        for number in range(1, count + 2):
            with reader.next(10) as frame:
                assert frame.seq == number


def test_reader_far_behind_holds_a_resize_back_only_if_it_is_lossless(
    bare_daemon: RunningDaemon,
) -> None:
    with connect(bare_daemon.socket) as client:
        stream = client.create_stream("cam0", width=64, height=16, format="gray8", slots=16)
        idle = client.open_stream("cam0")
        for number in range(12):
            write_numbered(stream)
            stream.resize(width=64 + 8 * number)
        assert len(generations(client, "cam0")) <= 6
        write_numbered(stream)
        seen = 0
        while seen < 13:
            with idle.next(10) as frame:
                seen = check_numbered(frame)
        wait_until(lambda: len(generations(client, "cam0")) == 1, 10, "the old memory is free")
        idle.close()
        slow = client.open_stream("cam0", policy="lossless")
        with pytest.raises(LimitExceeded, match=r"lossless reader \(pid \d+.*4 earlier") as caught:
            resize_for_ever(stream)
        assert "caught up" in caught.value.hint
        generation, head = stream.generation, stream.stats()["head"]
        for number in range(14, head + 1):
            with slow.next(10) as frame:
                assert check_numbered(frame) == number
        wait_until(lambda: len(generations(client, "cam0")) <= 2, 10, "it has caught up")
        stream.resize(slots=20)
        assert stream.generation == generation + 2  # the refused one's is not given again


def test_two_hundred_resizes_leave_nothing_behind(bare_daemon: RunningDaemon) -> None:
    def mappings() -> int:
        return len(Path("/proc/self/maps").read_text().splitlines())

    with connect(bare_daemon.socket) as client:
        stream = client.create_stream("cam0", width=64, height=16, format="gray8", slots=16)
        readers = [
            client.open_stream("cam0", policy="lossless"),
            client.open_stream("cam0"),
            client.open_stream("cam0", policy="lossless", group="g"),
        ]
        for reader in readers:
            reader.fileno()

        def once(number: int) -> None:
            stream.resize(width=64 + number % 2 * 64)
            seq = write_numbered(stream)
            for reader in readers:
                with reader.next(10) as frame:
                    assert check_numbered(frame) == seq
            wait_until(lambda: len(generations(client, "cam0")) == 1, 10, "only one is left")

        for number in range(20):
            once(number)
        daemon = client.status()["daemon"]
        mine, maps = len(open_descriptors()), mappings()
        for number in range(180):
            once(number)
        after = client.status()["daemon"]
        assert (after["fds"], after["memory_bytes"]) == (daemon["fds"], daemon["memory_bytes"])
        assert len(open_descriptors()) == mine
        assert mappings() <= maps + 3  # the interpreter's own arenas
        assert stream.generation == 201


def test_daemon_that_stops_in_the_middle_of_a_resize_ends_everybody(tmp_path: Path) -> None:
    with RunningDaemon(tmp_path) as daemon:
        with (
            no_descriptor_leaked(),
            Actor(daemon.socket, "write", "other") as other,
            connect(daemon.socket) as writing,
            connect(daemon.socket) as reading,
        ):
            other.wait_ready()
            stream = writing.create_stream("cam0", width=64, height=16, format="gray8", slots=16)
            reader = NumberedReader(reading.open_stream("cam0", policy="lossless"))
            errors: list[Exception] = []

            def resize() -> None:
                try:
                    resize_for_ever(stream)
                except (DaemonUnavailable, StreamClosed, LimitExceeded) as error:
                    errors.append(error)

            thread = threading.Thread(target=resize)
            thread.start()
            wait_until(lambda: stream.generation > 3, 30, "resizes go on")
            assert daemon.process is not None
            daemon.process.send_signal(signal.SIGTERM)
            thread.join(30)
            numbers = reader.finish()
            assert numbers == list(range(1, len(numbers) + 1))
            assert reader.reason in ("shutdown", "writer_died", "closed")
            assert errors
            assert other.wait_end()  # it says that its stream has ended
        assert daemon.process is not None
        assert daemon.process.wait(30) == 0


def test_worker_goes_on_with_frames_of_another_size(daemon: RunningDaemon) -> None:
    with connect(daemon.socket) as client:
        stream = client.create_stream("cam0", width=64, height=48, format="rgb24", slots=12)
        with client.results("cam0", model="tiny-image", frames="lossless") as results:
            for number, size in enumerate([(64, 48), (32, 24), (640, 480), (31, 17)], 1):
                if number > 1:
                    stream.resize(width=size[0], height=size[1])
                for _ in range(3):
                    with stream.acquire(10) as slot:
                        slot.planes[0][:] = 9
                for seq in range(3 * number - 2, 3 * number + 1):
                    result = results.next(30)
                    assert (result.source_seq, result.status, result.error) == (seq, "ok", "")
            assert results.reopened == 0
