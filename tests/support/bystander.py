"""A stream that flows while a test does harm elsewhere, and that must not notice."""

from __future__ import annotations

import threading
from types import TracebackType

from mcpd.shm import Client, McpdError, connect
from tests.support.daemon import wait_until

WAIT_S = 30.0


class Bystander:
    """One lossless stream, writer and reader in threads of this process; a context manager.

    Each frame carries its number, so that a gap, a repetition or foreign pixels are all seen.
    """

    def __init__(self, socket: str, name: str = "bystander", slots: int = 8) -> None:
        self.name = name
        self.received = 0
        self._client: Client = connect(socket, name=name)
        self._stream = self._client.create_stream(
            name, width=64, height=16, format="gray8", slots=slots
        )
        self._reader = self._client.open_stream(name, policy="lossless")
        self._stopping = threading.Event()
        self._errors: list[BaseException] = []
        self._threads = [threading.Thread(target=self._write), threading.Thread(target=self._read)]
        for thread in self._threads:
            thread.start()

    def check(self) -> None:
        """Waits until more frames came through; AssertionError if one was wrong or none came."""
        before = self.received
        wait_until(
            lambda: bool(self._errors) or self.received >= before + 3, WAIT_S, "frames go on"
        )
        assert not self._errors, f"the bystander noticed: {self._errors[0]!r}"

    def close(self) -> None:
        """Ends it."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(WAIT_S)
        self._client.close()

    def __enter__(self) -> Bystander:
        self.check()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self.check()
        finally:
            self.close()

    def _write(self) -> None:
        number = 0
        try:
            while not self._stopping.wait(0.002):
                number += 1
                with self._stream.acquire(WAIT_S) as slot:
                    slot.planes[0][:] = number % 251
                    slot.pts_ns = number
        except McpdError as error:
            self._errors.append(error)
        finally:
            self._stream.end()

    def _read(self) -> None:
        try:
            for frame in self._reader:
                self.received += 1
                pixels = frame.planes[0]
                right = self.received % 251
                assert frame.seq == frame.pts_ns == self.received, f"frame {frame.seq} out of order"
                assert int(pixels.min()) == int(pixels.max()) == right, f"frame {frame.seq} is torn"
                del pixels
        except (McpdError, AssertionError) as error:
            self._errors.append(error)
