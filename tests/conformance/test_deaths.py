"""Each row of the page's table "When a side dies": SIGKILL exactly there, and what others do."""

from __future__ import annotations

import pytest

from tests.conformance.objects import (
    DONE,
    FIFO,
    LATEST,
    LOSSLESS,
    RETURNED,
    TAKEN,
    WRITING,
    claim,
    tag,
)
from tests.conformance.programs import Refused
from tests.conformance.streams import Reader, Stream


def readers_of_all_kinds(stream: Stream) -> list[Reader]:
    group = stream.add_group(LOSSLESS)
    return [
        stream.reader(LATEST),
        stream.reader(FIFO, depth=2),
        stream.reader(LOSSLESS),
        stream.reader(group=group),
    ]


def ends_after(reader: Reader, seqs: list[int]) -> None:
    """The reader is given these and then the end."""
    assert reader.seqs() == seqs
    with pytest.raises(Refused, match="EPIPE"):
        reader.next(-1)
    assert reader.ended() == 2


# ---- the writer dies ----


def test_writer_dies_with_a_slot_half_filled(stream: Stream) -> None:
    stream.open(nslots=9)
    readers = readers_of_all_kinds(stream)
    stream.publish()
    slot = stream.acquire()
    stream.program.call("fill", slot, 255)
    stream.kill_writer()
    assert stream.control.state(slot) & 0xFFFF == WRITING
    for reader in readers:
        ends_after(reader, [1])


@pytest.mark.parametrize("step", ["publish 1", "publish 2", "publish 3"])
def test_writer_dies_in_publish_before_head(halting_writer: Stream, step: str) -> None:
    stream = halting_writer
    stream.open(nslots=9)
    readers = readers_of_all_kinds(stream)
    stream.publish()
    stream.halt_in_publish(step)
    stream.kill_writer()
    for reader in readers:
        ends_after(reader, [1])


def test_writer_dies_before_it_signalled(halting_writer: Stream) -> None:
    stream = halting_writer
    stream.open(nslots=9)
    readers = readers_of_all_kinds(stream)
    for reader in readers:
        reader.begin_next()
        reader.sleeping()
    stream.halt_in_publish("publish 4")
    assert all(reader.program.silent() for reader in readers)
    stream.kill_writer()
    for reader in readers:
        frame = reader.finish_next()
        assert (frame.seq, reader.look(frame.pin)) == (1, 1)
        reader.unpin(frame.pin)
        ends_after(reader, [])


@pytest.mark.parametrize("step", ["reclaim 1", "reclaim 2"])
def test_writer_dies_in_reclaim_of_a_pinned_slot(halting_writer: Stream, step: str) -> None:
    stream = halting_writer
    stream.open(nslots=9)
    holder, other = stream.reader(LATEST, max_pins=2), stream.reader(LATEST, max_pins=2)
    stream.publish()
    frame = holder.next()
    stream.publish()
    stream.halt_in_acquire(step)
    stream.kill_writer()
    assert stream.control.state(stream.slot_of(1)) == tag(1, WRITING)
    assert holder.look(frame.pin) == 1
    assert [seq for _, seq in other.recent(2)] == [2]
    holder.unpin(frame.pin)
    ends_after(holder, [2])


@pytest.mark.parametrize("step", ["reclaim 1", "reclaim 2"])
def test_writer_dies_in_reclaim_of_a_returned_slot(halting_writer: Stream, step: str) -> None:
    stream = halting_writer
    stream.open(nslots=9)
    group = stream.add_group(LATEST)
    first, second = stream.reader(group=group), stream.reader(group=group)
    stream.publish()
    pin, slot = first.next().pin, stream.slot_of(1)
    stream.publish()
    first.give_back(pin)
    stream.halt_in_acquire(step)
    stream.kill_writer()
    ends_after(second, [2])
    assert group.control.claims()[slot] == claim(1, 1, DONE)


