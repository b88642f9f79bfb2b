"""Groups share frames: each is claimed by one member, and finished by somebody."""

from __future__ import annotations

import pytest

from tests.conformance.objects import (
    DONE,
    FIFO,
    LATEST,
    LOSSLESS,
    RETURNED,
    TAKEN,
    claim,
)
from tests.conformance.programs import Refused
from tests.conformance.streams import Stream


def test_each_frame_is_one_members(stream: Stream) -> None:
    stream.open(nslots=12)
    group = stream.add_group(LOSSLESS)
    members = [stream.reader(group=group, max_pins=2) for _ in range(3)]
    got = []
    for _ in range(5):
        stream.publish(4)
        for member in (members[0], members[2], members[1], members[2]):
            frame = member.next()
            assert member.look(frame.pin) == frame.seq
            got.append(frame.seq)
            member.unpin(frame.pin)
    assert got == list(range(1, 21))
    for member in members:
        assert member.seqs() == []
    assert group.control["finished"] == 20
    assert group.control["cursor"] == 21


def test_claim_words_tell_who_has_what(stream: Stream) -> None:
    stream.open(nslots=8)
    group = stream.add_group(LOSSLESS)
    first = stream.reader(group=group, max_pins=2)
    second = stream.reader(group=group, max_pins=2)
    stream.publish(3)
    one, two, three = first.next(), second.next(), second.next()
    slots = [stream.slot_of(seq) for seq in (1, 2, 3)]

    def words() -> list[int]:
        return [group.control.claims()[slot] for slot in slots]

    assert words() == [claim(1, 0, TAKEN), claim(2, 1, TAKEN), claim(3, 1, TAKEN)]
    assert first.control.pins() == [0, 0]  # a member's claims are its pins
    assert second.control["pinned"] == 2
    assert second.control["cursor"] == 4
    first.unpin(one.pin)
    second.give_back(two.pin)
    assert words() == [claim(1, 0, DONE), claim(2, 1, RETURNED), claim(3, 1, TAKEN)]
    assert second.look(three.pin) == 3
    control = group.control
    assert (control["returned"], control["finished"], control["returns"]) == (1, 1, 1)


def test_a_returned_frame_is_taken_over_before_new_ones_the_lowest_first(stream: Stream) -> None:
    stream.open(nslots=10)
    group = stream.add_group(LOSSLESS)
    first = stream.reader(group=group, max_pins=3)
    second = stream.reader(group=group, max_pins=3)
    stream.publish(4)
    pins = {frame.seq: frame.pin for frame in (first.next(), first.next(), first.next())}
    for seq in (3, 1):
        first.give_back(pins[seq])
    assert [second.next().seq for _ in range(3)] == [1, 3, 4]
    assert (group.control["returned"], group.control["returns"]) == (2, 2)  # never lowered
    assert group.control.claims()[stream.slot_of(3)] == claim(3, 1, TAKEN)
    assert first.look(pins[2]) == 2


def test_who_gave_a_frame_back_may_take_it_again(stream: Stream) -> None:
    stream.open(nslots=6)
    group = stream.add_group(LOSSLESS)
    member = stream.reader(group=group)
    stream.publish()
    member.give_back(member.next().pin)
    frame = member.next()
    assert frame.seq == 1
    member.unpin(frame.pin)
    assert member.seqs() == []


@pytest.mark.parametrize("back", [False, True])
def test_claimed_and_returned_frames_keep_their_slots(stream: Stream, back: bool) -> None:
    stream.open(nslots=6)
    group = stream.add_group(LATEST)
    member = stream.reader(group=group, max_pins=2)
    stream.publish()
    frame, slot = member.next(), stream.slot_of(1)
    if back:
        member.give_back(frame.pin)
    for _ in range(20):
        assert stream.slot_of(stream.publish()) != slot
    if back:
        frame = member.next()
        assert frame.seq == 1
    assert member.look(frame.pin) == 1
    member.unpin(frame.pin)
    free = []
    for _ in range(3):
        free.append(stream.acquire())
        stream.publish_slot(free[-1])
    assert group.control.claims()[slot] == claim(1, 0, DONE)


def test_a_lossless_group_holds_the_writer_up_for_unclaimed_frames(stream: Stream) -> None:
    stream.open(nslots=5)
    group = stream.add_group(LOSSLESS)
    members = [stream.reader(group=group), stream.reader(group=group)]
    stream.publish(5)
    with pytest.raises(Refused, match="EAGAIN"):
        stream.acquire()
    frame = members[0].next()
    with pytest.raises(Refused, match="EAGAIN"):
        stream.acquire()
    members[0].unpin(frame.pin)
    stream.publish()
    assert members[1].seqs() == [2, 3, 4, 5, 6]


