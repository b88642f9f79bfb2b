"""`mcpd watch`: a stream's frames, or what a model sees in them, as they come."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Literal

import click

from mcpd.cli.options import (
    FiniteRange,
    Invocation,
    json_option,
    pass_invocation,
    print_json,
    socket_option,
)
from mcpd.cli.render import format_bytes, format_duration, format_size
from mcpd.cli.results import (
    outcome_document,
    outcome_text,
    pts_seconds,
    pts_text,
    select,
)

if TYPE_CHECKING:
    from mcpd.shm.client import Client

Policy = Literal["latest", "lossless"]


@click.command()
@click.argument("stream")
@click.option("--model", metavar="NAME", help="Model to run on the frames.")
@click.option(
    "--frames",
    type=click.Choice(["latest", "lossless"]),
    default="latest",
    show_default=True,
    help="latest skips what comes too fast; lossless takes every frame and holds the writer back.",
)
@click.option(
    "--limit", type=click.IntRange(min=1), metavar="N", help="End after N frames or results."
)
@click.option(
    "--min-score",
    type=FiniteRange(0, 1),
    default=0.0,
    metavar="S",
    help="Only detections with at least this score.",
)
@click.option(
    "--label", "labels", multiple=True, metavar="L", help="Only detections of L; may be repeated."
)
@json_option("One JSON document per line and frame.")
@socket_option
@pass_invocation
def command(
    invocation: Invocation,
    stream: str,
    model: str | None,
    frames: Policy,
    limit: int | None,
    min_score: float,
    labels: tuple[str, ...],
) -> None:
    """Print a stream's frames, or a model's results on them.

    With --model a line has the frame's time and number, the time from its publishing to the
    result's, and the detections with boxes x0 y0 x1 y1 in source pixels. Without, the header of the
    frame. Ends with the stream.

    \b
    Examples:
      mcpd watch cam0 --model ssdlite-coco --label person --min-score 0.6
      mcpd watch cam0 --limit 100 --json
    """
    if not model and (labels or min_score):
        raise click.UsageError("--label and --min-score need --model: frames have no detections")
    with invocation.connect() as client:
        if model:
            _watch_results(invocation, client, stream, model, frames, limit, min_score, labels)
        else:
            _watch_frames(invocation, client, stream, frames, limit)


def _watch_results(
    invocation: Invocation,
    client: Client,
    stream: str,
    model: str,
    frames: Policy,
    limit: int | None,
    min_score: float,
    labels: tuple[str, ...],
) -> None:
    with client.results(stream, model=model, frames=frames) as results:
        for count, result in enumerate(results, start=1):
            with result:
                found = select(result.detections, min_score, labels)
                if invocation.json:
                    print_json(
                        {
                            "stream": stream,
                            "model": result.model,
                            "version": result.version,
                            "seq": result.source_seq,
                            "pts_s": pts_seconds(result.pts_ns),
                            "latency_ms": round(result.latency_ns / 1e6, 3),
                            **outcome_document(result, found),
                        }
                    )
                else:
                    click.echo(
                        f"{pts_text(result.pts_ns)}  #{result.source_seq}  "
                        f"{format_duration(result.latency_ns / 1e9)}  {outcome_text(result, found)}"
                    )
            if count == limit:
                return


def _watch_frames(
    invocation: Invocation, client: Client, stream: str, policy: Policy, limit: int | None
) -> None:
    with client.open_stream(stream, policy=policy) as reader:
        for count, frame in enumerate(reader, start=1):
            with frame:
                age_s = (time.monotonic_ns() - frame.publish_ns) / 1e9
                described = frame.description
                if invocation.json:
                    print_json(
                        {
                            "stream": stream,
                            "seq": frame.seq,
                            "pts_s": pts_seconds(frame.pts_ns),
                            "width": described.width,
                            "height": described.height,
                            "format": described.format,
                            "nbytes": frame.nbytes,
                            "age_ms": round(age_s * 1e3, 3),
                        }
                    )
                else:
                    size = format_size(described.width, described.height, described.format)
                    click.echo(
                        f"{pts_text(frame.pts_ns)}  #{frame.seq}  {size}  "
                        f"{format_bytes(frame.nbytes)}  {format_duration(age_s)} old"
                    )
            if count == limit:
                return