def test_writer_dies_asleep(stream: Stream) -> None:
    stream.open(nslots=8)
    group = stream.add_group(LOSSLESS)
    lossless, member = stream.reader(LOSSLESS), stream.reader(group=group)
    with pytest.raises(Refused, match="EAGAIN"):
        stream.publish(100)
    stream.program.send("acquire", -1)
    stream.writer_sleeping()
    stream.program.kill()
    for reader in (lossless, member):
        reader.unpin(reader.next().pin)
        reader.unpin(reader.next().pin)
        assert stream.wake.count() == 1
    stream.end_by_daemon(2)
    seqs = list(range(3, stream.control["head"] + 1))
    for reader in (lossless, member):
        ends_after(reader, seqs)


# ---- a reader dies ----


def test_reader_dies_with_an_unconfirmed_pin_of_a_frame_that_stands(
    halting_reader: Stream,
) -> None:
    stream = halting_reader
    stream.open(nslots=6, holds=2)
    reader = stream.reader(LATEST, halts=True)
    stream.publish()
    slot = stream.slot_of(1)
    reader.halt_in_next("pin 3")
    reader.kill()
    for _ in range(9):
        assert stream.slot_of(stream.publish()) != slot
    stream.release(reader)
    for _ in range(9):
        assert stream.slot_of(stream.publish()) != slot
    stream.remove(reader)
    assert slot in {stream.acquire(), stream.acquire()}


def test_reader_dies_with_an_unconfirmed_pin_of_a_frame_that_is_gone(
    halting_reader: Stream,
) -> None:
    stream = halting_reader
    stream.open(nslots=4)
    reader = stream.reader(LATEST, halts=True)
    stream.publish()
    slot = stream.slot_of(1)
    reader.halt_in_next("pin 2")
    stream.publish(3)
    reader.program.go(until="pin 3")
    assert reader.control.pins() == [tag(1, slot)]
    reader.kill()
    stream.publish()
    assert slot in {stream.slot_of(stream.publish()) for _ in range(2)}


def test_reader_dies_with_pins(stream: Stream) -> None:
    stream.open(nslots=7, holds=2)
    reader, other = stream.reader(LATEST, max_pins=2), stream.reader(LATEST)
    stream.publish()
    reader.next()
    stream.publish()
    reader.next()
    slots = {stream.slot_of(1), stream.slot_of(2)}
    reader.kill()
    for _ in range(9):
        assert stream.slot_of(stream.publish()) not in slots
        assert len(other.seqs()) == 1
    assert stream.control["would_block"] == 0
    stream.release(reader)
    stream.remove(reader)
    assert slots & {stream.acquire(), stream.acquire()}


@pytest.mark.parametrize("how", ["release", "remove"])
def test_lossless_reader_dies_before_its_cursor_moved(halting_reader: Stream, how: str) -> None:
    stream = halting_reader
    stream.open(nslots=5)
    reader = stream.reader(LOSSLESS, halts=True)
    stream.publish()
    reader.halt_in_next("pin 4")
    slot = stream.slot_of(1)
    reader.kill()
    with pytest.raises(Refused, match="EAGAIN"):
        stream.publish(100)
    assert stream.program.number("arm_writer") == 0
    getattr(stream, how)(reader)
    assert stream.wake.count() == 1
    stream.program.call("disarm_writer")
    stream.publish(20)
    if how == "release":  # its pin stands
        assert slot not in {stream.slot_of(stream.publish()) for _ in range(4)}


def test_lossless_reader_dies_after_unpin_before_its_signal(halting_reader: Stream) -> None:
    stream = halting_reader
    stream.open(nslots=4)
    reader = stream.reader(LOSSLESS, halts=True)
    stream.publish(4)
    pin = reader.next().pin
    assert stream.program.number("arm_writer") == 0
    reader.program.stop_at("unpin 1")
    reader.program.send("unpin", pin)
    reader.program.at("unpin 1")
    reader.kill()
    assert not stream.wake.pending()
    stream.remove(reader)
    assert stream.wake.count() == 1
    stream.program.call("disarm_writer")
    stream.publish(9)


