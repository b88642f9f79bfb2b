"""Kills the daemon itself at labelled steps, under load; the next starts on the same socket."""

from __future__ import annotations

import os
import select
import signal
import socket as sockets
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tests.faults.kills import PATIENCE_S, STOPPED_S, UNPACED, Field, Kill, is_stopped
from tests.faults.leftover import command
from tests.faults.zygote import Actor, Zygote
from tests.support.daemon import wait_until
from tests.support.steps import Steps, TestBuild

MODEL_STEPS = ("daemon.results.", "daemon.worker.")
STARTING_STEPS = ("daemon.worker.", "daemon.name.own")
"""What only a daemon that has just begun comes to. Others die once their reaper has begun."""
SETTLE_S = 20.0
"""A step that the load has not come to by then is missed."""


class DaemonLane:
    """One daemon after the other on one socket, each with a load on it. Nothing is cleaned between.

    Args:
        folder: For its page and log.
        field: Whose zygote forks the loads; its marker and list of daemons are for leftover.py.
        models: A repository with the model `trivial`.
        settled: Whether the daemon dies only once its reaper has begun, but for its first steps.
    """

    def __init__(
        self, folder: Path, build: TestBuild, field: Field, models: Path, *, settled: bool = True
    ) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="mcpd-", dir="/tmp"))
        self._socket = str(self._home / "mcpd.sock")
        self._field = field
        self._settled = settled
        self._log = folder / "daemons.log"
        pages = folder / "daemon-pages"
        pages.mkdir(exist_ok=True)
        self.steps = Steps(pages / "daemon")
        self._env = {**field.env, **build.environment(pages)}
        self._daemons = Zygote("daemon", self._env)
        self._arguments = ["--socket", self._socket, "--models", str(models), "--load", "none"]
        self._arguments += ["--park-after", "0", "--log-level", "warning", *UNPACED]
        self._count = 0
        self.reached: dict[str, int] = {}

    def close(self) -> list[str]:
        """Ends it; what is left in the socket's folder beyond what the next start takes over."""
        self._daemons.close()
        left = [
            p.name for p in self._home.iterdir() if p.name not in ("mcpd.sock", "mcpd.sock.lock")
        ]
        for path in self._home.iterdir():
            path.unlink()
        self._home.rmdir()
        self.steps.close()
        return [f"left beside the socket: {name}" for name in left]

    def calibrate(self) -> dict[str, int]:
        """Which steps it comes to under load, in two rounds of it."""
        kill = Kill("daemon", "load", "", 0, "SIGKILL", 0)
        self.steps.forget()
        daemon, load = self._start(models=True)
        for event in ("began", "round", "round"):
            _wait_for(load, event)
        daemon.signal(signal.SIGKILL)
        self._follow(kill, daemon, load, set(children(daemon.pid)))
        assert not kill.faults, kill.faults
        return {label: count for label, count in self.steps.reached().items() if count}

    def kill(self, label: str, passes: int, signum: int, seed: int) -> Kill:
        """A daemon that dies there, or is stopped there and then killed."""
        kill = Kill("daemon", "load", label, passes, signal.Signals(signum).name, seed)
        struck = self.steps.struck
        self.steps.forget()
        at_once = label.startswith(STARTING_STEPS) or not self._settled
        if at_once:
            self.steps.arm(label, passes, signum)
        daemon, load = self._start(models=label.startswith(MODEL_STEPS))
        found = set(children(daemon.pid))
        if not at_once:
            _wait_for(load, "began")
            wait_until(
                lambda: any(ignores_term(pid) for pid in children(daemon.pid)),
                PATIENCE_S,
                "the reaper has begun",
            )
            self.steps.arm(label, passes, signum)
        deadline = time.monotonic() + SETTLE_S
        while not daemon.gone(0.002):
            found |= set(children(daemon.pid))
            if signum == signal.SIGSTOP and self.steps.struck > struck and is_stopped(daemon.pid):
                select.select([], [], [], STOPPED_S)
                daemon.signal(signal.SIGKILL)
            if time.monotonic() > deadline:
                self.steps.disarm()
                daemon.signal(signal.SIGKILL)
        if self.steps.struck > struck:
            kill.outcome = "killed"
        self._follow(kill, daemon, load, found)
        for step, count in self.steps.reached().items():
            self.reached[step] = self.reached.get(step, 0) + count
        return kill

    def _start(self, models: bool) -> tuple[Actor, Actor]:
        self._count += 1
        daemon = self._daemons.fork(
            does="daemon",
            env={"MCPD_SOCKET": self._socket},
            arguments=self._arguments,
            page=str(self.steps.path),
            log=str(self._log),
        )
        wait_until(
            lambda: daemon.gone() or listens(self._socket), PATIENCE_S, "the daemon listens again"
        )
        self._field.daemons.append(daemon.pid)
        load = self._field.zygote.fork(
            does="load", socket=self._socket, name=f"load-{self._count}", models=models
        )
        return daemon, load

    def _follow(self, kill: Kill, daemon: Actor, load: Actor, found: set[int]) -> None:
        """Everything of a dead daemon goes: its processes, its names, and its clients notice."""
        died_ns = time.monotonic_ns()
        deadline = time.monotonic() + PATIENCE_S
        while left := [*running(found), *names_of(daemon.pid)]:
            kill.last = left[0]
            if time.monotonic() > deadline:
                kill.faults += [f"left: {one}" for one in left]
                break
            select.select([], [], [], 0.0005)
        kill.free_ms = (time.monotonic_ns() - died_ns) / 1e6
        events = []
        while message := load.channel.receive(PATIENCE_S):
            events.append(message["event"])
            if message["event"] == "error":
                kill.faults.append(f"the load: {message['text']}")
            if message["event"] in ("done", "error"):
                break
        if "done" not in events:
            kill.faults.append(f"the load did not end: {events}")
        load.close()
        daemon.close()


def _wait_for(actor: Actor, event: str) -> None:
    message = actor.channel.receive(PATIENCE_S)
    assert message is not None, f"no {event}"
    assert message["event"] == event, message


def listens(path: str) -> bool:
    """Whether somebody takes connections there."""
    with sockets.socket(sockets.AF_UNIX) as sock:
        try:
            sock.connect(path)
        except OSError:
            return False
    return True


def children(pid: int) -> Iterator[int]:
    """The processes that a process has started."""
    with suppress(OSError):
        yield from map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


def running(pids: set[int]) -> Iterator[str]:
    """Those that are not gone, and are still the daemon's or an orphan."""
    for pid in pids:
        with suppress(OSError):
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
            if state not in "ZX":
                yield f"process {pid} {command(pid)}"


def ignores_term(pid: int) -> bool:
    """Whether a process ignores SIGTERM, as a reaper does once it has begun, and no worker does."""
    with suppress(OSError):
        text = Path(f"/proc/{pid}/status").read_text()
        ignored = int(text.split("SigIgn:")[1].split()[0], 16)
        return bool(ignored >> (signal.SIGTERM - 1) & 1)
    return False


def names_of(pid: int) -> list[str]:
    """A daemon's names in /dev/shm."""
    prefix = f"mcpd.{os.geteuid()}.{pid}."
    return [f"name {name}" for name in os.listdir("/dev/shm") if name.startswith(prefix)]
