"""Recall and precision against rectangles whose answers are plain."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from mcpd.cli.demo.score import Count, Score, intersection_over_union


@dataclass
class Box:
    x0: float
    y0: float
    x1: float
    y1: float
    score: float = 0.9
    label: str = "cat"


TRUTH = {"cat": (0.0, 0.0, 100.0, 100.0)}


def scored(*detections: Box, truth: dict[str, tuple[float, float, float, float]] = TRUTH) -> Score:
    score = Score.of_labels(["cat", "cup"])
    score.add(truth, detections)
    return score


def test_iou_of_a_box_with_itself_is_one() -> None:
    assert intersection_over_union((1, 2, 5, 9), (1, 2, 5, 9)) == 1.0


def test_iou_of_half_a_box_is_one_half() -> None:
    assert intersection_over_union((0, 0, 10, 10), (0, 0, 10, 5)) == pytest.approx(0.5)


def test_boxes_that_only_touch_do_not_overlap() -> None:
    assert intersection_over_union((0, 0, 10, 10), (10, 0, 20, 10)) == 0.0


def test_a_box_in_place_is_right() -> None:
    cat = scored(Box(1, 1, 99, 99)).classes["cat"]
    assert (cat.recall, cat.precision) == (1.0, 1.0)


def test_a_box_elsewhere_lowers_recall_and_precision() -> None:
    cat = scored(Box(60, 60, 160, 160)).classes["cat"]
    assert (cat.recall, cat.precision) == (0.0, 0.0)


def test_a_missing_detection_lowers_recall_alone() -> None:
    cat = scored().classes["cat"]
    assert (cat.recall, cat.precision) == (0.0, 1.0)


def test_a_second_box_on_the_same_object_is_wrong() -> None:
    cat = scored(Box(0, 0, 100, 100), Box(1, 1, 99, 99, 0.5)).classes["cat"]
    assert (cat.recall, cat.precision) == (1.0, 0.5)


def test_the_surest_box_takes_the_rectangle() -> None:
    """The surest misses: the other one then still finds the object, and one of the two is wrong."""
    cat = scored(Box(0, 0, 100, 95, 0.4), Box(50, 50, 200, 200, 0.9)).classes["cat"]
    assert (cat.right, cat.detections) == (1, 2)


def test_a_label_in_the_right_place_of_another_class_is_wrong() -> None:
    score = scored(Box(0, 0, 100, 100, label="cup"))
    assert score.classes["cat"].recall == 0.0
    assert score.classes["cup"].precision == 0.0


def test_labels_without_rectangles_are_counted_apart() -> None:
    score = scored(Box(0, 0, 100, 100), Box(0, 0, 100, 100, label="dining table"))
    assert score.total.precision == 1.0
    assert score.others == {"dining table": 1}


def test_the_total_is_the_sum_of_the_classes() -> None:
    score = scored(Box(0, 0, 100, 100))
    score.add({"cup": (0, 0, 10, 10)}, [])
    assert score.total == Count(truths=2, detections=1, right=1)
