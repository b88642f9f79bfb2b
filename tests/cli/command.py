"""Runs the real `mcpd` command as a process, as a person at a shell would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

MCPD = (sys.executable, "-P", "-m", "mcpd.cli.main")
TIMEOUT_S = 60.0
"""After this a command hangs; none waits for anything that long."""


@dataclass(frozen=True)
class Ran:
    """A command that has ended."""

    status: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """Standard output as one JSON document."""
        return json.loads(self.out)

    @property
    def documents(self) -> list[Any]:
        """Standard output as JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]


def run_mcpd(*arguments: str, socket: str = "", env: Mapping[str, str] | None = None) -> Ran:
    """Runs `mcpd ARGUMENTS` to its end, with `socket` as MCPD_SOCKET."""
    done = subprocess.run(
        [*MCPD, *arguments],
        env=environment(socket, env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


class Started(subprocess.Popen[str]):
    """A process that a test which fails does not wait for."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self.kill()
        super().__exit__(kind, error, traceback)


def start_mcpd(*arguments: str, socket: str = "") -> Started:
    """Starts `mcpd ARGUMENTS`; a context manager that the caller ends the process in."""
    return Started(
        [*MCPD, *arguments],
        env=environment(socket),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def environment(socket: str = "", extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment with no other daemon in it than the one at `socket`."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("MCPD_")}
    kept["MCPD_SOCKET"] = socket or "/tmp/mcpd-no-such-daemon/mcpd.sock"
    return {**kept, **(extra or {})}
