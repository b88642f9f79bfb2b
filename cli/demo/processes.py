"""Processes that a command starts for itself, and is sure to end: a private daemon, a source."""

from __future__ import annotations

import collections
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Self

from mcpd.cli.demo.folders import make_folder
from mcpd.native._core import die_with_parent
from mcpd.shm.errors import DaemonUnavailable, McpdError

READY = "mcpd ready on "
_INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_STOP_S = 10.0
_LOG_LINES = 40


class Process:
    """A child in a session of its own, so that a terminal's Ctrl-C reaches only the command.

    What it writes to stderr is drained by a thread, so that it never waits for us, and its last
    lines are kept for an error message. `stop` is idempotent; leaving the context stops it.

    Args:
        name: What to call it in messages.
        arguments: Program and arguments.
        environment: In place of this process's own.
        tied: The kernel ends it (SIGTERM) when this process dies of whatever cause. To be used
            only while no other thread runs here, because Python runs between fork and exec.
        on_output: Called with each line of stdout as it comes, in another thread.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        environment: dict[str, str] | None = None,
        tied: bool = False,
        on_output: Callable[[str], None] | None = None,
    ) -> None:
        self.name = name
        self.lines: collections.deque[str] = collections.deque(maxlen=_LOG_LINES)
        self.ready = threading.Event()
        """Set at a line that begins with READY, and when stderr has ended."""
        self._output: list[str] = []
        self._on_output = on_output
        self._popen = subprocess.Popen(
            list(arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
            preexec_fn=partial(die_with_parent, signal.SIGTERM, os.getpid()) if tied else None,
        )
        self.pid = self._popen.pid
        self._drains: list[threading.Thread] = []
        try:
            for drain in (self._drain_errors, self._drain_output):
                thread = threading.Thread(target=drain, daemon=True)
                thread.start()
                self._drains.append(thread)
        except BaseException:
            self._popen.kill()
            self._popen.wait()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def poll(self) -> int | None:
        """The exit status, or None while it runs."""
        return self._popen.poll()

    def wait(self, timeout_s: float) -> int:
        """The exit status once it has ended by itself.

        Raises:
            McpdError: It still runs after `timeout_s`.
        """
        try:
            return self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise McpdError(f"the {self.name} still runs after {timeout_s:g} s") from None

    def output(self) -> list[str]:
        """The lines it wrote to stdout; blocks until stdout has ended."""
        self._drains[1].join()
        return self._output

    def log(self) -> str:
        """The last lines it wrote to stderr."""
        return "\n".join(self.lines)

    def failure(self) -> McpdError:
        """The error that says how it ended and what it said last; call it once it has ended."""
        status = self._popen.wait()
        for thread in self._drains:
            thread.join(_STOP_S)
        return McpdError(f"the {self.name} ended with status {status}:\n{self.log()}")

    def stop(self) -> None:
        """SIGTERM, and SIGKILL if that did not end it in 10 s. Returns when it is gone."""
        if self._popen.poll() is None:
            self._popen.terminate()
            try:
                self._popen.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self._popen.kill()
                self._popen.wait()
        for thread in self._drains:
            thread.join(_STOP_S)

    def _drain_errors(self) -> None:
        assert self._popen.stderr is not None
        with self._popen.stderr as stream:
            for line in stream:
                text = line.decode(errors="replace").rstrip()
                self.lines.append(text)
                if text.startswith(READY):
                    self.ready.set()
        self.ready.set()

    def _drain_output(self) -> None:
        assert self._popen.stdout is not None
        with self._popen.stdout as stream:
            for line in stream:
                text = line.decode(errors="replace").rstrip()
                self._output.append(text)
                if self._on_output is not None:
                    self._on_output(text)


class PrivateDaemon(Process):
    """A daemon of one's own on a socket in a new folder of mode 0700; dies with this process.

    When that is killed, the folder is left, empty; the next such daemon's start removes it.

    Args:
        models: The model repository; None for the user's own.
        load: What `--load` takes: "all", "none" or names.

    Raises:
        DaemonUnavailable: It ended, or did not serve within 30 s; nothing is left of it.
    """

    def __init__(self, models: Path | None = None, *, load: str = "all") -> None:
        self.directory = make_folder()
        self.socket = self.directory / "mcpd.sock"
        self.left: list[str] = []
        """What was still in the folder when the daemon had ended; nothing, if it is well."""
        arguments = [sys.executable, "-P", "-m", "mcpd.daemon", "--socket", str(self.socket)]
        if models is not None:
            arguments += ["--models", str(models)]
        try:
            super().__init__("daemon", [*arguments, "--load", load], tied=True)
            try:
                self._wait_ready(30.0)
            except BaseException:
                super().stop()
                raise
        except BaseException:
            shutil.rmtree(self.directory)
            raise

    def stop(self) -> None:
        """Has it drain and end, then removes its folder; `left` tells what it had not removed."""
        super().stop()
        if self.directory.exists():
            self.left = sorted(path.name for path in self.directory.iterdir())
            shutil.rmtree(self.directory)

    def _wait_ready(self, timeout_s: float) -> None:
        if not self.ready.wait(timeout_s):
            raise DaemonUnavailable(
                f"the daemon does not serve after {timeout_s:g} s\n{self.log()}"
            )
        if not any(line.startswith(READY) for line in self.lines):
            raise DaemonUnavailable(self.failure().message)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP raise KeyboardInterrupt, once: what was started is ended then.

    Further ones are ignored until the context is left, so that nothing is left half ended; every
    ending is bounded in time. Main thread only.
    """
    interrupted = False

    def interrupt(signum: int, _frame: object) -> None:
        nonlocal interrupted
        if not interrupted:
            interrupted = True
            raise KeyboardInterrupt(signal.Signals(signum).name)

    previous = {number: signal.signal(number, interrupt) for number in _INTERRUPTS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
