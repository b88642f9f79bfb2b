"""What the words say: states, queue, head, metadata, description, sequence numbers."""

from __future__ import annotations

import os
import time

import pytest

from tests.conformance.objects import (
    FREE,
    PUBLISHED,
    UNKNOWN_NS,
    WRITING,
    Meta,
    tag,
)
from tests.conformance.programs import Refused
from tests.conformance.streams import Stream

FULL = Meta(
    *(0, 0, 4096, -5, 17, 0, 2**62, bytes(range(16)), 2**40, 2**50, 3, 4, 5),
    *(6, 0x1F, 2, -1),
)


def test_a_new_object_is_a_valid_empty_stream(stream: Stream) -> None:
    stream.open(nslots=5)
    control = stream.control
    assert control["head"] == 0
    assert [control.state(slot) for slot in range(5)] == [0] * 5
    reader = stream.reader()
    with pytest.raises(Refused, match="EAGAIN"):
        reader.next()


def test_publish_writes_state_queue_and_head(stream: Stream) -> None:
    stream.open(nslots=5)
    slot = stream.acquire()
    assert stream.control.state(slot) == tag(0, WRITING)
    assert stream.control["held"] == 1
    before = time.monotonic_ns()
    assert stream.publish_slot(slot, nbytes=77) == 1
    assert stream.control.state(slot) == tag(1, PUBLISHED)
    assert stream.control.entry(1) == tag(1, slot)
    assert stream.control["head"] == 1
    assert (stream.control["published"], stream.control["nbytes"]) == (1, 77)
    assert stream.control["held"] == 0
    assert before <= stream.control["publish_ns"] <= time.monotonic_ns()
    assert stream.control.meta(slot).publish_ns == stream.control["publish_ns"]


def test_each_frame_has_the_next_number_and_its_place_in_the_queue(stream: Stream) -> None:
    stream.open(nslots=5)
    for seq in range(1, 20):
        slot = stream.acquire()
        assert stream.publish_slot(slot) == seq
        assert stream.control.u64[512 + seq % 8] == tag(seq, slot)


@pytest.mark.parametrize("first", [2, 2**32, 2**48 - 3])
def test_numbers_begin_at_first_seq(stream: Stream, first: int) -> None:
    stream.open(nslots=5, first_seq=first)
    assert stream.control["head"] == first - 1
    owed, newest = stream.reader(3), stream.reader(1)
    assert owed.start == first
    assert stream.publish() == first
    for reader in (owed, newest):
        frame = reader.next()
        assert frame.seq == first
        assert reader.look(frame.pin) == first % 256
        reader.unpin(frame.pin)


def test_numbers_are_never_used_again_after_the_last(stream: Stream) -> None:
    stream.open(first_seq=2**48 - 1)
    assert stream.publish() == 2**48 - 1
    slot = stream.acquire()
    with pytest.raises(Refused):
        stream.publish_slot(slot)
    assert stream.control["head"] == 2**48 - 1


def test_metadata_arrive_as_they_were_given(stream: Stream) -> None:
    stream.open()
    reader = stream.reader()
    slot = stream.acquire()
    stream.publish_slot(slot, **FULL._asdict())
    frame = reader.next()
    written = stream.control.meta(slot)
    assert frame.meta == written
    given = FULL._replace(generation=3, seq=1, publish_ns=written.publish_ns)
    assert written == given


def test_what_is_not_known_stays_so(stream: Stream) -> None:
    stream.open()
    reader = stream.reader()
    stream.publish()
    meta = reader.next().meta
    assert (meta.pts_ns, meta.capture_ns, meta.deadline_ns) == (UNKNOWN_NS,) * 3
    assert meta.device_event == -1


def test_the_description_is_one_piece_of_bytes(stream: Stream) -> None:
    stream.open()
    reader = stream.reader()
    slot = stream.acquire()
    described = bytearray(os.urandom(128 + 192 * 2))
    described[24:32] = bytes([3, 0, 0, 0, 2, 0, 0, 0])  # nplanes, ntensors
    stream.program.call("describe", slot, described.hex())
    at = stream.control.header(slot) + 256
    assert stream.control.memory[at : at + len(described)] == described
    stream.publish_slot(slot)
    frame = reader.next()
    (text,) = reader.program.call("description", frame.pin, len(described))
    assert bytes.fromhex(text) == described


def test_the_description_of_a_slot_stays_from_frame_to_frame(stream: Stream) -> None:
    stream.open()
    reader = stream.reader()
    described = set()
    for _ in range(8):
        slot = stream.acquire()
        if slot not in described:
            described.add(slot)
            stream.program.call("describe", slot, bytes([slot + 1]).hex())
        stream.publish_slot(slot)
        frame = reader.next()
        (text,) = reader.program.call("description", frame.pin, 1)
        at = stream.control.header(slot) + 256
        assert int(text, 16) == stream.control.memory[at]
        reader.unpin(frame.pin)


def test_slot_i_starts_at_i_times_slot_nbytes(stream: Stream) -> None:
    stream.open(nslots=4, slot_nbytes=8192)
    reader = stream.reader()
    for _ in range(5):
        stream.publish()
        frame = reader.next()
        slot = stream.slot_of(frame.seq)
        assert reader.look(frame.pin) == frame.seq
        part = stream.payload.memory[slot * 8192 : (slot + 1) * 8192]
        assert part == bytes([frame.seq]) * 8192
        reader.unpin(frame.pin)


def test_abandon_gives_the_slot_back_and_no_number_away(stream: Stream) -> None:
    stream.open()
    slot = stream.acquire()
    stream.program.call("abandon", slot)
    assert stream.control.state(slot) & 0xFFFF == FREE
    assert (stream.control["abandoned"], stream.control["published"]) == (1, 0)
    assert stream.control["held"] == 0
    assert stream.acquire() == slot
    assert stream.publish_slot(slot) == 1


def test_an_abandoned_slot_keeps_the_number_that_it_had(stream: Stream) -> None:
    stream.open(nslots=3)
    stream.publish(2)
    slot = stream.acquire()
    assert stream.control.state(slot) == tag(0, WRITING)
    stream.program.call("abandon", slot)
    assert stream.control.state(slot) == tag(1, FREE)
    assert stream.control["head"] == 2


def test_writer_holds_no_more_than_it_may(stream: Stream) -> None:
    stream.open(nslots=5, holds=2)
    first, second = stream.acquire(), stream.acquire()
    assert stream.control["held"] == 2
    with pytest.raises(Refused, match="EBUSY"):
        stream.acquire()
    stream.publish_slot(first, True)
    with pytest.raises(Refused, match="EBUSY"):
        stream.acquire()
    stream.program.call("release", first)
    third = stream.acquire()
    assert third not in (first, second)
    assert stream.control["held"] == 2


def test_publish_refuses_what_cannot_be(stream: Stream) -> None:
    stream.open()
    slot = stream.acquire()
    for words in (
        stream.publish_words(slot, nbytes=4097),
        stream.publish_words(slot, nbytes=2**64 - 1),
        stream.publish_words(slot + 1),
        stream.publish_words(99),
        ("abandon", slot + 1),
        ("abandon", 99),
        ("release", slot),
    ):
        with pytest.raises(Refused, match="EINVAL"):
            stream.program.call(*words)
    assert stream.control["head"] == 0
    assert stream.publish_slot(slot, nbytes=4096) == 1
    with pytest.raises(Refused, match="EINVAL"):
        stream.publish_slot(slot)
