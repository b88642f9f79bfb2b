"""The daemon's listener and switchboard: who connects, what they ask, and how it ends."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine
from importlib.metadata import version
from typing import Any

from mcpd.daemon.acceptor import Acceptor, refuse
from mcpd.daemon.bindings import Bindings
from mcpd.daemon.config import Settings
from mcpd.daemon.failures import no_descriptors
from mcpd.daemon.handover import Handover
from mcpd.daemon.limits import MemoryLedger
from mcpd.daemon.pace import Pace
from mcpd.daemon.peer import Peer, identify, identify_child
from mcpd.daemon.process_limits import budget, file_limit
from mcpd.daemon.quotas import SESSION_FDS, Quotas
from mcpd.daemon.readers import Readers
from mcpd.daemon.reaper import Reaper
from mcpd.daemon.registry import Registry
from mcpd.daemon.session import Answer, EndOfSession, Session
from mcpd.daemon.stalls import Stalls
from mcpd.daemon.streams import Streams
from mcpd.daemon.supervisor import Supervisor
from mcpd.daemon.tables import ProcessFigures, Tables
from mcpd.shm import messages as m
from mcpd.shm.errors import (
    McpdError,
    ModelFailed,
    NotPermitted,
    ProtocolError,
    UnsupportedVersion,
)
from mcpd.shm.segment import sweep

log = logging.getLogger("mcpd.daemon")

MAX_CLIENT_NAME = 64

_Work = Callable[[Session, Any], Answer | Coroutine[Any, Any, Answer]]


class Server:
    """Serves one listening socket until it is stopped. Made inside the running event loop.

    Args:
        listener: Bound and listening; the caller closes and unlinks it.
        figures: What the process uses, for status.
    """

    def __init__(
        self, settings: Settings, listener: socket.socket, figures: ProcessFigures
    ) -> None:
        self._settings = settings
        self._listener = listener
        self._figures = figures
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._instance = secrets.token_hex(8)
        self._stop = asyncio.Event()
        self._ledger = MemoryLedger(settings.memory_limit_nbytes)
        self._reaper = Reaper()
        self._quotas = Quotas(self._ledger, settings.limits, budget(file_limit()))
        self._pace = Pace(settings.limits)
        self._registry = Registry(self._quotas, self._reaper)
        self._supervisor = Supervisor(settings, self._adopt_worker)
        readers = Readers(self._registry)
        streams = Streams(self._registry, Handover(self._registry, readers))
        bindings = Bindings(self._registry, readers, self._supervisor)
        self._stalls = Stalls(self._registry, settings.limits.stall_limit)
        self._tables = Tables(self._registry, bindings, self._supervisor)
        self._requests: dict[type[m.Message], _Work] = {
            m.CreateStream: streams.create,
            m.ResizeStream: streams.resize,
            m.SealStream: streams.seal,
            m.CloseStream: streams.close,
            m.AttachReader: readers.attach,
            m.DetachReader: readers.detach,
            m.OpenResults: bindings.open,
            m.RunOnce: bindings.run_once,
            m.Status: self._status,
            m.List: self._list,
            m.LoadModels: self._load_models,
            m.Stop: self._request_stop,
            m.WorkerState: self._worker_state,
            m.WorkerStats: self._worker_stats,
        }

    async def run(self) -> None:
        """Serves until `stop` is called, then drains: nothing is left when this returns."""
        for name in await asyncio.to_thread(sweep):
            log.warning("segment=%s left by a dead daemon, unlinked", name)
        try:
            await self._supervisor.load()
        except ModelFailed as error:
            log.error("%s", error)
        acceptor = Acceptor(self._listener, self._admit)
        ready = f"mcpd ready on {self._settings.socket} (pid {os.getpid()})"
        print(ready, file=sys.stderr, flush=True)
        await self._stop.wait()
        acceptor.close()
        await self._drain()

    def stop(self) -> None:
        """Has `run` drain and return. Idempotent."""
        self._stop.set()

    # ---- connections ----------------------------------------------------------------------------

    def _admit(self, sock: socket.socket) -> None:
        try:
            peer = identify(sock)
        except ProcessLookupError as error:
            log.info("connection refused: %s", error.strerror)
            sock.close()
            return
        except OSError as error:
            refuse(sock, no_descriptors(error))
            sock.close()
            return
        session = self._add_session(sock, peer, is_worker=False)
        try:
            _check_user(peer.uid)
            session.share = self._quotas.take(session, "a session", sessions=1, fds=SESSION_FDS)
        except McpdError as error:
            session.fail(error)

    def _adopt_worker(self, sock: socket.socket, process: subprocess.Popen[bytes]) -> Session:
        return self._add_session(sock, identify_child(process.pid), is_worker=True)

    def _add_session(self, sock: socket.socket, peer: Peer, *, is_worker: bool) -> Session:
        number = next(self._numbers)
        session = Session(
            *(self._loop, sock, peer, number, self, self._quotas, self._pace), is_worker=is_worker
        )
        self._registry.sessions[number] = session
        if peer.pidfd >= 0:
            self._loop.add_reader(peer.pidfd, self._process_gone, session)
        return session

    def ended(self, session: Session) -> None:
        """The connection is gone: revoke, and free as soon as nobody can touch what was held."""
        if session.greeted:
            log.info("%s ended", session)
        self._registry.revoke(session)
        self._supervisor.lost(session)
        if not self._registry.holds_anything(session) or not session.peer.alive():
            self._process_gone(session)

    def _process_gone(self, session: Session) -> None:
        if self._registry.sessions.pop(session.number, None) is None:
            return
        if session.peer.pidfd >= 0:
            self._loop.remove_reader(session.peer.pidfd)
        session.close()
        self._registry.free(session)
        session.peer.close()
        if session.share is not None:
            session.share.give_back()

    # ---- requests -------------------------------------------------------------------------------

    def handle(self, session: Session, message: m.Message) -> Answer | Coroutine[Any, Any, Answer]:
        """Starts or finishes a request; raises McpdError for one that is refused."""
        if isinstance(message, m.Hello):
            return self._hello(session, message)
        if not session.greeted:
            raise EndOfSession(ProtocolError("the first message must be hello"))
        return self._requests[type(message)](session, message)

    def _hello(self, session: Session, message: m.Hello) -> Answer:
        if m.PROTOCOL_VERSION not in message.versions:
            raise EndOfSession(
                UnsupportedVersion(
                    f"no protocol version in common: yours are {message.versions[:20]}, this "
                    f"daemon's is {m.PROTOCOL_VERSION}",
                    "Install the same version of mcpd on both sides.",
                )
            )
        session.greeted = True
        session.client = "".join(c for c in message.client if c.isprintable())[:MAX_CLIENT_NAME]
        log.info("%s began", session)
        return Answer(
            {
                "version": m.PROTOCOL_VERSION,
                "session": session.number,
                "daemon_pid": os.getpid(),
                "daemon_version": version("mcpd-inference"),
                "instance": self._instance,
                "socket": self._settings.socket,
            }
        )

    def _status(self, session: Session, message: m.Status) -> Answer:
        daemon = {
            "pid": os.getpid(),
            "version": version("mcpd-inference"),
            "socket": self._settings.socket,
            "models": str(self._settings.models),
            "sessions": len(self._registry.sessions),
            "memory_bytes": self._ledger.used_nbytes,
            "reaper_pid": self._reaper.pid,
            **self._figures.read(),
        }
        return Answer({"daemon": daemon, **self._tables.counts()})

    def _list(self, session: Session, message: m.List) -> Answer:
        return Answer(self._tables.page(message.what, message.cursor))

    async def _load_models(self, session: Session, message: m.LoadModels) -> Answer:
        names = await self._supervisor.load(every=not message.model, only=message.model)
        return Answer({"models": names})

    def _worker_state(self, session: Session, message: m.WorkerState) -> Answer:
        self._supervisor.worker_state(session, message)
        return Answer()

    def _worker_stats(self, session: Session, message: m.WorkerStats) -> Answer:
        self._supervisor.worker_stats(session, message)
        return Answer()

    def _request_stop(self, session: Session, message: m.Stop) -> Answer:
        log.info("%s asks to stop", session)
        self._loop.call_soon(self.stop)
        return Answer()

    # ---- the end --------------------------------------------------------------------------------

    async def _drain(self) -> None:
        log.info("stopping")
        self._stalls.close()
        self._registry.shut_down()
        await self._supervisor.stop()
        for session in list(self._registry.sessions.values()):
            session.finish()
        while any(session.open for session in self._registry.sessions.values()):
            await asyncio.sleep(0.01)
        for session in list(self._registry.sessions.values()):
            self._process_gone(session)
        self._reaper.close()
        log.info("stopped")


def _check_user(uid: int) -> None:
    if uid not in (os.geteuid(), 0):
        raise NotPermitted(
            f"user {uid} may not use the daemon of user {os.geteuid()}",
            "Start a daemon of your own with `mcpd start`.",
        )
