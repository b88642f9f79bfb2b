"""A real daemon for a test: started, spoken to, stopped or killed, and checked to leave nothing."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import psutil

from mcpd.shm.segment import process_start_ticks

START_TIMEOUT_S = 30.0
"""A machine with two busy cores starts Python in well under this."""

STOP_TIMEOUT_S = 20.0


def wait_until(
    condition: Callable[[], bool], timeout_s: float, what: str | Callable[[], str]
) -> None:
    """Asks every few milliseconds until it holds; AssertionError with `what` when it never does.

    The last time it asks is after the deadline: asking may itself take long on a busy machine.
    """
    deadline = time.monotonic() + timeout_s
    pause = threading.Event()
    while True:
        began = time.monotonic()
        if condition():
            return
        if began > deadline:
            said = what if isinstance(what, str) else what()
            raise AssertionError(f"not within {timeout_s} s: {said}")
        pause.wait(0.005)


class RunningDaemon:
    """One `python -P -m mcpd.daemon` with a private socket; a context manager.

    Leaving the context stops it and asserts that no process, name in /dev/shm or socket of it is
    left. After kill() it may be started again on the same socket.

    Args:
        folder: Where its log goes; the socket lives in a short folder of its own under /tmp.
        models: Its model repository; None: an empty one.
        env: Added to this process's environment.
        load: Its --load: "all", "none" (models start when they are asked for) or names.
        arguments: Further options.
    """

    def __init__(
        self,
        folder: Path,
        models: Path | None = None,
        env: Mapping[str, str] | None = None,
        *,
        load: str = "none",
        arguments: Sequence[str] = (),
    ) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="mcpd-", dir="/tmp"))
        self.socket = str(self._home / "mcpd.sock")
        if models is None:
            models = folder / "no-models"
            models.mkdir(exist_ok=True)
        self.models = models
        self.env = {**os.environ, "MCPD_SOCKET": self.socket, **(env or {})}
        self.command = [
            *(sys.executable, "-P", "-m", "mcpd.daemon", "--socket", self.socket),
            *("--models", str(models), "--load", load, *arguments),
        ]
        self.process: subprocess.Popen[str] | None = None
        self.lines: list[str] = []
        self._ready = threading.Event()
        self._serves = False
        self._log: threading.Thread | None = None
        self._seen: dict[int, int] = {}

    @property
    def pid(self) -> int:
        """The daemon's process id."""
        assert self.process is not None, "the daemon was not started"
        return self.process.pid

    @property
    def stderr(self) -> str:
        """What the daemon and its workers have written to stderr so far."""
        return "".join(self.lines)

    def start(self) -> RunningDaemon:
        """Starts it and returns when it serves; AssertionError with its stderr when it does not."""
        assert self.process is None, "the daemon runs already"
        self._ready.clear()
        self._serves = False
        self.process = subprocess.Popen(
            self.command, env=self.env, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        self._log = threading.Thread(target=self._read_log, args=(self.process,), daemon=True)
        self._log.start()
        if not self._ready.wait(START_TIMEOUT_S) or not self._serves:
            self._end(signal.SIGKILL)
            raise AssertionError(f"the daemon did not start; its stderr:\n{self.stderr}")
        return self

    def stop(self) -> int:
        """SIGTERM; returns the exit status when it and all its children are gone."""
        return self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL; returns when it and all its children are gone."""
        self._end(signal.SIGKILL)

    def children(self) -> list[psutil.Process]:
        """Its live child processes: workers and the reaper."""
        try:
            found: list[psutil.Process] = psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            found = []
        for child in found:
            self.note(child.pid)
        return found

    def note(self, pid: int) -> None:
        """Takes down a process that must be gone when the daemon is."""
        ticks = process_start_ticks(pid)
        if ticks is not None:
            self._seen[pid] = ticks

    def leftovers(self) -> list[str]:
        """What is left of it: processes seen as its children, names in /dev/shm."""
        left = [
            f"process {pid}: {_command(pid)}"
            for pid, ticks in self._seen.items()
            if process_start_ticks(pid) == ticks
        ]
        prefix = f"mcpd.{os.geteuid()}.{self.pid}."
        return left + [f"/dev/shm/{n}" for n in os.listdir("/dev/shm") if n.startswith(prefix)]

    def __enter__(self) -> RunningDaemon:
        try:
            return self if self.process is not None else self.start()
        except BaseException:
            shutil.rmtree(self._home, ignore_errors=True)
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if self.process is not None:
                status = self.stop()
                assert status == 0, f"the daemon ended with {status}; its stderr:\n{self.stderr}"
                # An MCP server that uses it has its own socket there, and its own life.
                left = [name for name in os.listdir(self._home) if not name.startswith("mcp-")]
                assert left == [], "the daemon left its socket or lock"
        except AssertionError as failure:
            if error is None:
                raise
            error.add_note(str(failure))
        finally:
            if error is not None:
                error.add_note(f"the daemon's stderr:\n{self.stderr}")
            shutil.rmtree(self._home, ignore_errors=True)

    def _read_log(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            self.lines.append(line)
            if line.startswith("mcpd ready"):
                self._serves = True
                self._ready.set()
        self._ready.set()  # at the end of its stderr too: it did not come that far

    def _end(self, signum: int) -> int:
        assert self.process is not None, "the daemon was not started"
        assert self._log is not None
        self.children()
        process = self.process
        if process.poll() is None:
            process.send_signal(signum)
        try:
            status = process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"the daemon did not end; its stderr:\n{self.stderr}") from None
        # Its children inherited stderr: end-of-file there means that the last of them is gone.
        self._log.join(STOP_TIMEOUT_S)
        alive = self._log.is_alive()
        assert not alive, f"children outlive the daemon: {self.leftovers()}\n{self.stderr}"
        assert process.stderr is not None
        process.stderr.close()
        wait_until(lambda: not self.leftovers(), STOP_TIMEOUT_S, f"gone: {self.leftovers()}")
        self.process = None
        return status


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return "just ended"
