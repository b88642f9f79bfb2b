"""One signal for each sleep of who wants what was made, none for who is awake."""

from __future__ import annotations

import pytest

from tests.conformance.objects import FIFO, LATEST, LOSSLESS
from tests.conformance.programs import Refused
from tests.conformance.streams import Stream, wait_until


@pytest.mark.parametrize(("policy", "depth"), [(LATEST, 0), (FIFO, 3), (LOSSLESS, 0)])
def test_a_sleeper_is_signalled_once_for_each_sleep(
    stream: Stream, policy: int, depth: int
) -> None:
    stream.open(nslots=16)
    reader = stream.reader(policy, depth=depth)
    for sleep in range(1, 4):
        assert not reader.arm()
        assert reader.control["epoch"] % 2 == 1
        stream.publish(3)
        assert reader.wake.count() == 1
        assert stream.control["wakes"] == sleep
        reader.disarm()
        assert reader.control["epoch"] % 2 == 0
        assert reader.seqs()


def test_who_is_awake_costs_no_signal(stream: Stream) -> None:
    stream.open(nslots=16)
    readers = [stream.reader(LATEST), stream.reader(FIFO, depth=4), stream.reader(LOSSLESS)]
    stream.publish(5)
    assert [reader.wake.count() for reader in readers] == [0, 0, 0]
    assert stream.control["wakes"] == 0


def test_disarm_takes_the_signal(stream: Stream) -> None:
    stream.open()
    reader = stream.reader()
    assert not reader.arm()
    stream.publish()
    assert reader.wake.pending()
    reader.disarm()
    assert not reader.wake.pending()
    assert reader.control["wakeups"] == 1


def test_who_finds_a_frame_does_not_fall_asleep(stream: Stream) -> None:
    stream.open()
    reader = stream.reader()
    stream.publish()
    assert reader.arm()
    assert reader.control["epoch"] % 2 == 0
    stream.publish()
    assert stream.control["wakes"] == 0


def test_next_waits_for_a_frame(stream: Stream) -> None:
    stream.open()
    reader = stream.reader()
    reader.begin_next()
    reader.sleeping()
    stream.publish()
    assert reader.finish_next().seq == 1
    assert stream.control["wakes"] == 1
    assert (reader.control["wakeups"], reader.control["spurious"]) == (1, 0)
    assert reader.control["epoch"] % 2 == 0
    assert not reader.arm()
    assert not reader.wake.pending()  # the signal of that sleep is not one of this


def test_next_waits_for_its_time_only(stream: Stream) -> None:
    stream.open()
    reader = stream.reader()
    with pytest.raises(Refused, match="ETIMEDOUT"):
        reader.next(1000000)
    assert reader.control["epoch"] % 2 == 0
    with pytest.raises(Refused, match="EAGAIN"):
        reader.next(0)


def test_a_signal_that_finds_nothing_is_counted(stream: Stream) -> None:
    stream.open()
    reader = stream.reader()
    reader.begin_next()
    reader.sleeping()
    reader.wake.signal()
    reader.wake_taken()
    assert reader.program.silent()
    wait_until(lambda: reader.control["spurious"] == 1, "the signal is not counted")
    reader.sleeping()
    stream.publish()
    assert reader.finish_next().seq == 1
    assert reader.control["spurious"] == 1
    assert reader.control["wakeups"] == 2


def test_a_full_counter_is_a_signal_already(stream: Stream) -> None:
    stream.open()
    reader = stream.reader()
    assert not reader.arm()
    reader.wake.fill()
    stream.publish()
    assert reader.wake.pending()
    reader.disarm()
    assert reader.seqs() == [1]


def test_who_wants_a_later_frame_is_left_asleep(stream: Stream) -> None:
    stream.open(nslots=8)
    reader = stream.reader(LATEST, every_n=3)
    stream.publish()
    assert reader.seqs() == [1]
    assert not reader.arm()
    stream.publish(2)
    assert reader.wake.count() == 0
    stream.publish()
    assert reader.wake.count() == 1
    assert stream.control["wakes"] == 1


def test_who_wants_none_before_a_time_is_left_asleep(stream: Stream) -> None:
    stream.open(nslots=8)
    reader = stream.reader(LATEST, interval_ns=10**15)
    stream.publish()
    assert reader.seqs() == [1]
    assert not reader.arm()
    stream.publish(5)
    assert reader.wake.count() == 0
    stream.end(1)
    assert reader.wake.count() == 1


def test_all_sleeping_members_are_signalled(stream: Stream) -> None:
    stream.open(nslots=8)
    group = stream.add_group(LOSSLESS)
    members = [stream.reader(group=group) for _ in range(3)]
    assert [member.arm() for member in members[:2]] == [False, False]
    stream.publish(2)
    assert [member.wake.count() for member in members] == [1, 1, 0]
    assert stream.control["wakes"] == 2


def test_a_released_reader_is_signalled_no_more(stream: Stream) -> None:
    stream.open()
    reader = stream.reader()
    assert not reader.arm()
    stream.release(reader)
    stream.publish()
    stream.end(1)
    assert reader.wake.count() == 0


