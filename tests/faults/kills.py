"""Kills and stops processes at labelled steps of a running daemon's clients, and looks at the rest.

A Field is one daemon with bystanders; a Lane kills one victim after the other in it.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mcpd.shm import Client, connect
from tests.faults.zygote import Actor, Zygote
from tests.support.daemon import RunningDaemon, wait_until
from tests.support.steps import Steps, TestBuild

PATIENCE_S = 60.0
LEFTOVER = str(Path(__file__).with_name("leftover.py"))
STOPPED_S = 0.004
"""How long a stopped process stays so, before it is killed or goes on."""
POLL_S = 0.0004
UNPACED = ("--session-rate", "0", "--user-rate", "0", "--max-rate", "0")  # observers ask often


@dataclass(frozen=True, eq=False)
class Scenario:
    """A life that a victim leads.

    Attributes:
        role: What it is: client, writer, reader, source.
        name: Of the scenario, one word.
        task: What the actor is told.
        accompanied: Whether a companion reads its stream.
        race: A label whose first pass is held up, so that the other side gets on meanwhile.
    """

    role: str
    name: str
    task: dict[str, Any]
    accompanied: bool = False
    race: str = ""


def scenarios(models: bool, clip: str = "") -> list[Scenario]:
    """All that there are, with models and a clip or without."""
    lossless = {"policy": "lossless"}
    readings = {
        "latest": {"policy": "latest"},
        "fifo": {"policy": "fifo", "depth": 3},
        "lossless": lossless,
        "thinned": {**lossless, "max_fps": 100.0},
        "team": {**lossless, "group": "team"},
        "young": {"policy": "latest", "group": "young"},
    }
    found = [
        Scenario("writer", "memfd", {"does": "write"}, accompanied=True),
        Scenario("writer", "posix", {"does": "write", "memory": "posix"}, accompanied=True),
        *(Scenario("reader", k, {"does": "read", "reading": v}) for k, v in readings.items()),
        Scenario("reader", "late", {"does": "read", "reading": readings["latest"]},
                 race="reader.pin.found"),
        Scenario("reader", "late-young", {"does": "read", "reading": readings["young"]},
                 race="member.claim.found"),
        Scenario("client", "both", {"does": "both"}),
        Scenario("client", "c", {"does": "c"}),
    ]  # fmt: skip
    if models:
        found.append(Scenario("client", "watch", {"does": "watch", "stream": "modelled"}))
    if clip:
        found.append(Scenario("source", "file", {"does": "source", "clip": clip}, accompanied=True))
    return found


@dataclass
class Kill:
    """One of them, and what came of it.

    Attributes:
        outcome: "killed", "went on" (stopped and let go), or "missed": it did not come there.
        free_ms: From its death, by signal or at its end, until nothing of it was listed any more.
        last: What of it went last.
        faults: What was not as promised.
    """

    role: str
    scenario: str
    label: str
    passes: int
    signal: str
    seed: int
    outcome: str = "missed"
    free_ms: float | None = None
    last: str = ""
    faults: list[str] = field(default_factory=list)

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


class Field:
    """A daemon with steps, its zygote, bystanders and an observer. A context manager.

    Args:
        folder: For pages, logs and models.
        models: A repository with the model `trivial`; None: without any.
    """

    def __init__(self, folder: Path, build: TestBuild, models: Path | None) -> None:
        self.folder = folder
        self.pages = folder / "pages"
        self.pages.mkdir(exist_ok=True)
        self.env = {**os.environ, **build.environment(self.pages)}
        self.env["MCPD_STEPS_LIBRARY"] = str(build.library)
        self.marker = f"{os.getpid()}.{time.monotonic_ns()}"
        self.env["MCPD_SOAK"] = self.marker
        self.worker = Steps(self.pages / "worker-trivial")
        self.has_models = models is not None
        self.running = RunningDaemon(
            folder,
            models,
            env=self.env,
            load="all" if self.has_models else "none",
            arguments=("--park-after", "0", "--log-level", "warning", *UNPACED),
        )
        self.zygote: Zygote
        self.bystander: Actor
        self.observer: Client
        self.counts: dict[str, Any] = {}
        self.daemons: list[int] = []  # others of this run, which died
        self._ended = False
        self._lock = threading.Lock()

    def __enter__(self) -> Field:
        self.running.__enter__()
        with connect(self.running.socket) as client:
            if self.has_models:
                wait_until(lambda: worker_pid(client) > 0, PATIENCE_S, "the worker is ready")
            client.create_stream("warm-up", slot_nbytes=64, memory="posix").close()  # with a reaper
        with connect(self.running.socket) as client:
            wait_until(
                lambda: len(client.list("sessions")) <= 1 + self.has_models, 10, "it settles"
            )
        self._look("before")
        self.zygote = Zygote("client", self.env)
        self.observer = connect(self.running.socket, name="soak observer")
        self.bystander = self.zygote.fork(
            does="bystand", socket=self.running.socket, models=self.has_models
        )
        began = self.bystander.channel.receive(PATIENCE_S)
        assert began == {"event": "began"}, f"the bystanders did not begin: {began}"
        return self

    def look_at_bystanders(self, close: bool = False) -> list[str]:
        """What they noticed; that they get on is part of it."""
        with self._lock:
            return self._look_at_bystanders(close)

    def _look_at_bystanders(self, close: bool) -> list[str]:
        before = self.counts
        flows = ["frames", "members", *(["results", "inferred"] if self.has_models else [])]
        deadline = time.monotonic() + PATIENCE_S
        while True:
            self.bystander.channel.send(does="check")
            counts = self.bystander.channel.receive(PATIENCE_S)
            if counts is None:
                return ["the bystanders do not answer"]
            self.counts = counts
            behind = [flow for flow in flows if counts[flow] <= before.get(flow, 0)]
            if not behind or counts["faults"] or time.monotonic() > deadline:
                break
            select.select([], [], [], 0.01)
        faults = [str(fault) for fault in self.counts["faults"]]
        faults += [f"the bystanders' {flow} do not get on" for flow in behind]
        if close:
            self.bystander.channel.send(does="close")
            last = self.bystander.channel.receive(PATIENCE_S) or {"faults": ["no last word"]}
            faults += [str(fault) for fault in last["faults"]]
            end = self.bystander.channel.receive(PATIENCE_S) or {}
            if end.get("event") != "done":
                faults.append(f"the bystanders ended with {end}")
        return faults

    def finish(self) -> list[str]:
        """Ends all but the daemon; what is there that was not before, by leftover.py."""
        self._end_all()
        with connect(self.running.socket) as client:
            if self.has_models:
                wait_until(lambda: worker_pid(client) > 0, PATIENCE_S, "the worker is ready")
            wait_until(
                lambda: len(client.list("sessions")) <= 1 + self.has_models, 10, "sessions end"
            )
        select.select([], [], [], 0.2)  # what the daemon frees off its event loop
        self._look("after")
        files = [str(self.folder / f"{name}.json") for name in ("before", "after")]
        done = subprocess.run(
            [sys.executable, LEFTOVER, "compare", *files],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode in (0, 1), done.stderr
        return [f"left: {line}" for line in done.stdout.splitlines() if line]

    def _look(self, name: str) -> None:
        pid = str(self.running.pid)
        command = [sys.executable, LEFTOVER, "look", self.marker, "--watch", pid, "--owner", pid]
        command += map(str, self.daemons)
        with open(self.folder / f"{name}.json", "w") as file:
            subprocess.run(command, stdout=file, check=True)

    def _end_all(self) -> None:
        if self._ended:
            return
        self._ended = True
        self.bystander.close()
        self.observer.close()
        self.zygote.close()

    def __exit__(self, *error: Any) -> None:
        try:
            self._end_all()
        finally:
            self.running.__exit__(*error)


def rows_of(client: Client, pid: int) -> list[str]:
    """What the daemon lists of a process."""
    if any(row["pid"] == pid for row in client.list("sessions")):
        return [f"session of {pid}"]
    left = [
        f"lease {row['kind']} {row['name']} {row['state']}"
        for row in client.list("leases")
        if row["pid"] == pid
    ]
    left += [f"reader {row}" for row in client.list("readers") if row["pid"] == pid]
    return left + [f"stream {r}" for r in client.list("streams") if r["writer_pid"] == pid]


def wait_free(kill: Kill, client: Client, pid: int, died_ns: int) -> None:
    """Takes down how long after its death the daemon lists nothing of it, and what went last."""
    deadline = died_ns + round(PATIENCE_S * 1e9)
    while left := rows_of(client, pid):
        kill.last = left[0]
        if time.monotonic_ns() > deadline:
            kill.faults += [f"left: {one}" for one in left]
            break
        select.select([], [], [], POLL_S)
    kill.free_ms = (time.monotonic_ns() - died_ns) / 1e6


def is_stopped(pid: int) -> bool:
    """Whether all of a process has come to a stop."""
    try:
        states = [
            (task / "stat").read_text().rsplit(")", 1)[1].split()[0]
            for task in Path(f"/proc/{pid}/task").iterdir()
        ]
    except OSError:
        return False
    return all(state in "TtXZ" for state in states)


def is_fault(message: dict[str, Any]) -> bool:
    """Whether what a victim says is more than that the model's worker was killed meanwhile."""
    refused = message["event"] == "refused" and message["code"] not in ("model", "worker_died")
    return refused or message["event"] == "error"


