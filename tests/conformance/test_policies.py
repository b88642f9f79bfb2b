"""Which frame is next, for each policy, and what is counted of those that are not."""

from __future__ import annotations

import pytest

from tests.conformance.objects import FIFO, LATEST, LOSSLESS, tag
from tests.conformance.programs import Refused
from tests.conformance.streams import Reader, Stream


def counted(reader: Reader) -> dict[str, int]:
    names = ("received", "skipped", "dropped", "passed", "expired")
    return {name: reader.control[name] for name in names if reader.control[name]}


def test_latest_sees_the_newest_that_exists_when_it_attaches(stream: Stream) -> None:
    stream.open()
    stream.publish(3)
    reader = stream.reader(LATEST)
    assert reader.start == 0
    assert reader.next().seq == 3
    assert counted(reader) == {"received": 1}


def test_latest_jumps_to_the_newest_and_counts_the_skipped(stream: Stream) -> None:
    stream.open(nslots=5)
    reader = stream.reader(LATEST, max_pins=2)
    stream.publish(2)
    assert reader.next().seq == 2
    stream.publish(3)
    assert reader.next().seq == 5
    assert counted(reader) == {"received": 2, "skipped": 3}
    assert reader.control["cursor"] == 6


def test_no_frame_is_seen_twice(stream: Stream) -> None:
    stream.open(nslots=8)
    readers = [
        stream.reader(LATEST, max_pins=1),
        stream.reader(FIFO, depth=2, max_pins=1),
        stream.reader(LOSSLESS, max_pins=1),
    ]
    stream.publish()
    for reader in readers:
        assert reader.seqs() == [1]
        assert reader.seqs() == []


def test_pin_cursor_and_counts_of_a_pinned_frame(stream: Stream) -> None:
    stream.open(nslots=6)
    reader = stream.reader(LATEST, max_pins=3)
    stream.publish()
    first = reader.next()
    assert tag(1, stream.slot_of(1)) in reader.control.pins()
    assert reader.control["pinned"] == 1
    since = reader.control["pinned_since_ns"]
    assert first.meta.publish_ns <= since
    stream.publish()
    second = reader.next()
    assert sorted(reader.control.pins()) == [
        0,
        tag(1, stream.slot_of(1)),
        tag(2, stream.slot_of(2)),
    ]
    assert reader.control["pinned"] == 2
    assert reader.control["pinned_since_ns"] == since
    reader.unpin(first.pin)
    assert reader.control["pinned_since_ns"] > since
    assert reader.control["longest_pin_ns"] > 0
    reader.unpin(second.pin)
    assert reader.control.pins() == [0, 0, 0]
    assert (reader.control["pinned"], reader.control["pinned_since_ns"]) == (0, 0)
    assert sum(reader.control.latency()) == 2


def test_no_pin_is_used_twice(stream: Stream) -> None:
    stream.open(nslots=6)
    reader = stream.reader(LATEST, max_pins=2)
    stream.publish()
    first = reader.next()
    stream.publish()
    reader.next()
    stream.publish()
    with pytest.raises(Refused, match="EBUSY"):
        reader.next()
    reader.unpin(first.pin)
    with pytest.raises(Refused, match="EINVAL"):
        reader.unpin(first.pin)
    assert reader.next().seq == 3


def test_lossless_is_given_every_frame_in_order(stream: Stream) -> None:
    stream.open(nslots=5)
    reader = stream.reader(LOSSLESS)
    got = []
    for _ in range(5):
        stream.publish(3)
        got += reader.seqs()
    assert got == list(range(1, 16))
    assert counted(reader) == {"received": 15}


def test_lossless_begins_after_the_head_at_its_admission(stream: Stream) -> None:
    stream.open(nslots=5)
    stream.publish(2)
    reader = stream.admit(LOSSLESS)
    assert reader.start == 3
    stream.publish()
    reader.open()
    assert reader.control["cursor"] == 3
    assert reader.seqs() == [3]


def test_writer_waits_for_a_lossless_reader_that_is_behind(stream: Stream) -> None:
    stream.open(nslots=4)
    reader = stream.reader(LOSSLESS)
    stream.publish(4)
    with pytest.raises(Refused, match="EAGAIN"):
        stream.acquire()
    with pytest.raises(Refused, match="ETIMEDOUT"):
        stream.acquire(1000000)
    assert stream.control["would_block"] == 2
    assert stream.control["blocked_ns"] >= 1000000
    assert stream.control["blocked_since_ns"] == 0
    frame = reader.next()
    with pytest.raises(Refused, match="EAGAIN"):
        stream.acquire()
    reader.unpin(frame.pin)
    stream.publish()
    assert reader.seqs() == [2, 3, 4, 5]


