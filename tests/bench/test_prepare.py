"""The preparation benchmark measures every way there is, and a missed goal is called missed."""

from __future__ import annotations

import json

import pytest

from bench.prepare import BEST_GOAL, CASES, YUV_GOAL, Case, goals_of, main, moved_nbytes
from tests.support.prepare import isas


def test_every_case_is_measured_by_each_instruction_set(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--json", "--rounds", "5"])
    document = json.loads(capsys.readouterr().out)
    assert list(document["figures"]) == [case.name for case in CASES]
    for row in document["figures"].values():
        assert all(row[f"{isa} ms"] > 0 for isa in isas())
        assert row["bandwidth share"] > 0


def test_bytes_moved_are_the_rows_that_count_and_the_image() -> None:
    image = 3 * 640 * 640 * 4
    assert moved_nbytes(Case("rgb24", 640, "float32")) == 360 * 5760 + image
    assert moved_nbytes(Case("nv12", 640, "float32")) == 360 * 1920 + 540 * 1920 + image
    kept = Case("rgb24", 640, "float16", kept=True, batch=8)
    assert moved_nbytes(kept) == 8 * (360 * 5760 + image // 2 * 360 // 640)
    area = Case("i420", 640, "float32", area=True)
    assert moved_nbytes(area) == 1920 * 1080 * 3 // 2 + image


def test_goal_that_was_missed_is_called_missed() -> None:
    case = Case("i420", 640, "float32")

    def verdicts(whole: float, planes: float) -> list[bool]:
        times = {"avx2": [1.0] * 3, "opencv whole": [whole] * 3, "opencv planes": [planes] * 3}
        return [goal["ok"] for goal in goals_of({case: times})]

    assert verdicts(YUV_GOAL, BEST_GOAL) == [True, True]
    assert verdicts(YUV_GOAL - 0.1, BEST_GOAL) == [False, True]
    assert verdicts(YUV_GOAL, BEST_GOAL - 0.1) == [True, False]


def test_without_opencv_there_is_no_goal() -> None:
    assert goals_of({Case("i420", 640, "float32"): {"avx2": [1.0], "scalar": [2.0]}}) == []


def test_the_best_chain_is_the_fastest() -> None:
    times = {
        "avx2": [1.0] * 3, "scalar": [0.5] * 3, "opencv whole": [8.0] * 3,
        "opencv planes": [3.0] * 3, "opencv thirds": [2.5] * 3,
    }  # fmt: skip
    goals = goals_of({Case("nv12", 640, "float32"): times})
    assert [goal["value"] for goal in goals] == [8.0, 2.5]
    assert "opencv thirds" in goals[1]["name"]
