"""The benchmark of many readers counts what it says, and a missed goal is called missed."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.readers import CPU_LIMIT, SETTLE, STALL_LIMIT, _calls_between_marks, goals_of, measure


def test_every_figure_is_measured() -> None:
    taken = measure(readers=3, rounds=1, frames=SETTLE + 5)
    assert taken.pop("awake signals") == [0.0]
    taken.pop("awake calls", None)  # where strace may attach
    assert set(taken) == {
        *("bare cpu us", "asleep cpu us", "asleep wake us", "stalled cpu us", "stalled wake us"),
    }
    assert all(value > 0 for (value,) in taken.values())


def test_system_calls_between_the_marks_are_counted(tmp_path: Path) -> None:
    log = tmp_path / "strace"
    log.write_text("read(3, ...) = 1\ngetppid() = 1\nwrite(4) = 8\nfutex() = 0\ngetppid() = 1\n")
    assert _calls_between_marks(log) == 2
    log.write_text("getppid() = 1\nwrite(4) = 8\n")
    with pytest.raises(ValueError, match="not enough values"):
        _calls_between_marks(log)


def verdicts(**changed: list[float]) -> list[bool]:
    taken = {
        "bare cpu us": [10.0],
        "asleep cpu us": [10.0 * CPU_LIMIT],
        "asleep wake us": [10.0],
        "stalled wake us": [10.0 * STALL_LIMIT],
        "awake signals": [0.0],
        "awake calls": [0.0],
    }
    return [goal["ok"] for goal in goals_of({**taken, **changed}, 64)]


def test_goal_that_was_missed_is_called_missed() -> None:
    assert verdicts() == [True, True, True, True]
    assert verdicts(**{"asleep cpu us": [10.1 * CPU_LIMIT]}) == [False, True, True, True]
    assert verdicts(**{"awake signals": [0.1]}) == [True, False, True, True]
    assert verdicts(**{"awake calls": [0.1]}) == [True, True, False, True]
    assert verdicts(**{"awake calls": []}) == [True, True, False, True]
    assert verdicts(**{"stalled wake us": [10.1 * STALL_LIMIT]}) == [True, True, True, False]
