"""Models and their workers: started, followed, started again with back-off, and parked at last.

spawning.py makes the processes, parking.py has the back-off, watchdog.py finds those that hang.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time

from mcpd.daemon.catalogue import Catalogue, Model
from mcpd.daemon.config import Settings
from mcpd.daemon.parking import SERVED_S, how_it_ended, stamp_files
from mcpd.daemon.session import Session
from mcpd.daemon.spawning import Adopt, WorkerProcess, spawn_worker
from mcpd.shm.errors import InvalidRequest, ModelFailed, TimedOut
from mcpd.shm.messages import WorkerState, WorkerStats

log = logging.getLogger("mcpd.daemon")

GRACE_S = 3.0
"""How long workers may finish a frame when the daemon stops."""
REASON_LINES = 4
"""Of what a worker wrote last, told with the reason."""


class Supervisor:
    """The model registry and the worker processes. Belongs to the event loop's thread.

    Args:
        settings: The daemon's.
        adopt: Makes the session of a worker's socket.
    """

    def __init__(self, settings: Settings, adopt: Adopt) -> None:
        self._settings = settings
        self._adopt = adopt
        self._loop = asyncio.get_running_loop()
        self._stopping = False
        self._by_session: dict[int, Model] = {}
        self._replacing: set[asyncio.Task[None]] = set()
        self.catalogue = Catalogue(settings.models)

    async def load(self, *, every: bool = False, only: str = "") -> list[str]:
        """Reads the repository; starts what is wanted at start, or every model, or one.

        One that was parked is tried anew, unless the daemon has only just started.

        Returns:
            The names of all models that can be used, or the one.

        Raises:
            ModelFailed: The repository, or the one model, cannot be read.
            NotFound: There is no such model.
        """
        models = await self.catalogue.rescan()
        if only:
            models = [await self.catalogue.find(only, 0)]
        for model in models:
            wanted = every or bool(only) or self._settings.wants(model.name)
            if wanted and model.state in ("stopped", "failed", "parked"):
                model.failures.forget()
                self._start(model)
        names = [model.name for model in models]
        if not only and self._settings.load not in ("all", "none"):
            for name in sorted(set(self._settings.load.split(",")) - set(names)):
                log.warning("model=%s is to be loaded and is not in the repository", name)
        return names

    async def ready(self, model: Model, wait_s: float, asker: Session) -> Session:
        """The worker's session once the model is loaded; starts it if it was not asked for yet.

        Raises:
            ModelFailed: It could not be loaded, or is parked; at once, if that is so already.
            TimedOut: Not within wait_s.
            SessionEnded: Whoever asked went away.
        """
        if model.state == "parked":
            await self._look_for_changes(model)
        if model.state == "stopped":
            self._start(model)
        deadline = self._loop.time() + wait_s
        while True:
            # A worker's socket closes a moment before its exit is noticed.
            session = model.session
            if model.state == "ready" and session is not None and session.open:
                return session
            if model.state in ("failed", "broken", "parked") or self._stopping:
                raise self._failed(model)
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

    def _failed(self, model: Model) -> ModelFailed:
        if model.state == "parked":
            return ModelFailed(f"model {model.name!r} is {model.error}", model.next_step)
        return ModelFailed(
            f"model {model.name!r} failed: {model.error or 'the daemon stops'}",
            f"Correct it, then `mcpd models load {model.name}`.",
        )

    async def _look_for_changes(self, model: Model) -> None:
        """A parked model whose files are not those it failed with is worth another try."""
        config, before = model.config, model.files
        if config is None:
            return
        now = await asyncio.to_thread(stamp_files, config, model.version)
        if now == before:
            return
        await self.catalogue.rescan()
        if model.state == "parked":
            log.info("model=%s version=%d was changed: no longer parked", model.name, model.version)
            model.failures.forget()
            model.change("stopped")

    # ---- worker processes -----------------------------------------------------------------------

    def _start(self, model: Model) -> None:
        if self._stopping or model.config is None or model.process is not None:
            return
        if model.retry is not None:
            model.retry.cancel()
            model.retry = None
        try:
            worker = spawn_worker(model.config, model.version, self._settings, self._adopt)
        except OSError as error:
            # The system's fault, not the model's: it is tried for as long as that takes.
            delay_s = self._start_later(model)
            reason = f"its worker cannot be started: {error.strerror}"
            model.change("failed", reason)
            log.error("model=%s %s; next in %g s", model.name, reason, delay_s)
            return
        worker.limit = self._loop.call_later(
            model.config.run.load_limit_s, self._loads_too_long, model, worker
        )
        model.process = worker
        model.files = worker.files
        self._by_session[worker.session.number] = model
        model.details, model.stats = {}, None
        model.ready_s = 0.0
        worker.watch(self._loop, self._exited)
        model.change("starting")
        log.info("model=%s version=%d worker pid=%d started", model.name, model.version, worker.pid)

    def _start_later(self, model: Model) -> float:
        """Has the worker started again, later each time that it fails; in how many seconds."""
        delay_s = model.failures.next_delay_s()
        model.retry = self._loop.call_later(delay_s, self._start, model)
        return delay_s

    def _exited(self, worker: WorkerProcess) -> None:
        model = self._by_session.pop(worker.session.number)
        worker.loaded()
        how = worker.doomed or f"its worker {how_it_ended(worker.wait())}"
        worker.wait()
        model.process = None
        worker.session.close()
        if self._stopping:
            model.change("stopped")
            return
        model.restarts += 1
        now_s = time.monotonic()
        model.failures.add(now_s, self._settings.park_window_s)
        if model.ready_s and now_s - model.ready_s >= SERVED_S:
            model.failures.in_a_row = 0
        loaded = bool(model.ready_s)
        reason = how if loaded else model.error or f"{how} while it was loaded"
        count = len(model.failures.of_late)
        if 0 < self._settings.park_after <= count:
            self._park(model, worker, reason)
            return
        delay_s = self._start_later(model)
        # One that was loaded is only away for a moment: callers wait for it. One that was not
        # tells them why at once.
        if loaded:
            model.change("starting", f"restarting: {reason}")
        else:
            model.change("failed", reason + _last_words(worker))
        log.warning(
            "model=%s worker pid=%d ended: %s; next in %g s", model.name, worker.pid, how, delay_s
        )

    def _park(self, model: Model, worker: WorkerProcess, reason: str) -> None:
        count, span_s = len(model.failures.of_late), model.failures.span_s
        often = f"its worker failed {count} times in {span_s:.3g} s"
        model.change("parked", f"parked: {often}, the last time: {reason}{_last_words(worker)}")
        log.error("model=%s version=%d %s", model.name, model.version, model.error)

    def _loads_too_long(self, model: Model, worker: WorkerProcess) -> None:
        if model.config is not None and model.process is worker:
            self.replace(model, f"was not loaded in load_limit_s={model.config.run.load_limit_s:g}")

    def replace(self, model: Model, why: str) -> None:
        """Has a worker that makes no progress tell its stacks, and ends it. Idempotent.

        Whoever waits for it is told why; the next is started as after any end.
        """
        if model.session is not None:
            task = self._loop.create_task(self.replace_worker(model.session, why))
            self._replacing.add(task)
            task.add_done_callback(self._replacing.discard)

    async def replace_worker(self, session: Session, why: str) -> None:
        """As `replace`, for the worker of a session; returns when that has been ended."""
        model = self._by_session.get(session.number)
        worker = model.process if model is not None else None
        if model is None or worker is None or worker.doomed or self._stopping:
            return
        worker.doomed = f"its worker {why}"
        log.error("model=%s worker pid=%d %s", model.name, worker.pid, why)
        stacks = await worker.tell_stacks()
        session.cause = f"it {why}; {stacks}"
        worker.doomed = f"its worker {why}; {stacks}"
        log.error("model=%s worker pid=%d is killed: %s", model.name, worker.pid, session.cause)
        worker.kill()  # first: one that sees its session end takes that for the daemon's end
        session.close()

    def lost(self, session: Session) -> None:
        """A worker's session is over. One that lives on without it serves nobody: it is killed."""
        model = self._by_session.get(session.number)
        if model is not None and model.process is not None and not self._stopping:
            model.process.kill()

    def worker_state(self, session: Session, message: WorkerState) -> None:
        """A worker says that its model is loaded, or why not."""
        model = self._of(session)
        if model.process is not None:
            model.process.loaded()
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


def _last_words(worker: WorkerProcess) -> str:
    """What a worker wrote last, on lines of its own, to be told with a reason."""
    lines = list(worker.log.last_lines)[-REASON_LINES:]
    return "".join(f"\n  {line}" for line in lines)
