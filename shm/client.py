"""The client: connect to the daemon, make and open streams, have models run."""

from __future__ import annotations

import os
import socket as sockets
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Self

from mcpd.shm.call_site import add_site, tracing
from mcpd.shm.connection import Connection
from mcpd.shm.errors import InvalidRequest, McpdError
from mcpd.shm.messages import List, LoadModels, Message, Status, Stop
from mcpd.shm.modelling import ModelClient
from mcpd.shm.paths import open_socket, resolve_socket
from mcpd.shm.reconnection import Reconnection
from mcpd.shm.replies import Answer
from mcpd.shm.sessions import OneSession, Sessions

Rows = list[dict[str, Any]]


def connect(
    socket: str | os.PathLike[str] | None = None,
    *,
    timeout_s: float = 5.0,
    name: str = "",
    trace: bool | None = None,
    reconnect: bool = False,
    on_lost: Callable[[McpdError], None] | None = None,
    on_restored: Callable[[], None] | None = None,
) -> Client:
    """Connects to the daemon.

    Args:
        socket: Its socket; by default as docs/architecture.md says.
        timeout_s: How long it may take to accept and greet.
        name: What this program calls itself, for `mcpd status`.
        trace: Whether `mcpd leaks` is to show where in the program its streams were asked for;
            None: as the environment's MCPD_TRACE says.
        reconnect: Whether to go on by itself when the daemon is gone and there again: calls then
            wait for it within their time-outs, streams are made and opened again, results go on.
            Also waits for the first daemon, for `timeout_s`. docs/restart.md says what is lost.
        on_lost: With `reconnect`: called with the reason when the daemon is gone.
        on_restored: With `reconnect`: called when another has been greeted, before streams are
            there again. Both are called on a thread of the client's, which they hold up.

    Raises:
        DaemonUnavailable: No daemon listens there.
        NotPermitted: The socket is another user's.
        InvalidRequest: The path cannot be a socket's, or timeout_s be a time; on_lost or
            on_restored without `reconnect`.
        LimitExceeded: The daemon takes no session more.
        TimedOut, UnsupportedVersion: It does not greet, or speaks another protocol.
    """
    path = resolve_socket(socket)
    kind = TracingConnection if tracing(trace) else Connection
    if reconnect:
        return Client(
            Reconnection(
                path,
                name=name,
                timeout_s=timeout_s,
                on_lost=on_lost,
                on_restored=on_restored,
                kind=kind,
            )
        )
    if on_lost is not None or on_restored is not None:
        raise InvalidRequest("on_lost and on_restored are for clients that reconnect")
    sock = open_socket(path, timeout_s)
    return Client(OneSession(kind(sock, name=name, timeout_s=timeout_s)))


class Client(ModelClient):
    """A session with the daemon. A context manager that closes. Safe for threads, not over fork.

    Made by `connect`, or `from_socket` where the socket is there already.
    """

    @classmethod
    def from_socket(
        cls,
        sock: sockets.socket,
        *,
        name: str = "",
        timeout_s: float = 5.0,
        on_message: Callable[[Message], None] | None = None,
        on_closed: Callable[[McpdError], None] | None = None,
    ) -> Self:
        """A client over a connected socket, its own from the call on; see Connection."""
        connection = Connection(
            sock, name=name, timeout_s=timeout_s, on_message=on_message, on_closed=on_closed
        )
        return cls(OneSession(connection))

    @property
    def sessions(self) -> Sessions:
        """What it talks over."""
        return self._sessions

    @property
    def session(self) -> int:
        """The daemon's number of this session; another one after a reconnect."""
        return self.connection.session

    @property
    def daemon_pid(self) -> int:
        """The daemon's process."""
        return self.connection.daemon_pid

    @property
    def socket(self) -> str:
        """Where the daemon listens."""
        return self.connection.socket_path

    # ---- questions -----------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """The daemon and counts of what it has; see docs/control.md."""
        return self._sessions.run(lambda session: session.request(Status()))[0]

    def list(self, what: str) -> Rows:
        """Every row of a table: "streams", "readers", "models", "sessions", "leases", "workers",
        "limits".

        Raises:
            InvalidRequest: No such table.
        """
        return self._sessions.run(lambda session: _rows(session, what))

    def load_models(self, model: str = "") -> list[str]:  # type: ignore[valid-type]
        """Has the daemon read its model repository again and load what is not loaded.

        A model that was parked, because its worker failed too often, is tried anew.

        Args:
            model: Only this one is loaded; by default all are.

        Returns:
            The names of all models that can be used, or the one.

        Raises:
            NotFound: There is no such model.
            ModelFailed: Its folder, or the repository, cannot be read.
        """
        answer, _ = self._sessions.run(lambda session: session.request(LoadModels(model=model)))
        return [str(name) for name in answer["models"]]

    def stop(self) -> None:
        """Has the daemon drain and end; with `reconnect` that is the one that is there now."""
        self.connection.request(Stop())

    # ---- life ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Closes every stream of this client and ends the session. Idempotent.

        Does nothing in a forked child: the session is its parent's.
        """
        if self.connection.inherited:
            return
        self.connection.streams.closing = True
        self._sessions.stop()
        self._inference.close()
        if self._sessions.keeper is not None:
            for end in self._sessions.keeper.all():
                end.close()
        for stream in self.connection.streams.all():
            stream.close()
        self._sessions.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _rows(session: Connection, what: str) -> Rows:
    rows: Rows = []
    cursor = ""
    while True:
        page, _ = session.request(List(what=what, cursor=cursor))
        rows.extend(page["items"])
        cursor = page.get("cursor", "")
        if not cursor:
            return rows


class TracingConnection(Connection):
    """A connection that tells the daemon where in the program streams are asked for."""

    def submit(self, message: Message, fds: Sequence[int] = ()) -> Future[Answer]:
        """As Connection.submit."""
        add_site(message)
        return super().submit(message, fds)
