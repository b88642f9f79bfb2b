"""The demo's figures: one document, and the table a person reads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mcpd.cli.demo.clip import Clip
from mcpd.cli.demo.comparison import Handover
from mcpd.cli.demo.machine import describe_machine
from mcpd.cli.demo.score import MATCH_IOU, Count, Score
from mcpd.cli.demo.streaming import MODEL, Streamed

if TYPE_CHECKING:
    from rich.table import Table

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
    for truth, detections in zip(clip.truth, streamed.detections, strict=False):
        score.add(truth, detections)
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
        },
        "model": MODEL,
        "frames": frames,
        "detections": sum(map(len, streamed.detections)),
        "match_iou": MATCH_IOU,
        "classes": {label: _count(count) for label, count in score.classes.items()},
        "all": _count(score.total),
        "other_labels": dict(score.others.most_common()),
        "frames_per_s": rate,
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


def make_table(document: dict[str, Any]) -> Table:
    """The document as a table of names and values."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _rows(document):
        table.add_row(name, value)
    return table


def percentile(values: Sequence[float], q: float) -> float:
    """Nearest rank: the smallest value that at least `q` per cent do not exceed."""
    return sorted(values)[max(1, math.ceil(len(values) * q / 100)) - 1]


def _rows(document: dict[str, Any]) -> list[tuple[str, str]]:
    clip, machine = document["clip"], document["machine"]
    latency, handover = document["latency_ms"], document["handover_ms"]
    same, ratio = document["same_frames"], document["same_frames"]["ratio"]
    piped = {name: sum(use.values()) for name, use in document["bytes_per_frame"].items()}
    rows = [
        ("machine", f"{machine['cpu']}, {machine['cores']} cores, {machine['python']}"),
        ("clip", f"{clip['width']}x{clip['height']}, {clip['fps']} fps, {clip['frames']} frames"),
        ("frames", f"{document['frames']} through {document['model']}"),
        ("detections", f"{document['detections']}"),
    ]
    for label, count in (*document["classes"].items(), ("all three", document["all"])):
        rows.append(
            (
                f"  {label}",
                f"recall {count['recall']:.3f}  precision {count['precision']:.3f}"
                f"  ({count['right']} of {count['truths']}, IoU at least {document['match_iou']})",
            )
        )
    others = ", ".join(f"{label} {n}" for label, n in document["other_labels"].items())
    if others:
        rows.append(("  no true rectangle", others))
    rows += [
        ("frames/s", f"{document['frames_per_s']:.1f}"),
        ("publish to result", f"p50 {latency['p50']:.1f} ms  p99 {latency['p99']:.1f} ms"),
        ("publish to worker", f"p50 {handover['p50']:.2f} ms  p99 {handover['p99']:.2f} ms"),
        ("CPU per frame", _each(document["cpu_ms_per_frame"], "{:.2f} ms")),
        ("pipes and sockets, per frame", _each(piped, "{:.0f} B")),
    ]
    if document["video_file_bytes_per_frame"] is not None:
        read = document["video_file_bytes_per_frame"]
        rows.append(("", f"besides, source read {read:,.0f} B per frame of the video file"))
    for way, name in (("base64_json", "base64 in JSON"), ("slot", "a slot")):
        one = same[way]
        rows.append(
            (
                f"one RGB frame in {name}",
                f"{one['ms_p50']:.2f} ms  {one['cpu_ms']:.2f} ms CPU  {one['bytes']:,.0f} B piped",
            )
        )
    rows += [
        ("", f"{ratio['ms']:.0f} x the time, {ratio['cpu']:.0f} x the CPU"),
        ("left over", ", ".join(document["left_over"]) or "nothing"),
    ]
    return rows


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


def _each(values: dict[str, float], form: str) -> str:
    return "  ".join(f"{name} {form.format(value)}" for name, value in values.items())
