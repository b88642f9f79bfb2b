"""One side halts between two steps while the other passes by: the page's races, in slow motion."""

from __future__ import annotations

import pytest

from tests.conformance.objects import (
    DONE,
    FIFO,
    LATEST,
    LOSSLESS,
    PUBLISHED,
    RETURNED,
    TAKEN,
    WRITING,
    claim,
    tag,
)
from tests.conformance.programs import Refused
from tests.conformance.streams import Stream

# ---- a reader is slow ----


@pytest.mark.parametrize("step", ["pin 1", "pin 2"])
def test_a_frame_that_moved_on_before_the_pin_is_let_go(halting_reader: Stream, step: str) -> None:
    stream = halting_reader
    stream.open(nslots=4)
    reader = stream.reader(LATEST, halts=True)
    stream.publish()
    reader.halt_in_next(step)
    stream.publish(7)
    reader.program.go()
    frame = reader.finish_next()
    assert frame.seq == 8
    assert reader.look(frame.pin) == 8
    assert reader.control["retries"] == 1
    assert reader.control.pins() == [tag(8, stream.slot_of(8))]


@pytest.mark.parametrize("step", ["pin 3", "pin 4", "pin 5"])
def test_a_frame_that_is_pinned_stays(halting_reader: Stream, step: str) -> None:
    stream = halting_reader
    stream.open(nslots=4)
    reader = stream.reader(LATEST, halts=True)
    stream.publish()
    reader.halt_in_next(step)
    slot = stream.slot_of(1)
    for _ in range(7):
        assert stream.slot_of(stream.publish()) != slot
    reader.program.go()
    frame = reader.finish_next()
    assert frame.seq == 1
    assert reader.look(frame.pin) == 1
    assert reader.control["retries"] == 0


def test_a_fifo_frame_that_left_the_depth_meanwhile_is_dropped(halting_reader: Stream) -> None:
    stream = halting_reader
    stream.open(nslots=6)
    reader = stream.reader(FIFO, depth=2, halts=True)
    stream.publish(2)
    reader.halt_in_next("pin 2")
    stream.publish(9)
    reader.program.go()
    frame = reader.finish_next()
    assert frame.seq == 10
    assert reader.control["dropped"] == 9


def test_a_claim_of_a_frame_that_moved_on_is_done(halting_reader: Stream) -> None:
    stream = halting_reader
    stream.open(nslots=5)
    group = stream.add_group(LATEST)
    member, other = stream.reader(group=group, halts=True), stream.reader(group=group)
    stream.publish()
    slot = stream.slot_of(1)
    member.halt_in_next("claim 2")
    stream.publish(7)
    member.program.go()
    assert member.finish_next().seq == 8
    assert claim(1, 0, DONE) in group.control.claims() or slot == stream.slot_of(8)
    assert other.seqs() == []


def test_a_claim_that_was_beaten_looks_for_the_next(halting_reader: Stream) -> None:
    stream = halting_reader
    stream.open(nslots=6)
    group = stream.add_group(LOSSLESS)
    slow, quick = stream.reader(group=group, halts=True), stream.reader(group=group)
    stream.publish(2)
    slow.halt_in_next("claim 2")
    assert quick.next().seq == 1
    slow.program.go()
    assert slow.finish_next().seq == 2


def test_a_claimed_frame_stays_while_its_member_is_slow(halting_reader: Stream) -> None:
    stream = halting_reader
    stream.open(nslots=6)
    group = stream.add_group(FIFO, depth=2)
    slow = stream.reader(group=group, halts=True)
    stream.publish()
    slow.halt_in_next("claim 3")
    slot = stream.slot_of(1)
    assert group.control.claims()[slot] == claim(1, 0, TAKEN)
    for _ in range(7):
        assert stream.slot_of(stream.publish()) != slot
    slow.program.go()
    frame = slow.finish_next()
    assert (frame.seq, slow.look(frame.pin)) == (1, 1)


def test_a_member_that_finds_a_claim_advances_the_cursor(halting_reader: Stream) -> None:
    stream = halting_reader
    stream.open(nslots=6)
    group = stream.add_group(LOSSLESS)
    slow, quick = stream.reader(group=group, halts=True), stream.reader(group=group)
    stream.publish(3)
    slow.halt_in_next("claim 5")
    assert group.control["cursor"] == 1
    assert quick.seqs() == [2, 3]
    assert group.control["cursor"] == 4
    slow.program.go()
    assert slow.finish_next().seq == 1
    assert group.control["cursor"] == 4


def test_a_publish_between_the_two_looks_is_no_lost_wake_up(halting_reader: Stream) -> None:
    stream = halting_reader
    stream.open()
    reader = stream.reader(halts=True)
    reader.program.stop_at("sleep 1")
    reader.begin_next()
    reader.program.at("sleep 1")
    stream.publish()
    assert stream.control["wakes"] == 1
    reader.program.go()
    assert reader.finish_next().seq == 1
    assert not reader.wake.pending()
    assert reader.control["epoch"] % 2 == 0


def test_a_lossless_reader_that_pinned_but_did_not_move_its_cursor_holds_the_writer(
    halting_reader: Stream,
) -> None:
    stream = halting_reader
    stream.open(nslots=4)
    reader = stream.reader(LOSSLESS, halts=True)
    stream.publish()
    reader.halt_in_next("pin 4")
    stream.publish(3)
    with pytest.raises(Refused, match="EAGAIN"):
        stream.acquire()
    reader.program.go()
    reader.unpin(reader.finish_next().pin)
    stream.publish()


# ---- a writer is slow ----


