"""A worker's process: started with a session of its own, followed by pidfd and standard error."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from mcpd.daemon.config import Settings
from mcpd.daemon.models.repository import ModelConfig
from mcpd.daemon.parking import FileStamp, stamp_files
from mcpd.daemon.peer import identify_child
from mcpd.daemon.session import Session
from mcpd.daemon.worker_log import WorkerLog

Adopt = Callable[[socket.socket, "subprocess.Popen[bytes]"], Session]
"""Makes the session of a worker's socket."""


STACKS_SIGNAL = signal.SIGUSR2
"""At which a worker writes the stacks of all its threads to its standard error."""
STACKS_S = 1.0
"""How long it may take for that."""
STACKS_QUIET_S = 0.1
"""It has done so when nothing more came for that time."""


class WorkerProcess:
    """A worker as the daemon knows it. Belongs to the event loop's thread.

    Its session is the socketpair that it was born with: whoever holds that socket is the worker.

    Attributes:
        pid: Its number, its own until `wait`.
        session: What it talks over.
        log: What it writes to standard error.
        files: What its model's files were like when it was started.
        started_s: When that was, by time.monotonic.
        doomed: Why it is to be ended, "" if it is not.
        limit: What happens when it is not loaded in time.
    """

    def __init__(
        self,
        popen: subprocess.Popen[bytes],
        session: Session,
        log: WorkerLog,
        pidfd: int,
        files: tuple[FileStamp, ...],
    ) -> None:
        self.pid = popen.pid
        self.session = session
        self.log = log
        self.files = files
        self.started_s = time.monotonic()
        self.doomed = ""
        self.limit: asyncio.TimerHandle | None = None
        self._popen = popen
        self._pidfd = pidfd

    def watch(
        self, loop: asyncio.AbstractEventLoop, ended: Callable[[WorkerProcess], None]
    ) -> None:
        """Has `ended` called once, when the process is no more."""
        loop.add_reader(self._pidfd, self._gone, loop, ended)

    def loaded(self) -> None:
        """It has said whether its model is loaded, or never will."""
        if self.limit is not None:
            self.limit.cancel()
            self.limit = None

    def send_signal(self, signum: int) -> None:
        """Signals it, unless it has ended."""
        self._popen.send_signal(signum)

    def kill(self) -> None:
        """SIGKILL, unless it has ended."""
        self._popen.kill()

    @property
    def is_stopped(self) -> bool:
        """Whether a signal stopped it (SIGSTOP); being under a debugger is something else."""
        try:
            status = Path(f"/proc/{self.pid}/stat").read_bytes()
        except OSError:
            return False
        return status.rpartition(b") ")[2][:1] == b"T"

    async def tell_stacks(self) -> str:
        """Has it write the stacks of its threads into the daemon's log; what became of that.

        It does so in a signal handler in C, whatever its threads are at.
        """
        if self.is_stopped:
            return "being stopped (SIGSTOP) it tells no stacks"
        before = self.log.nbytes
        self.send_signal(STACKS_SIGNAL)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + STACKS_S
        seen, quiet = before, False
        while loop.time() < deadline and not quiet:
            await asyncio.sleep(STACKS_QUIET_S)
            quiet = before < self.log.nbytes == seen
            seen = self.log.nbytes
        return "its stacks are in the daemon's log" if seen > before else "it tells no stacks"

    def wait(self) -> int:
        """Its exit status, as Popen gives it; to be called once it has ended."""
        return self._popen.wait()

    def _gone(
        self, loop: asyncio.AbstractEventLoop, ended: Callable[[WorkerProcess], None]
    ) -> None:
        loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = -1
        self.log.close()
        ended(self)


def spawn_worker(
    config: ModelConfig, version: int, settings: Settings, adopt: Adopt
) -> WorkerProcess:
    """Starts the worker of a model.

    Not to be called in a thread: the kernel's parent-death signal follows the thread that spawned.

    Raises:
        OSError: The system does not let it; nothing is left.
    """
    loop = asyncio.get_running_loop()
    files = stamp_files(config, version)
    ours, theirs = socket.socketpair()
    command = [
        *(sys.executable, "-P", "-m", "mcpd.daemon.worker", "--fd", str(theirs.fileno())),
        *("--model", config.name, "--version", str(version)),
        *("--path", str(config.path), "--parent", str(os.getpid())),
        *("--log-level", settings.log_level),
        *(("--json-log",) if settings.json_log else ()),
    ]
    with ExitStack() as undo:
        undo.callback(ours.close)
        with theirs:
            log_fd, stderr_fd = os.pipe()
            undo.callback(os.close, log_fd)
            # Inherited, so that one that is still importing is not ended by being asked for stacks.
            before = signal.signal(STACKS_SIGNAL, signal.SIG_IGN)
            try:
                # What a model prints must not land where a daemon's caller reads: stdout is stderr.
                popen = subprocess.Popen(
                    command,
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=stderr_fd,
                    stderr=stderr_fd,
                )
            finally:
                signal.signal(STACKS_SIGNAL, before)
                os.close(stderr_fd)
        undo.callback(popen.wait)
        undo.callback(popen.kill)
        pidfd = identify_child(popen.pid).pidfd
        undo.callback(os.close, pidfd)
        session = adopt(ours, popen)
        undo.pop_all()
    return WorkerProcess(popen, session, WorkerLog(loop, log_fd), pidfd, files)
