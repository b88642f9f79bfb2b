"""Sessions with a daemon, one after the other: for clients that outlive it. See docs/restart.md."""

from __future__ import annotations

import logging
import random
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from typing import TypeVar

from mcpd.shm.connection import REQUEST_TIMEOUT_S, Connection
from mcpd.shm.errors import (
    DaemonUnavailable,
    InvalidRequest,
    McpdError,
    NotPermitted,
    UnsupportedVersion,
)
from mcpd.shm.paths import open_socket
from mcpd.shm.sessions import Kept

T = TypeVar("T")

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0
"""Between two attempts to connect: doubles, and is shortened by up to a half at random, so that a
thousand clients do not come at once."""
FIRST_RETRY_S, LONGEST_RETRY_S = 0.02, 1.0
"""Between two attempts to have a stream again, as long as somebody is missing."""
CONNECT_TIMEOUT_S = 1.0
"""How long a daemon with a full backlog is waited for before the next attempt."""

_log = logging.getLogger("mcpd.shm")


class Reconnection:
    """Connects again when the daemon is lost, and has ends of streams made again.

    Safe for threads. There is a thread only while the daemon is away or a stream is missing.

    Args:
        path: The daemon's socket.
        name: What this program calls itself.
        timeout_s: How long the first daemon may take to be there and greet, and each to greet.
        on_lost, on_restored: Called on that thread, with the reason; when a session is there again.
        kind: Of connection.

    Raises:
        As Connection; DaemonUnavailable when no daemon was there in time.
    """

    def __init__(
        self,
        path: str,
        *,
        name: str = "",
        timeout_s: float = 5.0,
        on_lost: Callable[[McpdError], None] | None = None,
        on_restored: Callable[[], None] | None = None,
        kind: type[Connection] = Connection,
    ) -> None:
        self._path = path
        self._kind = kind
        self._name = name
        self._timeout_s = timeout_s
        self._on_lost = on_lost
        self._on_restored = on_restored
        self._changed = threading.Condition()
        self._over: McpdError | None = None  # why no session comes any more
        self._away: McpdError | None = None  # why there is none now
        self._lost_s = 0.0
        self._waiting: list[Future[Connection]] = []
        self._kept: dict[int, Kept] = {}
        self._missing: dict[int, Kept] = {}
        self._greeting: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._begun = False
        self.connection = self._connect_first(timeout_s)
        with self._changed:
            self._begun = True
            self._look()

    @property
    def keeper(self) -> Reconnection:
        """This."""
        return self

    @property
    def over(self) -> bool:
        """Whether no session comes any more: closed, or a daemon that cannot be talked to."""
        return self._over is not None

    def session(self) -> Future[Connection]:
        """The session there is, or the next one; fails as DaemonUnavailable when none will come."""
        future: Future[Connection] = Future()
        with self._changed:
            if self._over is not None:
                future.set_exception(self.unavailable())
            elif self.connection.inherited or not self.connection.lost:
                future.set_result(self.connection)
            else:
                self._waiting = [one for one in self._waiting if not one.cancelled()]
                self._waiting.append(future)
        return future

    def run(
        self, work: Callable[[Connection], T], timeout_s: float | None = REQUEST_TIMEOUT_S
    ) -> T:
        """As Sessions.run."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            future = self.session()
            try:
                left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
                connection = future.result(left_s)
            except FutureTimeoutError:
                if future.cancel():
                    raise self.unavailable() from None
                connection = future.result()
            try:
                return work(connection)
            except DaemonUnavailable:
                if not connection.lost or connection.inherited:
                    raise

    def unavailable(self) -> McpdError:
        """The error for a call that does not wait any longer; a new one for each."""
        over, away = self._over, self._away
        if over is not None:
            return type(over)(over.message, over.hint)
        text = f"the daemon has been away for {time.monotonic() - self._lost_s:.1f} s"
        if away is not None:
            text += f": {away.message}"
        hint = "Start it with: mcpd start. This client then goes on by itself."
        return DaemonUnavailable(text, hint)

    @property
    def hint(self) -> str:
        """For errors about time: that the daemon is away, "" if it is there."""
        if self._over is None and self.connection.lost:
            return "The daemon is away; `mcpd start` starts it."
        return ""

    # ---- ends of streams -----------------------------------------------------------------------

    def keep(self, end: Kept, connection: Connection) -> None:
        """From now on it is made again in each session; it was made in `connection`."""
        with self._changed:
            self._kept[id(end)] = end
            if connection is not self.connection or connection.lost:
                self._missing[id(end)] = end
                self._look()

    def miss(self, end: Kept) -> None:
        """It has lost its stream in a session that stands: the writer has lost its own."""
        with self._changed:
            if id(end) in self._kept:
                self._missing[id(end)] = end
                self._look()

    def drop(self, end: Kept) -> None:
        """Undoes keep."""
        with self._changed:
            self._kept.pop(id(end), None)
            self._missing.pop(id(end), None)

    @property
    def settled(self) -> bool:
        """Whether there is a session, and every stream in it."""
        with self._changed:
            return self._thread is None and not self._has_work()

    def all(self) -> list[Kept]:
        """Every end that is kept."""
        with self._changed:
            return list(self._kept.values())

    def stop(self) -> None:
        """No further session is opened, and who waits for one fails. Idempotent."""
        self._end(DaemonUnavailable("connection was closed"))

    def close(self) -> None:
        """Ends the session. Idempotent; returns at once, whatever the daemon does."""
        self.stop()
        self.connection.close()
        with self._changed:
            thread, greeting = self._thread, self._greeting
        if greeting is not None:
            with suppress(OSError):
                greeting.shutdown(socket.SHUT_RDWR)
        if thread is not None and thread is not threading.current_thread():
            thread.join(CONNECT_TIMEOUT_S)

    # ---- connecting ----------------------------------------------------------------------------

    def _connect_first(self, timeout_s: float) -> Connection:
        deadline = time.monotonic() + timeout_s
        pause = _Pause(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        while True:
            try:
                return self._greet()
            except DaemonUnavailable:
                pause_s = pause.next()
                if time.monotonic() + pause_s >= deadline:
                    raise
            time.sleep(pause_s)

    def _greet(self) -> Connection:
        sock = open_socket(self._path, min(self._timeout_s, CONNECT_TIMEOUT_S))
        with self._changed:
            self._greeting = sock
            over = self._over
        try:
            if over is not None:
                sock.close()
                raise self.unavailable()
            return self._kind(
                sock, name=self._name, timeout_s=self._timeout_s, on_closed=self._on_closed
            )
        finally:
            with self._changed:
                self._greeting = None

    def _on_closed(self, _error: McpdError) -> None:
        with self._changed:
            self._look()

    def _look(self) -> None:
        """Under the lock: sees to it that the thread runs if it has something to do."""
        if self._thread is not None:
            self._changed.notify_all()
        elif self._begun and self._over is None and self._has_work():
            self._thread = threading.Thread(target=self._run, name="mcpd-reconnect", daemon=True)
            self._thread.start()

    def _has_work(self) -> bool:
        return self.connection.lost or bool(self._missing)

    def _run(self) -> None:
        try:
            while self._go_on():
                pass
        except Exception as error:
            _log.exception("reconnecting failed")
            self._end(DaemonUnavailable(f"reconnecting failed: {error!r}"))
        finally:
            with self._changed:
                self._thread = None
                self._look()  # what came since it was asked last

    def _go_on(self) -> bool:
        """Does what there is to do; False when that is nothing more."""
        with self._changed:
            if self._over is not None or not self._has_work():
                return False
        if self.connection.lost:
            self._reconnect()
        pause = _Pause(FIRST_RETRY_S, LONGEST_RETRY_S)
        connection = self.connection
        while not connection.lost and not self.over:
            self._restore(connection)
            with self._changed:
                if not self._missing:
                    break
                self._changed.wait(pause.next())
        return True

    def _reconnect(self) -> None:
        """Returns with another session, or when none is to come."""
        lost = self.connection
        self._lost_s = time.monotonic()
        reason = lost.lost_error()
        _log.warning("socket=%s session=%d lost: %s", self._path, lost.session, reason)
        lost.close()
        on_lost = self._on_lost
        if on_lost is not None:
            self._tell(lambda: on_lost(reason))
        for end in self.all():
            end.settle()
        pause = _Pause(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        while not self.over:
            try:
                connection = self._greet()
            except (UnsupportedVersion, NotPermitted, InvalidRequest) as error:
                _log.error("socket=%s does not come back: %s", self._path, error)
                self._end(error)
                return
            except McpdError as error:
                self._away = error
            except OSError as error:
                self._away = DaemonUnavailable(f"cannot connect: {error}")
            else:
                self._begin(connection)
                return
            with self._changed:
                self._changed.wait_for(lambda: self._over is not None, pause.next())

    def _begin(self, connection: Connection) -> None:
        """A session is there."""
        waiting: list[Future[Connection]] = []
        with self._changed:
            if self._over is None:
                self.connection = connection
                self._away = None
                self._missing = dict(self._kept)
                waiting, self._waiting = self._waiting, waiting
        if self.connection is not connection:
            connection.close()
            return
        away_s = time.monotonic() - self._lost_s
        _log.info(
            "socket=%s session=%d restored after %.3f s", self._path, connection.session, away_s
        )
        for future in waiting:
            if future.set_running_or_notify_cancel():
                future.set_result(connection)
        if self._on_restored is not None:
            self._tell(self._on_restored)

    def _restore(self, connection: Connection) -> None:
        """Tries to have again what is missing: streams first, then who reads them."""
        with self._changed:
            missing = sorted(self._missing.values(), key=lambda end: not end.writes)
        for end in missing:
            try:
                if not end.restore(connection):
                    continue
            except DaemonUnavailable:
                if connection.lost or self.over:
                    return
                continue
            with self._changed:
                self._missing.pop(id(end), None)

    def _tell(self, callback: Callable[[], None]) -> None:
        try:
            callback()
        except Exception:
            _log.exception("socket=%s callback failed", self._path)

    def _end(self, error: McpdError) -> None:
        with self._changed:
            if self._over is not None:
                return
            self._over = error
            waiting, self._waiting = self._waiting, []
            self._changed.notify_all()
        for future in waiting:
            if future.set_running_or_notify_cancel():
                future.set_exception(self.unavailable())
        for end in self.all():
            end.wake()


class _Pause:
    """Doubling pauses with jitter."""

    def __init__(self, first_s: float, longest_s: float) -> None:
        self._next_s, self._longest_s = first_s, longest_s

    def next(self) -> float:
        pause_s = self._next_s * random.uniform(0.5, 1.0)
        self._next_s = min(2 * self._next_s, self._longest_s)
        return pause_s
