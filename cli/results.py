"""A model's result as a line of text or a JSON document; for `infer` and `watch`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mcpd.cli.render import format_clock
from mcpd.shm.frame import NO_TIME

if TYPE_CHECKING:
    from mcpd.shm.result import Detection, Result

_DETECTION_TENSORS = {"boxes", "scores", "labels"}
FIRST_VALUES = 8
"""Values of a tensor that its summary shows."""


def is_detections(result: Result) -> bool:
    """Whether the model's decoder made boxes, scores and labels of its outputs."""
    return set(result.to_dict()["tensors"]) >= _DETECTION_TENSORS


def select(
    detections: Sequence[Detection], min_score: float = 0.0, labels: Collection[str] = ()
) -> list[Detection]:
    """The detections with at least `min_score` and, if any are given, one of `labels`."""
    return [
        found
        for found in detections
        if found.score >= min_score and (not labels or found.label in labels)
    ]


def outcome_document(result: Result, detections: Sequence[Detection]) -> dict[str, Any]:
    """What the model said: {"detections": [...]}, {"tensors": {...}} or {"error": {...}}.

    A box is [x0, y0, x1, y1] in pixels of the source.
    """
    if result.status != "ok":
        return {"error": {"code": result.status, "message": result.error}}
    if is_detections(result):
        return {
            "detections": [
                {
                    "label": found.label,
                    "score": round(found.score, 4),
                    "box": [round(edge, 2) for edge in found[:4]],
                }
                for found in detections
            ]
        }
    return {"tensors": summarise_tensors(result)}


def outcome_text(result: Result, detections: Sequence[Detection]) -> str:
    """The same in words: "2 person, 1 cat | person 0.93 [10 20 300 400] ..."."""
    if result.status != "ok":
        return f"{result.status}: {result.error}"
    if not is_detections(result):
        return "; ".join(
            f"{name} {tensor['dtype']}{tensor['shape']} {_values_text(tensor)}"
            for name, tensor in summarise_tensors(result).items()
        )
    if not detections:
        return "nothing"
    counts = Counter(found.label for found in detections)
    boxes = " ".join(
        f"{found.label} {found.score:.2f} [{' '.join(f'{edge:.0f}' for edge in found[:4])}]"
        for found in detections
    )
    return ", ".join(f"{count} {label}" for label, count in counts.items()) + " | " + boxes


def summarise_tensors(result: Result) -> dict[str, dict[str, Any]]:
    """Of each tensor its dtype, shape and first values, in C order; made without numpy."""
    tensors: dict[str, dict[str, Any]] = result.to_dict()["tensors"]
    return {
        name: {**tensor, "first": result.first(name, FIRST_VALUES)}
        for name, tensor in tensors.items()
    }


def pts_seconds(pts_ns: int) -> float | None:
    """A frame's time stamp in seconds, None if its writer gave none."""
    return None if pts_ns == NO_TIME else round(pts_ns / 1e9, 6)


def pts_text(pts_ns: int) -> str:
    """A frame's time stamp as a clock, "-" if its writer gave none."""
    return "-" if pts_ns == NO_TIME else format_clock(pts_ns / 1e9)


def _values_text(tensor: Mapping[str, Any]) -> str:
    shown = " ".join(f"{value:.4g}" for value in tensor["first"])
    total = 1
    for length in tensor["shape"]:
        total *= length
    return f"[{shown}{' ...' if total > len(tensor['first']) else ''}]"
