"""A client that reconnects goes on by itself when its daemon, or its session, was lost."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TypeVar

import pytest

from mcpd.shm import (
    Client,
    TimedOut,
    WouldBlock,
    connect,
)
from tests.support.daemon import RunningDaemon, wait_until
from tests.support.numbered import check_numbered, write_numbered
from tests.support.sessions import (
    away,
    break_off,
    held,
    in_thread,
    make_kept,
    wait_for_session,
)

T = TypeVar("T")
WAIT_S = 30.0


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_lossless_reader_misses_nothing_that_was_published_across_a_restart(
    mortal: RunningDaemon, kept: Client, end: str, name: str
) -> None:
    with (
        connect(mortal.socket, reconnect=True) as other,
        make_kept(kept, name) as stream,
        other.open_stream(name, policy="lossless") as reading,
    ):
        seen: list[int] = []
        published: list[int] = []
        stop = threading.Event()

        def write() -> None:
            while not stop.wait(0.001):
                slot = stream.acquire(WAIT_S)
                slot.planes[0][:] = 1
                published.append(slot.publish())

        def read() -> None:
            while not stop.is_set() or seen[-1] < max(published):
                with suppress(TimedOut), reading.next(0.1) as frame:
                    seen.append(frame.seq)

        with in_thread(write) as writer, in_thread(read) as reader:
            wait_until(lambda: len(seen) > 20, WAIT_S, "frames flow")
            getattr(mortal, end)()
            mortal.start()
            before = len(published)
            wait_until(lambda: len(published) > before + 20, WAIT_S, "frames are published again")
            stop.set()
            writer.result(WAIT_S)
            reader.result(WAIT_S)
        numbers = [seq for seq in published if seq]
        assert numbers == list(range(1, len(numbers) + 1)), "numbers go on"
        assert len(published) - len(numbers) <= 1, "only the frame in the making is lost"
        assert seen == numbers
        assert stream.stats()["published"] == len(numbers)
        assert reading.stats()["received"] == len(seen)
        assert reading.stats()["dropped"] == 0


def test_a_reader_that_was_away_counts_what_it_missed_and_sees_no_frame_twice(
    mortal: RunningDaemon, kept: Client, name: str
) -> None:
    held_up = threading.Event()

    def wait() -> None:
        held_up.wait(WAIT_S)

    with (
        connect(mortal.socket, reconnect=True, on_restored=wait) as other,
        make_kept(kept, name) as stream,
        other.open_stream(name, policy="fifo", depth=4) as fifo,
        other.open_stream(name) as latest,
    ):
        write_numbered(stream, 3)
        assert [check_numbered(fifo.next(WAIT_S)) for _ in range(2)] == [1, 2]
        assert check_numbered(latest.next(WAIT_S)) == 3
        with away(mortal):
            pass
        wait_until(lambda: stream.generation == 1 and not stream.lost, WAIT_S, "a stream")
        write_numbered(stream, 20)
        held_up.set()
        wait_until(lambda: len(stream.readers) == 2, WAIT_S, "the readers are back")
        write_numbered(stream)
        assert check_numbered(fifo.next(WAIT_S)) == 24
        assert check_numbered(latest.next(WAIT_S)) == 24
        stats = fifo.stats()
        assert (stats["received"], stats["dropped"]) == (3, 21)
        stats = latest.stats()
        assert (stats["received"], stats["skipped"]) == (2, 22)


def test_a_frame_is_not_given_again_when_only_the_session_was_lost(
    mortal: RunningDaemon, kept: Client, name: str
) -> None:
    with (
        connect(mortal.socket) as other,
        other.create_stream(name, width=64, height=16, format="gray8", slots=24) as stream,
        kept.open_stream(name) as reading,
    ):
        write_numbered(stream, 3)
        assert reading.next(WAIT_S).seq == 3
        before = kept.connection
        break_off(before)
        wait_for_session(kept, before)
        wait_until(lambda: len(stream.readers) == 1, WAIT_S, "the reader is there again")
        with pytest.raises(TimedOut):
            reading.next(0.05)
        with pytest.raises(WouldBlock):
            reading.next(0)
        write_numbered(stream)
        assert reading.next(WAIT_S).seq == 4


def test_a_follower_waits_for_a_writer_that_lost_its_session_alone(
    mortal: RunningDaemon, kept: Client, name: str
) -> None:
    with (
        connect(mortal.socket) as other,
        make_kept(kept, name) as stream,
        other.open_stream(name, policy="lossless", follow=True) as following,
    ):
        for number in range(1, 10):
            assert write_numbered(stream) == number
            if number % 3 == 0:
                before = kept.connection
                break_off(before)
                wait_for_session(kept, before)
        assert [check_numbered(following.next(WAIT_S)) for _ in range(9)] == list(range(1, 10))


def test_nothing_is_left_of_earlier_sessions(
    mortal: RunningDaemon, kept: Client, name: str
) -> None:
    with make_kept(kept, name) as stream, make_kept(kept, f"{name}-idle") as idle:
        readers = [
            kept.open_stream(name),
            kept.open_stream(name, policy="lossless"),
            kept.open_stream(name, policy="lossless", group="g"),
            kept.open_stream(f"{name}-idle", policy="lossless"),
        ]
        readers[0].fileno()  # an event loop's descriptor

        def cycle() -> None:
            before = kept.connection
            break_off(before)
            wait_for_session(kept, before)
            write_numbered(stream)
            for reader in readers[:3]:
                reader.next(WAIT_S).close()
            wait_until(lambda: len(idle.readers) == 1, WAIT_S, "the reader of `idle` is back")
            wait_until(lambda: kept.sessions.keeper.settled, WAIT_S, "all is there again")  # type: ignore[union-attr]

        for _ in range(3):
            cycle()
        before = held()
        for _ in range(30):
            cycle()
        assert held() == before
        for reader in readers:
            reader.close()


def test_frames_and_slots_that_are_held_stay_valid_while_the_daemon_is_away(
    mortal: RunningDaemon, kept: Client, name: str
) -> None:
    with make_kept(kept, name) as stream, kept.open_stream(name) as reading:
        write_numbered(stream)
        frame = reading.next(WAIT_S)
        slot = stream.acquire(WAIT_S)
        pixels = slot.planes[0]
        with away(mortal):
            wait_until(lambda: kept.connection.lost, WAIT_S, "the kept knows")
            pixels[:] = 7
            assert check_numbered(frame) == 1
            assert slot.publish() == 0, "it goes nowhere"
            assert not slot.core.published
            with pytest.raises(WouldBlock, match="away"):
                stream.acquire(0)
            with pytest.raises(TimedOut, match="not there again"):
                stream.acquire(0.01)
            with pytest.raises(WouldBlock):
                reading.next(0)
            with pytest.raises(TimedOut, match="away"):
                reading.next(0.01)
            assert reading.ended == ""
            assert stream.stats()["published"] == reading.stats()["received"] == 1
        assert (pixels == 7).all()
        assert check_numbered(frame) == 1
        assert write_numbered(stream) == 2
        assert check_numbered(reading.next(WAIT_S)) == 2
        frame.close()
