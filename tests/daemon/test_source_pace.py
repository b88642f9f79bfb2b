"""Time stamps that always rise, and due times without drift."""

from __future__ import annotations

from mcpd.daemon.source.pace import GAP_LIMIT_NS, LATE_LIMIT_NS, Pace, Timeline

FRAME = 40_000_000


def stamps(*given: int | None) -> list[int]:
    timeline = Timeline(FRAME)
    return [timeline.stamp(pts) for pts in given]


def test_plausible_time_stamps_are_kept() -> None:
    assert stamps(7, 7 + FRAME, 7 + 3 * FRAME) == [7, 7 + FRAME, 7 + 3 * FRAME]


def test_missing_time_stamps_are_one_frame_apart() -> None:
    assert stamps(None, None, None) == [0, FRAME, 2 * FRAME]
    assert stamps(100, None, 100 + 2 * FRAME) == [100, 100 + FRAME, 100 + 2 * FRAME]


def test_clock_that_jumps_back_goes_on_one_frame_later() -> None:
    far = 10 * GAP_LIMIT_NS
    assert stamps(far, 0, FRAME) == [far, far + FRAME, far + 2 * FRAME]


def test_clock_that_jumps_far_ahead_goes_on_one_frame_later() -> None:
    far = 10 * GAP_LIMIT_NS
    assert stamps(0, far, far + FRAME) == [0, FRAME, 2 * FRAME]


def test_stamp_out_of_order_by_less_than_a_frame_shifts_nothing() -> None:
    assert stamps(0, FRAME, FRAME, 2 * FRAME) == [0, FRAME, FRAME + 1, 2 * FRAME]


def test_loops_follow_each_other_by_one_frame() -> None:
    timeline = Timeline(FRAME)
    first = [timeline.stamp(pts) for pts in (500, 500 + FRAME)]
    timeline.restart()
    second = [timeline.stamp(pts) for pts in (500, 500 + FRAME)]
    assert first + second == [500, 500 + FRAME, 500 + 2 * FRAME, 500 + 3 * FRAME]


def test_loop_that_begins_without_a_time_stamp_follows_too() -> None:
    timeline = Timeline(FRAME)
    timeline.stamp(0)
    timeline.restart()
    assert [timeline.stamp(None), timeline.stamp(FRAME)] == [FRAME, 2 * FRAME]


def test_due_times_come_from_one_anchor_and_do_not_drift() -> None:
    pace = Pace()
    start = 1_000_000_000_000
    due = [pace.due_ns(n * FRAME, start + n * FRAME + n % 7 * 1_000_000) for n in range(10_000)]
    assert due == [start + n * FRAME for n in range(10_000)]


def test_first_frame_is_due_at_once_whatever_its_time_stamp() -> None:
    assert Pace().due_ns(123 * FRAME, 55) == 55


def test_source_that_is_a_little_late_catches_up() -> None:
    pace = Pace()
    pace.due_ns(0, 0)
    assert pace.due_ns(FRAME, FRAME + LATE_LIMIT_NS) == FRAME


def test_source_that_is_very_late_starts_anew_from_there() -> None:
    pace = Pace()
    pace.due_ns(0, 0)
    late = FRAME + LATE_LIMIT_NS + 1
    assert pace.due_ns(FRAME, late) == late
    assert pace.due_ns(2 * FRAME, late) == late + FRAME
