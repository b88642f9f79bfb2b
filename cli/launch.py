"""Becoming another of our processes: the command's process turns into it, nothing stays between."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn


def module_command(module: str, arguments: Sequence[str] = ()) -> list[str]:
    """The command line that runs `module`, with this interpreter.

    `-P` keeps the current directory off the path: a folder named `daemon` there is never ours.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


def exec_module(module: str, arguments: Sequence[str] = (), *, socket: str = "") -> NoReturn:
    """Replaces this process by `module`. `socket`, if any, goes to it as MCPD_SOCKET.

    Standard input, output, error, signals and the pid stay, so Ctrl-C and a supervisor reach the
    new program directly.
    """
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # None: the caller has closed it
            stream.flush()
    environment = dict(os.environ)
    if socket:
        environment["MCPD_SOCKET"] = socket
    os.execve(sys.executable, module_command(module, arguments), environment)
