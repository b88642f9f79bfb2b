"""Takes connections from the listening socket, also when there is no descriptor left for them."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Callable

from mcpd.daemon.failures import no_descriptors
from mcpd.shm.errors import McpdError
from mcpd.shm.messages import ErrorReply
from mcpd.shm.wire import encode

log = logging.getLogger("mcpd.daemon")

ACCEPTS_PER_CALL = 4
"""Most connections before the loop looks at the sessions there are."""
RETRY_S = 1.0


class Acceptor:
    """Accepts until it is closed. Belongs to the event loop's thread.

    Keeps a descriptor in hand: when there are no others, it is given up for a moment to tell who
    connects that there are none.

    Args:
        listener: The caller's.
        admit: Gets each connected socket, and owns it.
    """

    def __init__(self, listener: socket.socket, admit: Callable[[socket.socket], None]) -> None:
        self._listener = listener
        self._admit = admit
        self._loop = asyncio.get_running_loop()
        self._spare_fd = -1
        self._closed = False
        listener.setblocking(False)
        self._resume()

    def close(self) -> None:
        """Accepts nobody more. Idempotent."""
        self._closed = True
        self._loop.remove_reader(self._listener)
        self._drop_spare()

    def _resume(self) -> None:
        if not self._closed:
            self._keep_spare()
            self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_CALL):
            try:
                sock, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE) and self._turn_away(error):
                    continue
                # Who waits in the backlog would wake us again at once.
                log.error("cannot accept a connection: %s", error)
                self._loop.remove_reader(self._listener)
                self._loop.call_later(RETRY_S, self._resume)
                return
            self._admit(sock)

    def _turn_away(self, error: OSError) -> bool:
        """Tells one peer that there are no descriptors; whether that could be done."""
        if self._spare_fd < 0:
            return False
        self._drop_spare()
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return False
        reason = no_descriptors(error)
        log.error("connection refused: %s", reason)
        with sock:
            refuse(sock, reason)
        self._keep_spare()
        return True

    def _keep_spare(self) -> None:
        if self._spare_fd < 0:
            try:
                self._spare_fd = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                self._spare_fd = -1  # it is tried again with the next connection

    def _drop_spare(self) -> None:
        if self._spare_fd >= 0:
            os.close(self._spare_fd)
            self._spare_fd = -1


def refuse(sock: socket.socket, error: McpdError) -> None:
    """Says why there will be no session, if the peer still listens."""
    sock.setblocking(False)
    message = ErrorReply(code=error.code, message=error.message, hint=error.hint)
    try:
        sock.send(encode(message), socket.MSG_NOSIGNAL)
    except OSError as failure:
        log.debug("nobody heard it: %s", failure)
