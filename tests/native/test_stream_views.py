"""Views of slots in Python keep what they look at, and nothing else does."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from tests.native.streams import TestStream, description, mappings, next_slot


def test_a_view_keeps_its_pin_after_close(stream: TestStream) -> None:
    reader = stream.attach()
    stream.publish(b"first")
    got = next_slot(reader)
    view = memoryview(got)
    array = np.frombuffer(memoryview(got), np.uint8)
    got.close()
    got.close()
    for _ in range(20):
        stream.publish(b"other")
    assert reader.control.pins() == [(1, got.index)]
    assert (bytes(view), array.tobytes()) == (b"first", b"first")
    view.release()
    assert reader.control.pins() == [(1, got.index)]
    del array
    assert reader.control.pins() == []
    with pytest.raises(BufferError, match="closed"):
        memoryview(got)


def test_a_view_keeps_its_pin_when_the_frame_object_is_gone(stream: TestStream) -> None:
    reader = stream.attach()
    stream.publish(b"first")
    array = np.frombuffer(memoryview(next_slot(reader)), np.uint8)
    gc.collect()
    assert len(reader.control.pins()) == 1
    assert array.tobytes() == b"first"
    del array
    assert reader.control.pins() == []


def test_a_frame_that_is_dropped_is_unpinned(stream: TestStream) -> None:
    reader = stream.attach()
    stream.publish()
    got = next_slot(reader)
    assert len(reader.control.pins()) == 1
    del got
    assert reader.control.pins() == []


def test_frames_are_read_only_in_the_buffer_and_in_the_mapping(stream: TestStream) -> None:
    reader = stream.attach()
    stream.publish(b"first")
    got = next_slot(reader)
    view = memoryview(got)
    assert view.readonly
    assert not np.frombuffer(memoryview(got), np.uint8).flags.writeable
    with pytest.raises(TypeError):
        view[0] = 1
    assert sorted(mappings("payload")) == ["r--s", "rw-s"]  # reader and writer
    view.release()
    got.close()


def test_a_slot_published_with_views_is_held_until_they_are_gone(stream: TestStream) -> None:
    slot = stream.acquire()
    view = memoryview(slot)
    slot.publish()
    index = slot.index
    assert stream.writer.stats()["held"] == 1
    for _ in range(20):
        other = stream.acquire()
        assert other.index != index
        other.publish()
    view.release()
    assert stream.writer.stats()["held"] == 0
    with pytest.raises(BufferError, match="published already"):
        memoryview(slot)
    slots = [stream.acquire(), stream.acquire()]
    assert index in {free.index for free in slots}


def test_a_slot_abandoned_with_views_is_held_until_they_are_gone(stream: TestStream) -> None:
    slot = stream.acquire()
    view = memoryview(slot)
    slot.abandon()
    slot.abandon()
    assert stream.writer.stats()["held"] == 1
    view.release()
    assert stream.writer.stats()["held"] == 0
    assert stream.writer.stats()["abandoned"] == 1
    for use in (slot.publish, lambda: slot.describe(description())):
        with pytest.raises(ValueError, match="abandoned already"):
            use()


def test_a_slot_that_is_dropped_is_abandoned(stream: TestStream) -> None:
    slot = stream.acquire()
    index = slot.index
    del slot
    assert stream.writer.stats()["abandoned"] == 1
    assert stream.acquire().index == index


def test_the_mappings_go_with_the_last_view() -> None:
    with TestStream() as stream:
        reader = stream.attach()
        stream.publish(b"first")
        got = next_slot(reader)
        read_view = memoryview(got)
        slot = stream.acquire()
        write_view = memoryview(slot)
    assert len(mappings("payload")) == 2
    assert bytes(read_view) == b"first"
    write_view[0] = 1
    with pytest.raises(ValueError, match="closed"):
        slot.publish()
    read_view.release()
    assert len(mappings("payload")) == 2  # the frame itself still has its pin
    got.close()
    assert mappings("payload") == ["rw-s"]
    slot.abandon()
    write_view.release()
    assert [mappings(name) for name in ("payload", "wctl", "rctl")] == [[], [], []]
