"""What a session receives: read in small portions, looked at message by message, at its pace.

While messages wait here their socket is not read, so a peer that sends more than its share fills
its own socket buffer and waits there; the loop goes on to the others.
"""

from __future__ import annotations

import asyncio
import select
import time
from collections import deque
from typing import Protocol

from mcpd.daemon.pace import Pacer
from mcpd.shm.errors import McpdError, ProtocolError
from mcpd.shm.transport import MessageSocket, close_fds

SLICE = 16
SLICE_S = 0.001
"""Most messages of a session, and about the most time, before the loop looks at the others."""
MIN_PAUSE_S = 0.005


class Receiver(Protocol):
    """The session."""

    def receive(self, body: bytes, fds: list[int]) -> None: ...
    def fail(self, error: McpdError) -> None: ...
    def close(self) -> None: ...


class Inbox:
    """Reads a socket until it is stopped. Belongs to the event loop's thread."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        socket: MessageSocket,
        pacer: Pacer,
        receiver: Receiver,
    ) -> None:
        self._loop = loop
        self._socket = socket
        self._fd = socket.fileno()
        self._pacer = pacer
        self._receiver = receiver
        self._waiting: deque[tuple[bytes, list[int]]] = deque()
        self._timer: asyncio.Handle | None = None
        self._reading = True
        self._stopped = False
        self.paused = 0
        loop.add_reader(self._fd, self._readable)

    def stop(self) -> None:
        """Reads nothing more, and forgets what waits. Idempotent."""
        self._stopped = True
        for _, fds in self._waiting:
            close_fds(fds)
        self._waiting.clear()
        self._set_reading(False)
        if self._timer is not None:
            self._timer.cancel()

    def _readable(self) -> None:
        try:
            messages = self._socket.receive()
        except ProtocolError as error:
            self._receiver.fail(error)
            return
        except OSError:
            self._receiver.close()
            return
        self._waiting.extend(messages)
        self._work()

    def _work(self) -> None:
        self._timer = None
        began_s = now_s = time.monotonic()
        pause_s = 0.0
        for _ in range(SLICE):
            if not self._waiting:
                break
            pause_s = self._pacer.wait_s(now_s)
            if pause_s or now_s - began_s > SLICE_S:
                break
            before_s = now_s
            self._receiver.receive(*self._waiting.popleft())
            if self._stopped:
                return
            now_s = time.monotonic()
            self._pacer.spend(now_s - before_s)
        if self._socket.eof:
            self._receiver.close()  # what it still asked nobody would hear the answer of
        elif not self._waiting:
            self._set_reading(True)
        else:
            self._set_reading(False)
            if pause_s:
                self.paused += 1
                self._timer = self._loop.call_later(max(pause_s, MIN_PAUSE_S), self._go_on)
            else:
                self._timer = self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        # The end of what the peer sent is behind all that it sent: its hanging up is seen at once.
        poll = select.poll()
        poll.register(self._fd, 0)
        if poll.poll(0):
            self._receiver.close()
        else:
            self._work()

    def _set_reading(self, reading: bool) -> None:
        if reading == self._reading:
            return
        self._reading = reading
        if reading:
            self._loop.add_reader(self._fd, self._readable)
        else:
            self._loop.remove_reader(self._fd)
