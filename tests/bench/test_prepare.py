"""The preparation benchmark measures every way there is, and a missed goal is called missed."""

from __future__ import annotations

import json

import pytest

from bench.prepare import CASES, PLANES_GOAL, YUV_GOAL, Case, goals_of, main, moved_nbytes
from tests.support.prepare import isas


def test_every_case_is_measured_by_each_instruction_set(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--json", "--rounds", "1"])
    document = json.loads(capsys.readouterr().out)
    assert list(document["figures"]) == [case.name for case in CASES]
    for row in document["figures"].values():
        assert all(row[f"{isa} ms"] > 0 for isa in isas())
        assert row["bandwidth share"] > 0


def test_bytes_moved_are_the_rows_that_count_and_the_image() -> None:
    image = 3 * 640 * 640 * 4
    assert moved_nbytes(Case("rgb24", 640, "float32")) == 360 * 5760 + image
    assert moved_nbytes(Case("nv12", 640, "float32")) == 360 * 1920 + 540 * 1920 + image


def test_goal_that_was_missed_is_called_missed() -> None:
    case = Case("i420", 640, "float32")

    def verdicts(whole: float, planes: float) -> list[bool]:
        times = {"avx2": [1.0] * 3, "opencv": [whole] * 3, "opencv planes": [planes] * 3}
        return [goal["ok"] for goal in goals_of({case: times})]

    assert verdicts(YUV_GOAL, PLANES_GOAL) == [True, True]
    assert verdicts(YUV_GOAL - 0.1, PLANES_GOAL) == [False, True]
    assert verdicts(YUV_GOAL, PLANES_GOAL - 0.1) == [True, False]


def test_without_opencv_there_is_no_goal() -> None:
    assert goals_of({Case("i420", 640, "float32"): {"avx2": [1.0], "scalar": [2.0]}}) == []
