"""The same frames handed to another process twice: as base64 in JSON, and in a slot.

Both ways end the same: the other process has an array of the RGB frame, takes the mean of one
corner of it and answers with a line of JSON. Time is from the frame in hand to that answer. The
base64 way goes through a pipe as MCP's stdio does, but without an SDK on either side: it is what
any such server pays at least.

Run as a process (`python -P -m mcpd.cli.demo.comparison WAY [SOCKET STREAM]`) this is the receiver.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from mcpd.shm.errors import InvalidRequest, McpdError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from mcpd.shm.client import Client

    Picture = NDArray[np.uint8]

STREAM = "comparison"
_MODULE = "mcpd.cli.demo.comparison"
_WARM_UP = 3


@dataclass(frozen=True)
class Handover:
    """What handing over a frame cost.

    Attributes:
        frames: How many were measured.
        ms_p50: Median time from the frame in hand to the other process's answer.
        sender_cpu_ms, receiver_cpu_ms: CPU time of both processes, per frame.
        nbytes: Bytes through the pipe per frame, both directions.
    """

    frames: int
    ms_p50: float
    sender_cpu_ms: float
    receiver_cpu_ms: float
    nbytes: float

    @property
    def cpu_ms(self) -> float:
        """CPU time of both processes together."""
        return self.sender_cpu_ms + self.receiver_cpu_ms


def hand_over_as_json(frames: Sequence[Picture]) -> Handover:
    """Sends each frame as base64 in a line of JSON through a pipe.

    Args:
        frames: uint8 [height, width, 3], at least four: the first three only warm up.
    """

    def send(pipe: IO[bytes], frame: Picture) -> int:
        encoded = base64.b64encode(frame.data).decode("ascii")
        message = json.dumps({"frame": encoded, "shape": frame.shape}).encode() + b"\n"
        pipe.write(message)
        return len(message)

    with _receiver("json") as process:
        return _measure(process, frames, send)


def hand_over_in_slots(frames: Sequence[Picture], client: Client) -> Handover:
    """Copies each frame into a slot of a stream that the other process reads.

    Args:
        frames: As for `hand_over_as_json`, all of one shape.
        client: Connected to the daemon that owns the stream's memory.
    """
    height, width, _ = frames[0].shape
    with client.create_stream(STREAM, width=width, height=height, format="rgb24") as stream:

        def send(pipe: IO[bytes], frame: Picture) -> int:
            with stream.acquire() as slot:
                slot.planes[0][...] = frame
            # The stream wakes its reader by itself; the pipe carries only the answers.
            return 0

        with _receiver("slot", client.socket, STREAM) as process:
            _answer(process)  # It has attached.
            try:
                return _measure(process, frames, send)
            finally:
                stream.end()


@contextmanager
def _receiver(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-P", "-m", _MODULE, *arguments]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        yield process
    finally:
        # End of input ends it. A receiver that hangs, or one in mid-line, is killed.
        try:
            process.communicate(timeout=5.0)
        except (subprocess.TimeoutExpired, OSError):
            process.kill()
            process.communicate()


def _measure(
    process: subprocess.Popen[bytes],
    frames: Sequence[Picture],
    send: Callable[[IO[bytes], Picture], int],
) -> Handover:
    assert process.stdin is not None
    if len(frames) <= _WARM_UP:
        raise InvalidRequest(f"{len(frames)} frames to compare", f"more than {_WARM_UP} are needed")
    times: list[float] = []
    answer: dict[str, Any] = {}
    nbytes = 0
    sender_cpu = receiver_cpu = 0.0
    for index, frame in enumerate(frames):
        if index == _WARM_UP:
            sender_cpu = time.thread_time()
        began = time.perf_counter()
        sent = send(process.stdin, frame)
        process.stdin.flush()
        answer, answered = _answer(process)
        if index >= _WARM_UP:
            times.append(time.perf_counter() - began)
            nbytes += sent + answered
        if index == _WARM_UP - 1:
            receiver_cpu = answer["cpu_s"]
        expected = float(frame[:4, :4].mean())
        if answer["mean"] != expected:
            raise McpdError(f"frame {index} arrived with mean {answer['mean']}, not {expected}")
    measured = len(times)
    return Handover(
        frames=measured,
        ms_p50=sorted(times)[measured // 2] * 1e3,
        sender_cpu_ms=(time.thread_time() - sender_cpu) * 1e3 / measured,
        receiver_cpu_ms=(answer["cpu_s"] - receiver_cpu) * 1e3 / measured,
        nbytes=nbytes / measured,
    )


def _answer(process: subprocess.Popen[bytes]) -> tuple[dict[str, Any], int]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise McpdError(f"the receiving process ended with status {process.wait()}")
    answer: dict[str, Any] = json.loads(line)
    return answer, len(line)


def _receive_json() -> Iterator[Picture]:
    import numpy as np

    for line in sys.stdin.buffer:
        message = json.loads(line)
        frame = np.frombuffer(base64.b64decode(message["frame"]), np.uint8)
        yield frame.reshape(message["shape"])


def _receive_slots(socket: str, name: str) -> Iterator[Picture]:
    from mcpd.shm import connect

    with (
        connect(socket, name="mcpd-comparison") as client,
        client.open_stream(name, policy="lossless") as stream,
    ):
        _say({"attached": True})
        for frame in stream:
            with frame:
                yield frame.planes[0]


def _say(message: dict[str, Any]) -> None:
    sys.stdout.buffer.write(json.dumps(message).encode() + b"\n")
    sys.stdout.buffer.flush()


def main(arguments: Sequence[str]) -> int:
    """Receives until the input, or the stream, ends."""
    frames = _receive_json() if arguments[0] == "json" else _receive_slots(*arguments[1:])
    for frame in frames:
        _say({"mean": float(frame[:4, :4].mean()), "cpu_s": time.process_time()})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
