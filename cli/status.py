"""`mcpd status`: the daemon, its models, streams and workers at a glance."""

from __future__ import annotations

from typing import Any

import click

from mcpd.cli.options import Invocation, common_options, pass_invocation, print_json
from mcpd.cli.render import format_bytes, format_duration, format_size, print_table

Row = dict[str, Any]


@click.command()
@common_options
@pass_invocation
def command(invocation: Invocation) -> None:
    """Show the daemon, its models, streams and workers.

    With --json everything the daemon tells: {daemon, models, streams, workers, sessions}.

    \b
    Example:
      mcpd status --json | jq '.streams[].fps'
    """
    with invocation.connect() as client:
        document = {
            "daemon": client.status()["daemon"],
            **{what: client.list(what) for what in ("models", "streams", "workers", "sessions")},
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
    _print_workers(document["workers"])


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
            click.echo(f"{model['name']}: {model['error']}\n")


def _print_streams(streams: list[Row]) -> None:
    print_table(
        "streams",
        ("name", "size", ">fps", ">frames", ">readers", ">memory", "writer"),
        [
            (
                stream["name"],
                format_size(stream["width"], stream["height"], stream["format"]),
                f"{stream['fps']:.1f}",
                stream["published"],
                stream["readers"],
                format_bytes(stream["memory_bytes"]),
                f"{stream['writer']} {stream['writer_pid']}".strip(),
            )
            for stream in streams
        ],
        empty="none; make one with `mcpd push FILE --stream NAME`",
    )


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


def _per_frame(worker: Row) -> str:
    """Time that the worker is busy with a frame: preparing, the model, decoding."""
    if not worker["frames"]:
        return "-"
    return format_duration(worker["busy_ns"] / worker["frames"] / 1e9)
