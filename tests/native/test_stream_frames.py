"""A frame from writer to reader in Python: attributes, descriptions, counters."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest

from mcpd.native import _core
from tests.native.streams import SLOT_NBYTES, TestStream, description, next_slot


def test_a_frame_arrives_with_all_its_attributes(stream: TestStream) -> None:
    reader = stream.attach()
    slot = stream.acquire()
    with memoryview(slot) as view:
        assert (view.nbytes, view.readonly, view.format) == (SLOT_NBYTES, False, "B")
        view[:5] = b"hello"
    sent = {
        "nbytes": 5,
        "pts_ns": -3,
        "capture_ns": 1,
        "deadline_ns": 2**63 - 1,
        "source_seq": 2**64 - 1,
        "source_stream": 11,
        "source_publish_ns": 12,
        "awake_ns": 13,
        "finish_ns": 14,
        "model_version": 2**32 - 1,
        "flags": 5,
        "status": 6,
        "trace_id": bytes(range(16)),
    }
    for name, value in sent.items():
        setattr(slot, name, value)
    slot.describe(description(width=640))
    before_ns = time.monotonic_ns()
    assert (slot.published, slot.seq, slot.publish_ns) == (False, 0, _core.NO_TIME)
    assert slot.publish() == 1
    assert (slot.published, slot.seq) == (True, 1)
    assert before_ns <= slot.publish_ns <= time.monotonic_ns()

    got = next_slot(reader)
    assert {name: getattr(got, name) for name in sent} == sent
    assert (got.seq, got.generation, got.publish_ns) == (1, stream.generation, slot.publish_ns)
    assert got.index == slot.index
    assert got.description == description(width=640)
    assert bytes(memoryview(got)) == b"hello"
    got.close()


def test_times_that_were_not_set_are_not_known(stream: TestStream) -> None:
    reader = stream.attach()
    stream.publish()
    got = next_slot(reader)
    assert {got.pts_ns, got.capture_ns, got.deadline_ns, got.awake_ns} == {_core.NO_TIME}
    assert (got.trace_id, got.nbytes, got.flags) == (bytes(16), SLOT_NBYTES, 0)
    got.close()


def test_frames_of_one_description_share_its_bytes(stream: TestStream) -> None:
    reader = stream.attach(_core.POLICY_LOSSLESS, max_pins=3)
    for width in (640, 640, 320):
        slot = stream.acquire()
        slot.describe(description(width=width))
        slot.publish()
    first, second, third = (next_slot(reader) for _ in range(3))
    assert first.description is second.description
    assert third.description == description(width=320)
    for got in (first, second, third):
        got.close()


def test_a_description_has_as_many_tensors_as_it_says(stream: TestStream) -> None:
    reader = stream.attach()
    slot = stream.acquire()
    for bad in (b"", description()[:-1], description(2)[:-1], bytes(128 + 17 * 192)):
        with pytest.raises(ValueError, match="description"):
            slot.describe(bad)
    slot.describe(memoryview(description(16)))
    slot.publish()
    got = next_slot(reader)
    assert got.description == description(16)
    got.close()


def test_bad_attributes_are_refused_and_change_nothing(stream: TestStream) -> None:
    slot = stream.acquire()
    slot.pts_ns = 7
    for name, value, error in [
        ("nbytes", SLOT_NBYTES + 1, ValueError),
        ("nbytes", -1, OverflowError),
        ("source_seq", 2**64, OverflowError),
        ("pts_ns", 2**63, OverflowError),
        ("flags", 2**32, OverflowError),
        ("pts_ns", 1.5, TypeError),
        ("trace_id", b"short", ValueError),
        ("trace_id", "text", TypeError),
        ("seq", 1, AttributeError),
        ("unknown", 1, AttributeError),
    ]:
        with pytest.raises(error):
            setattr(slot, name, value)
    with pytest.raises(AttributeError):
        del slot.pts_ns
    assert (slot.nbytes, slot.pts_ns, slot.trace_id) == (SLOT_NBYTES, 7, bytes(16))
    setattr(slot, "pts_ns", np.int64(8))  # noqa: B010 - typed as int
    slot.publish()
    with pytest.raises(ValueError, match="published already"):
        slot.pts_ns = 9
    assert slot.pts_ns == 8


def test_slots_come_from_a_stream_only() -> None:
    for kind in (_core.WriteSlot, _core.PinnedSlot):
        with pytest.raises(TypeError):
            kind()


def test_the_daemon_sees_pins_and_counters(stream: TestStream) -> None:
    reader = stream.attach(max_pins=2)
    for _ in range(3):
        stream.publish(b"abcd")
    got = next_slot(reader)
    assert reader.control.pins() == [(3, got.index)]
    assert stream.control.stats() == stream.writer.stats()
    assert (
        stream.control.stats().items()
        >= {
            "head": 3,
            "ended": 0,
            "published": 3,
            "nbytes": 12,
            "wakes": 0,
        }.items()
    )
    assert reader.control.stats() == reader.reader.stats()
    assert reader.control.stats().items() >= {"cursor": 4, "received": 1, "skipped": 2}.items()
    got.close()
    assert reader.control.stats()["longest_pin_ns"] > 0


def test_descriptors_stay_the_callers(stream: TestStream) -> None:
    reader = stream.attach()
    for fd in (stream.wake_fd, reader.wake_fd):
        assert fd not in (stream.writer.fileno(), reader.reader.fileno())
        assert os.get_blocking(fd) is False
