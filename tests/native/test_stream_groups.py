"""Groups of readers, through the binding."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from mcpd.native import _core
from tests.native.streams import TestStream, next_slot

TAKEN, RETURNED = 1, 3


def test_members_of_a_group_share_the_frames() -> None:
    with TestStream(12) as stream:
        group = stream.add_group(_core.POLICY_LOSSLESS)
        a, b = stream.join(group), stream.join(group)
        assert (group.start, a.start, b.start) == (1, 0, 0)
        for _ in range(3):
            stream.publish()
        first, second = next_slot(a), next_slot(b)
        assert (first.seq, second.seq) == (1, 2)
        assert group.control.claims() == [(0, 1, 0, TAKEN), (1, 2, 1, TAKEN)]
        first.close()
        third = next_slot(a)
        assert third.seq == 3
        assert b.reader.next(0) is None
        assert group.control.stats() == {"cursor": 4, "returned": 0, "finished": 1, "returns": 0}


def test_a_frame_given_back_goes_to_another_member_once_its_views_are_gone() -> None:
    with TestStream(12) as stream:
        group = stream.add_group(_core.POLICY_FIFO, 4)
        a, b = stream.join(group), stream.join(group)
        stream.publish(b"frame")
        slot = next_slot(a)
        view = memoryview(slot)
        with pytest.raises(BufferError, match="1 view"):
            slot.give_back()
        assert bytes(view) == b"frame"
        view.release()
        slot.give_back()
        slot.give_back()
        slot.close()
        assert group.control.claims() == [(0, 1, 0, RETURNED)]
        with pytest.raises(BufferError, match="closed"):
            memoryview(slot)
        again = next_slot(b)
        assert (again.seq, bytes(again)) == (1, b"frame")
        assert group.control.stats()["returns"] == 1
        assert a.control.stats()["pinned"] == 0


def test_giving_back_is_closing_for_a_reader_of_its_own(stream: TestStream) -> None:
    reader = stream.attach()
    stream.publish()
    next_slot(reader).give_back()
    assert reader.control.pins() == []
    assert reader.reader.next(0) is None


def test_a_dead_members_frames_go_to_the_others_or_are_done_with() -> None:
    with TestStream(12) as stream:
        group = stream.add_group(_core.POLICY_LOSSLESS)
        a, b = stream.join(group), stream.join(group)
        for _ in range(2):
            stream.publish()
        held = [next_slot(a), next_slot(a)]
        assert group.control.sweep(a.member, True) == 2
        assert group.control.stats()["returned"] == 2
        stream.writer.remove_reader(a.reader_id)
        taken = next_slot(b)
        assert taken.seq == 1
        assert group.control.sweep(b.member, others=False) == 2
        assert group.control.claims() == []
        stream.writer.remove_reader(b.reader_id)
        stream.writer.remove_group(group.group_id)
        assert [slot.seq for slot in held] == [1, 2]


def test_what_cannot_be_admitted_is_refused() -> None:
    with TestStream(12) as stream:
        group = stream.add_group(_core.POLICY_FIFO, 4)
        member = stream.join(group)
        refused: list[tuple[int, Callable[[], object]]] = [
            (errno.EEXIST, lambda: stream.writer.add_group(77, group.control_fd, 1)),
            (errno.EINVAL, lambda: stream.writer.add_group(0, group.control_fd, 1)),
            (errno.EINVAL, lambda: stream.writer.add_group(78, group.control_fd, 2, 0)),
            (errno.EINVAL, lambda: stream.writer.add_group(78, group.control_fd, 3, 4097)),
            (errno.ENOSPC, lambda: stream.writer.add_group(78, group.control_fd, 2, 12)),
            (errno.EBUSY, lambda: stream.writer.remove_group(77)),
            (errno.ENOENT, lambda: stream.writer.remove_group(78)),
            (
                errno.ENOENT,
                lambda: stream.writer.add_reader(9, member.control_fd, member.wake_fd, 1, 1, 0, 78),
            ),
        ]
        for code, call in refused:
            with pytest.raises(OSError, match=f"Errno {code}"):
                call()
        with pytest.raises(ValueError, match="no group"):
            member.reader.recent(1)


def test_the_controls_of_a_group_are_checked_and_closed() -> None:
    with TestStream(12) as stream:
        assert _core.group_control_nbytes(12) == 4096
        for nslots in (1, 4097):
            with pytest.raises(ValueError, match="out of bounds"):
                _core.group_control_nbytes(nslots)
        group = stream.add_group(_core.POLICY_LATEST)
        with pytest.raises(OSError, match="Invalid"):
            _core.GroupControl(group.control_fd, 4000)
        group.control.close()
        group.control.close()
        for call in (group.control.claims, group.control.stats):
            with pytest.raises(ValueError, match="closed"):
                call()
