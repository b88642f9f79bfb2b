"""A session ends with its connection or its process, whichever ends first."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from mcpd.daemon.peer import identify
from mcpd.shm import connect
from tests.support.daemon import RunningDaemon, wait_until

FORKS = """
import os, sys
from tests.support.raw import RawSession
raw = RawSession(sys.argv[1])
made = raw.ask(type="create_stream", name="cam0", spec={"slots": 8, "slot_nbytes": 4096})
raw.ask(type="seal_stream", stream=made["result"]["stream"])
child = os.fork()
if child == 0:
    sys.stdin.readline()
    try:
        answer = raw.ask(type="status")
    except OSError:
        answer = {}
    print("answered" if answer else "ended", flush=True)
    os._exit(0)
print(child, flush=True)
os.waitpid(child, 0)
"""


def test_child_that_holds_the_socket_does_not_keep_a_dead_process_session(
    bare_daemon: RunningDaemon,
) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with (
        connect(bare_daemon.socket) as client,
        subprocess.Popen(
            [sys.executable, "-P", "-c", FORKS, bare_daemon.socket],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        ) as process,
    ):
        assert process.stdout is not None
        assert process.stdin is not None
        child = int(process.stdout.readline())
        assert {lease["name"] for lease in client.list("leases")} >= {"cam0"}
        process.send_signal(signal.SIGKILL)
        process.wait(30)
        wait_until(lambda: client.list("leases") == [], 10, "what it had is free")
        assert [row["pid"] for row in client.list("sessions")] == [os.getpid()]
        os.kill(child, 0)  # it lives, and has the socket
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "ended\n"


class Gone(socket.socket):
    """A connected socket of which the kernel says what it says of a process that is gone."""

    number = errno.ESRCH

    def getsockopt(self, level: int, option: int, *size: int) -> object:  # type: ignore[override]
        if option == 77:
            raise OSError(self.number, os.strerror(self.number))
        return super().getsockopt(level, option, *size)


@pytest.mark.parametrize("number", [errno.ESRCH, errno.EINVAL])
def test_process_that_is_gone_is_not_looked_for_by_its_number(number: int) -> None:
    ours, theirs = socket.socketpair()
    gone = Gone(fileno=ours.detach())
    gone.number = number
    with gone, theirs, pytest.raises(ProcessLookupError, match="is gone"):
        identify(gone)


def test_kernel_without_the_option_is_asked_by_number_and_start_time() -> None:
    ours, theirs = socket.socketpair()
    gone = Gone(fileno=ours.detach())
    gone.number = errno.ENOPROTOOPT
    with gone, theirs:
        peer = identify(gone)
        assert (peer.pid, peer.alive()) == (os.getpid(), True)
        peer.close()
