"""A client in a process of its own, for tests to kill: it says `ready`, then does one thing.

Arguments: SOCKET, then one of
write NAME             makes a stream and publishes small frames without end
read NAME [POLICY]     reads a stream and always holds a frame or two
watch NAME MODEL       reads a model's results on a stream
number NAME            makes a stream of numbered frames (see numbered.py) and publishes without end
member NAME GROUP [S]  reads as a member of a group: says the number of each frame, then closes it
resize NAME            makes a stream and a frame; dies of a resize as its second reader joins
hold NAME              makes a stream, closes its socket alone, and lives on
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType

READY_TIMEOUT_S = 30.0


class Actor:
    """A running actor; a context manager that kills it."""

    def __init__(self, socket: str, role: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", __file__, socket, role, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )
        self.pid = self.process.pid

    def wait_ready(self) -> Actor:
        """Returns once it does its thing; AssertionError with its stderr when it never does."""
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        readable, _, _ = select.select([self.process.stdout], [], [], READY_TIMEOUT_S)
        line = self.process.stdout.readline() if readable else ""
        if line != "ready\n":
            self.process.kill()
            raise AssertionError(f"actor is not ready: {self.process.stderr.read()}")
        return self

    def kill(self) -> None:
        """SIGKILL; returns when it is gone."""
        self.process.kill()
        self.process.communicate()

    def wait_end(self) -> str:
        """Waits until it ends by itself; its stderr."""
        return self.process.communicate(timeout=READY_TIMEOUT_S)[1]

    def __enter__(self) -> Actor:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()


def main() -> None:
    """The process."""
    from mcpd.shm import connect
    from tests.support.raw import RawSession

    socket, role, name, *rest = sys.argv[1:]
    if role == "hold":
        with RawSession(socket) as session:
            session.ask(type="create_stream", name=name, spec={"slots": 8, "slot_nbytes": 4096})
        _say_ready()
        sys.stdin.read()
        return
    client = connect(socket, name=f"actor {role}")
    if role == "write":
        stream = client.create_stream(name, width=64, height=48, format="rgb24")
        said = False
        while True:
            with stream.acquire() as slot:
                slot.planes[0][:] = slot.index
            if not said:
                said = _say_ready()
            # A little time in the middle of a frame, so that a signal finds it there too.
            with stream.acquire() as slot:
                slot.planes[0][:24] = 1
                select.select([], [], [], 0.001)
                slot.planes[0][24:] = 1
    if role == "number":
        from tests.support.numbered import write_numbered

        stream = client.create_stream(name, width=64, height=16, format="gray8", slots=24)
        write_numbered(stream)
        _say_ready()
        while True:
            write_numbered(stream)
            select.select([], [], [], 0.001)
    if role == "resize":
        from tests.support.numbered import write_numbered

        stream = client.create_stream(name, width=64, height=16, format="gray8", slots=24)
        write_numbered(stream)
        _say_ready()
        sys.stdin.readline()
        admitted: list[None] = []

        def die() -> None:
            admitted.append(None)
            if len(admitted) == 2:
                os.kill(os.getpid(), signal.SIGKILL)

        setattr(stream, "on_reader", die)  # noqa: B010
        stream.resize(width=32)
        return
    if role == "member":
        limit_s = float(rest[1]) if len(rest) > 1 else 0.0
        member = client.open_stream(name, policy="lossless", group=rest[0], stall_limit_s=limit_s)
        _say_ready()
        for frame in member:
            # A little time in the middle of the work, so that a signal finds it there too.
            select.select([], [], [], 0.002)
            print(frame.seq, flush=True)
        return
    if role == "read":
        reader = client.open_stream(name, policy=rest[0] if rest else "latest")
        held = [reader.next(READY_TIMEOUT_S)]
        _say_ready()
        while True:
            held.append(reader.next(READY_TIMEOUT_S))
            held.pop(0).close()
    if role == "watch":
        results = client.results(name, model=rest[0])
        next(results).close()
        _say_ready()
        for result in results:
            result.close()


def _say_ready() -> bool:
    print("ready", flush=True)
    return True


if __name__ == "__main__":
    main()
