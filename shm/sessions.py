"""What a client's parts talk over: one session, or one after the other (reconnection.py)."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Protocol, TypeVar

from mcpd.shm.connection import REQUEST_TIMEOUT_S, Connection
from mcpd.shm.errors import InvalidRequest, McpdError, NotFound, StreamClosed

if TYPE_CHECKING:
    from mcpd.shm.reconnection import Reconnection

T = TypeVar("T")

PATIENCE_S = 30.0
"""How long an end that cannot be made again is tried before a call that has no time limit says why.
It is tried further all the same."""


class Kept(Protocol):
    """An end of a stream that is made again in each session."""

    @property
    def writes(self) -> bool: ...

    def settle(self) -> None:
        """The session is lost; waits a moment for who else has to do with the stream."""
        ...

    def restore(self, connection: Connection) -> bool:
        """Makes it again there; True when there is nothing more to do in this session.

        Raises:
            DaemonUnavailable: This session is lost, too.
        """
        ...

    def wake(self) -> None:
        """No session will come any more: who waits is to look again."""
        ...

    def close(self) -> None: ...


class Sessions(Protocol):
    """OneSession or Reconnection."""

    @property
    def connection(self) -> Connection: ...

    @property
    def keeper(self) -> Reconnection | None:
        """What makes ends of streams again; None if nothing does."""
        ...

    def session(self) -> Future[Connection]:
        """The session there is, or the next one."""
        ...

    def run(
        self, work: Callable[[Connection], T], timeout_s: float | None = REQUEST_TIMEOUT_S
    ) -> T:
        """Does something in a session, and once more in the next one if it was lost meanwhile.

        Args:
            timeout_s: How long to wait for a session.

        Raises:
            DaemonUnavailable: There is none, in that time.
        """
        ...

    def stop(self) -> None:
        """No further session is opened."""
        ...

    def close(self) -> None:
        """Ends the session."""
        ...


class OneSession:
    """The session of a client that does not reconnect."""

    keeper = None

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def session(self) -> Future[Connection]:
        """The session, also when it is over: what is asked of it says so."""
        future: Future[Connection] = Future()
        future.set_result(self.connection)
        return future

    def run(
        self, work: Callable[[Connection], T], timeout_s: float | None = REQUEST_TIMEOUT_S
    ) -> T:
        """Does it once."""
        return work(self.connection)

    def stop(self) -> None:
        """There is nothing to stop."""

    def close(self) -> None:
        """Ends the session."""
        self.connection.close()


class Trouble:
    """Why an end could not be made again when it was tried last. Its owner locks."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._error: McpdError | None = None
        self._since_s = 0.0

    def note(self, error: McpdError) -> None:
        """It failed, once more."""
        if self._error is None or self._error.code != error.code:
            self._since_s = time.monotonic()
        self._error = error

    def clear(self) -> None:
        """It is there again."""
        self._error = None

    @property
    def expected(self) -> bool:
        """Whether all there is to say is that its stream is not there yet."""
        return self._error is None or isinstance(self._error, (NotFound, StreamClosed))

    def error(self) -> McpdError:
        """What to raise: of the same type, and saying what it was about."""
        error = self._error or InvalidRequest("it was not tried")
        text = f"{self._what} cannot be had again after the daemon was lost: {error.message}"
        return type(error)(text, error.hint)

    def raise_if_old(self) -> None:
        """Raises `error` if it has been so for PATIENCE_S."""
        if not self.expected and time.monotonic() - self._since_s >= PATIENCE_S:
            raise self.error()
