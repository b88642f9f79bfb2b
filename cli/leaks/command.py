"""`mcpd leaks`: one look at everything, what is orphaned removed if asked for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mcpd.cli.leaks.growing import run_watch, wanted_by, watch_options
from mcpd.cli.options import (
    FiniteRange,
    Invocation,
    common_options,
    pass_invocation,
    print_json,
)
from mcpd.shm.errors import DaemonUnavailable, NotPermitted

if TYPE_CHECKING:
    from mcpd.shm.leaks import Report
    from mcpd.shm.leaks.fix import Action

SCHEMA = 1
"""Of the JSON document; higher when a field goes or changes its meaning."""


@click.group(invoke_without_command=True)
@common_options
@click.option("--all", "show_all", is_flag=True, help="Show what other programs use as well.")
@click.option(
    "--all-namespaces",
    is_flag=True,
    help="Look into the /dev/shm of every container and mount namespace; needs root.",
)
@click.option(
    "--min-age",
    type=FiniteRange(min=0),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Call nothing orphaned that was made or changed since.",
)
@click.option(
    "--pin-age",
    type=FiniteRange(min=0),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Ask about frames that a reader holds for longer.",
)
@click.option(
    "--alone",
    is_flag=True,
    help="In a container: nothing outside it shares its /dev/shm.",
)
@click.option("--fix", is_flag=True, help="Remove what is orphaned, after showing it.")
@click.option("--dry-run", is_flag=True, help="With --fix: only say what would be removed.")
@click.option(
    "--name",
    "names",
    multiple=True,
    metavar="NAME",
    help="With --fix: only this name, also if it is another user's (as root). Repeatable.",
)
@click.option(
    "--prometheus",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the figures for node_exporter's textfile collector.",
)
@click.option(
    "--record",
    "record_file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Read this record of `mcpd leaks record` instead of this user's and the system's.",
)
@watch_options
@pass_invocation
@click.pass_context
def command(
    context: click.Context,
    invocation: Invocation,
    show_all: bool,
    all_namespaces: bool,
    min_age: float,
    pin_age: float,
    alone: bool,
    fix: bool,
    dry_run: bool,
    names: tuple[str, ...],
    prometheus: Path | None,
    record_file: Path | None,
) -> None:
    """Show who holds shared memory, and what is left behind.

    Of mcpd: its leases (segments, streams, readers, pins), memory objects and processes, with their
    owners. Of any program: what is in /dev/shm, memory objects without a name, semaphores, System V
    segments, processes that hold a GPU. What a dead process made and nobody has open is orphaned;
    what cannot be told is unknown, with what would tell. Works without a daemon.

    Exit status: 0 nothing is left behind, 1 something is, 2 could not tell. docs/leaks.md explains.

    \b
    Examples:
      mcpd leaks --json | jq '.entries[] | select(.verdict == "orphaned")'
      sudo mcpd leaks --fix --dry-run
      sudo mcpd leaks record &
      mcpd leaks --watch --pid 4123 --for 30m --html growth.html
    """
    if context.invoked_subcommand is not None:
        return
    wanted = wanted_by(context)
    if wanted.watch:
        raise click.exceptions.Exit(run_watch(wanted, invocation))
    if wanted.given:
        raise click.UsageError(f"{wanted.given[0]} goes with --watch")
    if (dry_run or names) and not fix:
        raise click.UsageError("--dry-run and --name go with --fix")
    from mcpd.shm.leaks import Options, examine, status_of
    from mcpd.shm.leaks.record import read_record

    options = Options(
        all_namespaces=all_namespaces,
        min_age_s=min_age,
        max_pin_age_s=pin_age,
        alone=alone,
        record=read_record([record_file] if record_file is not None else None),
    )
    leases = _read_leases(invocation)
    report = examine(leases, options)
    if prometheus is not None:
        from mcpd.shm.leaks.prometheus import write_metrics

        write_metrics(prometheus, report)
    from mcpd.cli.leaks.tables import print_actions, print_report

    if not invocation.json:
        print_report(report, daemon=leases is not None, show_all=show_all)
    status = report.status
    actions: list[Action] | None = None
    if fix:
        from mcpd.shm.leaks.fix import REMOVED, remove

        actions = remove(report.entries, options, names=names, dry_run=dry_run)
        if not invocation.json:
            print_actions(actions)
        removed = {id(action.entry) for action in actions if action.outcome == REMOVED}
        status = status_of([entry for entry in report.entries if id(entry) not in removed])
    if invocation.json:
        print_json(_document(report, actions, daemon=leases is not None))
    if status:
        raise click.exceptions.Exit(status)


def _document(report: Report, actions: list[Action] | None, *, daemon: bool) -> dict[str, Any]:
    from mcpd.shm.leaks import ORPHANED, UNKNOWN

    verdicts = [entry.verdict for entry in report.entries]
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "daemon": daemon,
        "scan_s": round(report.took_s, 6),
        "unreadable": report.unreadable,
        "orphaned": verdicts.count(ORPHANED),
        "unknown": verdicts.count(UNKNOWN),
        "entries": [entry.to_dict() for entry in report.entries],
    }
    if actions is not None:
        document["actions"] = [
            {
                "kind": action.entry.kind,
                "name": action.entry.name,
                "outcome": action.outcome,
                "reason": action.reason,
            }
            for action in actions
        ]
    return document


def _read_leases(invocation: Invocation) -> list[dict[str, Any]] | None:
    try:
        with invocation.connect() as client:
            # This command's own session has no leases.
            return client.list("leases")
    except (DaemonUnavailable, NotPermitted):
        return None
