"""A writer dies or leaves, another takes its name: who follows goes on, and loses nothing."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mcpd.daemon import names as names_module
from mcpd.daemon.names import REMEMBERED, Names
from mcpd.shm import (
    Client,
    LimitExceeded,
    ReaderStream,
    StreamClosed,
    TimedOut,
    WouldBlock,
    WriterStream,
    connect,
)
from tests.support.actor import Actor
from tests.support.daemon import RunningDaemon, wait_until
from tests.support.descriptors import no_descriptor_leaked, open_descriptors
from tests.support.numbered import (
    NumberedReader,
    check_numbered,
    read_to_the_end,
    write_numbered,
)
from tests.support.raw import RawSession

HOWS: tuple[dict[str, Any], ...] = (
    {"policy": "lossless"},
    {"policy": "latest"},
    {"policy": "fifo", "depth": 3},
    {"policy": "lossless", "group": "g"},
    {"policy": "lossless", "group": "g"},
)


def make(client: Client) -> WriterStream:
    return client.create_stream("cam0", width=64, height=16, format="gray8", slots=24)


def segments(client: Client) -> list[dict[str, Any]]:
    """Of every generation that is not freed."""
    return [row for row in client.list("leases") if row["kind"] == "stream"]


def come_to(reader: NumberedReader, generation: int) -> bool:
    """Whether it has had a frame of that generation."""
    if reader.error is not None:
        raise reader.error
    return any(seen == generation for seen, _ in reader.seen)


def test_followers_go_on_with_every_writer_that_is_killed(bare_daemon: RunningDaemon) -> None:
    with no_descriptor_leaked(), connect(bare_daemon.socket) as client:
        readers: list[NumberedReader] = []
        plain: list[ReaderStream] = []
        for number in range(1, 6):
            with Actor(bare_daemon.socket, "number", "cam0") as writer:
                writer.wait_ready()
                if number == 1:
                    readers = [
                        NumberedReader(client.open_stream("cam0", follow=True, **how))
                        for how in HOWS
                    ]
                plain.append(client.open_stream("cam0"))
                for reader in readers[:3]:
                    wait_until(partial(come_to, reader, number), 30, "frames come from it")
                writer.kill()
        for one in plain:
            with pytest.raises(StreamClosed) as caught:
                read_to_the_end(one)
            assert caught.value.reason == "writer_died"
        final = make(client)
        last = write_numbered(final)
        wait_until(lambda: readers[0].numbers[-1:] == [last], 30, "the last frame comes")
        wait_until(lambda: readers[1].numbers[-1:] == [last], 30, "the last frame comes")
        for reader in readers:
            reader.stream.close()
        numbers = readers[0].finish()
        assert numbers == list(range(numbers[0], last + 1))
        parts = sorted(n for reader in readers[3:] for n in reader.finish())
        assert parts == list(range(parts[0], last + 1))
        for reader in readers[1:3]:
            assert set(reader.finish()) <= set(range(1, last + 1))


def test_sequence_numbers_go_on_and_frames_say_which_writer_they_are_of(
    bare_daemon: RunningDaemon,
) -> None:
    with connect(bare_daemon.socket) as client:
        numbers: list[tuple[int, int, int]] = []
        reader = None
        for _ in range(3):
            stream = make(client)
            reader = reader or client.open_stream("cam0", policy="lossless", follow=True)
            write_numbered(stream, 2)
            stream.close()
        assert reader is not None
        assert reader.ended == ""
        for _ in range(6):
            with reader.next(10) as frame:
                check_numbered(frame)
                numbers.append((frame.generation, frame.seq, frame.stream_id))
        number = reader.stream_id
        assert numbers == [
            (g, s, number) for g, s in zip((1, 1, 2, 2, 3, 3), range(1, 7), strict=True)
        ]
        with pytest.raises(WouldBlock):
            reader.next(0)
        with pytest.raises(TimedOut):
            reader.next(0.05)


def test_follower_that_waits_sleeps_until_the_next_writer_publishes(
    bare_daemon: RunningDaemon,
) -> None:
    with connect(bare_daemon.socket) as client:
        make(client).close()
        stream = make(client)
        reader = client.open_stream("cam0", follow=True)
        stream.close()
        seen: list[int] = []
        waiter = threading.Thread(target=lambda: seen.append(check_numbered(reader.next(30))))
        waiter.start()
        stream = make(client)
        assert seen == []
        write_numbered(stream)
        waiter.join(30)
        assert seen == [1]


def test_followers_survive_a_writer_that_is_killed_while_it_is_resized(
    bare_daemon: RunningDaemon,
) -> None:
    with no_descriptor_leaked(), connect(bare_daemon.socket) as client:
        with Actor(bare_daemon.socket, "resize", "cam0") as writer:
            writer.wait_ready()
            readers = [client.open_stream("cam0", policy="lossless", follow=True) for _ in range(2)]
            writer.process.communicate("\n", timeout=30)
        wait_until(
            lambda: (
                [(row["generation"], row["state"]) for row in segments(client)] == [(1, "draining")]
            ),
            10,
            lambda: str(segments(client)),
        )
        given = [1]
        for number in range(2, 5):
            stream = make(client)
            given.append(stream.generation)
            assert write_numbered(stream) == number
            stream.close()
        assert given == [1, 3, 4, 5]
        for reader in readers:
            seen = []
            for _ in range(4 if reader.grant.start_seq == 1 else 3):
                with reader.next(10) as frame:
                    seen.append((frame.generation, check_numbered(frame)))
            assert seen[-3:] == [(3, 2), (4, 3), (5, 4)]
            with pytest.raises(WouldBlock):
                reader.next(0)
            reader.close()


def test_next_writer_that_dies_while_followers_are_brought_over_leaves_them_to_another(
    bare_daemon: RunningDaemon,
) -> None:
    with connect(bare_daemon.socket) as client:
        first = make(client)
        readers = [client.open_stream("cam0", policy="lossless", follow=True) for _ in range(2)]
        write_numbered(first)
        first.close()
        with RawSession(bare_daemon.socket) as raw:
            spec = {"slots": 24, "slot_nbytes": 4096}
            made = raw.ask(type="create_stream", name="cam0", spec=spec)["result"]
            assert made["generation"] == 2
            raw.send(id=2, type="seal_stream", stream=made["stream"], generation=2)
            join = raw.receive()
            assert join["type"] == "reader_join"
            raw.send(id=join["id"], type="reply", result={"start_seq": 2})
            assert raw.receive()["type"] == "reader_join"
        wait_until(lambda: client.list("streams") == [], 10, "it is gone")
        last = make(client)
        assert last.generation == 3
        write_numbered(last)
        for reader in readers:
            for expected in ((1, 1), (3, 2)):
                with reader.next(10) as frame:
                    assert (frame.generation, check_numbered(frame)) == expected


def test_reader_without_follow_ends_with_its_writer(bare_daemon: RunningDaemon) -> None:
    with connect(bare_daemon.socket) as client:
        stream = make(client)
        reader = client.open_stream("cam0")
        stream.close()
        with pytest.raises(StreamClosed) as caught:
            reader.next(10)
        assert (caught.value.reason, reader.ended) == ("closed", "closed")
        stream = make(client)
        write_numbered(stream)
        with pytest.raises(StreamClosed):
            reader.next(0)


def test_follower_that_does_not_fit_into_the_next_stream_is_told(
    bare_daemon: RunningDaemon,
) -> None:
    with connect(bare_daemon.socket) as client:
        stream = make(client)
        wide = client.open_stream("cam0", policy="lossless", max_pins=10, follow=True)
        small = client.open_stream("cam0", max_pins=1, follow=True)
        write_numbered(stream, 2)
        stream.close()
        next_one = client.create_stream("cam0", width=64, height=16, format="gray8", slots=8)
        for number in (1, 2):
            with wide.next(10) as frame:
                assert frame.seq == number
        with pytest.raises(StreamClosed):
            wide.next(10)
        write_numbered(next_one)
        seen = 0
        while seen < 3:
            with small.next(10) as frame:
                seen = frame.seq
        (row,) = (row for row in client.list("readers") if row["generation"] == 2)
        assert row["max_pins"] == 1


def test_follower_is_closed_while_it_waits(bare_daemon: RunningDaemon) -> None:
    with no_descriptor_leaked(), connect(bare_daemon.socket) as client:
        stream = make(client)
        readers = [client.open_stream("cam0", follow=True) for _ in range(3)]
        stream.close()
        caught: list[StreamClosed] = []

        def wait(reader: ReaderStream) -> None:
            try:
                reader.next()
            except StreamClosed as error:
                caught.append(error)

        threads = [threading.Thread(target=wait, args=(reader,)) for reader in readers]
        for thread in threads:
            thread.start()
        readers[0].close()
        make(client).close()
        readers[1].close()
        client.close()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
        assert len(caught) == 3


def test_reader_closed_while_it_is_brought_over_leaves_nothing(bare_daemon: RunningDaemon) -> None:
    with (
        no_descriptor_leaked(),
        connect(bare_daemon.socket) as writing,
        connect(bare_daemon.socket) as reading,
    ):
        stream = writing.create_stream("cam0", width=64, height=16, format="gray8", slots=16)
        stopping = threading.Event()

        def come_and_go() -> None:
            while not stopping.is_set():
                reading.open_stream("cam0", policy="lossless", max_pins=1).close()

        threads = [threading.Thread(target=come_and_go) for _ in range(3)]
        for thread in threads:
            thread.start()

        def resized(width: int) -> bool:
            """A reader that is slow to close may be too many generations behind for a moment."""
            try:
                stream.resize(width=width)
            except LimitExceeded:
                return False
            return True

        for number in range(30):
            wait_until(partial(resized, 64 + number % 3), 20, "it is resized")
            write_numbered(stream)
        stopping.set()
        for thread in threads:
            thread.join(30)
        wait_until(
            lambda: all(row["kind"] != "reader" for row in writing.list("leases")),
            10,
            lambda: str(writing.list("leases")),
        )
        assert {row["generation"] for row in writing.list("leases")} == {stream.generation}


def test_two_hundred_writers_leave_nothing_behind(bare_daemon: RunningDaemon) -> None:
    def mappings() -> int:
        return len(Path("/proc/self/maps").read_text().splitlines())

    with connect(bare_daemon.socket) as client:
        stream = make(client)
        readers = [
            client.open_stream("cam0", policy="lossless", follow=True),
            client.open_stream("cam0", follow=True),
        ]
        readers[1].fileno()

        def once() -> WriterStream:
            seq = write_numbered(stream)
            for reader in readers:
                with reader.next(10) as frame:
                    assert check_numbered(frame) == seq
            stream.close()
            return make(client)

        def settle() -> tuple[int, int, int]:
            for reader in readers:
                with pytest.raises(WouldBlock):
                    reader.next(0)
            wait_until(
                lambda: {r["generation"] for r in client.list("leases")} == {stream.generation},
                10,
                "only one is left",
            )
            daemon = client.status()["daemon"]
            return daemon["fds"], daemon["memory_bytes"], len(open_descriptors())

        for _ in range(20):
            stream = once()
        before, maps = settle(), mappings()
        for _ in range(180):
            stream = once()
        assert settle() == before
        assert mappings() <= maps + 3  # the interpreter's own arenas
        assert stream.generation == 201


def test_names_are_remembered_while_followed_and_the_last_256_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    followed = {1}
    names = Names(followed.__contains__)

    def end(number: int) -> None:
        stream: Any = SimpleNamespace(
            id=number, name=f"s{number}", given=3, hidden=False, head=lambda: 41
        )
        names.reserve(stream.name)
        names.add(stream)
        names.end(stream)

    for number in range(1, REMEMBERED + 10):
        end(number)
    past = names.past("s1")
    assert past is not None
    assert (past.id, past.generation, past.next_seq) == (1, 3, 42)
    assert names.past("s2") is None
    assert names.past(f"s{REMEMBERED + 9}") is not None
    followed.clear()
    end(1000)
    assert names.past("s1") is None
    monkeypatch.setattr(names_module, "REMEMBERED_S", 0.0)
    assert names.past("s1000") is None
