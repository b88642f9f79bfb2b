"""`mcpd leaks --watch`: what processes use over time, and whether it grows."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mcpd.cli.options import FiniteRange, Invocation, print_json

if TYPE_CHECKING:
    from mcpd.shm.leaks.growth import Judged
    from mcpd.shm.leaks.watching import Watch

REDRAW_S = 1.0
LINES_S = 10.0
"""How often a line is printed where there is no terminal."""
MIN_INTERVAL_S = 0.02
_KEY = "mcpd.leaks.watch"
_UNITS = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_Command = TypeVar("_Command", bound=Callable[..., Any])


def parse_span(text: str) -> float:
    """Seconds of `500ms`, `30s`, `10m`, `2h`; a number alone is seconds. Raises BadParameter."""
    matched = re.fullmatch(r"(\d+(?:\.\d+)?) *(ms|s|min|m|h|d|)", text.strip())
    if matched is None:
        raise click.BadParameter(f"{text!r} is no span of time: 500ms, 30s, 10m, 2h")
    return float(matched[1]) * _UNITS[matched[2]]


@dataclass
class Wanted:
    """The options of a watch."""

    watch: bool = False
    interval: float = 1.0
    for_s: float = 600.0
    warm_up: float | None = None
    pids: tuple[int, ...] = ()
    children: bool = False
    daemon: bool = False
    limit: float | None = None
    html: Path | None = None
    given: list[str] = field(default_factory=list)


def wanted_by(context: click.Context) -> Wanted:
    """What the command line asks for."""
    found = context.meta.setdefault(_KEY, Wanted())
    if not isinstance(found, Wanted):
        raise TypeError(f"{_KEY} is {found!r}")
    return found


def watch_options(command: _Command) -> _Command:
    """Adds the options of `--watch`; they go to `wanted_by`."""
    options = (
        _option("--watch", "watch", is_flag=True, help="Read what processes use, again and again."),
        _option(
            "--interval", "interval", parse=parse_span, metavar="TIME",
            help="With --watch: time between readings.  [default: 1s]",
        ),
        _option(
            "--for", "for_s", parse=parse_span, metavar="TIME",
            help="With --watch: how long; Ctrl-C ends it before.  [default: 10m]",
        ),
        _option(
            "--warm-up", "warm_up", parse=parse_span, metavar="TIME",
            help="With --watch: leave out the beginning.  [default: a fifth, at most 5m]",
        ),
        _option(
            "--pid", "pids", type=click.IntRange(min=1), multiple=True, metavar="PID",
            help="With --watch: these instead of the daemon and its workers.",
        ),
        _option("--children", "children", is_flag=True, help="With --watch: their children too."),
        _option(
            "--daemon", "daemon", is_flag=True,
            help="With --pid: the daemon and its workers as well.",
        ),
        _option(
            "--limit", "limit", type=FiniteRange(min=0, min_open=True), metavar="MB",
            help="With --watch: memory that grows less in an hour is flat.  [default: 4]",
        ),
        _option(
            "--html", "html", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
            help="With --watch: write a page with plots.",
        ),
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


def _option(
    flag: str, name: str, *, parse: Callable[[str], float] | None = None, **settings: Any
) -> Callable[[_Command], _Command]:
    def keep(context: click.Context, _option: click.Parameter, value: Any) -> None:
        if value not in (None, False, ()):
            wanted = wanted_by(context)
            setattr(wanted, name, value if parse is None else parse(value))
            wanted.given.append(flag)

    return click.option(flag, expose_value=False, callback=keep, **settings)


def run_watch(wanted: Wanted, invocation: Invocation) -> int:
    """Watches, shows what it finds, and returns the exit status."""
    if wanted.interval < MIN_INTERVAL_S:
        raise click.UsageError(f"--interval of less than {MIN_INTERVAL_S * 1000:g}ms")
    from mcpd.shm.leaks.growth import STATUS, verdict_of
    from mcpd.shm.leaks.report import document, write_html
    from mcpd.shm.leaks.watching import Watch, paces

    with Watch(
        wanted.pids,
        children=wanted.children,
        daemon=wanted.daemon or not wanted.pids,
        connect=invocation.connect,
    ) as watch:
        screen = _Screen(wanted, quiet=invocation.json)
        try:
            for _ in paces(wanted.interval, wanted.for_s):
                watch.look()
                if not watch.alive:
                    break
                screen.show(watch)
        except KeyboardInterrupt:
            pass  # what was seen so far is judged
        screen.clear()
        limit = wanted.limit * 1e6 if wanted.limit is not None else None
        judged = watch.judge(warm_up_s=wanted.warm_up, limit=limit)
        span_s, cost_s = watch.span_s, watch.cost_s
    shape: dict[str, float] = {"span_s": span_s, "interval_s": wanted.interval}
    if wanted.html is not None:
        try:
            write_html(wanted.html, judged, **shape)
        except OSError as error:
            raise click.FileError(str(wanted.html), error.strerror) from error
    if invocation.json:
        print_json({**document(judged, **shape), "reading_s": round(cost_s, 6)})
    else:
        print_judged(judged)
        share = cost_s * len(judged) / wanted.interval
        click.echo(f"one reading of a process took {cost_s * 1000:.1f} ms, {share:.1%} of a core")
    return STATUS[verdict_of([one.verdict for one in judged])]


def print_judged(judged: list[Judged]) -> None:
    """One line for each process and figure, charts of what grows first."""
    from mcpd.shm.leaks.charts import chart
    from mcpd.shm.leaks.growth import GROWING, format_amount
    from mcpd.shm.leaks.sampling import FIGURES

    for one in judged:
        for finding in one.findings:
            if finding.verdict == GROWING:
                _, values = one.series.known(finding.figure)
                figure = FIGURES[finding.figure]
                ends = (format_amount(max(values), figure), format_amount(min(values), figure))
                click.echo(f"{one.series.label}: {figure.text}")
                click.echo("\n".join(chart(values, ends)) + "\n")
    for one in judged:
        ended = f" (ended after {one.series.ended_s:.0f} s)" if one.series.ended_s else ""
        for line in one.sentences():
            click.echo(f"{one.series.label}{ended}: {line}")
        for note in one.series.notes:
            click.echo(f"{one.series.label}: {note}")


class _Screen:
    """Redraws a few lines on a terminal; elsewhere prints a line now and then."""

    def __init__(self, wanted: Wanted, *, quiet: bool) -> None:
        self._quiet = quiet
        self._tty = sys.stdout.isatty()
        self._for_s = wanted.for_s
        self._due_s = 0.0
        self._drawn = 0

    def show(self, watch: Watch) -> None:
        """Shows how it stands, if it is time."""
        now_s = time.monotonic()
        if self._quiet or now_s < self._due_s:
            return
        self._due_s = now_s + (REDRAW_S if self._tty else LINES_S)
        rows = self._rows(watch)
        if not self._tty:
            click.echo(f"{watch.span_s:.0f} s: " + "; ".join(" ".join(r.split()) for r in rows))
            return
        lines = [f"watched {watch.span_s:.0f} of {self._for_s:.0f} s; Ctrl-C ends it", *rows]
        self.clear()
        click.echo("\n".join(lines))
        self._drawn = len(lines)

    def clear(self) -> None:
        """Takes back what was drawn on a terminal."""
        if self._drawn:
            click.echo(f"\x1b[{self._drawn}F\x1b[J", nl=False)
            self._drawn = 0

    def _rows(self, watch: Watch) -> list[str]:
        from mcpd.shm.leaks.charts import sparkline
        from mcpd.shm.leaks.growth import format_amount
        from mcpd.shm.leaks.sampling import FIGURES

        rows = []
        for series in watch.series:
            for name in (
                "private",
                "fds",
                "mappings",
                "threads",
                "leases",
                "lent",
                "gpu",
                "shm_used",
            ):
                _, values = series.known(name)
                few = name in ("fds", "mappings", "threads", "leases") and len(set(values)) < 2
                if not values or series.ended_s is not None or few:
                    continue
                amount = format_amount(values[-1], FIGURES[name])
                label = f"{series.label[:26]:26} {FIGURES[name].text[:17]:17}"
                rows.append(f"{label} {amount:>11} {sparkline(values, 20)}" if self._tty
                            else f"{label} {amount}")  # fmt: skip
        return rows[:20]
