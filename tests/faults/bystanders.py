"""Processes that live through all of it: companions of the victims, and bystanders."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from mcpd.shm import Client, McpdError, ModelFailed, StreamClosed, TimedOut, WouldBlock, connect
from tests.faults.zygote import MARKS_NBYTES, Channel, Task, marks

PATIENCE_S = 60.0
GEOMETRY: dict[str, Any] = {"width": 64, "height": 16, "format": "gray8"}


def keep_reading(reader: Any) -> str:
    """Reads in order until the stream ends: why it ended. AssertionError for a gap or a tear."""
    last = 0
    while True:
        try:
            frame = reader.next(PATIENCE_S)
        except StreamClosed as error:
            return error.reason
        with frame:
            assert last == 0 or frame.seq == last + 1, f"frame {frame.seq} came after {last}"
            last = frame.seq
            plane = frame.planes[0]
            if plane.ndim == 2:
                level = frame.pts_ns
                assert int(plane.min()) == int(plane.max()) == level, f"frame {last} is torn"
            del plane


# ---- a companion of one victim after the other ---------------------------------------------------


def companion(channel: Channel, task: Task) -> None:
    """Reads each stream that it is told of, in every way, until its end; says how that went."""
    with connect(task["socket"], name="soak companion") as client:
        while message := channel.receive():
            try:
                text = accompany(client, message["name"])
                channel.send(event="accompanied", text=text)
            except (McpdError, AssertionError) as error:
                channel.send(event="fault", text=f"{message['name']}: {error!r}")


def accompany(client: Client, name: str) -> str:
    """Slow, holding on, coming and going; "" if it came too late, or why the stream ended."""
    try:
        lossless = client.open_stream(name, policy="lossless")
    except McpdError:
        return ""
    others: list[Any] = []
    with suppress(McpdError):
        others.append(client.open_stream(name, policy="latest"))
        others.append(client.open_stream(name, policy="fifo", depth=2, group="g"))
    held: list[Any] = []
    last = 0
    try:
        while True:
            frame = lossless.next(PATIENCE_S)
            with frame:
                assert last == 0 or frame.seq == last + 1, f"frame {frame.seq} came after {last}"
                last = frame.seq
                plane = frame.planes[0]
                if plane.ndim == 2 and frame.pts_ns < 251:
                    level = frame.pts_ns
                    assert int(plane.min()) == int(plane.max()) == level, f"frame {last} is torn"
                del plane
            if last % 4 == 1:
                for one in held:
                    one.close()
                held.clear()
                for other in others:
                    with suppress(TimedOut, WouldBlock, StreamClosed):
                        held.append(other.next(0))
            if last == 20:
                for one in held:
                    one.close()
                held.clear()
                while others:
                    others.pop().close()
            if 40 < last < 50:
                time.sleep(0.0005)
    except StreamClosed as error:
        return error.reason
    finally:
        for one in held:
            one.close()
        for other in (*others, lossless):
            other.close()


# ---- bystanders ----------------------------------------------------------------------------------


class Bystanders:
    """A lossless stream, a group and a model's results, all of them checked frame by frame."""

    def __init__(self, socket: str, models: bool) -> None:
        self.counts = {"frames": 0, "members": 0, "results": 0, "inferred": 0, "failed": 0}
        self.faults: list[str] = []
        self._stopping = threading.Event()
        self._client = connect(socket, name="soak bystander")
        self._feed = self._client.create_stream("feed", slots=64, **GEOMETRY)
        self._reader = self._client.open_stream("feed", policy="lossless")
        self._team = [
            self._client.open_stream("feed", policy="lossless", group="team") for _ in range(2)
        ]
        readers: list[Callable[[], None]] = [self._read]
        readers += [lambda team=team: self._work(team) for team in self._team]  # type: ignore[misc]
        writers = [self._write]
        if models:
            self._modelled = self._client.create_stream(
                "modelled", slots=32, width=64, height=16, format="rgb24"
            )
            self._results = self._client.results(
                "modelled", model="trivial", frames="lossless", timeout_s=PATIENCE_S
            )
            writers += [self._write_modelled, self._infer]
            readers += [self._read_results]
        self._writers = [threading.Thread(target=self._guarded, args=(w,)) for w in writers]
        self._readers = [threading.Thread(target=self._guarded, args=(r,)) for r in readers]
        for thread in (*self._readers, *self._writers):
            thread.start()

    def close(self) -> None:
        """Ends it: what was published has then come to its readers, all of it."""
        self._stopping.set()
        for thread in (*self._writers, *self._readers):
            thread.join(PATIENCE_S)
            if thread.is_alive():
                self.faults.append("a bystander hangs")
        head = self._feed.stats()["head"]
        lost = [seq for seq in range(1, head + 1) if not marks[0][seq % MARKS_NBYTES]]
        if lost:
            self.faults.append(f"frames of the group that nobody had: {lost[:20]}")
        self._client.close()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            self.faults.append(f"{work}: {error!r}")
            self._stopping.set()

    def _write(self) -> None:
        number = 0
        while not self._stopping.wait(0.003):
            number += 1
            with self._feed.acquire(PATIENCE_S) as slot:
                slot.planes[0][:] = number % 251
                slot.pts_ns = number % 251
        self._feed.end()

    def _read(self) -> None:
        last = 0
        for frame in self._reader:
            with frame:
                last += 1
                plane = frame.planes[0]
                assert frame.seq == last, f"frame {frame.seq} came in place of {last}"
                right = int(plane.min()) == int(plane.max()) == frame.pts_ns
                del plane
                assert right, f"frame {last} is torn"
            self.counts["frames"] = last

    def _work(self, member: Any) -> None:
        from tests.faults.actors import done

        for frame in member:
            done(frame, "team")
            self.counts["members"] += 1

    def _write_modelled(self) -> None:
        number = 0
        while not self._stopping.wait(0.01):
            number += 1
            with suppress(TimedOut), self._modelled.acquire(1.0) as slot:
                slot.planes[0][:] = number % 251
        self._modelled.end()

    def _read_results(self) -> None:
        last = 0
        while True:
            try:
                result = self._results.next()
            except (
                ModelFailed
            ):  # the next worker died while it was loaded; asked again, it tries again
                self.counts["failed"] += 1
                time.sleep(0.02)
                continue
            except StreamClosed as error:
                ended = error.reason
                break
            assert result.status in ("ok", "worker_died"), f"a result says {result.status}"
            seq = result.source_seq
            assert seq == (last or seq - 1) + 1, f"the result of frame {seq} came after {last}"
            last = seq
            self.counts["results"] += result.ok
            result.close()
        assert ended == "closed", f"the results ended: {ended}"

    def _infer(self) -> None:
        import numpy as np

        picture = np.full((16, 64, 3), 7, np.uint8)
        while not self._stopping.wait(0.01):
            try:
                self._client.infer("trivial", picture, format="rgb24", timeout_s=PATIENCE_S)
                self.counts["inferred"] += 1
            except McpdError:
                self.counts["failed"] += 1  # an error is an answer: its worker died


def bystand(channel: Channel, task: Task) -> None:
    """The process: answers `check` with what it counted, and ends at `close`."""
    bystanders = Bystanders(task["socket"], bool(task.get("models")))
    channel.send(event="began")
    while message := channel.receive():
        if message["does"] == "close":
            bystanders.close()
        channel.send(event="counts", **bystanders.counts, faults=bystanders.faults)
        if message["does"] == "close":
            return
