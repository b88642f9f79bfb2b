"""The group of commands: its help needs none of their modules, running one imports that one."""

from __future__ import annotations

from importlib import import_module

import click

from mcpd.cli.options import socket_option

COMMANDS: dict[str, str] = {
    "start": "Run the daemon in the foreground.",
    "stop": "Have the daemon drain and end.",
    "status": "Show the daemon, its models, streams, readers and workers.",
    "push": "Decode a video or camera into a stream.",
    "infer": "Run a model on an image or video file.",
    "watch": "Print a stream's frames, or a model's results on them.",
    "models": "List, show, fetch and load models.",
    "leaks": "Show who holds shared memory, and what is left behind.",
    "mcp": "Serve MCP on standard input and output.",
    "demo": "Show the whole path on a sample video, with numbers.",
}
"""Every command with the first line of its help, in the order shown."""


class LazyGroup(click.Group):
    """Finds command NAME as the object `command` of module mcpd.cli.NAME."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = import_module(f"mcpd.cli.{cmd_name}").command
        if not isinstance(command, click.Command):
            raise TypeError(f"mcpd.cli.{cmd_name}.command is no click command: {command!r}")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    subcommand_metavar="COMMAND ...",
)
@socket_option
@click.version_option(package_name="mcpd-inference", message="mcpd %(version)s")
def commands() -> None:
    """Zero-copy inference through shared memory.

    The daemon keeps models loaded and owns the memory that frames travel in. Programs write frames
    straight into that memory, models read them there, and only handles travel between processes.

    \b
    Example:
      mcpd start &
      mcpd models fetch ssdlite-coco
      mcpd push street.mp4 --stream cam0 --loop &
      mcpd watch cam0 --model ssdlite-coco

    Exit status: 0 done, 1 failed or a leak was found, 2 wrong usage, 3 no daemon.
    """
