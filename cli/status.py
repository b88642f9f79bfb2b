"""`mcpd status`: the daemon, its models, streams and workers at a glance."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import click

from mcpd.cli.options import Invocation, common_options, pass_invocation, print_json
from mcpd.cli.render import format_bytes, format_duration, format_size, print_table

Row = dict[str, Any]

POLICIES = ("latest", "fifo", "lossless")
TABLES = ("models", "streams", "readers", "workers", "sessions", "limits")
THINGS = ("memory", "streams", "readers", "fds", "sessions", "requests")


@click.command()
@common_options
@pass_invocation
def command(invocation: Invocation) -> None:
    """Show the daemon, its models, streams, readers and workers.

    Of each stream: the age of its newest frame; how many readers it has of each policy, how many
    frames behind the slowest is, what they missed (fifo drops, latest skips), how many frames they
    hold; how long its writer waits by now, and for whom. Of all together and of each user: what
    they use of what they may (`mcpd start --help` lists the limits). With --json everything the
    daemon tells: {daemon, models, streams, readers, workers, sessions, limits}.

    \b
    Example:
      mcpd status --json | jq '.streams[].fps'
    """
    with invocation.connect() as client:
        document = {
            "daemon": client.status()["daemon"],
            **{what: client.list(what) for what in TABLES},
        }
    if invocation.json:
        print_json(document)
        return
    daemon = document["daemon"]
    click.echo(
        f"mcpd {daemon['version']}, pid {daemon['pid']}, up {format_duration(daemon['uptime_s'])}\n"
        f"socket {daemon['socket']}\n"
        f"{daemon['sessions']} sessions, {format_bytes(daemon['memory_bytes'])} in streams, "
        f"{format_bytes(daemon['rss_bytes'])} resident, {daemon['cpu_s']:.2f} s of CPU\n"
    )
    print_models(document["models"])
    _print_streams(document["streams"])
    _print_readers(document["streams"], document["readers"])
    _print_workers(document["workers"])
    _print_limits(document["limits"])


def print_models(models: list[Row]) -> None:
    """The table of models; a fault is told below it, whole."""
    print_table(
        "models",
        ("name", ">version", "state", "engine", "on", ">classes", ">load"),
        [
            (
                model["name"],
                model["version"] or "-",
                model["state"],
                model["engine"] or "-",
                model["provider"] or "-",
                model["labels"] or "-",
                format_duration(model["load_s"]) if model["load_s"] else "-",
            )
            for model in models
        ],
        empty="none; fetch one with `mcpd models fetch ssdlite-coco`",
    )
    for model in models:
        if model["error"]:
            click.echo(f"{model['name']}: {model['error']}")
            click.echo(f"{model['next_step']}\n" if model.get("next_step") else "")


def _print_streams(streams: list[Row]) -> None:
    print_table(
        "streams",
        ("name", "size", ">fps", ">frames", ">age", ">memory", "writer"),
        [
            (
                stream["name"],
                format_size(stream["width"], stream["height"], stream["format"]),
                f"{stream['fps']:.1f}",
                stream["published"],
                _since(stream["publish_ns"]),
                format_bytes(stream["memory_bytes"]),
                f"{stream['writer']} {stream['writer_pid']}".strip(),
            )
            for stream in streams
        ],
        empty="none; make one with `mcpd push FILE --stream NAME`",
    )


def _print_readers(streams: list[Row], readers: list[Row]) -> None:
    """How each stream is read, and below it for whom a writer waits."""
    lines: list[tuple[object, ...]] = []
    waits: list[str] = []
    for stream in streams:
        mine = [
            reader
            for reader in readers
            if (reader["stream"], reader["state"]) == (stream["id"], "live")
        ]
        if not mine:
            continue
        # One that is between two generations has a row in each.
        mix = Counter(r["policy"] for r in mine if r["generation"] == stream["generation"])
        lines.append(
            (
                stream["name"],
                *(mix[policy] or "-" for policy in POLICIES),
                max(reader["lag"] for reader in mine),
                sum(reader["dropped"] for reader in mine),
                sum(reader["skipped"] for reader in mine),
                sum(reader["pinned"] for reader in mine),
                _since(stream["blocked_since_ns"]),
            )
        )
        if stream["blocked_since_ns"]:
            waits += _stalled(stream, mine)
    if not lines:
        return
    heads = [f">{policy}" for policy in POLICIES]
    print_table(
        "readers",
        ("stream", *heads, ">lag", ">dropped", ">skipped", ">held", ">waits"),
        lines,
    )
    for line in waits:
        click.echo(line)
    if waits:
        click.echo()


def _stalled(stream: Row, readers: list[Row]) -> list[str]:
    """Who of the lossless readers is behind, the slowest first."""
    behind = [r for r in readers if r["policy"] == "lossless" and (r["lag"] or r["pinned"])]
    behind.sort(key=lambda reader: -int(reader["lag"]))
    return [
        f"{stream['name']}: its writer waits for pid {reader['pid']} ({reader['client'] or '-'}), "
        f"lossless, {reader['lag']} frames behind{_fate(reader)}"
        for reader in behind[:3]
    ]


def _fate(reader: Row) -> str:
    """When it is evicted, if it goes on as it does."""
    if not reader["stall_limit_s"] or not reader["stalled_s"]:
        return ""
    left_s = max(0.0, reader["stall_limit_s"] - reader["stalled_s"])
    return f"; evicted in {format_duration(left_s)}"


def _since(moment_ns: int) -> str:
    """How long ago a CLOCK_MONOTONIC time was, "-" for none."""
    if not moment_ns:
        return "-"
    return format_duration(max(0, time.monotonic_ns() - moment_ns) / 1e9)


def _print_workers(workers: list[Row]) -> None:
    print_table(
        "workers",
        ("model", ">pid", "state", ">frames", ">errors", ">per frame", ">resident", ">restarts"),
        [
            (
                worker["model"],
                worker["pid"],
                worker["state"],
                worker["frames"],
                worker["errors"],
                _per_frame(worker),
                format_bytes(worker["rss_bytes"]),
                worker["restarts"],
            )
            for worker in workers
        ],
    )


def _print_limits(rows: list[Row]) -> None:
    print_table(
        "limits",
        ("whose", *(f">{thing}" for thing in THINGS)),
        [
            (
                "all" if row["scope"] == "all" else f"user {row['id']}",
                *(
                    _of_allowed(thing, row["used"][thing], row["allowed"][thing])
                    for thing in THINGS
                ),
            )
            for row in rows
        ],
    )


def _of_allowed(thing: str, used: int, allowed: int) -> str:
    texts = [format_bytes(n) if thing == "memory" else str(n) for n in (used, allowed)]
    return "/".join(texts) if allowed else texts[0]


def _per_frame(worker: Row) -> str:
    """Time that the worker is busy with a frame: preparing, the model, decoding."""
    if not worker["frames"]:
        return "-"
    return format_duration(worker["busy_ns"] / worker["frames"] / 1e9)
