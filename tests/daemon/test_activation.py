"""The daemon serves a socket that a service manager holds, and leaves it to the next daemon."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mcpd.shm import connect
from tests.support.daemon import START_TIMEOUT_S


@contextmanager
def activated(listener: socket.socket, path: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A daemon started as a service manager does it; killed at the end."""
    fd = listener.fileno()
    command = [sys.executable, "-P", "-m", "mcpd.daemon", "--socket", path, "--load", "none"]
    command += ["--models", str(folder)]
    shell = f'LISTEN_PID=$$ LISTEN_FDS=1 exec "$@" 3<&{fd}'
    process = subprocess.Popen(
        ["bash", "-c", shell, "bash", *command], pass_fds=[fd], stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=START_TIMEOUT_S)


def test_clients_that_connect_between_two_daemons_are_served_by_the_next(tmp_path: Path) -> None:
    path = str(tmp_path / "mcpd.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(16)
        with activated(listener, path, tmp_path), connect(path, timeout_s=START_TIMEOUT_S) as first:
            first.stop()
        client = socket.socket(socket.AF_UNIX)
        client.connect(path)  # nobody is there to accept
        client.close()
        with (
            activated(listener, path, tmp_path) as process,
            connect(path, timeout_s=START_TIMEOUT_S, reconnect=True) as second,
        ):
            assert second.daemon_pid == process.pid


def test_a_socket_of_another_path_is_refused(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "other.sock"))
        listener.listen(16)
        with activated(listener, str(tmp_path / "mcpd.sock"), tmp_path) as process:
            assert process.wait(START_TIMEOUT_S) == 1
            assert process.stderr is not None
            assert "handed over is not" in process.stderr.readline()
