"""The benchmark of many streams counts its frames, and a missed goal is called missed."""

from __future__ import annotations

from bench.streams import FLAT_LIMIT, Round, goals_of, measure


def test_every_frame_of_every_stream_is_read_or_counted_as_dropped() -> None:
    taken = measure([1, 6], rounds=2, frames=4)
    assert list(taken) == [1, 6]
    for count, rounds in taken.items():
        assert len(rounds) == 2
        for each in rounds:
            assert 0 <= each.dropped < count * 4
            assert each.cpu_us > 0
            assert 0 < each.p50_us <= each.p99_us


def taken(dropped: int, cpu_us: float) -> dict[int, list[Round]]:
    return {
        1: [Round(0, 0, 10.0, 1.0, 1.0, 1.0)] * 3,
        256: [Round(dropped, 0, cpu_us, 1.0, 1.0, 1.0)] * 3,
    }


def test_goal_that_was_missed_is_called_missed() -> None:
    assert [goal["ok"] for goal in goals_of(taken(0, 10.0 * FLAT_LIMIT))] == [True, True]
    assert [goal["ok"] for goal in goals_of(taken(1, 10.0))] == [False, True]
    assert [goal["ok"] for goal in goals_of(taken(0, 10.1 * FLAT_LIMIT))] == [True, False]
