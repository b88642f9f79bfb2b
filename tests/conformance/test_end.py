"""The end: who gets what before it, and what follows."""

from __future__ import annotations

import pytest

from tests.conformance.objects import (
    CLOSED,
    FIFO,
    LATEST,
    LOSSLESS,
    MOVED,
    REVOKED,
    SHUTDOWN,
    WRITER_DIED,
)
from tests.conformance.programs import Refused
from tests.conformance.streams import Stream


@pytest.mark.parametrize("reason", [CLOSED, WRITER_DIED, REVOKED, SHUTDOWN, MOVED])
def test_the_reason_is_told(stream: Stream, reason: int) -> None:
    stream.open()
    reader = stream.reader()
    assert reader.ended() == 0
    stream.end(reason)
    assert stream.control["ended"] == reason
    assert reader.ended() == reason
    with pytest.raises(Refused, match="EPIPE"):
        reader.next()
    with pytest.raises(Refused, match="EPIPE"):
        reader.next(-1)


def test_the_first_reason_stays(stream: Stream) -> None:
    stream.open()
    stream.end_by_daemon(REVOKED)
    stream.end(CLOSED)
    assert stream.control["ended"] == REVOKED


def test_what_was_published_is_read_and_then_the_end(stream: Stream) -> None:
    stream.open(nslots=14)
    lossless = stream.reader(LOSSLESS)
    fifo = stream.reader(FIFO, depth=2)
    latest = stream.reader(LATEST)
    group = stream.add_group(LOSSLESS)
    members = [stream.reader(group=group), stream.reader(group=group)]
    stream.publish(5)
    returned = members[0].next()
    members[1].next()
    members[0].give_back(returned.pin)
    stream.end(CLOSED)
    for reader, want in ((lossless, [1, 2, 3, 4, 5]), (fifo, [4, 5]), (latest, [5])):
        for seq in want:
            frame = reader.next(-1)
            assert frame.seq == seq
            assert reader.look(frame.pin) == seq
            reader.unpin(frame.pin)
        with pytest.raises(Refused, match="EPIPE"):
            reader.next(-1)
    assert members[0].seqs() == [1, 3, 4, 5]
    with pytest.raises(Refused, match="EPIPE"):
        members[0].next()
    assert members[1].look(0) == 2
    members[1].unpin(0)


def test_a_claim_that_returns_after_the_end_is_had_by_who_looks_again(stream: Stream) -> None:
    stream.open(nslots=6)
    group = stream.add_group(LOSSLESS)
    first, second = stream.reader(group=group), stream.reader(group=group)
    stream.publish()
    frame = first.next()
    stream.end(CLOSED)
    first.give_back(frame.pin)
    assert second.seqs() == [1]


def test_a_reader_that_comes_after_the_end_reads_what_stands(stream: Stream) -> None:
    stream.open(nslots=6)
    stream.publish(3)
    reader = stream.admit(LATEST)
    stream.end(CLOSED)
    reader.open()
    assert reader.seqs() == [3]
    with pytest.raises(Refused, match="EPIPE"):
        reader.next()


def test_a_sleeping_reader_hears_of_the_end(stream: Stream) -> None:
    stream.open()
    reader = stream.reader()
    reader.begin_next()
    reader.sleeping()
    stream.end(CLOSED)
    with pytest.raises(Refused, match="EPIPE"):
        reader.finish_next()


def test_the_daemons_end_wakes_both_sides(stream: Stream) -> None:
    stream.open(nslots=4)
    owed = stream.reader(LOSSLESS)
    stream.publish(4)
    stream.program.send("acquire", -1)
    stream.writer_sleeping()
    stream.end_by_daemon(REVOKED)
    with pytest.raises(Refused, match="EPIPE"):
        stream.program.hear()
    assert owed.seqs() == [1, 2, 3, 4]
    with pytest.raises(Refused, match="EPIPE"):
        owed.next()


def test_the_writer_neither_acquires_nor_publishes_any_more(stream: Stream) -> None:
    stream.open(nslots=5, holds=2)
    slot = stream.acquire()
    stream.publish_slot(slot, True)
    slot = stream.acquire()
    stream.end_by_daemon(SHUTDOWN)
    with pytest.raises(Refused, match="EPIPE"):
        stream.acquire()
    with pytest.raises(Refused, match="EPIPE"):
        stream.publish_slot(slot)
    assert stream.control["head"] == 1
    stream.program.call("abandon", slot)
    stream.program.call("release", stream.slot_of(1))
    assert stream.control["held"] == 0


def test_arm_says_that_there_is_an_end(stream: Stream) -> None:
    stream.open()
    reader = stream.reader()
    stream.end(CLOSED)
    assert reader.arm()
    assert stream.program.number("arm_writer") == 1


def test_an_end_of_a_reason_that_is_not_known_is_an_end(stream: Stream) -> None:
    stream.open()
    reader = stream.reader()
    stream.control["ended"] = 77
    assert reader.ended() == 77
    with pytest.raises(Refused, match="EPIPE"):
        reader.next()
    with pytest.raises(Refused, match="EPIPE"):
        stream.acquire()
