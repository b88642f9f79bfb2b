"""Where the relays of a user find the server that they share, and how the first one starts it.

The server's socket, `mcp-<digest>.sock`, lies beside the daemon's. The digest is of every setting
that the server looks at, its program among them, so relays meet in one server only if each would
have started the same. Whoever holds the flock on `mcp-<digest>.lock` owns the path: a relay that
gets it binds and listens itself, and hands listener and lock to the server it starts. Others can
connect from then on, while the server is still loading, and a second one is never started.

Imports only what the interpreter has at hand: `socket` alone takes as long as all of the relay.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import fcntl
import os
import stat
import sys
import time
from _blake2 import blake2s

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

BACKLOG = 128
_MAX_PATH_NBYTES = 107
_WAIT_S = 2.0
"""Longest wait for whoever has the lock and does not listen: that window is microseconds."""
_SETTINGS = ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR", "TMPDIR", "TZ", "LANG")
_PREFIXES = ("MCPD_", "PYTHON", "LD_", "LC_")


def settings(env: Mapping[str, str], uid: int) -> dict[str, str]:
    """The part of the environment that a server looks at, and is started with."""
    kept = {
        name: value
        for name, value in env.items()
        if name in _SETTINGS or name.startswith(_PREFIXES)
    }
    return {**kept, "MCPD_SOCKET": os.path.abspath(daemon_socket(env, uid))}


def daemon_socket(env: Mapping[str, str], uid: int) -> str:
    """The daemon's socket: the rule of mcpd.shm.paths, which is too slow to load here."""
    if given := env.get("MCPD_SOCKET"):
        return given
    if runtime := env.get("XDG_RUNTIME_DIR"):
        return os.path.join(runtime, "mcpd", "mcpd.sock")
    return "/run/mcpd/mcpd.sock" if uid == 0 else f"/tmp/mcpd-{uid}/mcpd.sock"


def base_path(shared: Mapping[str, str], version: str) -> str:
    """The path of the server's files, less their ending."""
    program = [sys.executable, os.path.dirname(__file__), version]
    told = "\0".join([*program, *(f"{name}={shared[name]}" for name in sorted(shared))])
    digest = blake2s(os.fsencode(told), digest_size=8).hexdigest()
    return os.path.join(os.path.dirname(shared["MCPD_SOCKET"]), f"mcp-{digest}")


def reach(env: Mapping[str, str], version: str) -> _socket.socket:
    """A connection to the server shared by relays with these settings, started if need be.

    Where no folder of ours can hold its socket, it is a server for this connection only.

    Raises:
        OSError: It cannot be started.
    """
    shared = settings(env, os.getuid())
    base = base_path(shared, version)
    if not _ours(os.path.dirname(base)) or len(os.fsencode(base)) + 5 > _MAX_PATH_NBYTES:
        return _private(shared)
    deadline = time.monotonic() + _WAIT_S
    while time.monotonic() < deadline:
        connection = _connected(f"{base}.sock") or _started(base, shared)
        if connection is not None:
            return connection
        time.sleep(0.002)
    return _private(shared)


def _ours(folder: str) -> bool:
    """Whether only this user can put a socket there; makes the folder as the daemon would."""
    try:
        os.makedirs(folder, 0o700, exist_ok=True)
        found = os.stat(folder)
    except OSError:
        return False
    others_write = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return found.st_uid == os.geteuid() and not others_write


def _connected(path: str) -> _socket.socket | None:
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        connection.connect(path)
    except (FileNotFoundError, ConnectionError, BlockingIOError):
        connection.close()
        return None
    return connection


def _started(base: str, shared: Mapping[str, str]) -> _socket.socket | None:
    """Starts the server and connects to it; None if somebody else has the lock."""
    lock = os.open(f"{base}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        if not _is_at(lock, f"{base}.lock"):
            return None  # its holder unlinked it between our open and our flock
        # Between our failure to connect and the lock, another may have started it and ended.
        path = f"{base}.sock"
        if (connection := _connected(path)) is not None:
            return connection
        if os.path.lexists(path):
            os.unlink(path)
        listener = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        try:
            listener.bind(path)
            listener.listen(BACKLOG)
            connection = _connected(path)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
            log = os.open(f"{base}.log", flags, 0o600)
            try:
                arguments = ["--listen", path, str(listener.fileno()), str(lock)]
                _spawn(arguments, shared, [listener.fileno(), lock], log)
            finally:
                os.close(log)
        finally:
            listener.close()
        return connection
    finally:
        os.close(lock)


def _is_at(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False


def _private(shared: Mapping[str, str]) -> _socket.socket:
    ours, theirs = _pair()
    try:
        arguments = ["--serve", str(theirs.fileno()), str(os.getpid())]
        _spawn(arguments, shared, [theirs.fileno()], 2)
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return ours


def _pair() -> tuple[_socket.socket, _socket.socket]:
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
    return ours, theirs


def _spawn(arguments: list[str], env: Mapping[str, str], passed: list[int], log: int) -> None:
    """Starts the server in a session of its own, with these descriptors and its log on stderr."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        for fd in passed:
            os.set_inheritable(fd, True)
        os.posix_spawn(
            sys.executable,
            [sys.executable, "-P", "-m", "mcpd.mcp_adapter.service", *arguments],
            env,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, null, 0),
                (os.POSIX_SPAWN_DUP2, log, 1),
                (os.POSIX_SPAWN_DUP2, log, 2),
            ],
            setsid=True,
            # The relay ignores it, to have no dead child; the server awaits children of its own.
            setsigdef=[_signal.SIGCHLD],
        )
    finally:
        os.close(null)
        for fd in passed:
            os.set_inheritable(fd, False)
