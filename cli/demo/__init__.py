"""`mcpd demo`: a frame's whole way, shown and measured on a clip with true rectangles."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from mcpd.cli.options import Invocation, json_option, pass_invocation, print_json


@click.command()
@click.option(
    "--seconds",
    type=click.IntRange(1, 60),
    default=12,
    show_default=True,
    metavar="N",
    help="Length of the clip, at 30 frames a second.",
)
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("mcpd-demo"),
    show_default=True,
    metavar="DIR",
    help="Folder for the annotated video, the still and the figures.",
)
@click.option(
    "--max-speed", is_flag=True, help="As fast as the detector takes them, not at the clip's pace."
)
@json_option("Print the figures as one JSON document; progress goes to standard error.")
@pass_invocation
def command(invocation: Invocation, seconds: int, output: Path, max_speed: bool) -> None:
    """Show the whole path on a sample video, with numbers.

    Fetches the default detector and makes a clip, if they are not there yet; starts a daemon of its
    own; streams the clip into shared memory; runs the detector on every frame; then compares the
    detections with the clip's true rectangles, and shared memory with base64 in JSON. A daemon that
    already runs is not touched. It fails (exit status 1) when a class has a recall below 0.9, or
    when anything is left over.

    \b
    Examples:
      mcpd demo
      mcpd demo --seconds 3 --max-speed --json
    """
    from mcpd.cli.demo.run import Options, run_demo
    from mcpd.cli.demo.screen import Screen
    from mcpd.cli.demo.tables import print_tables
    from mcpd.shm.paths import default_models

    options = Options(default_models(), _cache(), output.absolute(), seconds, max_speed)
    document = run_demo(options, Screen(sys.stderr))
    if invocation.json:
        print_json(document)
    else:
        print_tables(document)
    for failure in document["failures"]:
        click.echo(f"failed: {failure}", err=True)
    if not document["ok"]:
        raise click.exceptions.Exit(1)


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "mcpd"
