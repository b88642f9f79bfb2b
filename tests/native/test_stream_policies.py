"""Policies, thinning, the last frames, numbering and counters, through the binding."""

from __future__ import annotations

import time

import pytest

from mcpd.native import _core
from tests.native.streams import TestReader, TestStream, next_slot


def take_all(reader: TestReader) -> list[int]:
    """The numbers of all frames that are there now."""
    seqs: list[int] = []
    while (slot := reader.reader.next(0)) is not None:
        seqs.append(slot.seq)
        slot.close()
    return seqs


def test_fifo_readers_get_what_is_within_their_depth() -> None:
    with TestStream(12) as stream:
        deep = stream.attach(_core.POLICY_FIFO, depth=5)
        flat = stream.attach(_core.POLICY_FIFO, depth=1)
        assert (deep.start, flat.start) == (1, 1)
        for _ in range(8):
            stream.publish()
        assert take_all(deep) == [4, 5, 6, 7, 8]
        assert take_all(flat) == [8]
        assert deep.control.stats()["dropped"] == 3
        assert flat.reader.stats()["dropped"] == 7


def test_a_reader_passes_over_frames_that_it_did_not_ask_for() -> None:
    with TestStream(20) as stream:
        thirds = stream.attach(_core.POLICY_LOSSLESS, every_n=3)
        slow = stream.attach(interval_ns=3_600_000_000_000)
        current = stream.attach(_core.POLICY_FIFO, depth=9, skip_expired=1)
        for index in range(8):
            slot = stream.acquire()
            slot.deadline_ns = 1 if index % 2 else time.monotonic_ns() + 3_600_000_000_000
            slot.publish()
        assert take_all(thirds) == [1, 4, 7]
        assert take_all(slow) == [8]
        stream.publish()
        assert take_all(slow) == []
        assert take_all(current) == [1, 3, 5, 7, 9]
        assert thirds.control.stats()["passed"] == 4
        assert slow.control.stats()["passed"] == 1
        assert current.control.stats()["expired"] == 4


@pytest.mark.parametrize(
    ("thinning", "error"),
    [({"interval_ns": -1}, OSError), ({"every_n": 1 << 32}, OverflowError)],
)
def test_thinning_that_cannot_be_is_refused(
    thinning: dict[str, int], error: type[Exception], stream: TestStream
) -> None:
    with pytest.raises(error):
        stream.attach(**thinning)


def test_the_last_frames_come_oldest_first() -> None:
    with TestStream(12, history=4) as stream:
        reader = stream.attach(max_pins=4)
        assert reader.reader.recent(2) == []
        for index in range(6):
            stream.publish(bytes([index]))
        slots = reader.reader.recent(3)
        assert [(slot.seq, bytes(slot)) for slot in slots] == [
            (4, b"\3"),
            (5, b"\4"),
            (6, b"\5"),
        ]
        assert reader.reader.next(0) is None
        with pytest.raises(BufferError, match="fewer"):
            reader.reader.recent(2)
        del slots
        assert len(reader.reader.recent(4)) == 4
        with pytest.raises(ValueError, match="1 or more"):
            reader.reader.recent(0)
        reader.reader.close()
        with pytest.raises(ValueError, match="closed"):
            reader.reader.recent(1)


def test_a_generation_may_begin_at_any_number() -> None:
    with TestStream(first_seq=500) as stream:
        reader = stream.attach(_core.POLICY_LOSSLESS)
        assert reader.start == 500
        assert [stream.publish(), stream.publish()] == [500, 501]
        assert take_all(reader) == [500, 501]
        assert stream.control.stats()["head"] == 501
        stream.writer.end(_core.END_MOVED)
        with pytest.raises(_core.StreamEnded) as caught:
            reader.reader.next()
        assert caught.value.args == (_core.END_MOVED,)
    for bad in (0, 1 << 48):
        with pytest.raises(ValueError, match="first_seq"):
            TestStream(first_seq=bad)


def test_counters_say_what_is_pinned_and_how_late_it_came(stream: TestStream) -> None:
    reader = stream.attach(max_pins=2)
    assert reader.control.latency() == [0] * _core.LATENCY_BUCKETS
    before_ns = time.monotonic_ns()
    stream.publish()
    slot = next_slot(reader)
    stats = reader.control.stats()
    assert stats["pinned"] == 1
    assert before_ns <= stats["pinned_since_ns"] <= time.monotonic_ns()
    assert sum(reader.control.latency()) == 1
    slot.close()
    stats = reader.control.stats()
    assert (stats["pinned"], stats["pinned_since_ns"]) == (0, 0)
    assert stats["longest_pin_ns"] > 0
    assert stream.control.stats()["blocked_since_ns"] == 0


def test_a_reader_needs_its_keywords(stream: TestStream) -> None:
    with pytest.raises(TypeError, match="max_pins"):
        _core.Reader(0, 0, 0, 0, stream_id=1, generation=1, nslots=8, slot_nbytes=4096)  # type: ignore[call-arg]
