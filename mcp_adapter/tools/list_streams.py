"""The tool `list_streams`: what is being streamed now."""

from __future__ import annotations

import time
from typing import Any

from mcpd.mcp_adapter.link import Link
from mcpd.mcp_adapter.reply import Reply, answer

SHOWN_KINDS = ("frames", "tensors")
"""Results are what models make of streams, and requests are private: models run on neither."""


async def call(link: Link, arguments: dict[str, Any]) -> Reply:
    """Lists the live streams that a model can run on."""
    rows = await link.ask(lambda client: client.list("streams"))
    now_ns = time.monotonic_ns()
    streams = [
        _stream(row, now_ns)
        for row in sorted(rows, key=lambda row: str(row["name"]))
        if row["kind"] in SHOWN_KINDS and row["state"] == "live"
    ]
    return answer({"count": len(streams), "streams": streams}, rows="streams")


def age_s(row: dict[str, Any], now_ns: int) -> float | None:
    """Seconds since the newest frame of a row of the daemon's table; None if there is none."""
    if not row["head"]:
        return None
    published_ns: int = row["publish_ns"]
    return round(max(0, now_ns - published_ns) / 1e9, 3)


def _stream(row: dict[str, Any], now_ns: int) -> dict[str, Any]:
    stream = {"name": row["name"], "kind": row["kind"]}
    if row["format"]:
        stream |= {"format": row["format"], "width": row["width"], "height": row["height"]}
    stream |= {"frames": row["published"], "fps": round(row["fps"], 1)}
    age = age_s(row, now_ns)
    if age is not None:
        stream["newest_age_s"] = age
    memory_mib = round(row["memory_bytes"] / 2**20, 1)
    return stream | {"readers": row["readers"], "memory_mib": memory_mib}
