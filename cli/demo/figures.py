"""The demo's figures as one document."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mcpd.cli.demo.clip import Clip
from mcpd.cli.demo.comparison import Handover
from mcpd.cli.demo.machine import describe_machine
from mcpd.cli.demo.score import MATCH_IOU, Count, Score
from mcpd.cli.demo.streaming import MODEL, Streamed

RECALL = 0.9
"""Least recall of every class for the demo to count as passed."""


def make_document(
    clip: Clip,
    streamed: Streamed,
    as_json: Handover,
    in_slots: Handover,
    left_over: Sequence[str],
    files: dict[str, str],
) -> dict[str, Any]:
    """Everything measured, ready for JSON. `failures` says in words why `ok` is false."""
    score = Score.of_labels(clip.truth[0])
    # A frame without a result counts as one in which nothing was found.
    for index, truth in enumerate(clip.truth):
        score.add(truth, streamed.detections.get(index, ()))
    frames = len(streamed.detections)
    # The clock runs from the first result to the last, so one interval fewer than frames.
    rate = (frames - 1) / streamed.seconds if streamed.seconds > 0 else 0.0
    failures = [
        f"recall of {label} is {count.recall:.3f}, below {RECALL}"
        for label, count in score.classes.items()
        if count.recall < RECALL
    ]
    if frames != len(clip.truth):
        failures.append(f"{frames} results for {len(clip.truth)} frames")
    failures += [f"left over: {thing}" for thing in left_over]
    return {
        "machine": describe_machine(),
        "clip": {
            "path": str(clip.path),
            "width": clip.width,
            "height": clip.height,
            "fps": clip.fps,
            "frames": len(clip.truth),
            "frame_nbytes": streamed.source["nbytes"] // max(1, streamed.source["frames"]),
            "max_speed": streamed.max_speed,
        },
        "model": MODEL,
        "frames": frames,
        "detections": sum(map(len, streamed.detections.values())),
        "match_iou": MATCH_IOU,
        "classes": {label: _count(count) for label, count in score.classes.items()},
        "all": _count(score.total),
        "other_labels": dict(score.others.most_common()),
        "frames_per_s": rate,
        "held_back_s": streamed.source["blocked_s"],
        "latency_ms": _spread(streamed.latency_ms),
        "handover_ms": _spread(streamed.handover_ms),
        "cpu_ms_per_frame": {name: use.cpu_ms for name, use in streamed.uses.items()},
        "bytes_per_frame": {
            name: {"read_and_written": use.nbytes, "control_socket": use.socket_nbytes}
            for name, use in streamed.uses.items()
        },
        "video_file_bytes_per_frame": streamed.uses["source"].file_nbytes
        if "source" in streamed.uses
        else None,
        "same_frames": {
            "base64_json": _handover(as_json),
            "slot": _handover(in_slots),
            "ratio": {
                "ms": as_json.ms_p50 / in_slots.ms_p50,
                "cpu": as_json.cpu_ms / in_slots.cpu_ms,
                "bytes": as_json.nbytes / in_slots.nbytes,
            },
        },
        "left_over": list(left_over),
        "files": files,
        "ok": not failures,
        "failures": failures,
    }


def percentile(values: Sequence[float], q: float) -> float:
    """Nearest rank: the smallest value that at least `q` per cent do not exceed."""
    return sorted(values)[max(1, math.ceil(len(values) * q / 100)) - 1]


def _count(count: Count) -> dict[str, float]:
    return {
        "truths": count.truths,
        "detections": count.detections,
        "right": count.right,
        "recall": count.recall,
        "precision": count.precision,
    }


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"p50": percentile(values, 50), "p99": percentile(values, 99), "max": max(values)}


def _handover(handover: Handover) -> dict[str, float]:
    return {
        "frames": handover.frames,
        "ms_p50": handover.ms_p50,
        "cpu_ms": handover.cpu_ms,
        "sender_cpu_ms": handover.sender_cpu_ms,
        "receiver_cpu_ms": handover.receiver_cpu_ms,
        "bytes": handover.nbytes,
    }
