"""Slots and frames as instances of a caller's class, made by the core."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from mcpd.native import _core
from tests.native.streams import SLOT_NBYTES, TestStream, description


class Frame(_core.Frame):
    __slots__ = ()


class Slot(_core.Slot):
    __slots__ = ()

    def publish(self) -> int:
        try:
            return super().publish()
        except _core.StreamEnded:
            raise RuntimeError("told by the subclass") from None


@pytest.fixture
def stream() -> Iterator[TestStream]:
    with TestStream() as made:
        made.writer.presents(Slot, "grant", "parsed", description(width=640), 100, 2)
        yield made


def publish(stream: TestStream) -> None:
    with stream.writer.acquire(0):
        pass


def attach(stream: TestStream, max_pins: int = 1) -> _core.Reader:
    reader = stream.attach(max_pins=max_pins).reader
    reader.presents(Frame, "grant")
    return reader


def test_slots_are_described_and_frames_carry_what_their_writer_set(stream: TestStream) -> None:
    reader = attach(stream)
    with stream.writer.acquire(0) as slot:
        assert type(slot) is Slot
        assert (slot.grant, slot._description, slot.nbytes, slot.flags) == (
            "grant",
            "parsed",
            100,
            2,
        )
        slot.pts_ns = 7
        slot.trace_id = bytes(range(16))
    assert (slot.seq, slot.core.published) == (1, True)
    with reader.next(0) as frame:
        assert type(frame) is Frame
        assert (frame.grant, frame._description) == ("grant", None)
        assert (frame.seq, frame.pts_ns, frame.nbytes, frame.flags) == (1, 7, 100, 2)
        assert frame.trace_id == bytes(range(16))
        assert frame.publish_ns == slot.publish_ns
        assert frame.core.description == description(width=640)
    assert frame.closed


def test_slots_that_vary_have_no_description(stream: TestStream) -> None:
    stream.writer.presents(Slot, "grant", None, None, 0, 0)
    slot = stream.writer.acquire(0)
    assert slot._description is None
    assert slot.nbytes == SLOT_NBYTES


def test_leaving_by_an_exception_abandons(stream: TestStream) -> None:
    with pytest.raises(KeyError), stream.writer.acquire(0) as slot:
        raise KeyError
    assert slot.closed
    assert stream.writer.stats()["abandoned"] == 1


def test_leaving_after_publish_or_abandon_does_nothing(stream: TestStream) -> None:
    with stream.writer.acquire(0) as slot:
        assert slot.publish() == 1
    with stream.writer.acquire(0) as slot:
        slot.abandon()
    assert stream.writer.stats()["published"] == 1


def test_failure_to_publish_at_the_end_of_with_is_told_by_the_subclass(stream: TestStream) -> None:
    with pytest.raises(RuntimeError, match="told by the subclass"), stream.writer.acquire(0):
        stream.writer.end(_core.END_CLOSED)


def test_frame_that_is_dropped_lets_go_of_its_pin_with_its_views(stream: TestStream) -> None:
    reader = attach(stream)
    gc.disable()
    try:
        for seq in (1, 2, 3):
            publish(stream)
            frame = reader.next(0)  # max_pins is 1: the one before is unpinned
            assert frame.seq == seq
            frame._planes = (memoryview(frame.core),)
            del frame
    finally:
        gc.enable()


def test_view_that_the_caller_took_keeps_the_pin(stream: TestStream) -> None:
    reader = attach(stream)
    publish(stream)
    with reader.next(0) as frame:
        view = memoryview(frame.core)
    publish(stream)
    with pytest.raises(BufferError, match="pins are in use"):
        reader.next(0)
    view.release()
    reader.next(0).close()


def test_views_kept_by_a_slot_do_not_keep_it_after_publish(stream: TestStream) -> None:
    slot = stream.writer.acquire(0)
    slot._planes = (memoryview(slot.core),)
    slot.publish()
    assert stream.writer.stats()["held"] == 0
    assert slot._planes is None


@pytest.mark.parametrize("kind", [object, int, _core.Slot, 3])
def test_class_that_is_no_frame_is_refused(stream: TestStream, kind: Any) -> None:
    with pytest.raises(TypeError, match="is no subclass"):
        stream.attach().reader.presents(kind, "grant")


def test_description_or_length_that_cannot_be_is_refused(stream: TestStream) -> None:
    with pytest.raises(ValueError, match="description"):
        stream.writer.presents(Slot, "grant", "parsed", b"short", 0, 0)
    with pytest.raises(ValueError, match="nbytes"):
        stream.writer.presents(Slot, "grant", "parsed", None, SLOT_NBYTES + 1, 0)


@pytest.mark.parametrize("kind", [_core.Frame, Frame, _core.Slot, Slot])
def test_none_is_made_by_hand(kind: Any) -> None:
    with pytest.raises(TypeError, match="cannot create"):
        kind()
