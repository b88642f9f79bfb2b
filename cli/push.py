"""`mcpd push`: this process becomes a source, which decodes into a stream."""

from __future__ import annotations

import click

from mcpd.cli.launch import exec_module
from mcpd.cli.options import Invocation, json_option, pass_invocation, socket_option


@click.command()
@click.argument("source")
@click.option(
    "--stream", required=True, metavar="NAME", help="Name of the stream that the frames go to."
)
@click.option(
    "--max-speed", is_flag=True, help="As fast as it decodes, not at the pace of the source."
)
@click.option(
    "--loop",
    type=click.IntRange(min=0),
    is_flag=False,
    flag_value=0,
    metavar="[N]",
    help="Play it N times; without N, or with 0, again and again.",
)
@click.option(
    "--format",
    "pixel_format",
    type=click.Choice(["auto", "i420", "nv12", "rgb24", "bgr24"]),
    default="auto",
    show_default=True,
    help="Pixel format in the slots; auto keeps the decoder's, which costs least.",
)
@click.option(
    "--slots",
    type=click.IntRange(4, 4096),
    default=8,
    show_default=True,
    metavar="N",
    help="Slots of the stream: more give slow readers more room.",
)
@click.option(
    "--wait-readers",
    type=click.IntRange(0, 64),
    default=0,
    show_default=True,
    metavar="N",
    help="Begin only when N readers are attached.",
)
@click.option(
    "--progress",
    type=click.Choice(["auto", "bar", "json", "none"]),
    default="auto",
    show_default=True,
    help="auto: a bar on a terminal, JSON lines with --json, else none.",
)
@json_option("Progress as JSON lines on standard output, the summary last.")
@socket_option
@pass_invocation
def command(
    invocation: Invocation,
    source: str,
    stream: str,
    max_speed: bool,
    loop: int | None,
    pixel_format: str,
    slots: int,
    wait_readers: int,
    progress: str,
) -> None:
    """Decode a video or camera into a stream.

    SOURCE is a video file, an image, or a URL (rtsp, http). Frames are decoded and written straight
    into slots of shared memory, at the source's pace; a camera's as they come. The stream lives as
    long as this command runs, and ends with it. A playlist on disk (.m3u8, .ffconcat) is refused:
    it would have other files opened; push those, or the playlist's URL.

    \b
    Examples:
      mcpd push street.mp4 --stream cam0 --loop
      mcpd push rtsp://192.168.1.7/live --stream door
      mcpd push clip.mkv --stream batch --max-speed --wait-readers 1 --json
    """
    arguments = ["--stream", stream, "--format", pixel_format, "--slots", str(slots)]
    arguments += ["--wait-readers", str(wait_readers), "--progress", progress]
    if invocation.socket:
        arguments += ["--socket", invocation.socket]
    if max_speed:
        arguments.append("--max-speed")
    if loop is not None:
        arguments += ["--loop", str(loop)]
    if invocation.json:
        arguments.append("--json")
    exec_module("mcpd.daemon.source", [*arguments, "--", source])
