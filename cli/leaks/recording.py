"""`mcpd leaks record`: notes who makes what in /dev/shm, for later runs of `mcpd leaks`."""

from __future__ import annotations

from pathlib import Path

import click

from mcpd.cli.options import Invocation, json_option, pass_invocation, print_json


@click.command("record")
@json_option("Say as one JSON document what is recorded where.")
@click.option(
    "--file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Where to write.  [default: /var/lib/mcpd/creators.jsonl as root, else below "
    "$XDG_STATE_HOME]",
)
@click.option(
    "--how",
    type=click.Choice(["fanotify", "inotify"]),
    help="How to be told.  [default: fanotify as root, else inotify]",
)
@pass_invocation
def record(invocation: Invocation, file: Path | None, how: str | None) -> None:
    """Note who makes what in /dev/shm, until it is ended.

    Most names do not tell who made them. With this running, `mcpd leaks` knows whether the maker of
    what is left is dead. As root the kernel names each maker; without, this finds those of your own
    processes that keep a file open for a moment. The record is bounded and outlives this process.

    \b
    Example:
      sudo mcpd leaks record &
    """
    from mcpd.shm.leaks.record import default_file
    from mcpd.shm.leaks.recorder import Recorder

    with Recorder(file or default_file(), how=how or "") as recorder:
        told = {"directory": str(recorder.directory), "file": str(recorder.file)}
        if invocation.json:
            print_json({**told, "how": recorder.how})
        else:
            click.echo(f"recording {told['directory']} into {told['file']} by {recorder.how}")
        seen = 0
        while True:
            recorder.step(1.0)
            if recorder.lost > seen:
                seen = recorder.lost
                click.echo("too many names at once: some makers are not known", err=True)
