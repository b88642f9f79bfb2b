"""A small process that unlinks the daemon's names in /dev/shm when the daemon is gone.

The daemon may be killed at any moment, and a name is all that would outlive it. It is started with
the first posix segment, told of each name before it is made, and ends with the daemon.

    python -P -m mcpd.daemon.reaper --fd N

Lines on the descriptor: `+name` to own, `-name` to forget. End-of-file: unlink what is left.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys

from mcpd.shm.segment import SHM_DIRECTORY, parse_posix_name

log = logging.getLogger("mcpd.daemon")


class Reaper:
    """The daemon's end: starts the process, tells it of names, and starts it again if it dies."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._pidfd = -1

    @property
    def pid(self) -> int:
        """Its process id; 0 while there is nothing to reap."""
        return self._process.pid if self._process is not None else 0

    def own(self, name: str) -> None:
        """To be unlinked when the daemon is gone; call before the name is made."""
        self._names.add(name)
        if self._process is None:
            self._start()
        else:
            self._tell(f"+{name}\n")

    def disown(self, name: str) -> None:
        """Unlinked already. Idempotent."""
        if name in self._names:
            self._names.discard(name)
            self._tell(f"-{name}\n")

    def close(self) -> None:
        """Lets it end, and waits for that: it has little to do. Idempotent."""
        if self._process is None or self._channel is None:
            return
        asyncio.get_running_loop().remove_reader(self._pidfd)
        self._channel.close()
        self._process.wait()
        os.close(self._pidfd)
        self._process = self._channel = None

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-P", "-m", "mcpd.daemon.reaper", "--fd"]
            self._process = subprocess.Popen(
                [*command, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        ours.setblocking(False)
        self._channel = ours
        self._pidfd = os.pidfd_open(self._process.pid)
        asyncio.get_running_loop().add_reader(self._pidfd, self._died)
        self._tell("".join(f"+{name}\n" for name in sorted(self._names)))
        log.info("reaper pid=%d started", self._process.pid)

    def _died(self) -> None:
        log.warning("reaper pid=%d died; starting another", self.pid)
        assert self._process is not None
        assert self._channel is not None
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._channel.close()
        self._process.wait()
        self._process = None
        if self._names:
            self._start()

    def _tell(self, lines: str) -> None:
        if self._channel is None:
            return
        try:
            self._channel.sendall(lines.encode())
        except OSError as error:
            log.warning("reaper pid=%d cannot be told: %s", self.pid, error)


def reap(channel: socket.socket) -> None:
    """Follows the daemon's lines to their end, then unlinks the names that are left."""
    names: set[str] = set()
    with channel, channel.makefile("r", encoding="utf-8") as lines:
        for line in lines:
            name = line[1:].rstrip("\n")
            if parse_posix_name(name) is None:
                continue
            if line.startswith("+"):
                names.add(name)
            else:
                names.discard(name)
    for name in names:
        (SHM_DIRECTORY / name).unlink(missing_ok=True)


def main() -> None:
    """The process."""
    parser = argparse.ArgumentParser(prog="python -P -m mcpd.daemon.reaper", description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="socket to the daemon")
    options = parser.parse_args()
    # What ends the daemon, from the terminal or a service manager, is no reason to end before it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    reap(socket.socket(fileno=options.fd))
    os._exit(0)  # there is nothing to finalise, and the interpreter takes tens of ms over that


if __name__ == "__main__":
    main()
