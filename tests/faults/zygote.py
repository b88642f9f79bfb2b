"""A process that has everything imported and forks actors from itself: a few milliseconds each.

The zygote has no connection to a daemon, so its children make their own; a child waits for a word
before it begins, so that the test has its pidfd by then. Children die with the zygote, and the
zygote with the test.
"""

from __future__ import annotations

import json
import mmap
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any

MARKS_NBYTES = 1 << 22
MESSAGE_NBYTES = 1 << 16
Task = dict[str, Any]
marks: list[mmap.mmap] = []
"""One byte for each frame of the group `team`: set by the member that has done with it."""


class Channel:
    """Messages between the test and an actor, each a JSON object."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    def fileno(self) -> int:
        """For select."""
        return self._socket.fileno()

    def send(self, **message: Any) -> None:
        """Sends one; the other side may be gone."""
        try:
            self._socket.send(json.dumps(message).encode())
        except OSError:
            return

    def receive(self, timeout_s: float | None = None) -> Task | None:
        """The next one; None when none came in time, or the other side is gone."""
        if not select.select([self._socket], [], [], timeout_s)[0]:
            return None
        try:
            data = self._socket.recv(MESSAGE_NBYTES)
        except OSError:
            return None
        message: Task | None = json.loads(data) if data else None
        return message

    def close(self) -> None:
        """Closes this end."""
        self._socket.close()


class Actor:
    """A forked process, as the test sees it."""

    def __init__(self, pid: int, channel: Channel) -> None:
        self.pid = pid
        self.pidfd = os.pidfd_open(pid)
        self.channel = channel

    def gone(self, timeout_s: float = 0) -> bool:
        """Whether it is no more."""
        return bool(select.select([self.pidfd], [], [], timeout_s)[0])

    def signal(self, signum: int) -> None:
        """Sends it a signal, if it is there."""
        if not self.gone():
            signal.pidfd_send_signal(self.pidfd, signum)

    def close(self) -> None:
        """Kills it if it still lives."""
        self.signal(signal.SIGKILL)
        self.gone(10)
        os.close(self.pidfd)
        self.channel.close()


class Zygote:
    """The test's side: starts the process, and has it fork actors.

    Args:
        kind: What it imports: "client" or "daemon".
        env: Of the process and all that it forks.
    """

    def __init__(self, kind: str, env: Mapping[str, str]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-P", "-m", "tests.faults.zygote", kind]
            self.process = subprocess.Popen(
                [*command, str(theirs.fileno())],
                env=dict(env),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        self._socket = ours
        self._lock = threading.Lock()
        assert self._socket.recv(64) == b"ready", f"the zygote {kind} did not start"

    def fork(self, **task: Any) -> Actor:
        """A new actor that begins with this task at once."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, self._lock:
            socket.send_fds(self._socket, [b"fork"], [theirs.fileno()])
            actor = Actor(int(self._socket.recv(64)), Channel(ours))
        actor.channel.send(**task)
        return actor

    def close(self) -> None:
        """Ends it, and with it what it forked."""
        self._socket.close()
        self.process.wait(30)


def main() -> None:
    """The process: forks until the test is gone."""
    kind, sock = sys.argv[1], socket.socket(fileno=int(sys.argv[2]))
    from tests.support import step_loading

    step_loading.begin()
    marks.append(mmap.mmap(-1, MARKS_NBYTES))
    from tests.faults import actors

    actors.prepare(kind)
    from mcpd.native import _core

    _core.die_with_parent(signal.SIGKILL, os.getppid())
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    sock.send(b"ready")
    me = os.getpid()
    while True:
        data, fds, _, _ = socket.recv_fds(sock, 64, 1)
        if not data:
            return
        pid = os.fork()
        if pid == 0:
            sock.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _core.die_with_parent(signal.SIGKILL, me)
            actors.run(Channel(socket.socket(fileno=fds[0])))
        os.close(fds[0])
        sock.send(str(pid).encode())


if __name__ == "__main__":
    sys.modules["tests.faults.zygote"] = sys.modules["__main__"]
    main()
