"""Decoders against results worked out by hand and a naive non-maximum suppression."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mcpd.daemon.decoders import IDENTITY, make_decoder
from mcpd.daemon.decoders.detect import DetectionDecoder, suppress
from mcpd.daemon.decoders.tensors import TensorDecoder
from mcpd.daemon.models.model_toml import DecodeConfig, InputConfig, RunConfig
from mcpd.daemon.models.repository import ModelConfig
from mcpd.shm.errors import ModelFailed


def decode(
    boxes: Any,
    scores: Any,
    *,
    transform: tuple[float, float, float, float] = IDENTITY,
    source: tuple[int, int] = (100, 100),
    input_size: tuple[int, int] | None = (100, 100),
    **changes: Any,
) -> dict[str, NDArray[Any]]:
    """Decodes one image's boxes and scores."""
    settings: dict[str, Any] = {"box_format": "xyxy", "score_threshold": 0.5, "nms_iou": 0.5}
    config = DecodeConfig("detections", boxes="b", scores="s", **(settings | changes))
    outputs = {"b": np.array(boxes, np.float32), "s": np.array(scores, np.float32)}
    return DetectionDecoder(config, input_size).decode(outputs, transform, source)


def test_candidates_over_the_threshold_come_best_first() -> None:
    result = decode(
        [[[0, 0, 10, 10], [20, 20, 40, 40], [50, 50, 60, 60]]],
        [[[0.1, 0.6], [0.9, 0.2], [0.4, 0.3]]],
    )
    assert result["boxes"].tolist() == [[20, 20, 40, 40], [0, 0, 10, 10]]
    assert result["scores"].tolist() == pytest.approx([0.9, 0.6])
    assert result["labels"].tolist() == [0, 1]


def test_results_have_the_types_of_the_wire_even_when_there_are_none() -> None:
    for scores in ([[[0.9]]], [[[0.1]]]):
        result = decode([[[0, 0, 10, 10]]], scores)
        count = len(result["scores"])
        assert result["boxes"].shape == (count, 4)
        types = {name: array.dtype.name for name, array in result.items()}
        assert types == {"boxes": "float32", "scores": "float32", "labels": "int32"}
        assert all(array.flags.c_contiguous for array in result.values())


def test_overlapping_boxes_of_one_class_leave_the_best() -> None:
    boxes = [[[0, 0, 10, 10], [1, 0, 11, 10], [0, 6, 10, 16]]]
    result = decode(boxes, [[[0.7], [0.9], [0.8]]])
    assert result["boxes"].tolist() == [[1, 0, 11, 10], [0, 6, 10, 16]]


def test_overlapping_boxes_of_two_classes_both_stay_unless_class_agnostic() -> None:
    boxes, scores = [[[0, 0, 10, 10], [0, 0, 10, 10]]], [[[0.9, 0], [0, 0.8]]]
    assert decode(boxes, scores)["labels"].tolist() == [0, 1]
    assert decode(boxes, scores, class_agnostic=True)["labels"].tolist() == [0]


def test_one_box_may_be_two_classes() -> None:
    result = decode([[[0, 0, 10, 10]]], [[[0.6, 0.9]]])
    assert result["labels"].tolist() == [1, 0]


def test_no_more_than_the_most_detections_are_given() -> None:
    boxes = [[[10 * i, 0, 10 * i + 5, 5] for i in range(8)]]
    result = decode(boxes, [[[0.5 + i / 100] for i in range(8)]], max_detections=3)
    assert result["boxes"][:, 0].tolist() == [70, 60, 50]


@pytest.mark.parametrize(
    ("form", "box"),
    [
        ("xyxy", [10, 20, 50, 60]),
        ("xyxy_unit", [0.05, 0.2, 0.25, 0.6]),
        ("yxyx_unit", [0.2, 0.05, 0.6, 0.25]),
        ("cxcywh", [30, 40, 40, 40]),
    ],
)
def test_each_box_format_is_read(form: str, box: list[float]) -> None:
    result = decode([[box]], [[[0.9]]], box_format=form, input_size=(200, 100), source=(200, 100))
    assert result["boxes"][0].tolist() == pytest.approx([10, 20, 50, 60])


def test_boxes_are_mapped_to_the_source_and_clipped_to_it() -> None:
    # A 400x200 source in the middle 100x50 of a 100x100 input.
    transform = (4.0, 0.0, 4.0, -100.0)
    result = decode(
        [[[10, 30, 20, 50], [-5, 20, 50, 40], [0, 0, 100, 20]]],
        [[[0.9], [0.8], [0.7]]],
        transform=transform,
        source=(400, 200),
    )
    assert result["boxes"].tolist() == [[40, 20, 80, 100], [0, 0, 200, 60]]
    assert result["scores"].tolist() == pytest.approx([0.9, 0.8])  # the third is all padding


def test_boxes_in_units_of_the_source_need_no_input_size() -> None:
    result = decode(
        [[[0, 0, 0.5, 1]]], [[[1]]], box_format="xyxy_unit", input_size=None, source=(640, 480)
    )
    assert result["boxes"].tolist() == [[0, 0, 320, 480]]


