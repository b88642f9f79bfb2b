"""Both ends of a stream: what waits, what is refused, and what the end of it looks like."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterator

import pytest

from mcpd.native import _core
from mcpd.shm.bundle import describe_frame
from mcpd.shm.errors import (
    InvalidRequest,
    LimitExceeded,
    ProtocolError,
    StreamClosed,
    TimedOut,
    WouldBlock,
)
from mcpd.shm.messages import CloseStream, DetachReader, ReaderLeave, StreamEndedNote
from mcpd.shm.stream import ReaderStream, map_reader, map_writer
from tests.support.descriptors import no_descriptor_leaked, open_descriptors
from tests.support.streams import LocalStream

GRAY = describe_frame("gray8", 64, 4)


@pytest.fixture
def stream() -> Iterator[LocalStream]:
    with no_descriptor_leaked(), LocalStream(GRAY) as made:
        yield made


def publish(stream: LocalStream, count: int = 1) -> None:
    for _ in range(count):
        with stream.writer.acquire(0):
            pass


def test_nothing_there_would_block_and_times_out(stream: LocalStream) -> None:
    reader = stream.attach()
    with pytest.raises(WouldBlock, match="without waiting"):
        reader.next(0)
    with pytest.raises(TimedOut, match=r"no frame came in 0\.01 s"):
        reader.next(0.01)


@pytest.mark.parametrize("timeout_s", [-1, -1e-9, float("-inf"), float("nan")])
def test_time_that_nobody_can_wait_is_refused_and_no_end(
    stream: LocalStream, timeout_s: float
) -> None:
    reader = stream.attach()
    for wait in (stream.writer.acquire, reader.next):
        with pytest.raises(InvalidRequest, match=f"timeout_s is {timeout_s}"):
            wait(timeout_s)


def test_latest_reader_jumps_and_lossless_reader_gets_each(stream: LocalStream) -> None:
    latest, lossless = stream.attach("latest"), stream.attach("lossless")
    publish(stream, 3)
    assert latest.next(0).seq == 3
    assert [lossless.next(0).seq for _ in range(3)] == [1, 2, 3]


def test_lossless_reader_behind_holds_the_writer_back() -> None:
    with LocalStream(GRAY, slots=5) as stream:
        reader = stream.attach("lossless", max_pins=1)
        with pytest.raises(WouldBlock, match="no slot came free"):
            publish(stream, 10)
        with pytest.raises(TimedOut) as caught:
            stream.writer.acquire(0.01)
        assert "lossless" in caught.value.hint
        assert not stream.writer.arm()
        reader.next(0).close()
        reader.next(0).close()
        assert select.select([stream.writer.fileno()], [], [], 5)[0]
        stream.writer.disarm()
        publish(stream)


def test_holding_more_slots_than_declared_is_refused(stream: LocalStream) -> None:
    slots = [stream.writer.acquire(0) for _ in range(2)]
    with pytest.raises(LimitExceeded, match="2 slots are held already"):
        stream.writer.acquire(0)
    for slot in slots:
        slot.abandon()


def test_holding_more_pins_than_declared_is_refused(stream: LocalStream) -> None:
    reader = stream.attach("lossless", max_pins=2)
    publish(stream, 3)
    frames = [reader.next(0), reader.next(0)]
    with pytest.raises(LimitExceeded, match="all 2 pins are in use"):
        reader.next(0)
    for frame in frames:
        frame.close()
    reader.next(0).close()


def test_iteration_ends_with_the_stream_and_closes_each_frame(stream: LocalStream) -> None:
    reader = stream.attach("lossless", max_pins=1)
    publish(stream, 4)
    stream.writer.end()
    frames = list(reader)
    assert [frame.seq for frame in frames] == [1, 2, 3, 4]
    with pytest.raises(InvalidRequest, match="closed"):
        _ = frames[0].planes


@pytest.mark.parametrize("reason", ["writer_died", "revoked", "shutdown"])
def test_iteration_raises_when_the_stream_did_not_end_by_itself(
    stream: LocalStream, reason: str
) -> None:
    reader = stream.attach("lossless")
    publish(stream, 2)
    stream.writer.end(reason)
    seen: list[int] = []
    with pytest.raises(StreamClosed) as caught:
        seen.extend(frame.seq for frame in reader)
    assert caught.value.reason == reason
    assert reader.ended == reason


def test_acquire_after_the_end_says_why(stream: LocalStream) -> None:
    stream.writer.end("revoked")
    with pytest.raises(StreamClosed, match="the daemon took it away") as caught:
        stream.writer.acquire()
    assert caught.value.reason == "revoked"
    with pytest.raises(InvalidRequest, match="'bored' is not one of"):
        stream.writer.end("bored")


def test_reader_that_sleeps_is_woken_by_a_frame_and_by_the_end(stream: LocalStream) -> None:
    reader = stream.attach("lossless")
    seen: list[int] = []
    done = threading.Event()

    def read() -> None:
        seen.extend(frame.seq for frame in reader)
        done.set()

    thread = threading.Thread(target=read)
    thread.start()
    publish(stream, 2)
    stream.writer.end()
    thread.join(10)
    assert done.is_set()
    assert seen == [1, 2]


def test_event_loop_sees_a_frame_through_the_descriptor(stream: LocalStream) -> None:
    reader = stream.attach()
    assert not reader.arm()
    assert not select.select([reader.fileno()], [], [], 0)[0]
    publish(stream)
    assert select.select([reader.fileno()], [], [], 5)[0]
    reader.disarm()
    assert not select.select([reader.fileno()], [], [], 0)[0]
    assert reader.arm()
    reader.next(0).close()


def test_closing_a_reader_wakes_the_thread_that_waits_in_it(stream: LocalStream) -> None:
    reader = stream.attach()
    caught: list[StreamClosed] = []

    def read() -> None:
        try:
            reader.next()
        except StreamClosed as error:
            caught.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    reader.close()
    thread.join(10)
    assert [error.reason for error in caught] == ["closed"]


@pytest.mark.parametrize("policy", ["latest", "lossless"])
def test_session_that_is_lost_wakes_who_waits_and_unmaps(stream: LocalStream, policy: str) -> None:
    reader = stream.attach(policy)
    caught: list[StreamClosed] = []

    def read() -> None:
        try:
            reader.next()
        except StreamClosed as error:
            caught.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    stream.session.lost = True
    stream.session.streams.end_all()
    thread.join(10)
    assert [error.reason for error in caught] == ["shutdown"]
    with pytest.raises(StreamClosed) as closed:
        stream.writer.acquire(0)
    assert closed.value.reason == "shutdown"


def test_lossless_reader_gets_what_it_is_owed_after_the_session_is_lost(
    stream: LocalStream,
) -> None:
    reader = stream.attach("lossless")
    publish(stream, 2)
    stream.session.lost = True
    stream.session.streams.end_all()
    assert [reader.next(0).seq for _ in range(2)] == [1, 2]
    with pytest.raises(StreamClosed):
        reader.next(0)


def test_stream_made_after_the_session_was_lost_has_ended() -> None:
    with LocalStream(GRAY) as stream:
        stream.session.lost = True
        stream.session.streams.end_all()
        stream.session.streams.add_writer(stream.writer._now)
        with pytest.raises(StreamClosed):
            stream.writer.acquire(0)


def test_slot_of_a_stream_that_ended_meanwhile_is_not_published(stream: LocalStream) -> None:
    slot = stream.writer.acquire(0)
    stream.writer.end()
    with pytest.raises(StreamClosed, match="has ended") as caught, slot:
        pass
    assert caught.value.reason == "closed"
    del slot


def test_end_that_the_daemon_tells_reaches_a_reader_with_its_reason(stream: LocalStream) -> None:
    reader = stream.attach()
    stream.session.streams.remove_writer(stream.writer._now)
    stream.session.streams.tell(StreamEndedNote(stream=1, reason="revoked"))
    with pytest.raises(StreamClosed) as caught:
        reader.next()
    assert (caught.value.reason, reader.ended) == ("revoked", "revoked")


def test_closed_ends_answer_with_errors_of_ours(stream: LocalStream) -> None:
    reader = stream.attach()
    reader.close()
    reader.close()
    stream.writer.close()
    stream.writer.close()
    stream.writer.end()
    for call in (
        *(reader.next, reader.arm, reader.disarm, reader.fileno, reader.stats),
        *(stream.writer.acquire, stream.writer.arm, stream.writer.disarm, stream.writer.fileno),
    ):
        with pytest.raises(StreamClosed, match="was closed"):
            call()
    assert reader.ended == "closed"
    kinds = [type(message) for message in stream.session.asked]
    assert kinds == [DetachReader, CloseStream]


def test_reader_that_left_no_longer_holds_the_writer_back() -> None:
    with LocalStream(GRAY, slots=5) as stream:
        reader = stream.attach("lossless", max_pins=1)
        with pytest.raises(WouldBlock):
            publish(stream, 10)
        assert stream.writer.readers == {reader.reader_id: "lossless"}
        leave = ReaderLeave(stream=1, reader=reader.reader_id, pins="drop")
        stream.session.streams.tell(leave)
        publish(stream, 10)
        assert stream.writer.readers == {}
        stream.session.streams.tell(ReaderLeave(stream=99, reader=1, pins="drop"))


def test_reader_whose_pins_are_kept_still_holds_its_slot() -> None:
    with LocalStream(GRAY, slots=5) as stream:
        reader = stream.attach("lossless", max_pins=1)
        with stream.writer.acquire(0) as slot:
            slot.planes[0][...] = 3
        frame = reader.next(0)
        leave = ReaderLeave(stream=1, reader=reader.reader_id, pins="keep")
        stream.session.streams.tell(leave)
        for _ in range(10):
            with stream.writer.acquire(0) as slot:
                slot.planes[0][...] = 1
        assert (frame.planes[0] == 3).all()
        frame.close()


def test_reader_with_more_pins_than_the_slots_allow_is_refused(stream: LocalStream) -> None:
    with pytest.raises(LimitExceeded, match="8 slots, too few for another 5 pins"):
        stream.attach(max_pins=5)


def test_sixty_fifth_reader_is_refused() -> None:
    with LocalStream(GRAY, slots=_core.MAX_READERS + 8) as stream:
        for _ in range(_core.MAX_READERS):
            stream.attach(max_pins=1)
        with pytest.raises(LimitExceeded, match="64 readers, the most"):
            stream.attach(max_pins=1)


def test_damaged_control_object_is_a_protocol_error(stream: LocalStream) -> None:
    reader = stream.attach()
    publish(stream)
    # The queue follows the head of the writer's control object; see layout.h. Its writer lies.
    os.pwrite(stream._control.fd, (1 << 16 | 0xFFF0).to_bytes(8, "little") * 8, 4096)
    with pytest.raises(ProtocolError, match="damaged"):
        reader.next(0)


def test_reply_that_cannot_be_mapped_is_given_back_without_its_descriptors(
    stream: LocalStream,
) -> None:
    before = open_descriptors()
    grant = {"stream": 9, "name": "x", "generation": 1, "slots": 4, "slot_nbytes": 4096}
    session = stream.session.as_connection()
    for result in ({}, {**grant, "spec": 5}):
        with pytest.raises(ProtocolError, match="grant is not readable"):
            map_reader(session, result, [os.eventfd(0)])
    spec = {"slots": 4, "slot_nbytes": 4096}
    with pytest.raises(ProtocolError, match="2 descriptors"):
        map_reader(
            session,
            {**grant, "spec": spec, "reader": 3, "policy": "latest", "max_pins": 2},
            [os.eventfd(0), os.eventfd(0)],
        )
    with pytest.raises(OSError, match="cannot open"):
        map_writer(session, {**grant, "spec": spec}, [os.eventfd(0) for _ in range(3)], None)
    assert [type(message) for message in stream.session.asked] == [DetachReader, CloseStream]
    assert len(open_descriptors()) == len(before)


def test_frame_outlives_its_reader(stream: LocalStream) -> None:
    reader: ReaderStream = stream.attach()
    with stream.writer.acquire(0) as slot:
        slot.planes[0][...] = 4
    frame = reader.next(0)
    plane = frame.planes[0]
    reader.close()
    assert (plane == 4).all()
    frame.close()
    del plane
