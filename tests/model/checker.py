"""Builds the model and runs one configuration of it."""

from __future__ import annotations

import json
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SOURCES = Path(__file__).parent
MEMORIES = ("tso", "views")
FLAGS = ("-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-Wno-override-init", "-D_GNU_SOURCE")


@dataclass(frozen=True)
class Outcome:
    """What one run of the model saw."""

    configuration: str
    memory: str
    weakening: str
    states: int
    transitions: int
    depth: int
    seconds: float
    all: bool
    """Whether every state that can be reached was seen."""
    violation: str | None
    trace: str


@cache
def binary() -> Path:
    """The model, compiled once for each process."""
    folder = Path(tempfile.mkdtemp(prefix="mcpd-model-"))
    out = folder / "model"
    command = ["gcc", *FLAGS, *map(str, sorted(SOURCES.glob("*.c"))), "-o", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out


@cache
def names(kind: str) -> list[str]:
    """The configurations or weakenings that the model knows."""
    lines = subprocess.run(
        [binary()], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return [line.split()[1] for line in lines if line.startswith(f"{kind} ")]


def explore(
    configuration: str, memory: str, weakening: str = "NONE", max_states: int = 4_000_000_000
) -> Outcome:
    command = [str(binary()), configuration, memory, weakening, str(max_states)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return Outcome(**json.loads(done.stdout), trace=done.stderr)
