"""`mcpd mcp` beside a plain server on the official MCP SDK: start to first reply, memory, CPU.

The ways take turns within one run. Start is from fork to the whole line of the first reply, and
for `mcpd mcp` includes the command's own start; "python -c pass" is what any console script of
this environment costs. A call is `list_models` with no daemon there, so that all of its time is
the adapter's.

    python -m bench.mcp [--json] [--rounds N] [--calls N]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from bench.harness import at_most, cpu_ns, percentile, private_daemon, report

MIB = 2**20
WARM_UP = 10
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
PARAMS = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "bench", "version": "1"},
}
INITIALIZE = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": PARAMS}
DISCOVER = {"jsonrpc": "2.0", "id": 0, "method": "server/discover", "params": {"_meta": META}}
LIST = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
CALL_PARAMS = {"name": "list_models", "arguments": {}}
CALL = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": CALL_PARAMS}
PLAIN_CODE = """
import anyio
from mcp.server.stdio import stdio_server
from mcpd.mcp_adapter.link import Link
from mcpd.mcp_adapter.server import make_server

async def main():
    async with Link() as link, stdio_server() as (incoming, outgoing):
        server = make_server(link)
        await server.run(incoming, outgoing, server.create_initialization_options())

anyio.run(main)
"""
PLAIN = [sys.executable, "-P", "-c", PLAIN_CODE]
"""The same tools on the SDK's own stdio transport, in one process."""
MCPD = [str(Path(sys.executable).with_name("mcpd")), "mcp"]


class Peer:
    """A server as a host has it: a process and its pipes. A context manager that ends it."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        self._began_ns = time.perf_counter_ns()
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env
        )

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate()

    def ask(self, request: Mapping[str, Any]) -> bytes:
        """The line that answers; RuntimeError for an error."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        line: bytes = self.process.stdout.readline()
        if b'"result"' not in line[:200]:
            raise RuntimeError(f"{request['method']} was answered with {line[:500]!r}")
        return line

    def first_reply_ms(self, request: Mapping[str, Any]) -> float:
        """Time from the process's start to its answer."""
        self.ask(request)
        return (time.perf_counter_ns() - self._began_ns) / 1e6


def starts(rounds: int, env: Mapping[str, str], daemon_env: Mapping[str, str]) -> dict[str, Any]:
    """Start-up of each way, one after the other in each round."""
    ways = {
        "mcpd mcp, daemon down": (MCPD, env, INITIALIZE),
        "mcpd mcp, daemon up": (MCPD, daemon_env, INITIALIZE),
        "mcpd mcp, 2026-07-28": (MCPD, env, DISCOVER),
        "plain SDK server": (PLAIN, env, INITIALIZE),
    }
    first: dict[str, list[float]] = {name: [] for name in ways}
    listed: dict[str, list[float]] = {name: [] for name in ways}
    bare: list[float] = []
    for number in range(rounds + 1):
        for name, (command, settings, opening) in ways.items():
            with Peer(command, settings) as peer:
                first[name].append(peer.first_reply_ms(opening))
                meta = {"params": {"_meta": META}} if opening is DISCOVER else {}
                listed[name].append(peer.first_reply_ms({**LIST, **meta}))
        began_ns = time.perf_counter_ns()
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        bare.append((time.perf_counter_ns() - began_ns) / 1e6)
        if number == 0:  # the shared servers were loading beside what was measured
            for values in (*first.values(), *listed.values(), bare):
                values.clear()
    rows: dict[str, Any] = {
        name: {
            "first reply p50 ms": percentile(first[name], 50),
            "p90 ms": percentile(first[name], 90),
            "tools/list p50 ms": percentile(listed[name], 50),
        }
        for name in ways
    }
    rows["python -c pass"] = {
        "first reply p50 ms": percentile(bare, 50),
        "p90 ms": percentile(bare, 90),
    }
    return rows


def weights(calls: int, env: Mapping[str, str]) -> dict[str, Any]:
    """Resident memory and CPU per call of each process, and the time of a call."""
    rows: dict[str, Any] = {}
    for name, command in (("relay", MCPD), ("plain SDK server", PLAIN)):
        with Peer(command, env) as peer:
            peer.ask(INITIALIZE)
            for _ in range(WARM_UP):
                peer.ask(CALL)
            processes = {name: psutil.Process(peer.process.pid)}
            if command is MCPD:
                (server,) = (
                    each
                    for each in processes[name].children()
                    if "mcpd.mcp_adapter.service" in each.cmdline()
                )
                processes["shared server"] = server
            cpu = {each: cpu_ns(process.pid) for each, process in processes.items()}
            took_ms = []
            for _ in range(calls):
                began_ns = time.perf_counter_ns()
                peer.ask(CALL)
                took_ms.append((time.perf_counter_ns() - began_ns) / 1e6)
            for each, process in processes.items():
                rows[each] = {
                    "resident MiB": process.memory_info().rss / MIB,
                    "cpu ms/call": (cpu_ns(process.pid) - cpu[each]) / 1e6 / calls,
                }
            rows[name]["call p50 ms"] = percentile(took_ms, 50)
    return rows


def run(rounds: int, calls: int, json: bool) -> None:
    """Measures and prints."""
    with tempfile.TemporaryDirectory() as folder, private_daemon() as daemon:
        down = f"{folder}/mcpd.sock"
        env = {**os.environ, "MCPD_SOCKET": down, "MCPD_MCP_IDLE_S": "30"}
        rows = starts(rounds, env, {**env, "MCPD_SOCKET": str(daemon.socket)})
        # Settings of its own, so that its server is its child.
        for name, row in weights(calls, {**env, "MCPD_MCP_ROOTS": folder}).items():
            rows[name] = {**rows.get(name, {}), **row}
        first = "first reply p50 ms"
        plain = rows["plain SDK server"]
        goals = [
            at_most(f"{name}: {first}", rows[name][first], 60)
            for name in rows
            if name.startswith("mcpd mcp")
        ]
        relay = rows["relay"]
        goals += [
            at_most("relay: resident MiB", relay["resident MiB"], 15e6 / MIB),
            at_most(
                "first reply, times the plain server's",
                rows["mcpd mcp, daemon down"][first] / plain[first],
                0.1,
            ),
            at_most(
                "cpu per call of the relay, times the plain server's",
                relay["cpu ms/call"] / plain["cpu ms/call"],
                0.1,
            ),
        ]
    report("mcp", rows, goals, json)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures the start and weight of mcpd mcp.")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calls", type=int, default=500)
    options = parser.parse_args()
    run(options.rounds, options.calls, options.json)


if __name__ == "__main__":
    main()
