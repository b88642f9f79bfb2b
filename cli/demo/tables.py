"""The demo's figures as the tables a person reads."""

from __future__ import annotations

from typing import Any

from mcpd.cli.render import print_table

_PACE_S = 0.5
"""A source that was held back for less kept its pace: single frames may always wait a little."""


def print_tables(document: dict[str, Any]) -> None:
    """Prints to standard output what `make_document` made."""
    print_table("mcpd demo", ("figure", "value"), _summary(document))
    counts = {**document["classes"], "all": document["all"]}
    print_table(
        f"Detections against true rectangles, IoU at least {document['match_iou']}",
        ("class", ">rectangles", ">found", ">recall", ">detections", ">precision"),
        [
            (
                label,
                count["truths"],
                count["right"],
                f"{count['recall']:.3f}",
                count["detections"],
                f"{count['precision']:.3f}",
            )
            for label, count in counts.items()
        ],
    )
    nbytes, cpu = document["bytes_per_frame"], document["cpu_ms_per_frame"]
    print_table(
        f"Each process, per frame of {document['clip']['frame_nbytes']:,} bytes",
        ("process", ">CPU ms", ">bytes read and written", ">bytes through the control socket"),
        [
            (
                part,
                f"{cpu[part]:.3f}",
                f"{use['read_and_written']:.0f}",
                f"{use['control_socket']:.0f}",
            )
            for part, use in nbytes.items()
        ],
    )
    same = document["same_frames"]
    rows = [
        (name, f"{way['ms_p50']:.2f}", f"{way['cpu_ms']:.2f}", f"{way['bytes']:,.0f}")
        for name, way in (
            ("base64 in JSON", same["base64_json"]),
            ("a slot of a stream", same["slot"]),
        )
    ]
    ratio = same["ratio"]
    rows.append(("ratio", f"{ratio['ms']:.0f}", f"{ratio['cpu']:.0f}", f"{ratio['bytes']:,.0f}"))
    print_table(
        f"One RGB frame to another process and its answer, {same['base64_json']['frames']} frames",
        ("way", ">p50 ms", ">CPU ms, both", ">bytes through pipes"),
        rows,
    )


def _summary(document: dict[str, Any]) -> list[tuple[str, str]]:
    clip, machine = document["clip"], document["machine"]
    latency, handover = document["latency_ms"], document["handover_ms"]
    held_back = document["held_back_s"]
    pace = "as fast as it decodes" if clip["max_speed"] else f"{clip['fps']} a second"
    if held_back > _PACE_S:
        pace += f", held back to {document['frames_per_s']:.1f} by the detector"
    others = ", ".join(f"{label} {n}" for label, n in document["other_labels"].items())
    video = document["video_file_bytes_per_frame"]
    return [
        ("machine", f"{machine['cpu']}, {machine['cores']} cores, {machine['python']}"),
        ("clip", f"{clip['width']}x{clip['height']}, {clip['frames']} frames, published {pace}"),
        ("model", document["model"]),
        ("frames", f"{document['frames']}, every one through the detector"),
        (
            "detections",
            f"{document['detections']}; of things without true rectangle: {others or 0}",
        ),
        ("frames/s", f"{document['frames_per_s']:.1f}"),
        ("publish to result", f"p50 {latency['p50']:.1f} ms, p99 {latency['p99']:.1f} ms"),
        ("publish to worker", f"p50 {handover['p50']:.2f} ms, p99 {handover['p99']:.2f} ms"),
        (
            "video file",
            "" if video is None else f"{video:,.0f} bytes per frame, read by the source",
        ),
        ("left over", ", ".join(document["left_over"]) or "nothing"),
        *((name, path) for name, path in document["files"].items()),
    ]
