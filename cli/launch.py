"""Becoming another of our processes: the command's process turns into it, nothing stays between."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # not imported: `typing` takes half as long to load as the relay to start
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn


def module_command(module: str, arguments: Sequence[str] = ()) -> list[str]:
    """The command line that runs `module`, with this interpreter.

    `-P` keeps the current directory off the path: a folder named `daemon` there is never ours.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


def relay_command() -> list[str]:
    """The command line of the MCP relay: an assistant waits for its start, which this makes short.

    `-I -S` spares the interpreter the search for site packages, two thirds of its start, and with
    it the finder of an editable install. So `mcpd` is made a package of the folder that the
    relay's package lies in, wherever that is: `mcpd/` when installed, the tree's root otherwise.
    """
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    code = (
        "import sys; mcpd = sys.modules['mcpd'] = type(sys)('mcpd'); mcpd.__path__ = [sys.argv[1]]"
        "; from mcpd.mcp_adapter.relay import main; main()"
    )
    return [sys.executable, "-I", "-S", "-c", code, folder]


def exec_relay(*, socket: str = "") -> NoReturn:
    """Replaces this process by the MCP relay. `socket`, if any, goes to it as MCPD_SOCKET."""
    _replace(relay_command(), socket)


def exec_module(module: str, arguments: Sequence[str] = (), *, socket: str = "") -> NoReturn:
    """Replaces this process by `module`. `socket`, if any, goes to it as MCPD_SOCKET.

    Standard input, output, error, signals and the pid stay, so Ctrl-C and a supervisor reach the
    new program directly.
    """
    _replace(module_command(module, arguments), socket)


def _replace(command: list[str], socket: str) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # None: the caller has closed it
            stream.flush()
    environment = dict(os.environ)
    if socket:
        environment["MCPD_SOCKET"] = socket
    os.execve(command[0], command, environment)
