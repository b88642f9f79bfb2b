"""`mcpd leaks`: who holds what, whether the owner lives, and what nobody owns any more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mcpd.cli.options import Invocation, common_options, pass_invocation, print_json
from mcpd.cli.render import format_bytes, format_duration, print_table
from mcpd.shm.errors import DaemonUnavailable

if TYPE_CHECKING:
    from mcpd.shm.leaks import Entry


@click.command()
@common_options
@pass_invocation
def command(invocation: Invocation) -> None:
    """Show who holds what, and what is left behind.

    Lists the leases of the daemon (segments, streams, readers, bindings) with their owners, the
    memory objects of mcpd that processes have mapped or open, its processes, and its names in
    /dev/shm. What has no living owner is orphaned: then the exit status is 1. Works without a
    daemon, and then tells what it left.

    \b
    Example:
      mcpd leaks --json | jq '.entries[] | select(.verdict == "orphaned")'
    """
    from mcpd.shm.leaks import ORPHANED, scan

    leases = _read_leases(invocation)
    entries = scan(leases)
    orphaned = [entry for entry in entries if entry.verdict == ORPHANED]
    if invocation.json:
        print_json(
            {
                "daemon": leases is not None,
                "orphaned": len(orphaned),
                "entries": [{**entry.to_dict(), "owner": owner_name(entry)} for entry in entries],
            }
        )
    else:
        _print(entries, orphaned, daemon=leases is not None)
    if orphaned:
        raise click.exceptions.Exit(1)


def owner_name(entry: Entry) -> str:
    """The owner's name, as it told the daemon or as the system has it; "" if it is not known."""
    told = entry.details.get("client")
    if told:
        return str(told)
    try:
        with open(f"/proc/{entry.owner_pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def _read_leases(invocation: Invocation) -> list[dict[str, Any]] | None:
    try:
        with invocation.connect() as client:
            # This command's own session has no leases.
            return client.list("leases")
    except DaemonUnavailable:
        return None


def _print(entries: list[Entry], orphaned: list[Entry], *, daemon: bool) -> None:
    if not daemon:
        click.echo("no daemon answers: this is what the system itself shows\n")
    for title, kind in (
        ("leases", "lease"),
        ("memory objects", "memfd"),
        ("names in /dev/shm", "segment"),
        ("processes", "process"),
    ):
        print_table(
            title,
            ("what", ">size", ">age", "owner", "verdict", "why"),
            [_row(entry) for entry in entries if entry.kind == kind],
        )
    if orphaned:
        nbytes = sum(entry.nbytes for entry in orphaned if entry.kind != "process")
        click.echo(f"orphaned: {len(orphaned)}, {format_bytes(nbytes)}")
    else:
        click.echo("orphaned: nothing")


def _row(entry: Entry) -> tuple[str, ...]:
    owner = f"{owner_name(entry)} {entry.owner_pid}".strip() if entry.owner_pid else "-"
    return (
        entry.name,
        format_bytes(entry.nbytes) if entry.nbytes else "-",
        format_duration(entry.age_s) if entry.age_s is not None else "-",
        owner if entry.owner_alive or not entry.owner_pid else f"{owner} (dead)",
        entry.verdict,
        entry.reason,
    )
