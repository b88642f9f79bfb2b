"""Processes of a benchmark: each has one object and calls its methods as it is told."""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
from contextlib import suppress
from typing import Any, Final, Protocol, Self

from mcpd.native._core import die_with_parent

_ANSWER_S: Final = 180.0


class Role(Protocol):
    """What a process has; made before it is forked, used in it alone."""

    def close(self) -> None:
        """Lets go of what its methods opened. Idempotent."""


class Worker:
    """A forked process that calls a role's methods. A context manager that ends it.

    To be made before this process starts threads: a daemon's, a client's. It dies with this one.

    Args:
        name: What it is called in errors.
        role: Its object.
    """

    def __init__(self, name: str, role: Role) -> None:
        self.name = name
        context = mp.get_context("fork")
        self._end, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(role, other, os.getpid()))
        self._process.start()
        other.close()

    @property
    def pid(self) -> int:
        """Of the process."""
        assert self._process.pid is not None
        return self._process.pid

    def start(self, method: str, *arguments: Any) -> None:
        """Has it call a method; `finish` waits for what that returns."""
        self._end.send((method, arguments))

    def finish(self) -> Any:
        """What the method returned; raises what it raised.

        Raises:
            TimeoutError: It still runs after 3 minutes.
        """
        if not self._end.poll(_ANSWER_S):
            raise TimeoutError(f"{self.name} did not answer in {_ANSWER_S:.0f} s")
        answer = self._end.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def call(self, method: str, *arguments: Any) -> Any:
        """Calls a method and waits for it."""
        self.start(method, *arguments)
        return self.finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # Not end-of-file: the processes forked later hold this end of the pipe too.
        with suppress(BrokenPipeError):
            self._end.send(None)
        self._end.close()
        self._process.join()


def _serve(role: Role, parent: Any, parent_pid: int) -> None:
    die_with_parent(signal.SIGKILL, parent_pid)
    try:
        while (told := parent.recv()) is not None:
            method, arguments = told
            parent.send(getattr(role, method)(*arguments))
    except Exception as error:
        parent.send(error)
    finally:
        role.close()