def test_reader_dies_asleep(stream: Stream) -> None:
    stream.open(nslots=5)
    reader, other = stream.reader(), stream.reader()
    reader.begin_next()
    reader.sleeping()
    reader.kill()
    stream.publish(5)
    assert reader.wake.count() == 1
    assert stream.control["wakes"] == 1
    assert other.seqs() == [5]


# ---- a member dies ----


@pytest.mark.parametrize("step", ["claim 3", "claim 4", "claim 5", "claim 6"])
def test_member_dies_after_its_claim(halting_reader: Stream, step: str) -> None:
    stream = halting_reader
    stream.open(nslots=8)
    group = stream.add_group(LOSSLESS)
    dying, other = stream.reader(group=group, halts=True), stream.reader(group=group)
    stream.publish(3)
    slot = stream.slot_of(1)
    dying.halt_in_next(step)
    dying.kill()
    assert group.control.claims()[slot] == claim(1, 0, TAKEN)
    assert group.control["cursor"] == (2 if step == "claim 6" else 1)
    assert other.seqs() == [2, 3]
    stream.publish(2)
    assert stream.slot_of(4) != slot
    stream.sweep(dying)
    stream.remove(dying)
    assert group.control.claims()[slot] == claim(1, 0, RETURNED)
    frame = other.next()
    assert (frame.seq, other.look(frame.pin)) == (1, 1)
    other.unpin(frame.pin)
    assert other.seqs() == [4, 5]


def test_member_dies_after_give_back_before_it_counted(halting_reader: Stream) -> None:
    stream = halting_reader
    stream.open(nslots=8)
    group = stream.add_group(LOSSLESS)
    dying, other = stream.reader(group=group, halts=True), stream.reader(group=group)
    stream.publish(2)
    pin = dying.next().pin
    dying.program.stop_at("give back 1")
    dying.program.send("give_back", pin)
    dying.program.at("give back 1")
    dying.kill()
    assert group.control["returned"] == 0
    assert other.seqs() == [2]
    stream.sweep(dying)
    assert group.control["returned"] == 1
    assert other.seqs() == [1]


def test_member_dies_in_a_take_over(halting_reader: Stream) -> None:
    stream = halting_reader
    stream.open(nslots=8)
    group = stream.add_group(LOSSLESS)
    dying, other = stream.reader(group=group, halts=True), stream.reader(group=group)
    stream.publish(2)
    other.give_back(other.next().pin)
    dying.halt_in_next("take over 3")
    dying.kill()
    assert other.seqs() == [2]
    assert not other.arm()
    other.disarm()
    stream.sweep(dying)
    assert other.seqs() == [1]


def test_member_dies_after_finish_before_its_signal(halting_reader: Stream) -> None:
    stream = halting_reader
    stream.open(nslots=5)
    group = stream.add_group(LOSSLESS)
    dying, other = stream.reader(group=group, halts=True), stream.reader(group=group)
    stream.publish(5)
    pin = dying.next().pin
    assert stream.program.number("arm_writer") == 0
    dying.program.stop_at("finish 1")
    dying.program.send("unpin", pin)
    dying.program.at("finish 1")
    dying.kill()
    stream.sweep(dying)
    stream.remove(dying)
    assert stream.wake.count() == 1
    stream.program.call("disarm_writer")
    stream.publish()
    assert other.seqs() == [2, 3, 4, 5, 6]


def test_all_members_die(stream: Stream) -> None:
    stream.open(nslots=6)
    group = stream.add_group(LOSSLESS)
    first, second = stream.reader(group=group), stream.reader(group=group)
    stream.publish(4)
    assert (first.next().seq, second.next().seq) == (1, 2)
    for member in (first, second):
        member.kill()
    for member in (first, second):
        stream.sweep(member)
        stream.remove(member)
    assert {word & 0xFF for word in group.control.claims()} == {0, DONE}
    stream.publish(20)
    stream.admit(max_pins=3)
