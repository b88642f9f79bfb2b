"""The decoder of detectors that give boxes and, for each box, a score for each class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcpd.daemon.decoders import Transform
from mcpd.daemon.models.model_toml import DecodeConfig
from mcpd.shm.errors import ModelFailed

Floats = NDArray[np.float32]
Integers = NDArray[np.int32]

MAX_CANDIDATES = 10_000
"""Pairs of a box and a class that suppression looks at, the best ones: its time grows with them."""

_CORNERS = {"yxyx_unit": (1, 0, 3, 2), "xyxy_unit": (0, 1, 2, 3), "xyxy": (0, 1, 2, 3)}
"""Columns of x0, y0, x1, y1 in each format that holds corners."""


class DetectionDecoder:
    """Score threshold, non-maximum suppression, boxes to source pixels.

    Every pair of a box and a class over the threshold is a candidate, so one box may give several
    detections; of more than MAX_CANDIDATES the best are taken. Results, best score first: `boxes`
    float32 [n, 4], x0, y0, x1, y1 in source pixels and inside the source; `scores` float32 [n];
    `labels` int32 [n], the class index.

    Args:
        config: Which outputs hold boxes and scores, and the limits.
        input_size: Width and height of the model's image input, which boxes are relative to; None
            when the model takes the source itself.
    """

    def __init__(self, config: DecodeConfig, input_size: tuple[int, int] | None) -> None:
        self._config = config
        self._input_size = input_size
        most = config.max_detections
        self.max_nbytes = sum(-(-most * nbytes // 64) * 64 for nbytes in (16, 4, 4))

    def decode(
        self,
        outputs: Mapping[str, NDArray[Any]],
        transform: Transform,
        source_size: tuple[int, int],
    ) -> dict[str, NDArray[Any]]:
        boxes, scores = self._read(outputs)
        config = self._config
        rows, labels = np.nonzero(np.isfinite(scores) & (scores >= config.score_threshold))
        if len(rows) > MAX_CANDIDATES:
            best = np.argpartition(-scores[rows, labels], MAX_CANDIDATES)[:MAX_CANDIDATES]
            best.sort()
            rows, labels = rows[best], labels[best]
        corners = self._corners(boxes[rows], source_size)
        sound = np.isfinite(corners).all(axis=1)
        corners, labels, values = corners[sound], labels[sound], scores[rows, labels][sound]
        classes = np.zeros_like(labels) if config.class_agnostic else labels
        kept = suppress(corners, values, classes, config.nms_iou, config.max_detections)
        placed = place(corners[kept], transform, source_size)
        visible = (placed[:, 2] > placed[:, 0]) & (placed[:, 3] > placed[:, 1])
        return {
            "boxes": placed[visible],
            "scores": values[kept][visible].astype(np.float32),
            "labels": labels[kept][visible].astype(np.int32),
        }

    def _read(self, outputs: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Boxes [n, 4] and scores [n, classes] without the batch dimension."""
        boxes, scores = outputs[self._config.boxes], outputs[self._config.scores]
        if boxes.ndim == 3 and boxes.shape[0] == 1:
            boxes = boxes[0]
        if scores.ndim == 3 and scores.shape[0] == 1:
            scores = scores[0]
        elif scores.ndim == 2 and scores.shape == (1, len(boxes)) and len(boxes) != 1:
            scores = scores[0, :, None]
        if boxes.ndim != 2 or boxes.shape[1] != 4 or scores.ndim != 2 or len(scores) != len(boxes):
            raise ModelFailed(
                f"outputs {self._config.boxes!r} {list(outputs[self._config.boxes].shape)} and "
                f"{self._config.scores!r} {list(outputs[self._config.scores].shape)} are not "
                "[1, n, 4] boxes and [1, n, classes] scores",
                'Set decode.kind = "tensors" in model.toml to get the outputs as they are',
            )
        return boxes, scores

    def _corners(self, boxes: NDArray[Any], source_size: tuple[int, int]) -> Floats:
        """x0, y0, x1, y1 in model-input pixels."""
        width, height = self._input_size or source_size
        form = self._config.box_format
        corners = np.empty((len(boxes), 4), np.float32)
        if form == "cxcywh":
            corners[:, :2] = boxes[:, :2] - boxes[:, 2:] / 2
            corners[:, 2:] = boxes[:, :2] + boxes[:, 2:] / 2
            return corners
        corners[:] = boxes[:, _CORNERS[form]]
        if form.endswith("_unit"):
            corners *= np.array([width, height, width, height], np.float32)
        return corners


def suppress(
    boxes: Floats,
    scores: NDArray[Any],
    classes: NDArray[Any],
    iou: float,
    most: int,
) -> NDArray[np.intp]:
    """Greedy non-maximum suppression within each class.

    Args:
        boxes: [n, 4] x0, y0, x1, y1.
        scores: [n].
        classes: [n]; boxes of different classes never suppress each other.
        iou: A box is dropped when its intersection over union with a better one is above this.
        most: How many boxes to keep.

    Returns:
        Indices of the boxes kept, best score first; of equal scores the first box is better.
    """
    order = np.argsort(-scores, kind="stable")
    sizes = np.maximum(boxes[:, 2:] - boxes[:, :2], 0)
    areas = sizes[:, 0] * sizes[:, 1]
    kept: list[int] = []
    while len(order) and len(kept) < most:
        best, order = order[0], order[1:]
        kept.append(int(best))
        low = np.maximum(boxes[best, :2], boxes[order, :2])
        high = np.minimum(boxes[best, 2:], boxes[order, 2:])
        shared = np.maximum(high - low, 0).prod(axis=1)
        union = areas[best] + areas[order] - shared
        order = order[(classes[order] != classes[best]) | (shared <= iou * union)]
    return np.array(kept, np.intp)


def place(boxes: Floats, transform: Transform, source_size: tuple[int, int]) -> Floats:
    """Boxes in model-input pixels as boxes in source pixels, clipped to the source."""
    ax, bx, ay, by = transform
    scale = np.array([ax, ay, ax, ay], np.float32)
    shift = np.array([bx, by, bx, by], np.float32)
    limits = np.array([*source_size, *source_size], np.float32)
    placed: Floats = np.clip(boxes * scale + shift, 0, limits)
    return placed
