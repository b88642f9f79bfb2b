"""The models of the repository folder: which there are, in which version, and how each stands."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

from mcpd.daemon.models.repository import ModelConfig, Repository, read_repository
from mcpd.daemon.parking import Failures, FileStamp
from mcpd.daemon.session import Session
from mcpd.daemon.spawning import WorkerProcess
from mcpd.shm.errors import ModelFailed, NotFound
from mcpd.shm.messages import WorkerStats

log = logging.getLogger("mcpd.daemon")


class Catalogue:
    """Every model known, by name and version. Belongs to the event loop's thread.

    A folder that cannot be used is listed too, as version 0 in state "broken".
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.models: dict[tuple[str, int], Model] = {}
        self._scan = asyncio.Lock()

    async def rescan(self) -> list[Model]:
        """Reads the repository again; returns the newest version of every usable model.

        Raises:
            ModelFailed: The folder cannot be read.
        """
        async with self._scan:
            repository = await asyncio.to_thread(read_repository, self.folder)
            self._merge(repository)
            return [
                self.models[name, config.newest]
                for name, config in sorted(repository.models.items())
            ]

    async def find(self, name: str, version: int) -> Model:
        """The model, after one look at the repository if it is not known; version 0: the newest.

        Raises:
            NotFound: No such model or version; the hint lists those there are.
            ModelFailed: Its folder cannot be used.
        """
        model = self._lookup(name, version)
        if model is None or model.state == "broken":
            await self.rescan()
            model = self._lookup(name, version)
        if model is None:
            names = sorted({known for known, _ in self.models})
            if name in names:
                raise NotFound(f"model {name!r} has no version {version}", "Ask for version 0.")
            raise NotFound(
                f"no model {name[:80]!r} in {self.folder}",
                f"Models: {', '.join(names[:20]) or 'none'}. Fetch one with `mcpd models fetch`.",
            )
        if model.state == "broken":
            raise ModelFailed(model.error, "Correct it and ask again.")
        return model

    def _lookup(self, name: str, version: int) -> Model | None:
        known = [model for model in self.models.values() if model.name == name]
        if not version:
            return max(known, key=lambda model: model.version, default=None)
        for model in known:
            if model.version == version:
                return model
        for model in known:
            if model.config is not None and version in model.config.versions:
                older = self.models[name, version] = Model(name, version, model.config)
                return older
        return None

    def _merge(self, repository: Repository) -> None:
        for name, config in repository.models.items():
            self.models.pop((name, 0), None)
            model = self.models.setdefault(
                (name, config.newest), Model(name, config.newest, config)
            )
            if model.process is None:
                model.config = config
        serving = {model.name for model in self.models.values() if model.process is not None}
        for name in {known for known, _ in self.models} - repository.models.keys() - serving:
            self._drop(name)
        for name, error in repository.broken.items():
            if name not in serving:
                self._drop(name)
                model = self.models[name, 0] = Model(name, 0, None)
                model.change("broken", error.message)
                log.warning("model=%s broken: %s", name, error.message)

    def _drop(self, name: str) -> None:
        for key in [key for key in self.models if key[0] == name]:
            retry = self.models.pop(key).retry
            if retry is not None:
                retry.cancel()


class Model:
    """One version of a model, and the worker that has it loaded.

    Attributes:
        config: None if its folder cannot be used.
        state: "stopped", "starting", "ready", "failed" (to be tried again), "parked" (failed too
            often: not tried again by itself) or "broken" (its folder cannot be used until it is
            read again).
        error: Why it failed last; "" once it is ready.
        files: What its files were like when its worker was started last.
    """

    def __init__(self, name: str, version: int, config: ModelConfig | None) -> None:
        self.name = name
        self.version = version
        self.config = config
        self.state = "stopped"
        self.error = ""
        self.details: dict[str, Any] = {}
        self.process: WorkerProcess | None = None
        self.files: tuple[FileStamp, ...] = ()
        self.stats: WorkerStats | None = None
        self.restarts = 0
        self.ready_s = 0.0
        self.failures = Failures()
        self.retry: asyncio.TimerHandle | None = None
        self.waiters: list[asyncio.Future[None]] = []

    @property
    def session(self) -> Session | None:
        """The worker's, while its process lives."""
        return self.process.session if self.process is not None else None

    @property
    def next_step(self) -> str:
        """What somebody can do about the state it is in; "" if nothing is to be done."""
        if self.state == "parked":
            return (
                f"Correct it, then `mcpd models load {self.name}`; it is also tried again when it "
                "is asked for after its files were changed."
            )
        return ""

    @property
    def labels(self) -> tuple[str, ...]:
        """Class names of its detections."""
        return self.config.decode.labels if self.config is not None else ()

    def change(self, state: str, error: str = "") -> None:
        """Moves to a state and wakes whoever waits for one."""
        self.state, self.error = state, error
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
