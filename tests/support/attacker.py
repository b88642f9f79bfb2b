"""What an attack is made of: sessions by hand that keep descriptors, and a process of its own."""

from __future__ import annotations

import array
import json
import os
import select
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from tests.support.raw import RawSession

READY_S = 60.0
MAX_FDS = 8


class HostileSession(RawSession):
    """A session by hand that keeps the descriptors it is sent; `close` closes them too."""

    def __init__(self, path: str, *, hello: bool = True) -> None:
        self.fds: list[int] = []
        super().__init__(path, hello=hello)

    def take_fds(self) -> list[int]:
        """The descriptors that came since; they stay the session's to close."""
        taken, self._taken = self.fds[self._taken :], len(self.fds)
        return taken

    def grant(self, **fields: Any) -> tuple[dict[str, Any], list[int]]:
        """Asks; the grant in the answer ({} if refused) and the descriptors that came with it."""
        answer = self.ask(**fields)
        return answer.get("result", {}), self.take_fds()

    def close(self) -> None:
        super().close()
        for fd in self.fds:
            os.close(fd)
        self.fds.clear()

    _taken = 0

    def _exactly(self, nbytes: int) -> bytes:
        data = b""
        while len(data) < nbytes:
            try:
                more, ancillary, _, _ = self.sock.recvmsg(
                    nbytes - len(data), socket.CMSG_SPACE(MAX_FDS * 4)
                )
            except (ConnectionResetError, BrokenPipeError):
                more, ancillary = b"", []
            for _, _, content in ancillary:
                self.fds += array.array("i", content).tolist()
            if not more:
                return b""
            data += more
        return data


class Attacker:
    """One attack under way: what it is aimed at, how long it goes on, and what became of it.

    Attributes:
        socket: The daemon's.
        target: Name of a stream of somebody else.
        outcomes: How often each thing happened to it.
    """

    def __init__(self, path: str, target: str, seconds: float) -> None:
        self.socket = path
        self.target = target
        self.outcomes: Counter[str] = Counter()
        self._end_s = time.monotonic() + seconds
        self._turns = 0

    def go_on(self) -> bool:
        """Whether to do it once more; at least once."""
        self._turns += 1
        return self._turns == 1 or time.monotonic() < self._end_s

    def wait(self, seconds: float) -> None:
        """Does nothing for a while, but no longer than the attack goes on."""
        time.sleep(max(0.0, min(seconds, self._end_s - time.monotonic())))

    def rest(self) -> None:
        """Does nothing until the attack is over."""
        self.wait(float("inf"))

    def session(self, *, hello: bool = True) -> HostileSession:
        """A new session."""
        return HostileSession(self.socket, hello=hello)

    def saw(self, answer: dict[str, Any] | str) -> None:
        """Takes down what an answer, or the lack of one, was."""
        if isinstance(answer, str):
            self.outcomes[answer] += 1
        elif not answer:
            self.outcomes["session ended"] += 1
        elif answer["type"] == "error":
            self.outcomes[f"error {answer['code']}"] += 1
        else:
            self.outcomes["answered"] += 1

    def drain(self, session: RawSession) -> None:
        """Reads a session to its end, and takes down what it was told."""
        while answer := session.receive():
            self.saw(answer)
        self.saw({})


def packed(**fields: Any) -> bytes:
    """A message with its length."""
    body = msgspec.msgpack.encode(fields)
    return len(body).to_bytes(4, "little") + body


class Attack:
    """An attack in a process of its own; a context manager that kills it.

    Args:
        path: The daemon's socket.
        name: Of the attack, see tests/support/chaos.py.
        target: A stream of somebody else.
        seconds: How long it goes on; it is done at least once.
    """

    def __init__(self, path: str, name: str, target: str, seconds: float = 0.0) -> None:
        root = str(Path(__file__).parents[2])
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tests.support.chaos", path, name, target, str(seconds)],
            stdout=subprocess.PIPE,
            stdin=subprocess.PIPE,
            text=True,
            cwd=root,
            env={**os.environ, "PYTHONPATH": root},
        )
        self.pid = self._process.pid
        self.name = name

    def wait_ready(self) -> Attack:
        """Returns when it is about to begin; it waits for `begin`."""
        assert self._line() == "ready", f"attack {self.name} did not start"
        return self

    def begin(self) -> None:
        """Has it begin."""
        assert self._process.stdin is not None
        self._process.stdin.write("begin\n")
        self._process.stdin.flush()

    def outcome(self) -> dict[str, int]:
        """What happened to it, once it is over; for one that stopped itself at once."""
        line = self._line()
        outcome: dict[str, int] = json.loads(line) if line else {"killed": 1}
        return outcome

    def __enter__(self) -> Attack:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def _line(self) -> str:
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], READY_S)
        assert readable, f"attack {self.name} said nothing for {READY_S:.0f} s"
        return self._process.stdout.readline().strip()
