"""Models and their workers: spawned, watched, and started again with back-off when they end.

A worker's session is the socketpair it was born with: whoever holds that socket is the worker.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack

from mcpd.daemon.catalogue import Catalogue, Model
from mcpd.daemon.config import Settings
from mcpd.daemon.models.repository import ModelConfig
from mcpd.daemon.peer import identify_child
from mcpd.daemon.session import Session
from mcpd.shm.errors import InvalidRequest, ModelFailed, TimedOut
from mcpd.shm.messages import WorkerState, WorkerStats

log = logging.getLogger("mcpd.daemon")

MIN_BACKOFF_S = 0.1
MAX_BACKOFF_S = 10.0
MAX_DOUBLINGS = 16
"""Of the back-off, which has come to its most long before; a float has no room for thousands."""
SERVED_S = 1.0
"""A worker that lived so long after it was ready starts its successor's back-off anew."""
GRACE_S = 3.0
"""How long workers may finish a frame when the daemon stops."""


class Supervisor:
    """The model registry and the worker processes. Belongs to the event loop's thread.

    Args:
        settings: The daemon's.
        adopt: Makes the session of a worker's socket.
    """

    def __init__(
        self, settings: Settings, adopt: Callable[[socket.socket, subprocess.Popen[bytes]], Session]
    ) -> None:
        self._settings = settings
        self._adopt = adopt
        self._loop = asyncio.get_running_loop()
        self._stopping = False
        self._by_session: dict[int, Model] = {}
        self._pidfds: dict[int, int] = {}
        self.catalogue = Catalogue(settings.models)

    async def load(self, *, every: bool = False) -> list[str]:
        """Reads the repository; starts what is wanted at start, or every model. Returns the names.

        Raises:
            ModelFailed: The repository cannot be read.
        """
        models = await self.catalogue.rescan()
        for model in models:
            if model.state in ("stopped", "failed") and (every or self._settings.wants(model.name)):
                model.failures = 0
                self._start(model)
        names = [model.name for model in models]
        if self._settings.load not in ("all", "none"):
            for name in sorted(set(self._settings.load.split(",")) - set(names)):
                log.warning("model=%s is to be loaded and is not in the repository", name)
        return names

    async def ready(self, model: Model, wait_s: float, asker: Session) -> Session:
        """The worker's session once the model is loaded; starts it if it was not asked for yet.

        Raises:
            ModelFailed: It could not be loaded; at once, if it has failed already.
            TimedOut: Not within wait_s.
            SessionEnded: Whoever asked went away.
        """
        if model.state == "stopped":
            self._start(model)
        deadline = self._loop.time() + wait_s
        while True:
            # A worker's socket closes a moment before its exit is noticed.
            if model.state == "ready" and model.session is not None and model.session.open:
                return model.session
            if model.state in ("failed", "broken") or self._stopping:
                raise ModelFailed(
                    f"model {model.name!r} failed: {model.error or 'the daemon stops'}",
                    "Correct it, then `mcpd models load`.",
                )
            waiter = self._loop.create_future()
            model.waiters.append(waiter)
            try:
                await asker.wait_for(waiter, deadline - self._loop.time())
            except TimeoutError:
                raise TimedOut(
                    f"model {model.name!r} was not loaded within {wait_s:g} s",
                    "Wait longer; `mcpd status` shows how it stands.",
                ) from None
            finally:
                if waiter in model.waiters:
                    model.waiters.remove(waiter)

    # ---- worker processes -----------------------------------------------------------------------

    def _start(self, model: Model) -> None:
        # Not in a thread: the kernel's parent-death signal follows the thread that spawned.
        if self._stopping or model.config is None or model.process is not None:
            return
        if model.retry is not None:
            model.retry.cancel()
            model.retry = None
        try:
            self._spawn(model, model.config)
        except OSError as error:
            delay_s = self._start_later(model)
            reason = f"its worker cannot be started: {error.strerror}"
            model.change("failed", reason)
            log.error("model=%s %s; next in %g s", model.name, reason, delay_s)

    def _spawn(self, model: Model, config: ModelConfig) -> None:
        """Starts the process; OSError if the system does not let it, and then nothing is left."""
        ours, theirs = socket.socketpair()
        command = [
            *(sys.executable, "-P", "-m", "mcpd.daemon.worker", "--fd", str(theirs.fileno())),
            *("--model", model.name, "--version", str(model.version)),
            *("--path", str(config.path), "--parent", str(os.getpid())),
            *("--log-level", self._settings.log_level),
            *(("--json-log",) if self._settings.json_log else ()),
        ]
        with ExitStack() as undo:
            undo.callback(ours.close)
            with theirs:
                # What a model prints must not land where a daemon's caller reads: stdout is stderr.
                process = subprocess.Popen(
                    command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=sys.stderr
                )
            undo.callback(process.wait)
            undo.callback(process.kill)
            pidfd = identify_child(process.pid).pidfd
            undo.callback(os.close, pidfd)
            session = self._adopt(ours, process)
            undo.pop_all()
        model.process, model.session = process, session
        self._by_session[session.number] = model
        model.details, model.stats = {}, None
        model.started_s = time.monotonic()
        model.ready_s = 0.0
        self._pidfds[process.pid] = pidfd
        self._loop.add_reader(pidfd, self._exited, model, process)
        model.change("starting")
        log.info(
            "model=%s version=%d worker pid=%d started", model.name, model.version, process.pid
        )

    def _start_later(self, model: Model) -> float:
        """Has the worker started again, later each time that it fails; in how many seconds."""
        delay_s = min(MAX_BACKOFF_S, MIN_BACKOFF_S * 2.0 ** min(model.failures, MAX_DOUBLINGS))
        model.failures += 1
        model.retry = self._loop.call_later(delay_s, self._start, model)
        return delay_s

    def _exited(self, model: Model, process: subprocess.Popen[bytes]) -> None:
        pidfd = self._pidfds.pop(process.pid)
        self._loop.remove_reader(pidfd)
        os.close(pidfd)
        status = process.wait()
        model.process = None
        if model.session is not None:
            self._by_session.pop(model.session.number, None)
            model.session.close()
            model.session = None
        if self._stopping:
            model.change("stopped")
            return
        if model.ready_s and time.monotonic() - model.ready_s >= SERVED_S:
            model.failures = 0
        delay_s = self._start_later(model)
        model.restarts += 1
        how = f"its worker was killed by signal {-status}" if status < 0 else f"status {status}"
        # One that was loaded is only away for a moment: callers wait for it. One that was not
        # tells them why at once.
        if model.ready_s:
            model.change("starting", f"restarting: {how}")
        else:
            model.change("failed", model.error or f"{how} while it was loaded")
        log.warning(
            "model=%s worker pid=%d ended: %s; next in %g s", model.name, process.pid, how, delay_s
        )

    def lost(self, session: Session) -> None:
        """A worker's session is over. One that lives on without it serves nobody: it is killed."""
        model = self._by_session.get(session.number)
        if model is not None and model.process is not None and not self._stopping:
            model.process.kill()

    def worker_state(self, session: Session, message: WorkerState) -> None:
        """A worker says that its model is loaded, or why not."""
        model = self._of(session)
        if message.state == "ready":
            model.details = message.details
            model.ready_s = time.monotonic()
            model.change("ready")
            log.info("model=%s version=%d ready", model.name, model.version)
        else:
            model.change("failed", message.error)
            log.error("model=%s version=%d failed: %s", model.name, model.version, message.error)

    def worker_stats(self, session: Session, message: WorkerStats) -> None:
        """A worker's counters."""
        self._of(session).stats = message

    def _of(self, session: Session) -> Model:
        model = self._by_session.get(session.number)
        if model is None:
            raise InvalidRequest("this session is not a worker's")
        return model

    async def stop(self) -> None:
        """Has every worker finish its frame and end; kills those that do not within the grace."""
        self._stopping = True
        for model in self.catalogue.models.values():
            if model.retry is not None:
                model.retry.cancel()
            if model.process is not None:
                model.process.send_signal(signal.SIGTERM)
        deadline = self._loop.time() + GRACE_S
        while running := [
            model for model in self.catalogue.models.values() if model.process is not None
        ]:
            waiter = self._loop.create_future()
            running[0].waiters.append(waiter)
            try:
                await asyncio.wait_for(waiter, deadline - self._loop.time())
            except TimeoutError:
                for model in running:
                    if model.process is not None:
                        log.warning("model=%s worker pid=%d killed", model.name, model.process.pid)
                        model.process.kill()
                deadline = self._loop.time() + GRACE_S