def test_fifo_keeps_its_depth_and_counts_the_dropped(stream: Stream) -> None:
    stream.open(nslots=6)
    reader = stream.reader(FIFO, depth=3)
    stream.publish(2)
    assert reader.seqs() == [1, 2]
    stream.publish(3)
    assert reader.next().seq == 3
    reader.unpin(0)
    stream.publish(10)
    assert reader.seqs() == [13, 14, 15]
    assert counted(reader) == {"received": 6, "dropped": 9}


def test_fifo_begins_after_the_head_at_its_admission(stream: Stream) -> None:
    stream.open(nslots=6)
    stream.publish(2)
    reader = stream.reader(FIFO, depth=3)
    assert reader.start == 3
    stream.publish()
    assert reader.seqs() == [3]


def test_a_stalled_fifo_or_latest_reader_holds_nobody_up(stream: Stream) -> None:
    stream.open(nslots=8)
    fifo = stream.reader(FIFO, depth=3, max_pins=2)
    latest = stream.reader(LATEST, max_pins=1)
    stream.publish()
    fifo.next()
    latest.next()
    stream.publish()
    fifo.next()
    stream.publish(200)
    assert stream.control["would_block"] == 0
    assert fifo.look(0) == 1
    assert latest.look(0) == 1


def test_readers_of_all_policies_are_owed_their_own(stream: Stream) -> None:
    stream.open(nslots=12)
    lossless = stream.reader(LOSSLESS)
    fifo = stream.reader(FIFO, depth=2)
    latest = stream.reader(LATEST)
    stream.publish(5)
    assert lossless.seqs() == [1, 2, 3, 4, 5]
    assert fifo.seqs() == [4, 5]
    assert latest.seqs() == [5]


def test_a_lossless_reader_with_a_depth_holds_the_writer_so_far_ahead(stream: Stream) -> None:
    stream.open(nslots=10, holds=2)
    bounded = stream.reader(LOSSLESS, depth=3)
    free = stream.reader(LOSSLESS)
    early = stream.acquire()
    stream.publish(3)
    for _ in range(2):
        with pytest.raises(Refused, match="EAGAIN"):
            stream.acquire()
    assert stream.publish_slot(early) == 4  # acquired before
    assert bounded.next().seq == 1
    with pytest.raises(Refused, match="EAGAIN"):
        stream.acquire()
    bounded.unpin(0)
    assert bounded.seqs() == [2, 3, 4]
    stream.publish(3)
    assert free.seqs() == [1, 2, 3, 4, 5, 6, 7]
    stream.release(bounded)
    stream.publish(3)


def test_the_writer_takes_two_slots_in_turn_for_a_depth_of_one(stream: Stream) -> None:
    stream.open(nslots=8)
    reader = stream.reader(LOSSLESS, depth=1, max_pins=1)
    used = set()
    for _ in range(6):
        used.add(stream.slot_of(stream.publish()))
        reader.unpin(reader.next().pin)
    assert len(used) == 2


# ---- the newest frames that still stand ----


def test_recent_gives_the_newest_that_stand_oldest_first(stream: Stream) -> None:
    stream.open(nslots=9, history=4)
    stream.publish(6)
    reader = stream.reader(LATEST, max_pins=3)
    assert [seq for _, seq in reader.recent(3)] == [4, 5, 6]
    assert reader.control["cursor"] == 7
    assert reader.control["received"] == 3
    assert reader.control["pinned"] == 3
    for pin in range(3):
        assert reader.look(pin) == 4 + pin
        reader.unpin(pin)
    assert reader.seqs() == []


def test_recent_gives_seen_frames_again(stream: Stream) -> None:
    stream.open(nslots=8, history=3)
    stream.publish(3)
    reader = stream.reader(LATEST, max_pins=3)
    assert reader.seqs() == [3]
    assert [seq for _, seq in reader.recent(2)] == [2, 3]


