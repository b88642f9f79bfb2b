"""The tool `run_inference`: what a model finds in the newest frame of a stream, or in a file."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

from mcpd.mcp_adapter import file_inference
from mcpd.mcp_adapter.link import Link
from mcpd.mcp_adapter.manifest import MAX_VALUES, TIME_LIMIT_S
from mcpd.mcp_adapter.reply import Reply, answer
from mcpd.mcp_adapter.roots import resolve_allowed
from mcpd.shm.aio import AsyncClient
from mcpd.shm.errors import InvalidRequest, TimedOut, from_wire
from mcpd.shm.frame import NO_TIME
from mcpd.shm.result import Result

DETECTION_OUTPUTS: Final = {"boxes", "scores", "labels"}

Row = dict[str, Any]


async def call(link: Link, arguments: dict[str, Any]) -> Reply:
    """Runs the model once and answers with what it found, best first."""
    model: str = arguments["model"]
    stream: str | None = arguments.get("stream")
    path: str | None = arguments.get("path")
    if stream is not None and path is None:
        outcome = await _on_stream(link, model, stream)
    elif path is not None and stream is None:
        outcome = await _on_file(model, path)
    else:
        raise InvalidRequest(
            "run_inference needs exactly one of stream and path, and has "
            + ("neither" if stream is None else "both"),
            "Give stream for what is in view now, or path for a file",
        )
    found = select(outcome.pop("detections"), arguments["min_score"], arguments["max_results"])
    return answer(found | {"model": model} | outcome, rows="detections")


def select(detections: Iterable[Row], min_score: float, max_results: int) -> Row:
    """Counts of the detections that reach `min_score`, and the best `max_results` of them.

    Scores are rounded to 3 decimals and corners to a tenth of a pixel, which is beyond what any
    detector can tell.
    """
    kept = sorted(
        (each for each in detections if each["score"] >= min_score),
        key=lambda each: -each["score"],
    )
    counts = Counter(each["label"] for each in kept)
    found: Row = {"counts": dict(counts.most_common()), "count": len(kept)}
    found["detections"] = [
        {
            "label": each["label"],
            "score": round(each["score"], 3),
            "box": [round(edge, 1) for edge in each["box"]],
        }
        for each in kept[:max_results]
    ]
    omitted = len(kept) - len(found["detections"])
    if omitted:
        found["omitted"] = omitted
        found["note"] = f"{omitted} detections beyond max_results={max_results} were left out."
    return found


def output(
    name: str, dtype: str, shape: Sequence[int], values: Iterable[float | int | None]
) -> Row:
    """One output tensor as the tool's answer has it; what JSON cannot say becomes null."""
    shown = [_readable(value) for value in values]
    return {"name": name, "dtype": dtype, "shape": list(shape), "values": shown[:MAX_VALUES]}


async def _on_stream(link: Link, model: str, stream: str) -> Row:
    async def run(client: AsyncClient) -> Row:
        outcome = await _run_once(client, model, stream)
        return {"stream": stream} | outcome | await _size(client, stream)

    async with link.turn(stream):
        return await link.ask(run)


async def _run_once(client: AsyncClient, model: str, stream: str) -> Row:
    try:
        # A little less than the whole: the answer shall say what took so long.
        result = await client.run_once(stream, model=model, timeout_s=TIME_LIMIT_S - 2)
    except TimedOut as error:
        raise TimedOut(
            error.message,
            "See with list_models whether the model is ready, and with list_streams whether the "
            "stream has new frames",
        ) from error
    with result:
        result.raise_for_status()
        return _outcome(result)


def _outcome(result: Result) -> Row:
    outcome: Row = {
        "detections": [found.to_dict() for found in result.detections],
        "version": result.version,
        "frame": result.source_seq,
        "frame_age_s": round((time.monotonic_ns() - result.source_publish_ns) / 1e9, 3),
        "model_ms": round((result.finish_ns - result.awake_ns) / 1e6, 2),
    }
    if result.pts_ns != NO_TIME:
        outcome["time_s"] = round(result.pts_ns / 1e9, 3)
    tensors = result.to_dict()["tensors"]
    if not tensors.keys() >= DETECTION_OUTPUTS:
        outcome["outputs"] = [
            output(name, each["dtype"], each["shape"], _values(result, name, each["dtype"]))
            for name, each in tensors.items()
        ]
    return outcome


def _values(result: Result, name: str, dtype: str) -> list[float | int]:
    return [] if dtype.startswith("complex") else result.first(name, MAX_VALUES)


async def _on_file(model: str, path: str) -> Row:
    file = resolve_allowed(path)
    document = await file_inference.run(model, file)
    first = document["results"][0]
    if "error" in first:
        raise from_wire(first["error"]["code"], f"model {model!r}: {first['error']['message']}")
    outcome: Row = {
        "path": str(file),
        "detections": first.get("detections", []),
        **{name: document[name] for name in ("version", "width", "height")},
    }
    if first["pts_s"] is not None:
        outcome["time_s"] = round(first["pts_s"], 3)
    if "tensors" in first:
        outcome["outputs"] = [
            output(name, each["dtype"], each["shape"], each["first"])
            for name, each in first["tensors"].items()
        ]
    return outcome


async def _size(client: AsyncClient, stream: str) -> Row:
    for row in await client.list("streams"):
        if row["name"] == stream and row["width"]:
            return {"width": row["width"], "height": row["height"]}
    return {}


def _readable(value: float | int | None) -> float | int | None:
    if value is None:  # `mcpd infer` has replaced what JSON cannot say
        return None
    if isinstance(value, int):
        return int(value)
    # Six digits are all that a float32 holds for sure.
    return float(f"{value:.6g}") if math.isfinite(value) else None
