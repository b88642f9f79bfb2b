"""What either side does about a peer that is not honest, and about objects that are not ours.

The test is the peer that lies: it writes into the objects while their owner is still.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

import pytest

from tests.conformance.objects import (
    FIFO,
    LATEST,
    LOSSLESS,
    PUBLISHED,
    RETURNED,
    TAKEN,
    WRITING,
    Geometry,
    claim,
    tag,
)
from tests.conformance.programs import Refused, too_small
from tests.conformance.streams import Reader, Stream

EVERY_POLICY = [(LATEST, 0), (FIFO, 3), (LOSSLESS, 0)]
BIG = 2**64 - 1


def open_reader(stream: Stream, policy: int, depth: int, *, group: bool) -> Reader:
    if group:
        return stream.reader(group=stream.add_group(policy, depth=depth))
    return stream.reader(policy, depth=depth)


# ---- a writer that lies ----

lies: dict[str, Callable[[Stream], None]] = {
    "index out of range": lambda s: s.control.u64.__setitem__(
        s.control.queue_at(1), tag(1, s.geometry.nslots)
    ),
    "index far out of range": lambda s: s.control.u64.__setitem__(
        s.control.queue_at(1), tag(1, 0xFFFF)
    ),
    "queue entry of an earlier frame": lambda s: s.control.u64.__setitem__(
        s.control.queue_at(1), 0
    ),
    "queue entry of a later frame": lambda s: s.control.u64.__setitem__(
        s.control.queue_at(1), tag(1 + s.geometry.queue_len, 0)
    ),
    "state of another frame": lambda s: s.control.set_state(s.slot_of(1), tag(2, PUBLISHED)),
    "state writing": lambda s: s.control.set_state(s.slot_of(1), tag(1, WRITING)),
    "state free": lambda s: s.control.set_state(s.slot_of(1), tag(1, 0)),
    "state of no kind": lambda s: s.control.set_state(s.slot_of(1), tag(1, 7)),
    "head beyond what is published": lambda s: s.control.__setitem__("head", 2),
    "head of 48 bits": lambda s: s.control.__setitem__("head", 2**48 - 1),
    "head of 64 bits": lambda s: s.control.__setitem__("head", BIG),
    "another generation": lambda s: change_meta(s, generation=4),
    "another number": lambda s: change_meta(s, seq=2),
    "number that wraps": lambda s: change_meta(s, seq=2**48 + 1),
    "more bytes than a slot has": lambda s: change_meta(s, nbytes=4097),
    "as many bytes as can be said": lambda s: change_meta(s, nbytes=BIG),
}


def change_meta(stream: Stream, **changes: int) -> None:
    slot = stream.slot_of(1)
    meta = stream.control.meta(slot)._replace(**changes)  # type: ignore[arg-type]
    stream.control.set_meta(slot, meta)


@pytest.mark.parametrize("lie", lies)
@pytest.mark.parametrize("group", [False, True], ids=["own", "group"])
def test_a_reader_says_that_the_writers_objects_make_no_sense(
    stream: Stream, lie: str, group: bool
) -> None:
    stream.open(nslots=6)
    policy = LATEST if "head" in lie else LOSSLESS
    reader = open_reader(stream, policy, 0, group=group)
    stream.publish()
    lies[lie](stream)
    # A member cannot tell that from a writer that is looking at its claim, which will end.
    looks = group and lie == "state writing"
    with pytest.raises(Refused, match="EAGAIN" if looks else "EBADMSG"):
        reader.next()
    assert reader.control.pins() == [0]
    assert reader.control["received"] == 0
    assert stream.control["ended"] == 0


@pytest.mark.parametrize(("policy", "depth"), EVERY_POLICY)
@pytest.mark.parametrize("group", [False, True], ids=["own", "group"])
@pytest.mark.parametrize("lie", ["index out of range", "state free", "more bytes than a slot has"])
def test_every_policy_is_told_of_lies(
    stream: Stream, policy: int, depth: int, group: bool, lie: str
) -> None:
    stream.open(nslots=9)
    reader = open_reader(stream, policy, depth, group=group)
    stream.publish()
    lies[lie](stream)
    with pytest.raises(Refused, match="EBADMSG"):
        reader.next()


@pytest.mark.parametrize("ntensors", [17, 2**32 - 1])
def test_a_description_is_checked_before_it_is_used(stream: Stream, ntensors: int) -> None:
    if stream.reader_which == "ours":
        pytest.skip("mcpd.h hands the description out; who reads it checks it (tests/native)")
    stream.open()
    reader = stream.reader()
    stream.publish()
    stream.control.set_description(stream.slot_of(1), 28, ntensors)
    frame = reader.next()
    with pytest.raises(Refused, match="EBADMSG"):
        reader.program.call("description", frame.pin, 1)


def test_a_member_gives_back_what_the_writer_looks_at_too_long(stream: Stream) -> None:
    stream.open(nslots=6)
    member = open_reader(stream, LOSSLESS, 0, group=True)
    stream.publish()
    lies["state writing"](stream)
    with pytest.raises(Refused, match="EAGAIN"):
        member.next()
    stream.control.set_state(stream.slot_of(1), tag(1, PUBLISHED))
    assert member.next().seq == 1


def test_a_lie_ends_with_the_frame_that_it_was_about(stream: Stream) -> None:
    stream.open(nslots=6)
    reader = stream.reader(LATEST)
    stream.publish()
    change_meta(stream, nbytes=BIG)
    with pytest.raises(Refused, match="EBADMSG"):
        reader.next()
    stream.publish()
    assert reader.seqs() == [2]


@pytest.mark.parametrize("lie", [lie for lie in lies if "head" not in lie])
def test_recent_takes_no_lie(stream: Stream, lie: str) -> None:
    stream.open(nslots=6, history=2)
    reader = stream.reader(LATEST, max_pins=2)
    stream.publish()
    lies[lie](stream)
    with pytest.raises(Refused, match="EBADMSG"):
        reader.recent(2)
    assert reader.control.pins() == [0, 0]


def test_a_head_that_goes_back_gives_nothing_twice(stream: Stream) -> None:
    stream.open(nslots=8)
    readers = [stream.reader(policy, depth=depth) for policy, depth in EVERY_POLICY]
    stream.publish(2)
    for reader in readers:
        reader.seqs()
        stream.control["head"] = 1
        with pytest.raises(Refused, match="EAGAIN"):
            reader.next()
        stream.control["head"] = 0
        with pytest.raises(Refused, match="EAGAIN"):
            reader.next()
        stream.control["head"] = 2


def test_a_head_that_jumps_is_a_jump_or_no_sense(stream: Stream) -> None:
    """A latest reader may believe it if the frame is there; what matters is that it reads one."""
    stream.open(nslots=8)
    reader = stream.reader(LATEST)
    stream.publish()
    seq = 2**40
    slot = stream.slot_of(1)
    stream.control.set_state(slot, tag(seq, PUBLISHED))
    stream.control.u64[stream.control.queue_at(seq)] = tag(seq, slot)
    stream.control.set_meta(slot, stream.control.meta(slot)._replace(seq=seq))
    stream.control["head"] = seq
    frame = reader.next()
    assert frame.seq == seq
    assert reader.look(frame.pin) == 1


# ---- a reader that lies ----


def test_a_cursor_that_goes_back_holds_nobody_up(stream: Stream) -> None:
    stream.open(nslots=5)
    reader = stream.reader(LOSSLESS)
    for _ in range(10):
        stream.publish()
        assert len(reader.seqs()) == 1
        stream.program.call("abandon", stream.acquire())  # the writer looks at the cursor
        reader.control["cursor"] = 0
    stream.publish()


@pytest.mark.parametrize("cursor", [BIG, 2**48, 2**63])
def test_a_cursor_beyond_all_numbers_hurts_its_reader_alone(stream: Stream, cursor: int) -> None:
    stream.open(nslots=9)
    liar, honest = stream.reader(LOSSLESS), stream.reader(LOSSLESS)
    liar.control["cursor"] = cursor
    stream.publish(3)
    assert honest.seqs() == [1, 2, 3]
    stream.publish(5)
    assert honest.seqs() == [4, 5, 6, 7, 8]


@pytest.mark.parametrize("group", [False, True], ids=["own", "group"])
def test_a_cursor_counts_no_further_than_the_next_frame(stream: Stream, group: bool) -> None:
    stream.open(nslots=5)
    reader = open_reader(stream, LOSSLESS, 0, group=group)
    control = reader.group.control if reader.group else reader.control
    control["cursor"] = BIG
    stream.publish(2)  # the writer looks, and frame 1 is not owed any more
    control["cursor"] = 2
    with pytest.raises(Refused, match="EAGAIN"):
        stream.publish(100)
    assert stream.control["head"] < 10


@pytest.mark.parametrize("pin", [BIG, tag(1, 0xFFFF), tag(2**48 - 1, 0), 1, tag(1, 5)], ids=hex)
def test_a_pin_that_names_no_published_frame_is_nothing(stream: Stream, pin: int) -> None:
    stream.open(nslots=5, holds=2)
    reader = stream.reader(LATEST)
    reader.control.set_word(0, pin)
    for _ in range(30):
        stream.publish()
    assert stream.control["would_block"] == 0


def test_pins_beyond_those_admitted_are_not_looked_at(stream: Stream) -> None:
    stream.open(nslots=4)
    reader = stream.reader(LATEST, max_pins=1)
    stream.publish()
    slot = stream.slot_of(1)
    for k in range(1, 300):
        reader.control.set_word(k, tag(1, slot))
    stream.publish()
    assert stream.acquire() == slot


def test_an_epoch_costs_at_most_one_signal_a_frame(stream: Stream) -> None:
    stream.open(nslots=4)
    reader = stream.reader(LATEST)
    for epoch in (1, 3, 1, 5, 2**32 - 1, 7):
        reader.control["epoch"] = epoch
        stream.publish()
        assert reader.wake.count() == 1
    stream.publish()
    assert reader.wake.count() == 0
    assert stream.control["wakes"] == 6


@pytest.mark.parametrize("what", [TAKEN, RETURNED])
def test_a_group_that_lies_pins_no_more_than_published_slots(stream: Stream, what: int) -> None:
    stream.open(nslots=6)
    group = stream.add_group(LATEST)
    stream.reader(group=group)
    for slot in range(6):
        group.control.set_word(slot, claim(2**47, 63, what))
    group.control["cursor"] = BIG
    stream.publish(40)
    assert stream.control["would_block"] == 0


def test_a_group_that_holds_more_than_was_reckoned_for_it_lies(stream: Stream) -> None:
    stream.open(nslots=6)
    group = stream.add_group(LATEST)
    stream.reader(group=group)
    for seq in range(1, 40):  # each frame is claimed at once, and none is let go
        stream.publish()
        group.control.set_word(stream.slot_of(seq), claim(seq, seq % 4, TAKEN))
    assert stream.control["would_block"] == 0


def test_a_spoiled_group_is_its_members_loss_alone(stream: Stream) -> None:
    stream.open(nslots=8)
    group = stream.add_group(LOSSLESS)
    member, other = stream.reader(group=group), stream.reader(LOSSLESS)
    stream.publish(2)
    group.control["cursor"] = 0
    group.control["returned"] = 2**32 - 1
    assert other.seqs() == [1, 2]
    stream.publish()
    assert other.seqs() == [3]
    with contextlib.suppress(Refused):
        member.next()  # whatever comes of it, it comes at once
    stream.publish(3)
    assert other.seqs() == [4, 5, 6]


# ---- objects that are not ours ----


@pytest.mark.parametrize("name", ["magic", "abi"])
def test_a_writer_refuses_what_is_not_its_abi(stream: Stream, name: str) -> None:
    stream.make()
    stream.control[name] += 1
    with pytest.raises(Refused, match="EPROTONOSUPPORT"):
        stream.open()


@pytest.mark.parametrize("name", ["magic", "abi"])
@pytest.mark.parametrize("which", ["writer", "reader", "group"])
def test_a_reader_refuses_what_is_not_its_abi(stream: Stream, name: str, which: str) -> None:
    stream.open(nslots=6)
    group = stream.add_group(LOSSLESS)
    reader = stream.admit(group=group)
    spoiled = {"writer": stream.control, "reader": reader.control, "group": group.control}[which]
    spoiled[name] += 1
    with pytest.raises(Refused, match="EPROTONOSUPPORT"):
        reader.open()
    spoiled[name] -= 1
    reader.open()


@pytest.mark.parametrize("which", ["control", "payload"])
def test_a_writer_refuses_objects_that_are_too_small(stream: Stream, which: str) -> None:
    stream.make()
    fd = getattr(stream, which).fd
    os.truncate(fd, os.fstat(fd).st_size - 4096)
    with pytest.raises(Refused, match=too_small(stream.which, which)):
        stream.open()


@pytest.mark.parametrize("which", ["writer", "payload", "reader", "group"])
def test_a_reader_refuses_objects_that_are_too_small(stream: Stream, which: str) -> None:
    stream.open(nslots=6)
    group = stream.add_group(LOSSLESS)
    reader = stream.admit(group=group)
    fd = {
        "writer": stream.control.fd,
        "payload": stream.payload.fd,
        "reader": reader.control.fd,
        "group": group.control.fd,
    }[which]
    other = os.memfd_create("small")
    try:
        os.truncate(other, os.fstat(fd).st_size - 4096)
        with pytest.raises(Refused, match=too_small(stream.reader_which, which)):
            reader.open(swapped={which: other})
    finally:
        os.close(other)
    reader.open()


GEOMETRY = Geometry()


@pytest.mark.parametrize(
    "geometry",
    [
        {"nslots": 1},
        {"nslots": 0},
        {"nslots": 4097},
        {"nslots": 2**32 - 1},
        {"slot_nbytes": 0},
        {"slot_nbytes": 4095},
        {"slot_nbytes": 4097},
        {"slot_nbytes": 2**40 + 4096},
        {"slot_nbytes": 2**64 - 4096},
        {"slot_nbytes": 2**63},
        {"nslots": 4096, "slot_nbytes": 2**40},
        {"first_seq": 0},
        {"first_seq": 2**48},
        {"first_seq": 2**64 - 1},
    ],
    ids=str,
)
def test_geometry_out_of_bounds_is_refused(stream: Stream, geometry: dict[str, int]) -> None:
    stream.make()
    said = GEOMETRY._replace(**geometry)
    with pytest.raises(Refused, match=r"EINVAL|ENOMEM"):
        stream.open(said=said)
    stream.open()
    reader = stream.admit()
    with pytest.raises(Refused, match=r"EINVAL|ENOMEM"):
        reader.open(geometry=said)
    reader.open()


def test_line_0_is_not_believed(stream: Stream) -> None:
    stream.open(nslots=5)
    reader = stream.admit(LOSSLESS)
    for name in ("nslots", "queue_len", "slot_nbytes", "first_seq", "generation", "stream_id"):
        stream.control[name] = 2**31
    reader.control["max_pins"] = 2**31
    reader.open()
    stream.publish(4)
    assert reader.seqs() == [1, 2, 3, 4]


def test_a_stream_is_written_once(stream: Stream) -> None:
    stream.open()
    stream.publish()
    stream.program.call("close")
    with pytest.raises(Refused, match="EEXIST"):
        stream.open()