def test_recent_gives_fewer_when_fewer_stand(stream: Stream) -> None:
    stream.open(nslots=9, history=2)
    reader = stream.reader(LATEST, max_pins=5)
    with pytest.raises(Refused, match="EAGAIN"):
        reader.recent(5)
    stream.publish(20)
    stood = [seq for _, seq in reader.recent(5)]
    assert stood == list(range(stood[0], 21))
    assert len(stood) >= 2


def test_recent_takes_at_most_its_free_pins_and_only_for_latest(stream: Stream) -> None:
    stream.open(nslots=12, history=3)
    stream.publish(3)
    reader = stream.reader(LATEST, max_pins=2)
    with pytest.raises(Refused, match="EBUSY"):
        reader.recent(3)
    with pytest.raises(Refused, match="EINVAL"):
        reader.recent(0)
    owed = stream.reader(LOSSLESS, max_pins=2)
    with pytest.raises(Refused, match="EINVAL"):
        owed.recent(1)
    assert reader.control.pins() == [0, 0]


# ---- thinning ----


def test_every_nth_is_at_least_n_apart(stream: Stream) -> None:
    stream.open(nslots=12)
    reader = stream.reader(LOSSLESS, every_n=3)
    stream.publish(8)
    assert reader.seqs() == [1, 4, 7]
    assert reader.control["cursor"] == 10
    assert counted(reader) == {"received": 3, "passed": 4}


def test_every_nth_of_latest_counts_from_what_it_had(stream: Stream) -> None:
    stream.open(nslots=4)
    reader = stream.reader(LATEST, every_n=3)
    stream.publish(2)
    assert reader.seqs() == [2]
    stream.publish(2)
    assert reader.seqs() == []
    stream.publish(2)
    assert reader.seqs() == [6]
    assert reader.control["cursor"] == 9


def test_every_nth_of_fifo_takes_the_lowest_that_it_asks_for(stream: Stream) -> None:
    stream.open(nslots=8)
    reader = stream.reader(FIFO, depth=4, every_n=3)
    stream.publish()
    assert reader.seqs() == [1]
    stream.publish(10)
    got = reader.seqs()
    assert got == [10]


def test_lossless_thinning_gives_the_writer_room(stream: Stream) -> None:
    stream.open(nslots=4)
    reader = stream.reader(LOSSLESS, every_n=4)
    stream.publish()
    assert reader.seqs() == [1]
    stream.publish(3)
    assert reader.seqs() == []
    assert stream.control["would_block"] == 0
    stream.publish(1)
    assert reader.seqs() == [5]


@pytest.mark.parametrize(("policy", "depth"), [(LOSSLESS, 0), (FIFO, 4), (FIFO, 1)])
def test_a_slower_reader_has_frames_an_interval_apart(
    stream: Stream, policy: int, depth: int
) -> None:
    stream.open(nslots=12)
    interval = 10**15  # no second frame comes within it
    reader = stream.reader(policy, depth=depth, interval_ns=interval)
    stream.publish()
    first = reader.next()
    reader.unpin(first.pin)
    # A lossless reader has to be awake to pass frames over.
    not_before = 0 if policy == LOSSLESS else first.meta.publish_ns + interval
    assert reader.control["not_before_ns"] == not_before
    stream.publish(2)
    assert reader.seqs() == []
    assert counted(reader) == {"received": 1, "passed": 2}
    assert reader.control["cursor"] == 4


def test_a_frame_that_comes_late_moves_the_next_by_an_interval(stream: Stream) -> None:
    stream.open(nslots=12)
    reader = stream.reader(FIFO, depth=2, interval_ns=1)  # each frame comes more than that later
    before = 0
    for _ in range(4):
        stream.publish()
        frame = reader.next()
        reader.unpin(frame.pin)
        assert frame.meta.publish_ns > before
        assert reader.control["not_before_ns"] == frame.meta.publish_ns + 1
        before = frame.meta.publish_ns


def test_frames_past_their_deadline_are_passed_over(stream: Stream) -> None:
    stream.open(nslots=12)
    reader = stream.reader(LOSSLESS, skip_expired=True)
    other = stream.reader(LOSSLESS)
    for deadline in (1, -1, 2**62, -(2**63)):
        stream.publish(deadline_ns=deadline)
    assert reader.seqs() == [3, 4]
    assert counted(reader) == {"received": 2, "expired": 2}
    assert other.seqs() == [1, 2, 3, 4]
