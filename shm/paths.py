"""Where the control socket and the model repository are, for every program of mcpd alike."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from mcpd.shm.errors import DaemonUnavailable, InvalidRequest, NotPermitted

MAX_SOCKET_PATH_NBYTES = 107
"""sockaddr_un holds 108 bytes, the last of them zero."""


def default_socket() -> str:
    """The control socket's path when none is given; docs/architecture.md has the order."""
    given = os.environ.get("MCPD_SOCKET")
    if given:
        return given
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime:
        return os.path.join(runtime, "mcpd", "mcpd.sock")
    if os.getuid() == 0:
        return "/run/mcpd/mcpd.sock"
    return f"/tmp/mcpd-{os.getuid()}/mcpd.sock"


def resolve_socket(socket: str | os.PathLike[str] | None = None) -> str:
    """`socket`, or the default, as a path that a Unix socket can have.

    Raises:
        InvalidRequest: The path is empty, holds a zero byte or is too long.
    """
    path = os.fspath(socket) if socket is not None else default_socket()
    nbytes = len(os.fsencode(path))
    if not path or "\0" in path:
        raise InvalidRequest(f"socket path {path!r} is not a path", "Give --socket or MCPD_SOCKET.")
    if nbytes > MAX_SOCKET_PATH_NBYTES:
        raise InvalidRequest(
            f"socket path has {nbytes} bytes, the limit is {MAX_SOCKET_PATH_NBYTES}: {path}",
            "Choose a shorter one with --socket or MCPD_SOCKET.",
        )
    return path


def open_socket(path: str, timeout_s: float | None) -> socket.socket:
    """A socket connected to the daemon at `path`.

    Raises:
        DaemonUnavailable: No daemon listens there.
        NotPermitted: The socket is another user's.
        InvalidRequest: timeout_s is below 0, or not a number.
    """
    if timeout_s is not None and not timeout_s >= 0:
        raise InvalidRequest(f"timeout_s is {timeout_s}", "It must be 0 or more.")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        sock.settimeout(timeout_s)
        sock.connect(path)
    except PermissionError as error:
        sock.close()
        raise NotPermitted(
            f"socket {path} may not be opened by uid {os.getuid()}",
            "The daemon serves the user who started it.",
        ) from error
    except OSError as error:
        sock.close()
        raise DaemonUnavailable(
            f"no daemon answers on {path}: {error.strerror or error}",
            "Start it with: mcpd start",
        ) from error
    return sock


def default_models() -> Path:
    """The model repository's folder when none is given: $MCPD_MODELS, else under XDG_DATA_HOME."""
    given = os.environ.get("MCPD_MODELS")
    if given:
        return Path(given)
    data = os.environ.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local" / "share") / "mcpd" / "models"
