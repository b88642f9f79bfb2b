"""`mcpd start`: this process becomes the daemon."""

from __future__ import annotations

import click

from mcpd.cli.launch import exec_module
from mcpd.cli.options import Invocation, json_option, pass_invocation, socket_option


@click.command()
@click.option(
    "--models",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Model repository.  [default: $MCPD_MODELS, else ~/.local/share/mcpd/models]",
)
@click.option(
    "--load",
    default="all",
    show_default=True,
    metavar="all|none|NAME,...",
    help="Models to load at once; the others are loaded when they are first asked for.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
)
@click.option(
    "--memory-limit",
    metavar="BYTES",
    help="Most memory of all streams together, such as 2G.  [default: $MCPD_MEMORY_LIMIT, else as "
    "much as the machine has]",
)
@click.option(
    "--park-after",
    metavar="N",
    help="Park a model whose worker ends N times within --park-window; 0 never does.  [default: "
    "$MCPD_PARK_AFTER, else 5]",
)
@click.option(
    "--park-window",
    metavar="SECONDS",
    help="Time in which a model's failures count together.  [default: $MCPD_PARK_WINDOW, else 600]",
)
@json_option("Log as JSON lines.")
@socket_option
@pass_invocation
def command(
    invocation: Invocation,
    models: str | None,
    load: str,
    log_level: str,
    memory_limit: str | None,
    park_after: str | None,
    park_window: str | None,
) -> None:
    """Run the daemon in the foreground.

    It prints "mcpd ready on SOCKET" to standard error when it serves. SIGTERM, Ctrl-C and
    `mcpd stop` have it drain: workers finish, streams end, and nothing is left behind. There is one
    daemon per socket; a second one ends at once and says so.

    To have it in the background, let a shell or a supervisor hold it.

    \b
    Examples:
      mcpd start --models ./models
      nohup mcpd start >mcpd.log 2>&1 &
    """
    arguments = ["--load", load, "--log-level", log_level]
    if models:
        arguments += ["--models", models]
    if memory_limit:
        arguments += ["--memory-limit", memory_limit]
    if park_after:
        arguments += ["--park-after", park_after]
    if park_window:
        arguments += ["--park-window", park_window]
    if invocation.socket:
        arguments += ["--socket", invocation.socket]
    if invocation.json:
        arguments.append("--json-log")
    exec_module("mcpd.daemon", arguments)
