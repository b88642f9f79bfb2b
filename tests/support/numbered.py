"""Frames that carry their number, so that a gap, a repetition or foreign pixels are all seen."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

from mcpd.shm import Frame, McpdError, ReaderStream, StreamClosed, WriterStream
from tests.support.daemon import wait_until

WAIT_S = 60.0


def write_numbered(stream: WriterStream, count: int = 1) -> int:
    """Publishes frames of gray8, each filled with its number; the last number."""
    seq = 0
    for _ in range(count):
        with stream.acquire(WAIT_S) as slot:
            seq = stream.stats()["head"] + 1
            slot.planes[0][:] = seq % 251
            slot.pts_ns = seq
    return seq


def check_numbered(frame: Frame) -> int:
    """The frame's number; AssertionError if it holds another's pixels, or two."""
    pixels = frame.planes[0]
    right = frame.seq % 251
    assert frame.pts_ns == frame.seq, f"frame {frame.seq} says it is {frame.pts_ns}"
    assert int(pixels.min()) == int(pixels.max()) == right, f"frame {frame.seq} is torn"
    return frame.seq


def read_to_the_end(reader: ReaderStream) -> None:
    """Reads what is left; raises StreamClosed."""
    while True:
        reader.next(WAIT_S).close()


class NumberedWriter:
    """Publishes numbered frames in a thread, as fast as it may; a context manager that ends the
    stream."""

    def __init__(self, stream: WriterStream, pause_s: float = 0.001) -> None:
        self.stream = stream
        self.error: BaseException | None = None
        self._pause_s = pause_s
        self._stopping = threading.Event()
        self._turn = threading.Lock()
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def between_frames(self, work: Callable[[], None]) -> None:
        """Does something while no frame is being written."""
        with self._turn:
            work()

    def wait_frames(self, count: int) -> None:
        """Returns when so many more are published; AssertionError when they are not."""
        last = self.stream.stats()["head"] + count
        wait_until(
            lambda: bool(self.error) or self.stream.stats()["head"] >= last, WAIT_S, "frames flow"
        )
        assert self.error is None, f"the writer failed: {self.error!r}"

    def stop(self) -> int:
        """The number of the last frame."""
        self._stopping.set()
        self._thread.join(WAIT_S)
        assert self.error is None, f"the writer failed: {self.error!r}"
        return self.stream.stats()["head"]

    def __enter__(self) -> NumberedWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stopping.set()
        self._thread.join(WAIT_S)
        self.stream.end()

    def _write(self) -> None:
        try:
            while not self._stopping.wait(self._pause_s):
                with self._turn:
                    write_numbered(self.stream)
        except McpdError as error:
            self.error = error


class NumberedReader:
    """Reads and checks numbered frames in a thread until the stream ends.

    Attributes:
        seen: (generation, number) of each frame.
        reason: How the stream ended for it; "" before.
    """

    def __init__(self, stream: ReaderStream, pause_s: float = 0.0) -> None:
        self.stream = stream
        self.seen: list[tuple[int, int]] = []
        self.reason = ""
        self.error: BaseException | None = None
        self._pause = threading.Event()
        self._pause_s = pause_s
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    @property
    def numbers(self) -> list[int]:
        """Of the frames that came, in the order in which they did."""
        return [number for _, number in self.seen]

    def finish(self) -> list[int]:
        """Waits for the end; the numbers."""
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive(), f"still waits after frame {self.seen[-1:]}"
        if self.error is not None:
            raise self.error
        assert self.numbers == sorted(set(self.numbers)), "frames are out of order or come twice"
        return self.numbers

    def _read(self) -> None:
        try:
            while True:
                with self.stream.next(WAIT_S) as frame:
                    self.seen.append((frame.generation, check_numbered(frame)))
                if self._pause_s:
                    self._pause.wait(self._pause_s)
        except StreamClosed as error:
            self.reason = error.reason
        except (McpdError, AssertionError, OSError) as error:
            self.error = error