@pytest.mark.parametrize("step", ["publish 1", "publish 2", "publish 3"])
def test_a_frame_is_not_seen_before_head_says_so(halting_writer: Stream, step: str) -> None:
    stream = halting_writer
    stream.open(nslots=9)
    group = stream.add_group(LOSSLESS)
    readers = [
        stream.reader(LATEST),
        stream.reader(FIFO, depth=2),
        stream.reader(LOSSLESS),
        stream.reader(group=group),
    ]
    stream.publish()
    for reader in readers:
        assert reader.seqs() == [1]
    stream.halt_in_publish(step)
    for reader in readers:
        assert reader.seqs() == []
    stream.program.go()
    assert stream.program.hear() == ["2"]
    for reader in readers:
        assert reader.seqs() == [2]


def test_a_frame_is_there_once_head_says_so(halting_writer: Stream) -> None:
    stream = halting_writer
    stream.open(nslots=5)
    asleep, awake = stream.reader(), stream.reader()
    assert not asleep.arm()
    stream.halt_in_publish("publish 4")
    assert awake.seqs() == [1]
    assert not asleep.wake.pending()
    stream.program.go()
    stream.program.hear()
    assert asleep.wake.count() == 1


@pytest.mark.parametrize("step", ["reclaim 1", "reclaim 2"])
def test_a_pinned_frame_survives_a_look_of_the_writer(halting_writer: Stream, step: str) -> None:
    stream = halting_writer
    stream.open(nslots=5)
    reader = stream.reader(LATEST, max_pins=2)
    stream.publish()
    frame, slot = reader.next(), stream.slot_of(1)
    stream.publish()
    stream.halt_in_acquire(step)
    assert stream.control.state(slot) == tag(1, WRITING)
    assert reader.look(frame.pin) == 1
    stream.program.go()
    assert int(stream.program.hear()[0]) != slot
    assert stream.control.state(slot) == tag(1, PUBLISHED)
    assert reader.look(frame.pin) == 1


def test_a_slot_that_the_writer_looks_at_stands_no_more(halting_writer: Stream) -> None:
    stream = halting_writer
    stream.open(nslots=5)
    reader = stream.reader(LATEST, max_pins=2)
    stream.publish(2)
    stream.halt_in_acquire("reclaim 1")
    assert [seq for _, seq in reader.recent(2)] == [2]
    stream.program.go()
    assert int(stream.program.hear()[0]) == stream.slot_of(1)


def test_a_returned_frame_waits_for_a_look_of_the_writer(halting_writer: Stream) -> None:
    stream = halting_writer
    stream.open(nslots=6)
    group = stream.add_group(LATEST)
    first, second = stream.reader(group=group), stream.reader(group=group)
    stream.publish()
    pin, slot = first.next().pin, stream.slot_of(1)
    stream.publish()
    assert second.seqs() == [2]
    first.give_back(pin)
    stream.halt_in_acquire("reclaim 1")
    with pytest.raises(Refused, match="EAGAIN"):
        second.next()
    assert group.control.claims()[slot] == claim(1, 0, RETURNED)
    stream.program.go()
    stream.program.hear()
    frame = second.next()
    assert (frame.seq, second.look(frame.pin)) == (1, 1)


@pytest.mark.parametrize("step", ["reclaim 1", "reclaim 2"])
def test_a_take_over_stands_whether_the_writer_looks_or_not(
    halting_writer: Stream, step: str
) -> None:
    stream = halting_writer
    stream.open(nslots=6)
    group = stream.add_group(LATEST)
    first, second = stream.reader(group=group), stream.reader(group=group, halts=True)
    stream.publish()
    pin, slot = first.next().pin, stream.slot_of(1)
    stream.publish()
    assert second.seqs() == [2]
    first.give_back(pin)
    second.halt_in_next("take over 2")
    stream.halt_in_acquire(step)
    second.program.go()
    frame = second.finish_next()
    assert (frame.seq, second.look(frame.pin)) == (1, 1)
    stream.program.go()
    assert int(stream.program.hear()[0]) != slot
    assert second.look(frame.pin) == 1


def test_a_claim_that_the_writer_looks_at_stands_or_is_returned(halting_writer: Stream) -> None:
    stream = halting_writer
    stream.open(nslots=6)
    group = stream.add_group(LOSSLESS)
    slow, quick = stream.reader(group=group, halts=True), stream.reader(group=group)
    stream.publish()
    slot = stream.slot_of(1)
    slow.halt_in_next("claim 3")
    assert quick.seqs() == []  # finds the claim and moves the cursor beyond it
    stream.publish()
    stream.halt_in_acquire("reclaim 1")
    assert stream.control.state(slot) == tag(1, WRITING)
    slow.program.go()
    assert slow.finish_next().seq == 2  # the limit was reached: given back, and the next taken
    assert group.control.claims()[slot] == claim(1, 0, RETURNED)
    stream.program.go()
    assert int(stream.program.hear()[0]) != slot
    assert quick.seqs() == [1]


def test_a_member_does_not_sleep_while_a_returned_frame_is_looked_at(
    halting_writer: Stream,
) -> None:
    stream = halting_writer
    stream.open(nslots=6)
    group = stream.add_group(LATEST)
    first, second = stream.reader(group=group), stream.reader(group=group)
    stream.publish()
    pin = first.next().pin
    stream.publish()
    assert second.seqs() == [2]
    first.give_back(pin)
    stream.halt_in_acquire("reclaim 1")
    second.begin_next()
    stream.program.go()
    stream.program.hear()
    assert second.finish_next().seq == 1  # though nobody signals it
