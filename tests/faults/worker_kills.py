"""Kills a model's worker at labelled steps; the next takes its place, and results go on."""

from __future__ import annotations

import os
import select
import signal
import time

from mcpd.shm import Client
from tests.faults.kills import (
    PATIENCE_S,
    STOPPED_S,
    Field,
    Kill,
    is_stopped,
    wait_free,
    worker_pid,
)
from tests.faults.zygote import Actor
from tests.support.daemon import wait_until

SERVED_S = 1.05
"""A worker that has served so long is followed by the next at once; see daemon/parking.py."""


def kill_worker(
    field: Field, client: Client, label: str, passes: int, signum: int, seed: int
) -> Kill:
    """The model's worker dies there, and another goes on in its place."""
    name = signal.Signals(signum).name
    kill = Kill("worker", "trivial", label, passes, name, seed)
    wait_until(lambda: worker_pid(client) > 0, PATIENCE_S, "a worker is ready")
    select.select([], [], [], SERVED_S)
    pid = worker_pid(client)
    steps = field.worker
    struck = steps.struck
    watcher: Actor | None = None
    steps.arm(label, passes, signum)
    if label.startswith("worker.load."):
        os.kill(pid, signal.SIGKILL)
    else:
        watcher = field.zygote.fork(does="watch", socket=field.running.socket, stream="modelled")
    try:
        deadline = time.monotonic() + PATIENCE_S
        while steps.struck == struck and time.monotonic() < deadline:
            select.select([], [], [], 0.002)
            if watcher is not None and watcher.gone():
                watcher.close()
                watcher = field.zygote.fork(
                    does="watch", socket=field.running.socket, stream="modelled"
                )
        if steps.struck == struck:
            steps.disarm()
            return kill
        _follow_worker(kill, client, steps.pid)
        wait_until(lambda: worker_pid(client) > 0, PATIENCE_S, "the next worker is ready")
        kill.faults += field.look_at_bystanders()
    finally:
        steps.disarm()
        if watcher is not None:
            watcher.close()
    return kill


def _follow_worker(kill: Kill, client: Client, pid: int) -> None:
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        pidfd = -1
    if kill.signal == "SIGSTOP" and pidfd >= 0:
        wait_until(lambda: is_stopped(pid), PATIENCE_S, "the worker has stopped")
        select.select([], [], [], STOPPED_S)
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    if pidfd >= 0:
        select.select([pidfd], [], [], PATIENCE_S)
        os.close(pidfd)
    wait_free(kill, client, pid, time.monotonic_ns())
    kill.outcome = "killed"
