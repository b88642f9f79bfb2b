"""Counts requests and what came back for each: exactly one reply or error, never silence."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

from mcpd.shm.connection import Connection
from mcpd.shm.replies import PendingReplies


class Ledger:
    """Of all connections of this process, from `install` on."""

    def __init__(self) -> None:
        self.asked = 0
        self.answered = 0
        self.unasked = 0
        self._lock = threading.Lock()

    def install(self) -> None:
        """Looks at every request and every reply from now on."""
        submit, complete = Connection.submit, PendingReplies.complete

        def counted_submit(connection: Connection, *arguments: Any) -> Future[Any]:
            future = submit(connection, *arguments)
            with self._lock:
                self.asked += 1
            future.add_done_callback(self._answered)
            return future

        def counted_complete(replies: PendingReplies, *arguments: Any) -> bool:
            asked = complete(replies, *arguments)
            if not asked and arguments[0].id:
                self.unasked += 1
            return asked

        Connection.submit = counted_submit  # type: ignore[method-assign, assignment]
        PendingReplies.complete = counted_complete  # type: ignore[method-assign, assignment]

    def fault(self) -> str:
        """What is wrong now that every connection is closed; "" if nothing is."""
        if self.asked == self.answered and not self.unasked:
            return ""
        return f"{self.asked} requests, {self.answered} answers, {self.unasked} to no request"

    def _answered(self, _: Future[Any]) -> None:
        with self._lock:
            self.answered += 1
