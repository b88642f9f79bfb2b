"""Requests that wait for their replies, and how to give back what a reply grants too late."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from mcpd.shm.errors import McpdError, from_wire
from mcpd.shm.messages import (
    AttachReader,
    CloseStream,
    CreateStream,
    DetachReader,
    ErrorReply,
    Message,
    OpenResults,
    Reply,
    ResizeStream,
)
from mcpd.shm.transport import close_fds

Answer = tuple[dict[str, Any], list[int]]
"""A reply's result and the descriptors that came with it."""


class PendingReplies:
    """The requests of a session by their ids. Safe for threads.

    Args:
        give_back: Called with a request and the result of its reply that nobody wants any more;
            its descriptors are closed by then.
    """

    def __init__(self, give_back: Callable[[Message, dict[str, Any]], None]) -> None:
        self._give_back = give_back
        self._lock = threading.Lock()
        self._waiting: dict[int, tuple[Message, Future[Answer]]] = {}
        self._last_id = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def number(self, message: Message) -> None:
        """Gives a request the next id."""
        with self._lock:
            self._last_id += 1
            message.id = self._last_id

    def add(self, message: Message) -> Future[Answer]:
        """From now on a reply to this request completes the future returned."""
        future: Future[Answer] = Future()
        with self._lock:
            self._waiting[message.id] = message, future
        return future

    def remove(self, message: Message) -> None:
        """Undoes add: it could not be sent."""
        with self._lock:
            self._waiting.pop(message.id, None)

    def complete(self, reply: Reply | ErrorReply, fds: list[int]) -> bool:
        """Hands a reply to who waits for it; False if nobody ever asked. Owns `fds`."""
        with self._lock:
            found = self._waiting.pop(reply.id, None)
        if found is None:
            close_fds(fds)
            return False
        message, future = found
        wanted = future.set_running_or_notify_cancel()
        if isinstance(reply, ErrorReply):
            close_fds(fds)
            if wanted:
                future.set_exception(from_wire(reply.code, reply.message, reply.hint))
        elif wanted:
            future.set_result((reply.result, fds))
        else:
            close_fds(fds)
            self._give_back(message, reply.result)
        return True

    def abandon(self, message: Message, future: Future[Answer]) -> None:
        """Nobody wants this reply any more, whether it came already or not."""
        if future.cancel():
            return  # `complete` gives back what it would have got

        def give_back(done: Future[Answer]) -> None:
            if done.exception() is None:
                result, fds = done.result()
                close_fds(fds)
                self._give_back(message, result)

        future.add_done_callback(give_back)

    def fail_all(self, make_error: Callable[[], McpdError]) -> None:
        """The session is over: each gets an error of its own, being raised in its own thread."""
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        for _, future in waiting.values():
            if future.set_running_or_notify_cancel():
                future.set_exception(make_error())


def undo_of(message: Message, result: dict[str, Any]) -> Message | None:
    """The request that gives back what a reply granted; None if it granted nothing."""
    match message:
        case CreateStream() | ResizeStream():
            return CloseStream(
                stream=int(result.get("stream", 0)), generation=int(result.get("generation", 0))
            )
        case AttachReader():
            return DetachReader(reader=int(result.get("reader", 0)))
        case OpenResults():
            return DetachReader(reader=int(result.get("grant", {}).get("reader", 0)))
    return None