def test_boxes_and_scores_that_are_no_numbers_are_left_out() -> None:
    sound = [[0, 0, 10, 10], [40, 40, 50, 50], [20, 20, 30, 30]]
    boxes = [[[0, 0, np.nan, 10], [0, 0, 5, np.inf], *sound]]
    result = decode(boxes, [[[0.9], [0.8], [np.nan], [np.inf], [0.7]]])
    assert result["boxes"].tolist() == [[20, 20, 30, 30]]


def test_of_very_many_candidates_the_best_are_looked_at() -> None:
    count = 300_000
    corners = np.arange(count)[:, None] * 2 + np.array([0, 0, 1, 1])
    scores = np.random.default_rng(3).permutation(count) / count
    result = decode(
        corners[None],
        scores[None, :, None],
        score_threshold=0.0,
        max_detections=1000,
        source=(2 * count, 2 * count),
    )
    best = np.argsort(-scores)[:1000]
    assert result["boxes"][:, 0].tolist() == (best * 2).tolist()


def test_outputs_without_a_batch_or_class_dimension_are_read() -> None:
    boxes = [[0, 0, 10, 10], [20, 20, 30, 30]]
    assert len(decode(boxes, [[0.9], [0.8]])["scores"]) == 2
    assert len(decode([boxes], [[0.9, 0.8]])["scores"]) == 2


@pytest.mark.parametrize(
    ("boxes", "scores"),
    [
        (np.zeros((1, 3, 4)), np.zeros((1, 2, 5))),
        (np.zeros((1, 3, 5)), np.zeros((1, 3, 5))),
        (np.zeros((2, 3, 4)), np.zeros((2, 3, 5))),
        (np.zeros(4), np.zeros(1)),
    ],
)
def test_outputs_of_another_shape_are_a_clear_error(boxes: Any, scores: Any) -> None:
    with pytest.raises(ModelFailed, match=r"are not \[1, n, 4\] boxes"):
        decode(boxes, scores)


def test_a_result_is_never_larger_than_the_decoder_says() -> None:
    config = DecodeConfig("detections", "b", "xyxy", "s", 0.0, max_detections=7)
    decoder = DetectionDecoder(config, (100, 100))
    boxes = np.array([[[10 * i, 0, 10 * i + 5, 5] for i in range(9)]], np.float32)
    outputs = {"b": boxes, "s": np.ones((1, 9, 2), np.float32)}
    result = decoder.decode(outputs, IDENTITY, (100, 100))
    assert len(result["scores"]) == 7
    assert sum(-(-array.nbytes // 64) * 64 for array in result.values()) <= decoder.max_nbytes


def naive_suppress(boxes: Any, scores: Any, classes: Any, iou: float, most: int) -> list[int]:
    """Non-maximum suppression as it is told in words, box by box in Python's floats."""
    kept: list[int] = []
    for index in sorted(range(len(boxes)), key=lambda i: (-scores[i], i)):
        if len(kept) == most:
            break
        if all(
            classes[index] != classes[better] or overlap(boxes[index], boxes[better]) <= iou
            for better in kept
        ):
            kept.append(index)
    return kept


def overlap(a: Any, b: Any) -> float:
    """Intersection over union."""
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    shared = max(width, 0) * max(height, 0)
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (a, b)]
    return float(shared / (sum(areas) - shared)) if shared else 0.0


@pytest.mark.parametrize("seed", range(20))
def test_suppression_agrees_with_the_naive_one(seed: int) -> None:
    generator = np.random.default_rng(seed)
    count = int(generator.integers(0, 200))
    # Whole numbers and limits that are powers of two: both ways of computing are exact.
    low = generator.integers(0, 60, (count, 2))
    boxes = np.hstack([low, low + generator.integers(1, 30, (count, 2))]).astype(np.float32)
    scores = generator.integers(0, 50, count).astype(np.float32)
    classes = generator.integers(0, 3, count)
    for iou, most in ((0.25, 1000), (0.5, 10), (0.0, 1000), (1.0, 1000)):
        got = suppress(boxes, scores, classes, iou, most).tolist()
        assert got == naive_suppress(boxes, scores, classes, iou, most)


def test_the_naive_suppression_sees_a_wrong_limit() -> None:
    boxes = np.array([[0, 0, 10, 10], [4, 0, 14, 10]], np.float32)
    scores, classes = np.array([2, 1], np.float32), np.array([0, 0])
    assert suppress(boxes, scores, classes, 0.5, 10).tolist() == [0, 1]
    assert naive_suppress(boxes, scores, classes, 0.4, 10) == [0]


def test_tensors_pass_under_their_names_without_a_copy() -> None:
    outputs = {"a": np.ones((2, 3)), "b": np.ones((2, 3)).T}
    result = TensorDecoder().decode(outputs, IDENTITY, (1, 1))
    assert result["a"] is outputs["a"]
    assert result["b"].flags.c_contiguous
    assert np.array_equal(result["b"], outputs["b"])


def test_the_configuration_chooses_the_decoder(tmp_path: Any) -> None:
    image = InputConfig("x", width=8, height=4)
    for decoder, kind in ((TensorDecoder, "tensors"), (DetectionDecoder, "detections")):
        config = ModelConfig("m", tmp_path, "onnx", (1,), (image,), DecodeConfig(kind), RunConfig())
        assert isinstance(make_decoder(config), decoder)
