"""The client: connect to the daemon, make and open streams, have models run."""

from __future__ import annotations

import os
import socket as sockets
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Self

from mcpd.shm.call_site import add_site, tracing
from mcpd.shm.connection import Connection
from mcpd.shm.errors import McpdError
from mcpd.shm.messages import List, LoadModels, Message, Status, Stop
from mcpd.shm.modelling import ModelClient
from mcpd.shm.paths import open_socket, resolve_socket
from mcpd.shm.replies import Answer

Rows = list[dict[str, Any]]


def connect(
    socket: str | os.PathLike[str] | None = None,
    *,
    timeout_s: float = 5.0,
    name: str = "",
    trace: bool | None = None,
) -> Client:
    """Connects to the daemon.

    Args:
        socket: Its socket; by default as docs/architecture.md says.
        timeout_s: How long it may take to accept and greet.
        name: What this program calls itself, for `mcpd status`.
        trace: Whether `mcpd leaks` is to show where in the program its streams were asked for;
            None: as the environment's MCPD_TRACE says.

    Raises:
        DaemonUnavailable: No daemon listens there.
        NotPermitted: The socket is another user's.
        InvalidRequest: The path cannot be a socket's, or timeout_s be a time.
        LimitExceeded: The daemon takes no session more.
        TimedOut, UnsupportedVersion: It does not greet, or speaks another protocol.
    """
    sock = open_socket(resolve_socket(socket), timeout_s)
    kind = TracingConnection if tracing(trace) else Connection
    return Client(kind(sock, name=name, timeout_s=timeout_s))


class Client(ModelClient):
    """A session with the daemon. A context manager that closes. Safe for threads, not over fork.

    Made by `connect`, or `from_socket` where the socket is there already.

    Attributes:
        connection: What it talks over.
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
        return cls(
            Connection(
                sock, name=name, timeout_s=timeout_s, on_message=on_message, on_closed=on_closed
            )
        )

    @property
    def session(self) -> int:
        """The daemon's number of this session."""
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
        return self.connection.request(Status())[0]

    def list(self, what: str) -> Rows:
        """Every row of a table: "streams", "readers", "models", "sessions", "leases", "workers",
        "limits".

        Raises:
            InvalidRequest: No such table.
        """
        rows: Rows = []
        cursor = ""
        while True:
            page, _ = self.connection.request(List(what=what, cursor=cursor))
            rows.extend(page["items"])
            cursor = page.get("cursor", "")
            if not cursor:
                return rows

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
        answer, _ = self.connection.request(LoadModels(model=model))
        return [str(name) for name in answer["models"]]

    def stop(self) -> None:
        """Has the daemon drain and end."""
        self.connection.request(Stop())

    # ---- life ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Closes every stream of this client and ends the session. Idempotent.

        Does nothing in a forked child: the session is its parent's.
        """
        if self.connection.inherited:
            return
        self.connection.streams.closing = True
        self._inference.close()
        for stream in self.connection.streams.all():
            stream.close()
        self.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class TracingConnection(Connection):
    """A connection that tells the daemon where in the program streams are asked for."""

    def submit(self, message: Message, fds: Sequence[int] = ()) -> Future[Answer]:
        """As Connection.submit."""
        add_site(message)
        return super().submit(message, fds)
