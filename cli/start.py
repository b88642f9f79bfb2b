"""`mcpd start`: this process becomes the daemon."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from mcpd.cli.launch import exec_module
from mcpd.cli.options import Invocation, json_option, pass_invocation, socket_option
from mcpd.shm import limits

_Command = TypeVar("_Command", bound=Callable[..., Any])


class _LimitType(click.ParamType):  # type: ignore[type-arg]
    """A limit's value, checked here as the daemon does, and passed on as it was written."""

    def __init__(self, option: limits.Option) -> None:
        self.name = option.kind
        self._option = option

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            limits.parse(self._option, value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return str(value)


def _limit_options(command: _Command) -> _Command:
    """Adds an option for each limit of docs/limits.md."""
    for option in reversed(limits.OPTIONS):
        command = click.option(
            option.flag,
            type=_LimitType(option),
            metavar=option.kind.upper(),
            help=f"{option.help}  [default: ${option.variable}, else {_shown(option)}]",
        )(command)
    return command


def _shown(option: limits.Option) -> str:
    return f"{int(option.default) >> 20}M" if option.field == "outbound" else f"{option.default:g}"


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
@_limit_options
@json_option("Log as JSON lines.")
@socket_option
@pass_invocation
def command(
    invocation: Invocation,
    /,
    models: str | None,
    load: str,
    log_level: str,
    memory_limit: str | None,
    park_after: str | None,
    park_window: str | None,
    **given: str | None,
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
    for option in limits.OPTIONS:
        value = given[option.field]
        if value is not None:
            arguments += [option.flag, value]
    if invocation.socket:
        arguments += ["--socket", invocation.socket]
    if invocation.json:
        arguments.append("--json-log")
    exec_module("mcpd.daemon", arguments)
