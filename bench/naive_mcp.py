"""One 1080p RGB frame to a model's process: as base64 in MCP's JSON, and in a slot.

The base64 way is what the official MCP SDK makes easiest: a stdio server with a tool that takes the
frame as a string, and one that returns it. Ours is a request to the trivial model through mcpd: the
frame is written into a slot, the worker's answer awaited. All ways take turns within one run, and
all end with somebody having read the frame: the mean of its first pixels is checked.

    python -m bench.naive_mcp [--json] [--rounds N]
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bench.harness import at_least, cpu_ns, percentile, private_daemon, report
from mcpd.shm import TensorSpec, connect
from tests.support.models import write_trivial

if TYPE_CHECKING:
    from mcpd.shm.requests import Requests

Picture = NDArray[np.uint8]

HEIGHT, WIDTH = 1080, 1920
WARM_UP = 3


class Way:
    """One way to hand over the frame, with what each call took.

    Args:
        name: Its row in the report.
        call: Hands the frame over once and returns the mean that came back.
        pids: Every process that works for it, this one among them.
    """

    def __init__(
        self, name: str, call: Callable[[], Awaitable[float]], pids: Sequence[int]
    ) -> None:
        self.name = name
        self._call = call
        self._pids = pids
        self._ms: list[float] = []
        self._cpu_ms: list[float] = []

    async def measure(self, expected: float, keep: bool) -> None:
        """One call; RuntimeError if the frame did not arrive."""
        cpu = sum(map(cpu_ns, self._pids))
        began = time.perf_counter_ns()
        mean = await self._call()
        took = time.perf_counter_ns() - began
        cpu = sum(map(cpu_ns, self._pids)) - cpu
        if abs(mean - expected) > 1e-3:
            raise RuntimeError(f"{self.name}: mean {mean} came back, not {expected}")
        if keep:
            self._ms.append(took / 1e6)
            self._cpu_ms.append(cpu / 1e6)

    @property
    def p50_ms(self) -> float:
        """Median time of a call."""
        return percentile(self._ms, 50)

    @property
    def cpu_ms(self) -> float:
        """Mean CPU time of a call, all processes together."""
        return sum(self._cpu_ms) / len(self._cpu_ms)

    def row(self) -> dict[str, float]:
        """The report's columns."""
        return {"p50 ms": self.p50_ms, "p99 ms": percentile(self._ms, 99), "cpu ms": self.cpu_ms}


def serve() -> None:
    """The naive MCP server, on standard input and output."""
    from mcp.server import MCPServer

    server = MCPServer("naive", log_level="ERROR")
    kept = b""

    @server.tool(structured_output=False)
    def pid() -> str:
        return str(os.getpid())

    @server.tool(structured_output=False)
    def take(frame: str, height: int, width: int) -> str:
        nonlocal kept
        kept = base64.b64decode(frame)
        return str(corner_mean(np.frombuffer(kept, np.uint8).reshape(height, width, 3)))

    @server.tool(structured_output=False)
    def give() -> str:
        return base64.b64encode(kept).decode("ascii")

    server.run("stdio")


def corner_mean(frame: Picture) -> float:
    """What the trivial model computes, over all three channels."""
    return float(frame[:4, :4].mean())


async def run(rounds: int, as_json: bool) -> None:
    """Measures all ways in turns and prints the report."""
    from mcp import Client, StdioServerParameters

    frame = np.random.default_rng(7).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)
    parameters = StdioServerParameters(
        command=sys.executable, args=["-m", "bench.naive_mcp", "--serve"], cwd=Path.cwd()
    )
    shape = TensorSpec("uint8", (1, HEIGHT, WIDTH, 3))
    with tempfile.TemporaryDirectory() as folder:
        write_trivial(Path(folder))
        with (
            private_daemon(Path(folder)) as daemon,
            connect(daemon.socket, name="bench") as client,
            client.requests("trivial", tensors={"image": shape}) as requests,
        ):
            workers = [worker["pid"] for worker in client.list("workers")]
            ours = [os.getpid(), daemon.pid, *workers]
            async with Client(parameters) as naive:
                pids = [os.getpid(), int(_text(await naive.call_tool("pid")))]
                ways = [
                    Way("MCP, base64 argument", lambda: _send_base64(naive, frame), pids),
                    Way("MCP, base64 result", lambda: _fetch_base64(naive), pids),
                    Way(
                        "mcpd, frame copied in", lambda: _request(requests, frame, whole=True), ours
                    ),
                    Way(
                        "mcpd, frame in a slot",
                        lambda: _request(requests, frame, whole=False),
                        ours,
                    ),
                ]
                for turn in range(WARM_UP + rounds):
                    for way in ways:
                        await way.measure(corner_mean(frame), turn >= WARM_UP)
    argument, result, copied, there = ways
    ratios = {
        "argument / copied in": _ratios(argument, copied),
        "result / copied in": _ratios(result, copied),
        "argument / in a slot": _ratios(argument, there),
    }
    report(
        "naive_mcp",
        {way.name: way.row() for way in ways} | ratios,
        [
            at_least(
                "base64 argument over mcpd, times", ratios["argument / copied in"]["p50 ms"], 30
            )
        ],
        as_json,
    )


async def _send_base64(naive: Any, frame: Picture) -> float:
    encoded = base64.b64encode(frame.data).decode("ascii")
    arguments = {"frame": encoded, "height": HEIGHT, "width": WIDTH}
    return float(_text(await naive.call_tool("take", arguments)))


async def _fetch_base64(naive: Any) -> float:
    data = base64.b64decode(_text(await naive.call_tool("give")))
    return corner_mean(np.frombuffer(data, np.uint8).reshape(HEIGHT, WIDTH, 3))


async def _request(requests: Requests, frame: Picture, *, whole: bool) -> float:
    """A request with the whole frame copied into the slot, or only the pixels that are checked."""
    slot = requests.acquire(timeout_s=10.0)
    part = np.s_[:] if whole else np.s_[:4, :4]
    slot.tensors["image"][0][part] = frame[part]
    with requests.submit(slot).collect(timeout_s=10.0) as answer:
        answer.raise_for_status()
        return float(answer["mean"].mean())


def _ratios(one: Way, other: Way) -> dict[str, float]:
    return {"p50 ms": one.p50_ms / other.p50_ms, "cpu ms": one.cpu_ms / other.cpu_ms}


def _text(result: Any) -> str:
    if result.is_error:
        raise RuntimeError(f"the naive server failed: {result.content}")
    return str(result.content[0].text)


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--rounds", type=int, default=20, help="calls of each way")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve()
    else:
        asyncio.run(run(options.rounds, options.json))


if __name__ == "__main__":
    main()
