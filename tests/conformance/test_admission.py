"""Who is admitted, what the writer retains, and which slot it takes next."""

from __future__ import annotations

import pytest

from tests.conformance.objects import FIFO, LATEST, LOSSLESS
from tests.conformance.programs import Refused
from tests.conformance.streams import Stream


def test_a_writer_needs_history_holds_and_one(stream: Stream) -> None:
    stream.make(nslots=5)
    with pytest.raises(Refused, match="ENOSPC"):
        stream.open(history=3, holds=2)
    stream.open(history=2, holds=2)


def test_readers_need_their_pins(stream: Stream) -> None:
    stream.open(nslots=7, history=2, holds=1)  # three are left for pins
    stream.admit(LATEST, max_pins=2)
    with pytest.raises(Refused, match="ENOSPC"):
        stream.admit(LATEST, max_pins=2)
    stream.admit(LOSSLESS, max_pins=1)
    with pytest.raises(Refused, match="ENOSPC"):
        stream.admit(LATEST, max_pins=1)


def test_depths_share_their_slots_with_history_and_each_other(stream: Stream) -> None:
    stream.open(nslots=9, history=3, holds=1)
    stream.admit(FIFO, depth=3, max_pins=1)
    stream.admit(FIFO, depth=4, max_pins=1)
    with pytest.raises(Refused, match="ENOSPC"):
        stream.admit(FIFO, depth=6, max_pins=1)
    stream.admit(FIFO, depth=4, max_pins=1)
    with pytest.raises(Refused, match="ENOSPC"):
        stream.admit(LATEST, max_pins=1)


def test_the_depth_of_a_lossless_reader_needs_no_slots(stream: Stream) -> None:
    stream.open(nslots=5, history=1, holds=1)
    stream.admit(LOSSLESS, depth=4096, max_pins=1)
    group = stream.add_group(LOSSLESS, depth=9)
    stream.admit(group=group, max_pins=1)
    with pytest.raises(Refused, match="EINVAL"):
        stream.add_group(LOSSLESS, depth=4097)
    with pytest.raises(Refused, match="EINVAL"):
        stream.add_group(LATEST, depth=1)


def test_a_reader_that_is_removed_leaves_room(stream: Stream) -> None:
    stream.open(nslots=4)
    first = stream.admit(LATEST)
    with pytest.raises(Refused, match="ENOSPC"):
        stream.admit(LATEST)
    stream.release(first)
    with pytest.raises(Refused, match="ENOSPC"):
        stream.admit(LATEST)  # its pins still stand
    stream.remove(first)
    stream.admit(LATEST)


def test_groups_need_their_depth_and_their_members_pins(stream: Stream) -> None:
    stream.open(nslots=7, history=1, holds=1)
    with pytest.raises(Refused, match="ENOSPC"):
        stream.add_group(FIFO, depth=6)
    group = stream.add_group(FIFO, depth=3)
    stream.admit(group=group, max_pins=2)
    with pytest.raises(Refused, match="ENOSPC"):
        stream.admit(group=group, max_pins=1)


def test_what_a_removed_member_had_claimed_needs_room(stream: Stream) -> None:
    stream.open(nslots=6)
    group = stream.add_group(LOSSLESS)
    dying, other = stream.reader(group=group, max_pins=2), stream.reader(group=group)
    stream.publish(2)
    dying.next()
    dying.next()
    dying.kill()
    stream.sweep(dying)
    stream.remove(dying)
    with pytest.raises(Refused, match="ENOSPC"):
        stream.admit(LATEST, max_pins=1)
    assert other.seqs() == [1, 2]
    stream.admit(LATEST, max_pins=2)


def test_no_more_readers_than_64(stream: Stream) -> None:
    stream.open(nslots=80)
    reader = stream.admit(LATEST)
    fds = [reader.control.fd, reader.wake.fd]
    for number in range(63):
        stream.program.call("add_reader", 2000 + number, "@0", "@1", 0, 0, 1, 1, 0, fds=fds)
    with pytest.raises(Refused, match="EUSERS"):
        stream.program.call("add_reader", 3000, "@0", "@1", 0, 0, 1, 1, 0, fds=fds)
    stream.program.call("remove_reader", 2007)
    stream.program.call("add_reader", 3000, "@0", "@1", 0, 0, 1, 1, 0, fds=fds)


@pytest.mark.parametrize(
    ("terms", "error"),
    [
        ((0, 0, 0, LATEST, 0), "EINVAL"),
        ((0, 0, 257, LATEST, 0), "EINVAL"),
        ((0, 0, 1, 0, 0), "EINVAL"),
        ((0, 0, 1, 4, 0), "EINVAL"),
        ((0, 0, 1, LATEST, 1), "EINVAL"),
        ((0, 0, 1, LOSSLESS, 4097), "EINVAL"),
        ((0, 0, 1, FIFO, 0), "EINVAL"),
        ((0, 0, 2, LATEST, 0), None),
        ((9, 0, 1, LOSSLESS, 0), "ENOENT"),
    ],
)
def test_terms_that_make_no_sense_are_refused(
    stream: Stream, terms: tuple[int, ...], error: str | None
) -> None:
    stream.open(nslots=8)
    reader = stream.admit(LATEST)
    fds = [reader.control.fd, reader.wake.fd]
    words = ("add_reader", 77, "@0", "@1", *terms)
    if error is None:
        stream.program.call(*words, fds=fds)
        error = "EEXIST"
    with pytest.raises(Refused, match=error):
        stream.program.call(*words, fds=fds)


