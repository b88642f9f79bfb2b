"""A daemon for tests of the client's connection: answers what it is told to, and nothing else."""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any, Self

from mcpd.shm.messages import REQUESTS, WORKER_MESSAGES, ErrorReply, Hello, Message, Reply
from mcpd.shm.transport import MessageSocket, close_fds
from mcpd.shm.wire import Decoder, encode

Answer = Callable[[Message], Message | None]
GREETING: dict[str, Any] = {
    "version": 1,
    "session": 7,
    "daemon_pid": 1,
    "daemon_version": "0",
    "socket": "/none",
}
_decoder = Decoder((*REQUESTS, *WORKER_MESSAGES, Reply, ErrorReply))


def greet(message: Message) -> Message | None:
    """Answers the hello."""
    return Reply(result=GREETING) if isinstance(message, Hello) else None


class ScriptedDaemon:
    """The other end of a connection, on a thread of its own. A context manager that closes.

    Args:
        answer: What to answer a message with; its id is filled in. None: nothing.

    Attributes:
        client: The client's end, for Connection.
        received: Every message so far.
    """

    def __init__(self, answer: Answer = greet) -> None:
        self.client, ours = socket.socketpair()
        self.received: list[Message] = []
        self._answer = answer
        self._raw = ours
        self._socket = MessageSocket(ours)
        self._changed = threading.Condition()
        self._stop = os.eventfd(0, os.EFD_CLOEXEC)
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def send(self, message: Message, fds: Sequence[int] = ()) -> None:
        """Sends a message with duplicates of descriptors."""
        message.fds = len(fds)
        with self._lock:
            self._socket.queue(encode(message), fds)
            self._socket.flush()

    def send_raw(self, data: bytes) -> None:
        """Sends bytes as they are."""
        self._raw.send(data)

    def send_raw_fds(self, data: bytes, fds: Sequence[int]) -> None:
        """Sends bytes as they are, with descriptors that ride on the first of them."""
        with self._lock:
            socket.send_fds(self._raw, [data], list(fds))

    def wait_for(self, kind: type[Message], count: int = 1) -> list[Message]:
        """The messages of a type, once there are so many."""

        def found() -> list[Message]:
            return [message for message in self.received if isinstance(message, kind)]

        with self._changed:
            assert self._changed.wait_for(lambda: len(found()) >= count, 10), self.received
            return found()

    def stop_reading(self) -> None:
        """Leaves the connection open and reads nothing more from it."""
        os.eventfd_write(self._stop, 1)
        self._thread.join()

    def hang_up(self) -> None:
        """Closes the connection, as a daemon does that dies."""
        self.stop_reading()
        self._socket.close()

    def close(self) -> None:
        """Ends it. Idempotent."""
        if self._stop >= 0:
            self.hang_up()
            os.close(self._stop)
            self._stop = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._stop, select.POLLIN)
        poll.register(self._socket.fileno(), select.POLLIN)
        while not self._socket.eof:
            if any(fd == self._stop for fd, _ in poll.poll()):
                return
            for body, fds in self._socket.receive():
                close_fds(fds)
                message = _decoder.decode(body)
                with self._changed:
                    self.received.append(message)
                    self._changed.notify_all()
                answer = self._answer(message)
                if answer is not None:
                    answer.id = message.id
                    self.send(answer)