def test_a_latest_group_jumps_and_counts(stream: Stream) -> None:
    stream.open(nslots=8)
    stream.publish(3)
    group = stream.add_group(LATEST)
    first, second = stream.reader(group=group), stream.reader(group=group)
    assert first.next().seq == 3
    stream.publish(4)
    assert second.next().seq == 7
    assert (first.control["skipped"], second.control["skipped"]) == (0, 3)
    assert group.control["cursor"] == 8


def test_a_fifo_group_keeps_its_depth_and_counts(stream: Stream) -> None:
    stream.open(nslots=9)
    group = stream.add_group(FIFO, depth=3)
    first, second = stream.reader(group=group), stream.reader(group=group)
    stream.publish(2)
    assert (first.next().seq, second.next().seq) == (1, 2)
    stream.publish(8)
    second.unpin(0)
    assert second.seqs() == [8, 9, 10]
    assert second.control["dropped"] == 5
    assert first.look(0) == 1


def test_groups_and_readers_of_their_own_do_not_meet(stream: Stream) -> None:
    stream.open(nslots=12)
    one, two = stream.add_group(LOSSLESS), stream.add_group(LOSSLESS)
    of_one, of_two = stream.reader(group=one), stream.reader(group=two)
    alone = stream.reader(LOSSLESS)
    stream.publish(3)
    assert [end.seqs() for end in (of_one, of_two, alone)] == [[1, 2, 3]] * 3


def test_a_member_may_not_thin(stream: Stream) -> None:
    stream.open(nslots=6)
    group = stream.add_group(LOSSLESS)
    member = stream.admit(group=group)
    with pytest.raises(Refused, match="EINVAL"):
        member.open(every_n=2)
    with pytest.raises(Refused, match="EINVAL"):
        member.open(interval_ns=5)
    with pytest.raises(Refused, match="EINVAL"):
        member.open(skip_expired=True)
    member.open()


def test_a_member_that_comes_later_shares_what_is_unclaimed(stream: Stream) -> None:
    stream.open(nslots=9)
    group = stream.add_group(LOSSLESS)
    first = stream.reader(group=group)
    stream.publish(4)
    first.unpin(first.next().pin)
    second = stream.reader(group=group)
    assert second.seqs() == [2, 3, 4]


def test_a_dead_members_frames_go_to_another(stream: Stream) -> None:
    stream.open(nslots=8)
    group = stream.add_group(LOSSLESS)
    dying, other = stream.reader(group=group, max_pins=2), stream.reader(group=group)
    stream.publish(3)
    dying.next()
    dying.next()
    assert other.seqs() == [3]
    assert not other.arm()
    dying.kill()
    stream.sweep(dying)
    assert group.control["returned"] == 1
    assert other.wake.pending()
    other.disarm()
    assert other.seqs() == [1, 2]
    stream.remove(dying)
    stream.publish(5)
    assert other.seqs() == [4, 5, 6, 7, 8]


def test_the_last_members_claims_are_done_when_it_dies(stream: Stream) -> None:
    stream.open(nslots=5)
    group = stream.add_group(LOSSLESS)
    member = stream.reader(group=group, max_pins=2)
    stream.publish(2)
    slots = {stream.slot_of(1), stream.slot_of(2)}
    member.give_back(member.next().pin)
    member.next()
    member.next()
    member.give_back(0)
    member.kill()
    stream.sweep(member)
    assert {word & 0xFF for word in group.control.claims()} == {0, DONE}
    stream.remove(member)
    assert slots <= {stream.slot_of(stream.publish()) for _ in range(3)}


def test_a_member_that_closes_gives_back_what_it_has(stream: Stream) -> None:
    stream.open(nslots=7)
    group = stream.add_group(LOSSLESS)
    leaving, other = stream.reader(group=group, max_pins=2), stream.reader(group=group)
    stream.publish(3)
    leaving.next()
    leaving.next()
    leaving.program.call("close")
    assert group.control.claims()[stream.slot_of(2)] == claim(2, 0, RETURNED)
    assert other.seqs() == [1, 2, 3]


def test_a_returned_frame_wakes_the_writer_once_it_is_finished(stream: Stream) -> None:
    stream.open(nslots=5)
    group = stream.add_group(LOSSLESS)
    dying, other = stream.reader(group=group), stream.reader(group=group)
    stream.publish()
    dying.next()
    stream.publish(4)
    dying.kill()
    stream.sweep(dying)
    assert stream.program.number("arm_writer") == 0
    frame = other.next()
    assert frame.seq == 1
    assert stream.wake.count() == 0
    other.unpin(frame.pin)
    assert stream.wake.count() == 1
