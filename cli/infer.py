"""`mcpd infer`: runs a model on a picture, or on frames of a video, decoded straight into slots."""

from __future__ import annotations

import itertools
import os
import statistics
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from mcpd.cli.options import FiniteRange, Invocation, common_options, pass_invocation, print_json
from mcpd.cli.render import format_duration, print_table
from mcpd.cli.results import (
    is_detections,
    outcome_document,
    outcome_text,
    pts_seconds,
    pts_text,
    select,
)
from mcpd.shm.errors import InvalidRequest

if TYPE_CHECKING:
    from mcpd.shm.client import Client
    from mcpd.shm.picture import Picture
    from mcpd.shm.requests import Pending, Requests
    from mcpd.shm.result import Result
    from mcpd.shm.video import Video

IN_FLIGHT = 4
"""Frames that wait for the model while the next one is decoded."""


MAX_FRAMES = 1_000_000
MAX_TIMEOUT_S = 3600.0


@click.command()
@click.argument("model")
@click.argument("file", type=click.Path(dir_okay=False))
@click.option(
    "--frames",
    type=click.IntRange(1, MAX_FRAMES),
    default=1,
    show_default=True,
    metavar="N",
    help="Of a video, how many frames.",
)
@click.option(
    "--time",
    "from_s",
    type=FiniteRange(min=0),
    default=0.0,
    metavar="SECONDS",
    help="Of a video, where to begin.",
)
@click.option(
    "--min-score",
    type=FiniteRange(0, 1),
    default=0.0,
    metavar="S",
    help="Only detections with at least this score.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=FiniteRange(0, MAX_TIMEOUT_S, min_open=True),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="For loading the model, and for each result.",
)
@common_options
@pass_invocation
def command(
    invocation: Invocation,
    model: str,
    file: str,
    frames: int,
    from_s: float,
    min_score: float,
    timeout_s: float,
) -> None:
    """Run a model on an image or video file.

    Frames are decoded straight into the model's input slots. Boxes are x0 y0 x1 y1 in pixels of the
    file. Exit status 1 if the model failed on a frame.

    \b
    Examples:
      mcpd infer ssdlite-coco photo.jpg
      mcpd infer ssdlite-coco street.mp4 --time 12.5 --frames 25 --json
    """
    from mcpd.shm.interruption import end_if_stuck
    from mcpd.shm.video import open_video

    # A path and never an address, whatever it looks like.
    with (
        end_if_stuck(),
        invocation.connect() as client,
        open_video(os.path.abspath(file)) as video,
    ):
        video.skip_to(from_s)
        pictures = itertools.islice(video, frames)
        with _open_requests(client, model, video, timeout_s) as requests:
            results = list(_run(requests, pictures, timeout_s))
            version = requests.version
    if not results:
        raise InvalidRequest(
            f"{file} has no frame at {from_s:g} s or later", "Choose an earlier --time."
        )
    selected = [(result, select(result.detections, min_score)) for result in results]
    if invocation.json:
        print_json(
            {
                "file": file,
                "model": model,
                "version": version,
                "width": video.width,
                "height": video.height,
                "results": [
                    {
                        "pts_s": pts_seconds(result.pts_ns),
                        "latency_ms": round(result.latency_ns / 1e6, 3),
                        **outcome_document(result, found),
                    }
                    for result, found in selected
                ],
                "latency_ms": round(_median_latency_ns(results) / 1e6, 3),
            }
        )
    elif len(results) == 1 and is_detections(results[0]):
        latency = format_duration(results[0].latency_ns / 1e9)
        print_table(
            f"{file}, {video.width}x{video.height}, {model} version {version}, {latency}",
            ("label", ">score", ">x0", ">y0", ">x1", ">y1"),
            [
                (found.label, f"{found.score:.2f}", *(f"{edge:.1f}" for edge in found[:4]))
                for found in selected[0][1]
            ],
            empty="nothing found",
        )
    else:
        for result, found in selected:
            click.echo(
                f"{pts_text(result.pts_ns)}  {format_duration(result.latency_ns / 1e9)}  "
                f"{outcome_text(result, found)}"
            )
    if not all(result.ok for result in results):
        raise click.exceptions.Exit(1)


def _open_requests(client: Client, model: str, video: Video, timeout_s: float) -> Requests:
    """Inputs in the decoder's own format for a model that takes images, else as rgb24 arrays."""
    rows = [row for row in client.list("models") if row["name"] == model]
    kinds = {tensor.get("kind") for row in rows for tensor in row["inputs"].values()}
    return client.requests(
        model,
        width=video.width,
        height=video.height,
        format="rgb24" if "tensor" in kinds else video.format,
        matrix=video.matrix,
        range=video.range,
        slots=IN_FLIGHT,
        timeout_s=timeout_s,
    )


def _run(requests: Requests, pictures: Iterator[Picture], timeout_s: float) -> Iterator[Result]:
    """Results in the pictures' order; the next picture is decoded while the model runs."""
    in_flight: deque[Pending] = deque()
    for picture in pictures:
        if len(in_flight) == IN_FLIGHT:
            yield in_flight.popleft().collect(timeout_s)
        with requests.acquire(timeout_s) as slot:
            picture.write(slot)
            if picture.pts_ns is not None:
                slot.pts_ns = picture.pts_ns
            in_flight.append(requests.submit(slot))
    while in_flight:
        yield in_flight.popleft().collect(timeout_s)


def _median_latency_ns(results: list[Result]) -> float:
    return statistics.median(result.latency_ns for result in results)
