"""The tool `get_status`: whether all is well, and if not, what to do."""

from __future__ import annotations

import time
from typing import Any, Final

from mcpd.mcp_adapter.link import Link
from mcpd.mcp_adapter.reply import Reply, answer, clipped
from mcpd.mcp_adapter.tools.list_streams import SHOWN_KINDS, age_s
from mcpd.shm.aio import AsyncClient

STILL_S: Final = 5.0
"""A stream without a new frame for longer is reported."""

Row = dict[str, Any]


async def call(link: Link, arguments: dict[str, Any]) -> Reply:
    """Sums up the daemon, and lists what is wrong with models and streams."""
    status, models, streams = await link.ask(_gather)
    daemon = status["daemon"]
    problems = [*_model_problems(models), *_stream_problems(streams)]
    return answer(
        {
            "summary": _summary(status, len(problems)),
            "problems": problems,
            "version": daemon["version"],
            "pid": daemon["pid"],
            "socket": daemon["socket"],
            "uptime_s": round(daemon["uptime_s"], 1),
            "cpu_s": round(daemon["cpu_s"], 2),
            "rss_mib": round(daemon["rss_bytes"] / 2**20, 1),
            "shared_mib": round(daemon["memory_bytes"] / 2**20, 1),
            "sessions": daemon["sessions"],
            "streams": status["streams"],
            "models": status["models"],
            "workers": status["workers"],
        },
        rows="problems",
    )


async def _gather(client: AsyncClient) -> tuple[Row, list[Row], list[Row]]:
    return await client.status(), await client.list("models"), await client.list("streams")


def _summary(status: Row, problems: int) -> str:
    well = "with no problem" if not problems else f"with {problems} problem(s), listed below"
    return (
        f"mcpd is running {well}: {status['streams']} streams, {status['models_ready']} of "
        f"{status['models']} models loaded, {status['daemon']['sessions']} connected programs."
    )


def _model_problems(models: list[Row]) -> list[Row]:
    steps = {
        "broken": "Have the user correct the model's folder and run `mcpd models load`.",
        "parked": "It failed too often. Have the user correct it and run `mcpd models load`.",
        "failed": "It is tried again by itself; the daemon's log has the whole error.",
    }
    return [
        {
            "about": f"model {row['name']}",
            "problem": f"{row['state']}: {clipped(row['error'])}",
            "next_step": steps[row["state"]],
        }
        for row in sorted(models, key=lambda row: str(row["state"]))
        if row["state"] in steps
    ]


def _stream_problems(streams: list[Row]) -> list[Row]:
    now_ns = time.monotonic_ns()
    problems = []
    for row in streams:
        if row["kind"] not in SHOWN_KINDS or row["state"] != "live":
            continue
        age = age_s(row, now_ns)
        # A stream of a few frames may be meant so; its writer says what it is.
        writer = f"process {row['writer_pid']}" + (f" ({row['writer']})" if row["writer"] else "")
        if age is None or age > STILL_S:
            problem = "has had no frame yet" if age is None else f"no new frame for {age:.0f} s"
            step = f"Ask the user whether its writer, {writer}, is meant to be still."
            problems.append(
                {"about": f"stream {row['name']}", "problem": problem, "next_step": step}
            )
    return problems
