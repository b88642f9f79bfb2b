"""The one daemon of a socket: a lock beside it, and the listening socket itself."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
from pathlib import Path

from mcpd.daemon.activation import inherited_listener
from mcpd.shm.errors import AlreadyExists, NotPermitted
from mcpd.shm.paths import resolve_socket

BACKLOG = 256


class Instance:
    """Holds the lock and the listener of a socket path. A context manager that takes both away.

    The lock is an flock on `<socket>.lock`: it ends with the process, however that ends, so what a
    killed daemon leaves does not stand in the way of the next one.

    Args:
        path: The socket's.

    Raises:
        InvalidRequest: The path is too long, or none.
        AlreadyExists: Another daemon serves it, or it is no socket.
        NotPermitted: Its folder cannot be made or written, or is another user's.
    """

    def __init__(self, path: str) -> None:
        self.path = Path(os.path.abspath(resolve_socket(path)))
        resolve_socket(str(self.path))
        self._lock_path = Path(f"{self.path}.lock")
        try:
            self._prepare_folder()
            self._lock_fd = self._lock()
        except OSError as error:
            raise NotPermitted(
                f"socket {self.path} cannot be made: {error.strerror}: {error.filename}",
                "Choose a folder that you can write, with --socket or MCPD_SOCKET.",
            ) from error
        try:
            inherited = inherited_listener(str(self.path))
            self._unlinks = inherited is None
            self.listener = inherited or self._listen()
        except BaseException:
            self._unlock()
            raise

    def close(self) -> None:
        """Unlinks the socket, unless it is a service manager's, then the lock. Idempotent."""
        if self._lock_fd < 0:
            return
        self.listener.close()
        if self._unlinks:
            self.path.unlink(missing_ok=True)
        self._unlock()

    def __enter__(self) -> Instance:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _prepare_folder(self) -> None:
        folder = self.path.parent
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        owner = folder.stat().st_uid
        if owner not in (os.geteuid(), 0):
            raise NotPermitted(
                f"folder {folder} belongs to user {owner}, this is user {os.geteuid()}",
                "Choose another socket with --socket or MCPD_SOCKET.",
            )

    def _lock(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        while True:
            fd = os.open(self._lock_path, flags, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(fd, 32, 0).decode(errors="replace").strip()
                os.close(fd)
                raise AlreadyExists(
                    f"a daemon (pid {holder or 'unknown'}) serves {self.path} already",
                    "Stop it with `mcpd stop`, or give another --socket.",
                ) from None
            if self._is_lock(fd):
                os.ftruncate(fd, 0)
                os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
                return fd
            os.close(fd)  # its holder unlinked it between our open and our flock

    def _is_lock(self, fd: int) -> bool:
        try:
            return os.path.samestat(os.fstat(fd), self._lock_path.stat())
        except FileNotFoundError:
            return False

    def _unlock(self) -> None:
        self._lock_path.unlink(missing_ok=True)
        os.close(self._lock_fd)
        self._lock_fd = -1

    def _listen(self) -> socket.socket:
        try:
            if not stat.S_ISSOCK(self.path.lstat().st_mode):
                raise AlreadyExists(
                    f"{self.path} exists and is not a socket", "Choose another --socket."
                )
            self.path.unlink()  # nobody serves it: we hold the lock
        except FileNotFoundError:
            pass
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        mask = os.umask(0o177)
        try:
            listener.bind(str(self.path))
            listener.listen(BACKLOG)
        except BaseException:
            listener.close()
            raise
        finally:
            os.umask(mask)
        return listener
