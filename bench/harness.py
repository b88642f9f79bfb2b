"""What every benchmark needs: the machine described, percentiles, goals, a report, a daemon.

A benchmark prints a table, or with `--json` one document:

    {"bench": name, "machine": {…}, "figures": {row: {column: number}},
     "goals": [{"name", "value", "limit", "ok"}]}

It gates nothing: a goal that was missed is printed as missed, and the exit status stays 0.
Run it from the repository's root: `python -m bench.NAME [--json]`.
"""

from __future__ import annotations

import contextlib
import json as json_module
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TypedDict

from mcpd.cli.demo.machine import describe_machine
from mcpd.cli.demo.processes import PrivateDaemon

Figures = Mapping[str, Mapping[str, float | int | str]]


class Goal(TypedDict):
    """A figure and what it should not exceed (or, made by `at_least`, fall below).

    The value is None where it could not be measured, say because a peer is not installed: such a
    goal counts as missed.
    """

    name: str
    value: float | None
    limit: float
    ok: bool


def machine() -> dict[str, str | int]:
    """The machine and the interpreter, for the reader of a figure: see `describe_machine`."""
    return describe_machine()


def percentile(values: Sequence[float], q: float) -> float:
    """The smallest value that at least `q` per cent of the values do not exceed (nearest rank).

    Raises:
        ValueError: No values, or q outside 0 to 100.
    """
    if not values or not 0 <= q <= 100:
        raise ValueError(f"no percentile {q} of {len(values)} values")
    rank = max(1, math.ceil(len(values) * q / 100))
    return sorted(values)[rank - 1]


def cpu_ns(pid: int) -> int:
    """CPU time of a process's threads that live now, in nanoseconds, as the scheduler counts it.

    Finer than the clock ticks of /proc/PID/stat; good for processes whose threads stay.
    """
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)


def at_most(name: str, value: float | None, limit: float) -> Goal:
    """A goal met by a value up to the limit."""
    return Goal(name=name, value=value, limit=limit, ok=value is not None and value <= limit)


def at_least(name: str, value: float | None, limit: float) -> Goal:
    """A goal met by a value from the limit on."""
    return Goal(name=name, value=value, limit=limit, ok=value is not None and value >= limit)


def ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """Median of the quotients round by round, so that both saw the same minute of the machine."""
    return round(median(a / b for a, b in zip(above, below, strict=True)), 3)


def report(name: str, figures: Figures, goals: Sequence[Goal], json: bool) -> None:
    """Prints the result on stdout: a JSON document, or a Markdown table with the goals below."""
    described = machine()
    if json:
        document = {"bench": name, "machine": described, "figures": figures, "goals": list(goals)}
        print(json_module.dumps(document, indent=2))
        return
    print(f"{name} · {described['cpu']}, {described['cores']} cores, {described['python']}\n")
    print(_table(figures), end="\n\n")
    for goal in goals:
        verdict = "met" if goal["ok"] else "MISSED"
        value = "not measured" if goal["value"] is None else _number(goal["value"])
        print(f"- {goal['name']}: {value} (limit {_number(goal['limit'])}) {verdict}")


@contextlib.contextmanager
def private_daemon(models: Path | None = None, *, load: str = "all") -> Iterator[PrivateDaemon]:
    """A daemon with a socket of its own; `.socket` and `.pid`. Gone when the context ends."""
    with PrivateDaemon(models, load=load) as daemon:
        yield daemon


def _table(figures: Figures) -> str:
    columns = list(dict.fromkeys(column for row in figures.values() for column in row))
    lines = [["", *columns]]
    for name, row in figures.items():
        lines.append([name, *(_number(row[c]) if c in row else "" for c in columns)])
    widths = [max(3, *(len(line[i]) for line in lines)) for i in range(len(columns) + 1)]
    ruler = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join(
        f"| {' | '.join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])])} |"
        for line in [lines[0], ruler, *lines[1:]]
    )


def _number(value: float | int | str) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else value