class Lane:
    """Victims one after the other, with a companion that reads what they write."""

    def __init__(self, field: Field, number: int) -> None:
        self._field = field
        self._number = number
        self._count = 0
        self.steps = Steps(field.pages / f"lane-{number}")
        self._observer = connect(field.running.socket, name=f"soak lane {number}")
        self._companion = self._fork_companion()
        self.reached: dict[str, int] = {}

    def close(self) -> None:
        """Ends it."""
        self._companion.close()
        self._observer.close()
        self.steps.close()

    def calibrate(self, scenario: Scenario) -> dict[str, int]:
        """Lives it to its end; which steps it came to, and how often."""
        kill = self.kill(scenario, "", 0, 0, 0)
        assert not kill.faults, f"{scenario.name}: {kill.faults}"
        return {label: count for label, count in self.steps.reached().items() if count}

    def kill(
        self,
        scenario: Scenario,
        label: str,
        passes: int,
        signum: int,
        seed: int,
        go_on: bool = False,
    ) -> Kill:
        """A victim that dies there; or is stopped there, and then killed, or let go on."""
        name = "none" if not signum else signal.Signals(signum).name + ("+CONT" if go_on else "")
        kill = Kill(scenario.role, scenario.name, label, passes, name, seed)
        self._count += 1
        stream = f"soak-{self._number}-{self._count}"
        self.steps.disarm()
        self.steps.forget()
        if label:
            self.steps.arm(label, passes, signum)
        if scenario.race:
            self.steps.pause(scenario.race, 60)
        struck = self.steps.struck
        victim = self._field.zygote.fork(
            socket=self._field.running.socket,
            name=stream,
            page=str(self.steps.path),
            **scenario.task,
        )
        try:
            reads = self._follow(kill, victim, stream, struck, go_on, scenario.accompanied)
        finally:
            victim.close()
        if reads:
            self._hear_companion(kill, stream)
        for step, count in self.steps.reached().items():
            self.reached[step] = self.reached.get(step, 0) + count
        return kill

    def _follow(
        self, kill: Kill, victim: Actor, stream: str, struck: int, go_on: bool, accompanied: bool
    ) -> bool:
        deadline = time.monotonic() + PATIENCE_S
        reads = done = False
        watched: list[Any] = [victim.pidfd, victim.channel]
        while not victim.gone():
            stops = kill.signal.startswith("SIGSTOP")
            ready, _, _ = select.select(watched, [], [], 0.001 if stops else 1.0)
            if victim.pidfd in ready:
                break
            if stops and self.steps.struck > struck and is_stopped(victim.pid):
                select.select([], [], [], STOPPED_S)
                victim.signal(signal.SIGCONT if go_on else signal.SIGKILL)
                kill.outcome = "went on" if go_on else "killed"
                struck = self.steps.struck
                continue
            if victim.channel in ready:
                message = victim.channel.receive(0)
                if message is None:
                    victim.gone(PATIENCE_S)
                    break
                if message["event"] == "sealed" and accompanied:
                    self._companion.channel.send(name=message["name"])
                    reads = True
                done |= message["event"] == "done"
                if is_fault(message):
                    kill.faults.append(f"the victim: {message['text']}")
            if time.monotonic() > deadline:
                kill.faults.append("the victim neither dies nor ends")
                return reads
        died_ns = time.monotonic_ns()
        if kill.outcome == "missed" and self.steps.struck > struck:
            kill.outcome = "killed"
        if kill.outcome != "killed":
            # What it had left to say when it ended by itself.
            while message := victim.channel.receive(0):
                done |= message["event"] == "done"
                if is_fault(message):
                    kill.faults.append(f"the victim: {message['text']}")
            if not done:
                kill.faults.append("the victim ended without a word")
        wait_free(kill, self._observer, victim.pid, died_ns)
        return reads

    def _hear_companion(self, kill: Kill, stream: str) -> None:
        heard = self._companion.channel.receive(PATIENCE_S)
        if heard is None or heard["event"] != "accompanied":
            kill.faults.append(f"the companion of {stream}: {heard}")
            self._companion.close()
            self._companion = self._fork_companion()
        elif heard["text"] not in ("", "closed", "writer_died"):
            kill.faults.append(f"the stream ended as {heard['text']}")

    def _fork_companion(self) -> Actor:
        return self._field.zygote.fork(does="companion", socket=self._field.running.socket)


def worker_pid(client: Client) -> int:
    """The model's worker; 0 while there is none that is ready."""
    for row in client.list("workers"):
        if row["state"] == "ready":
            return int(row["pid"])
    return 0
