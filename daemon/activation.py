"""A listening socket from a service manager: the protocol of sd_listen_fds(3)."""

from __future__ import annotations

import os
import socket

from mcpd.shm.errors import InvalidRequest

FIRST_FD = 3
_NAMES = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")


def inherited_listener(path: str) -> socket.socket | None:
    """The listener that this process was started with, None if it was started with none.

    The variables are taken from the environment, so that no child takes them for its own.

    Args:
        path: Where the daemon is to listen.

    Raises:
        InvalidRequest: Not one socket, or not one that listens at `path`.
    """
    pid, count, _ = (os.environ.pop(name, "") for name in _NAMES)
    if pid != str(os.getpid()) or not count.isdecimal() or int(count) == 0:
        return None
    for fd in range(FIRST_FD, FIRST_FD + int(count)):
        os.set_inheritable(fd, False)
    if count != "1":
        raise InvalidRequest(
            f"the service manager hands over {count} sockets", "The daemon takes one."
        )
    try:
        listener = socket.socket(fileno=FIRST_FD)
        listens = listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        raise InvalidRequest(f"descriptor {FIRST_FD}, handed over, is no socket") from error
    stream = listener.family == socket.AF_UNIX and listener.type == socket.SOCK_STREAM
    if not stream or not listens or listener.getsockname() != path:
        bound = listener.getsockname()
        listener.close()
        raise InvalidRequest(
            f"the socket handed over is not a Unix stream socket that listens at {path}: {bound!r}",
            "Give the same path in the socket unit (ListenStream=) and with --socket.",
        )
    return listener