def test_who_is_not_there_cannot_leave(stream: Stream) -> None:
    stream.open()
    for words in (("release_reader", 1), ("remove_reader", 1), ("remove_group", 1)):
        with pytest.raises(Refused, match="ENOENT"):
            stream.program.call(*words)


def test_a_group_leaves_after_its_members(stream: Stream) -> None:
    stream.open(nslots=6)
    group = stream.add_group(LOSSLESS)
    with pytest.raises(Refused, match="EEXIST"):
        stream.program.call(
            "add_group", "@0", group.number, 0, 0, LOSSLESS, 0, fds=[group.control.fd]
        )
    member = stream.admit(group=group)
    with pytest.raises(Refused, match="EBUSY"):
        stream.program.call("remove_group", group.number)
    stream.publish(5)
    stream.remove(member)
    stream.publish(5)  # it is owed nothing more
    with pytest.raises(Refused, match="ENOENT"):
        stream.admit(group=group)
    stream.program.call("remove_group", group.number)
    stream.publish(5)


def test_a_group_is_owed_frames_before_its_first_member_comes(stream: Stream) -> None:
    stream.open(nslots=5)
    group = stream.add_group(LOSSLESS)
    stream.publish(5)
    with pytest.raises(Refused, match="EAGAIN"):
        stream.acquire()
    assert stream.reader(group=group).seqs() == [1, 2, 3, 4, 5]
    stream.publish()


def test_a_group_is_owed_frames_while_a_member_is_not_released(stream: Stream) -> None:
    stream.open(nslots=6)
    group = stream.add_group(LOSSLESS)
    first, second = stream.admit(group=group), stream.admit(group=group)
    stream.publish(6)
    stream.release(first)
    with pytest.raises(Refused, match="EAGAIN"):
        stream.acquire()
    stream.release(second)
    stream.publish(9)


# ---- retention ----


def test_the_slot_freed_last_is_taken_first(stream: Stream) -> None:
    stream.open(nslots=8, holds=4)
    reader = stream.reader(LOSSLESS)
    stream.publish(5)
    slots = [stream.slot_of(seq) for seq in range(1, 6)]
    assert len(set(slots)) == 5
    reader.seqs()
    taken = [stream.acquire() for _ in range(4)]
    assert taken == slots[3::-1]  # freed from the oldest on; the newest stays


def test_a_steady_stream_stays_in_few_slots(stream: Stream) -> None:
    stream.open(nslots=8, history=2)
    used = set()
    for _ in range(20):
        used.add(stream.slot_of(stream.publish()))
    assert len(used) == 3


def test_an_abandoned_slot_is_taken_again_first(stream: Stream) -> None:
    stream.open(nslots=8, holds=2)
    first, second = stream.acquire(), stream.acquire()
    stream.program.call("abandon", first)
    assert stream.acquire() == first
    stream.program.call("abandon", second)
    stream.program.call("abandon", first)
    assert stream.acquire() == first


def test_history_keeps_the_newest_standing(stream: Stream) -> None:
    stream.open(nslots=9, history=4)
    reader = stream.reader(LATEST, max_pins=3)
    stream.publish(30)
    assert {seq for _, seq in reader.recent(3)} == {28, 29, 30}
    standing = [stream.slot_of(seq) for seq in range(27, 31)]
    assert len(set(standing)) == 4
    assert stream.acquire() not in standing


def test_a_pinned_frame_keeps_its_slot(stream: Stream) -> None:
    stream.open(nslots=6, holds=2)
    reader = stream.reader(LATEST, max_pins=2)
    stream.publish()
    frame, slot = reader.next(), stream.slot_of(1)
    for _ in range(20):
        assert stream.slot_of(stream.publish()) != slot
    assert reader.look(frame.pin) == 1
    reader.unpin(frame.pin)
    assert slot in {stream.acquire(), stream.acquire()}


def test_a_frame_that_the_writer_holds_keeps_its_slot(stream: Stream) -> None:
    stream.open(nslots=5, holds=2)
    slot = stream.acquire()
    stream.publish_slot(slot, True)
    for _ in range(10):
        assert stream.slot_of(stream.publish()) != slot
    stream.program.call("release", slot)
    assert slot in {stream.acquire(), stream.acquire()}


def test_pins_of_a_released_reader_stand_until_it_is_removed(stream: Stream) -> None:
    stream.open(nslots=5, holds=2)
    reader = stream.reader(LOSSLESS)
    stream.publish()
    pin = reader.next().pin
    slot = stream.slot_of(1)
    stream.release(reader)
    used = {stream.slot_of(stream.publish()) for _ in range(9)}  # owed nothing, and pinned
    assert slot not in used
    assert reader.look(pin) == 1
    stream.remove(reader)
    assert slot in {stream.acquire(), stream.acquire()}


def test_a_fifo_reader_that_is_released_is_kept_nothing(stream: Stream) -> None:
    stream.open(nslots=8)
    reader = stream.reader(FIFO, depth=5)
    stream.publish(10)
    stream.release(reader)
    assert len({stream.slot_of(stream.publish()) for _ in range(10)}) <= 3
