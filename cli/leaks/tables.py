"""What a scan found, for people: first what is left, then what is in use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from mcpd.cli.render import format_bytes, format_duration, print_table

if TYPE_CHECKING:
    from mcpd.shm.leaks import Entry, Report
    from mcpd.shm.leaks.fix import Action

_OWN_TABLES = (
    ("leases", ("lease", "pin")),
    ("memory objects", ("memfd",)),
    ("names in /dev/shm", ("segment",)),
    ("processes", ("process",)),
)
_COLUMNS = ("what", ">size", ">resident", ">age", "owner", "verdict")


def print_report(report: Report, *, daemon: bool, show_all: bool) -> None:
    """Tables of mcpd's own and of what others left, and one line for each that needs a word."""
    from mcpd.shm.leaks import IN_USE, ORPHANED, UNKNOWN

    entries = report.entries
    if not daemon:
        click.echo("no daemon answers: this is what the system itself shows\n")
    for title, kinds in _OWN_TABLES:
        own = [entry for entry in entries if entry.program == "mcpd" and entry.kind in kinds]
        print_table(title, (*_COLUMNS, "why"), [(*_row(entry), entry.reason) for entry in own])
    others = [entry for entry in entries if entry.program != "mcpd"]
    shown = others if show_all else [entry for entry in others if entry.verdict != IN_USE]
    programs = [(*_row(entry), entry.program or "-") for entry in shown]
    print_table("of other programs", (*_COLUMNS, "program"), programs)
    for entry in shown:
        click.echo(f"{_name(entry)}: {entry.reason}")
    for entry in entries:
        if entry.verdict != IN_USE:
            for label, text in (
                ("to settle", entry.settle),
                ("in", entry.place),
                ("asked for at", entry.site),
            ):
                if text:
                    click.echo(f"{_name(entry)}: {label}: {text}")
    if shown:
        click.echo()
    used = [entry for entry in others if entry.verdict == IN_USE]
    if used and not show_all:
        size = format_bytes(sum(entry.nbytes for entry in used))
        click.echo(f"in use by other programs: {len(used)}, {size}; --all shows them")
    if report.unreadable:
        click.echo(f"{report.unreadable} processes could not be looked into: root sees them")
    for verdict in (UNKNOWN, ORPHANED):
        found = [entry for entry in entries if entry.verdict == verdict]
        nbytes = sum(entry.nbytes for entry in found if entry.kind != "process")
        told = f"{len(found)}, {format_bytes(nbytes)}" if found else "nothing"
        click.echo(f"{verdict}: {told}")


def print_actions(actions: Sequence[Action]) -> None:
    """What became of the orphaned."""
    for action in actions:
        why = f": {action.reason}" if action.reason else ""
        click.echo(f"{action.outcome} {_name(action.entry)}{why}")


def _name(entry: Entry) -> str:
    return f"{entry.kind} {entry.name}" if entry.kind in ("pin", "semaphore") else entry.name


def _row(entry: Entry) -> tuple[str, ...]:
    owner = f"{entry.owner} {entry.owner_pid}".strip() if entry.owner_pid else entry.user or "-"
    return (
        _name(entry),
        format_bytes(entry.nbytes) if entry.nbytes else "-",
        format_bytes(entry.resident_nbytes) if entry.resident_nbytes else "-",
        format_duration(entry.age_s) if entry.age_s is not None else "-",
        owner if entry.owner_alive or not entry.owner_pid else f"{owner} (dead)",
        entry.verdict,
    )
