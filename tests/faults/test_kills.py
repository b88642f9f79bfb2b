"""SIGKILL at random moments: of clients, sources, workers and the daemon, many times each.

The bound of one second is a promise of the product, so it is tested as such. MCPD_FAULT_ROUNDS sets
how often each is killed.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mcpd.shm import Client, DaemonUnavailable, McpdError, ReaderStream, StreamClosed, connect
from mcpd.shm.segment import process_start_ticks
from tests.support.actor import Actor
from tests.support.bystander import Bystander
from tests.support.daemon import RunningDaemon, wait_until

ROUNDS = int(os.environ.get("MCPD_FAULT_ROUNDS", "30"))
FREE_WITHIN_S = 1.0
"""Everything of the dead is free by then."""
MODELS = ("trivial", "tiny-image")


def wait_for_a_random_moment(most_s: float = 0.02, least_s: float = 0.0) -> None:
    """Any moment of a frame: being filled, published, read, or none at all."""
    threading.Event().wait(random.uniform(least_s, most_s))


def held_of(client: Client, daemon: RunningDaemon, pid: int, name: str) -> list[str]:
    """What is left of a process that wrote the stream `name`: rows, descriptors and mappings."""
    left = [f"lease {row}" for row in client.list("leases") if row["pid"] == pid]
    left += [f"session {row}" for row in client.list("sessions") if row["pid"] == pid]
    left += [f"stream {row}" for row in client.list("streams") if row["name"] == name]
    mine = (f"mcpd:payload:{name} ", f"mcpd:wctl:{name} ", f"mcpd:rctl:{name} ")
    try:
        maps = Path(f"/proc/{daemon.pid}/maps").read_text().splitlines()
        fds = [os.readlink(fd) for fd in Path(f"/proc/{daemon.pid}/fd").iterdir()]
    except OSError:
        return left  # it is not dumpable: only root looks into it
    return left + [entry for entry in maps + fds if any(one in f"{entry} " for one in mine)]


def descriptors(client: Client) -> int:
    """How many the daemon has open."""
    return int(client.status()["daemon"]["fds"])


def test_killed_clients_and_sources_leave_nothing_and_disturb_nobody(
    bare_daemon: RunningDaemon,
) -> None:
    socket = bare_daemon.socket
    with Bystander(socket) as bystander, connect(socket) as client:
        before = descriptors(client)
        for _ in range(ROUNDS):
            source = Actor(socket, "write", "cam0")
            reader = Actor(socket, "read", bystander.name, random.choice(["latest", "lossless"]))
            with source, reader:
                source.wait_ready()
                reader.wait_ready()
                mine = client.open_stream("cam0")
                wait_for_a_random_moment()
                for actor, name in random.sample([(source, "cam0"), (reader, "none")], 2):
                    actor.kill()
                    if actor is source:
                        expect_writer_died(mine)
                        mine.close()
                    wait_until(
                        lambda pid=actor.pid, name=name: (
                            not held_of(  # type: ignore[misc]
                                client, bare_daemon, pid, name
                            )
                        ),
                        FREE_WITHIN_S,
                        lambda pid=actor.pid, name=name: (  # type: ignore[misc]
                            f"{name}: {held_of(client, bare_daemon, pid, name)}"
                        ),
                    )
                bystander.check()
        assert descriptors(client) == before


def expect_writer_died(reader: ReaderStream) -> None:
    """Reads to the end, which must be there and say why."""
    reason = ""
    while not reason:
        try:
            reader.next(30).close()
        except StreamClosed as error:
            reason = error.reason
    assert reason == "writer_died"


@contextmanager
def flowing_results(socket: str, model: str) -> Iterator[Flow]:
    """A stream that a model works on in the background, without end."""
    flow = Flow(socket, model)
    try:
        yield flow
    finally:
        flow.close()


class Flow:
    """Frames into a model and results out of it, each frame checked against its result."""

    def __init__(self, socket: str, model: str) -> None:
        self.model = model
        self.received = 0
        self.error: BaseException | None = None
        self._stopping = False
        self._client = connect(socket, name=f"flow {model}")
        self._stream = self._client.create_stream(
            f"flow-{model}", width=64, height=48, format="rgb24"
        )
        self._results = self._client.results(self._stream.name, model=model, frames="lossless")
        self._threads = [threading.Thread(target=self._write), threading.Thread(target=self._read)]
        for thread in self._threads:
            thread.start()

    def check(self) -> None:
        """Waits for more results."""
        before = self.received
        wait_until(
            lambda: self.error is not None or self.received >= before + 3,
            30,
            f"results of {self.model} go on",
        )
        assert self.error is None, repr(self.error)

    def close(self) -> None:
        """Ends it."""
        self._stopping = True
        for thread in self._threads:
            thread.join(60)
        self._client.close()

    def _write(self) -> None:
        pause = threading.Event()
        while not self._stopping:
            try:
                with self._stream.acquire(0.1) as slot:
                    slot.planes[0][:] = slot.index
            except McpdError:
                continue
            pause.wait(0.002)
        self._stream.end()

    def _read(self) -> None:
        last = 0
        try:
            for result in self._results:
                assert result.status in ("ok", "worker_died")
                assert result.source_seq == (last or result.source_seq - 1) + 1, (
                    "each frame has a result, in order, none twice"
                )
                last = result.source_seq
                self.received += result.ok
        except (McpdError, AssertionError) as error:
            self.error = error


def worker_pid(client: Client, model: str) -> int:
    """The process that serves the model; 0 while there is none ready."""
    for row in client.list("workers"):
        if row["model"] == model and row["state"] == "ready":
            return int(row["pid"])
    return 0


def test_killed_workers_come_back_and_results_go_on(daemon: RunningDaemon) -> None:
    socket = daemon.socket
    with (
        Bystander(socket) as bystander,
        connect(socket) as client,
        flowing_results(socket, MODELS[0]) as first,
        flowing_results(socket, MODELS[1]) as second,
    ):
        for _ in range((ROUNDS + 1) // 2):  # two die in each
            first.check()
            second.check()
            wait_for_a_random_moment(1.2, 1.0)
            for flow in (first, second):
                pid = worker_pid(client, flow.model)
                os.kill(pid, signal.SIGKILL)
                wait_until(
                    lambda pid=pid: not held_of(client, daemon, pid, "none"),  # type: ignore[misc]
                    FREE_WITHIN_S,
                    lambda pid=pid: str(held_of(client, daemon, pid, "none")),  # type: ignore[misc]
                )
            bystander.check()
        first.check()
        second.check()


def test_killed_daemon_takes_everything_along_and_starts_clean(
    daemon: RunningDaemon,
) -> None:
    for _ in range(ROUNDS):
        pid = daemon.pid
        with Actor(daemon.socket, "write", "cam0") as source, connect(daemon.socket) as client:
            assert client.list("leases") == []
            client.create_stream("named", slot_nbytes=4096, memory="posix")
            source.wait_ready()
            results = client.results("cam0", model="trivial")
            results.next(30).close()
            worker = worker_pid(client, "trivial")
            reaper = client.status()["daemon"]["reaper_pid"]
            reader = client.open_stream("cam0", policy="lossless")
            wait_for_a_random_moment()
            assert daemon.process is not None
            daemon.process.kill()
            wait_until(
                lambda gone=(worker, reaper, source.pid): all(  # type: ignore[misc]
                    process_start_ticks(pid) is None for pid in gone
                ),
                FREE_WITHIN_S,
                "worker, reaper and source are gone",
            )
            assert not [name for name in os.listdir("/dev/shm") if f".{pid}." in name]
            with pytest.raises(StreamClosed) as caught:
                read_for_ever(reader)
            assert caught.value.reason in ("shutdown", "writer_died")
            with pytest.raises(DaemonUnavailable):
                client.status()
        daemon.kill()
        daemon.start()


def read_for_ever(reader: ReaderStream) -> None:
    """Reads until it raises."""
    while True:
        reader.next(30).close()