def test_the_end_wakes_sleepers_once(stream: Stream) -> None:
    stream.open(nslots=8)
    signalled, asleep, awake = (stream.reader() for _ in range(3))
    assert not signalled.arm()
    stream.publish()
    asleep.seqs()
    assert not asleep.arm()
    stream.end(1)
    assert [reader.wake.count() for reader in (signalled, asleep, awake)] == [1, 1, 0]
    assert stream.control["wakes"] == 2


# ---- the writer's sleep ----


def full(stream: Stream) -> None:
    """Fills a stream whose lossless reader is behind."""
    with pytest.raises(Refused, match="EAGAIN"):
        stream.publish(100)


def test_unpin_wakes_a_writer_that_waits_for_room_and_pin_does_not(stream: Stream) -> None:
    stream.open(nslots=5)
    reader = stream.reader(LOSSLESS, max_pins=2)
    full(stream)
    assert stream.program.number("arm_writer") == 0
    assert stream.control["writer_epoch"] % 2 == 1
    first, second = reader.next(), reader.next()
    assert stream.wake.count() == 0
    reader.unpin(first.pin)
    assert stream.wake.count() == 1
    reader.unpin(second.pin)
    assert stream.wake.count() == 0  # one for each sleep
    stream.program.call("disarm_writer")
    assert stream.control["writer_epoch"] % 2 == 0
    stream.publish(2)


def test_a_writer_that_is_awake_is_not_signalled(stream: Stream) -> None:
    stream.open(nslots=5)
    reader = stream.reader(LOSSLESS)
    full(stream)
    reader.seqs()
    assert stream.wake.count() == 0


def test_acquire_waits_for_room(stream: Stream) -> None:
    stream.open(nslots=5)
    reader = stream.reader(LOSSLESS)
    full(stream)
    stream.program.send("acquire", -1)
    stream.writer_sleeping()
    assert stream.control["blocked_since_ns"] > 0
    frame = reader.next()
    assert stream.program.silent()
    reader.unpin(frame.pin)
    slot = int(stream.program.hear()[0])
    assert slot == stream.slot_of(1)
    assert stream.control["blocked_since_ns"] == 0
    assert stream.control["blocked_ns"] > 0


def test_a_frame_passed_over_is_room_too(stream: Stream) -> None:
    stream.open(nslots=5)
    reader = stream.reader(LOSSLESS, skip_expired=True)
    with pytest.raises(Refused, match="EAGAIN"):
        stream.publish(100, deadline_ns=1)
    assert stream.program.number("arm_writer") == 0
    with pytest.raises(Refused, match="EAGAIN"):
        reader.next()
    assert stream.wake.count() == 1
    assert reader.control["expired"] == 5


def test_frames_given_up_after_the_pinned_one_are_room_at_once(stream: Stream) -> None:
    stream.open(nslots=5)
    reader = stream.reader(LOSSLESS, every_n=3)
    full(stream)
    assert stream.program.number("arm_writer") == 0
    reader.next()
    assert stream.wake.count() == 1
    stream.program.call("disarm_writer")
    stream.publish(2)


def test_a_pin_is_room_for_a_writer_that_is_ahead_by_the_depth(stream: Stream) -> None:
    stream.open(nslots=8)
    reader = stream.reader(LOSSLESS, depth=2, max_pins=3)
    full(stream)
    assert stream.control["head"] == 2
    assert stream.program.number("arm_writer") == 0
    reader.next()
    assert stream.wake.count() == 1
    stream.program.call("disarm_writer")
    stream.publish()
    with pytest.raises(Refused, match="EAGAIN"):
        stream.publish()


def test_a_claim_is_room_for_a_writer_that_is_ahead_of_the_group(stream: Stream) -> None:
    stream.open(nslots=8)
    member = stream.reader(group=stream.add_group(LOSSLESS, depth=1), max_pins=3)
    full(stream)
    assert stream.control["head"] == 1
    assert stream.program.number("arm_writer") == 0
    member.next()
    assert stream.wake.count() == 1


def test_finish_wakes_the_writer_and_give_back_does_not(stream: Stream) -> None:
    stream.open(nslots=6)
    group = stream.add_group(LOSSLESS)
    member = stream.reader(group=group, max_pins=2)
    full(stream)
    assert stream.program.number("arm_writer") == 0
    first = member.next()
    second = member.next()
    member.give_back(second.pin)
    assert stream.wake.count() == 0
    member.unpin(first.pin)
    assert stream.wake.count() == 1


@pytest.mark.parametrize("how", ["release", "remove"])
def test_a_reader_that_leaves_wakes_a_writer_that_waits_for_it(stream: Stream, how: str) -> None:
    stream.open(nslots=5)
    reader = stream.reader(LOSSLESS)
    full(stream)
    assert stream.program.number("arm_writer") == 0
    getattr(stream, how)(reader)
    assert stream.wake.count() == 1
    stream.program.call("disarm_writer")
    stream.publish(20)


def test_arm_says_when_there_is_room(stream: Stream) -> None:
    stream.open()
    assert stream.program.number("arm_writer") == 1
    assert stream.control["writer_epoch"] % 2 == 0
