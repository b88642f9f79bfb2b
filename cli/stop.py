"""`mcpd stop`: the daemon drains and ends, and this command waits until it is gone."""

from __future__ import annotations

import os
import select
import time

import click

from mcpd.cli.options import FiniteRange, Invocation, common_options, pass_invocation, print_json
from mcpd.cli.render import format_duration
from mcpd.shm.errors import TimedOut

MAX_TIMEOUT_S = 86_400.0


@click.command()
@click.option(
    "--timeout",
    "timeout_s",
    type=FiniteRange(0, MAX_TIMEOUT_S),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait until the daemon is gone.",
)
@common_options
@pass_invocation
def command(invocation: Invocation, timeout_s: float) -> None:
    """Have the daemon drain and end.

    Returns when its process is gone: by then workers have finished, streams have ended and
    everything it owned is free.

    \b
    Example:
      mcpd stop --timeout 5
    """
    begun_ns = time.monotonic_ns()
    with invocation.connect() as client:
        pid = client.daemon_pid
        # While the session stands the daemon lives, so the number cannot mean another process.
        process = os.pidfd_open(pid)
        try:
            client.stop()
            wait_until_gone(process, pid, timeout_s)
        finally:
            os.close(process)
    seconds = (time.monotonic_ns() - begun_ns) / 1e9
    if invocation.json:
        print_json({"stopped": True, "pid": pid, "seconds": round(seconds, 3)})
    else:
        click.echo(f"mcpd stopped (pid {pid}, {format_duration(seconds)})")


def wait_until_gone(process: int, pid: int, timeout_s: float) -> None:
    """Waits for the end of a process, given as a pidfd.

    Raises:
        TimedOut: It did not end in time.
    """
    ready = select.poll()
    ready.register(process, select.POLLIN)
    if not ready.poll(timeout_s * 1000):
        raise TimedOut(
            f"the daemon (pid {pid}) was told to stop and still drains after {timeout_s:g} s",
            f"wait longer with --timeout, or end it with `kill -9 {pid}`: its parts end with it",
        )
