"""What every command has: `--socket`, `--json`, and a connection to the daemon."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from mcpd.shm.client import Client

_Command = TypeVar("_Command", bound=Callable[..., Any])


@dataclass
class Invocation:
    """One run of the command line; commands get it with `click.make_pass_decorator(Invocation)`.

    Attributes:
        socket: Where the daemon listens; "" for the default.
        json: Whether answers and errors go to standard output as JSON.
    """

    socket: str = ""
    json: bool = False

    def connect(self) -> Client:
        """A connection to the daemon, for the caller to close. Raises DaemonUnavailable."""
        from mcpd.shm.client import connect

        return connect(self.socket or None, name="mcpd-cli")


pass_invocation = click.make_pass_decorator(Invocation, ensure=True)


class FiniteRange(click.FloatRange):
    """A number in a range, and not `nan` or `inf`, which compare as they like."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a number", param, ctx)
        return number


def socket_option(command: _Command) -> _Command:
    """Adds `--socket`, which is the same before and after the command's name."""
    return click.option(
        "--socket",
        type=click.Path(dir_okay=False),
        metavar="PATH",
        expose_value=False,
        callback=_keep_socket,
        help="Socket of the daemon.  [default: $MCPD_SOCKET, else one per user]",
    )(command)


def json_option(text: str) -> Callable[[_Command], _Command]:
    """Adds `--json`, explained by `text`."""
    return click.option(
        "--json", is_flag=True, is_eager=True, expose_value=False, callback=_keep_json, help=text
    )


def common_options(command: _Command) -> _Command:
    """Adds `--json` and `--socket` to a command that answers once."""
    return json_option("Answer with one JSON document.")(socket_option(command))


def print_json(document: object) -> None:
    """One JSON document on a line of its own, flushed: a reader of a pipe sees it at once.

    NaN and infinity, which JSON has not, become null.
    """
    try:
        text = json.dumps(document, ensure_ascii=False, allow_nan=False, default=_plain)
    except ValueError:
        text = json.dumps(_finite(document), ensure_ascii=False, allow_nan=False, default=_plain)
    click.echo(text)


def _keep_socket(context: click.Context, _option: click.Parameter, value: str | None) -> None:
    if value:
        context.ensure_object(Invocation).socket = os.path.abspath(value)


def _keep_json(context: click.Context, _option: click.Parameter, value: bool) -> None:
    if value:
        context.ensure_object(Invocation).json = True


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _plain(value: object) -> object:
    """What json does not know: bytes as hexadecimal digits, numpy scalars and arrays as numbers."""
    if isinstance(value, bytes):
        return value.hex()
    convert = getattr(value, "tolist", None)
    if convert is not None:
        return convert()
    raise TypeError(f"cannot write {type(value).__name__} as JSON")
