"""Each attack of the chaos client harms only itself: others go on, and nothing of it is left."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import pytest

from mcpd.shm import Client, McpdError, StreamClosed, connect
from mcpd.shm.errors import ProtocolError
from tests.support.attacker import Attack
from tests.support.bystander import WAIT_S, Bystander
from tests.support.chaos import ATTACKS
from tests.support.daemon import RunningDaemon, wait_until

STOPS = {"pin_every_slot_and_stop"}
ATTACK_S = 0.2
"""Of those that go on until they are told; each is done once at least."""
FORBIDDEN = {"RESIZED", "WRITTEN", "MAPPED WRITABLE"}


class Crowd:
    """Three more readers of a stream: one of its own, two of the group that is attacked."""

    def __init__(self, socket: str, stream: str) -> None:
        self._client: Client = connect(socket, name="crowd")
        self.received = [0, 0, 0]
        self.error: BaseException | None = None
        self.told: list[ProtocolError] = []
        self._readers = [
            self._client.open_stream(stream),
            self._client.open_stream(stream, policy="fifo", depth=1, group="crowd"),
            self._client.open_stream(stream, policy="fifo", depth=1, group="crowd"),
        ]
        self._threads = [threading.Thread(target=self._read, args=(n,)) for n in range(3)]
        for thread in self._threads:
            thread.start()

    def check(self) -> None:
        """Waits until the reader of its own has more frames; the members go on, or were told that
        what their group shares is damaged."""
        before = self.received[0]
        wait_until(lambda: self.received[0] > before or bool(self.error), WAIT_S, "frames go on")
        assert self.error is None, repr(self.error)
        assert self._threads[0].is_alive()
        damaged = [error for error in self.told if "damaged" in str(error)]
        assert len(damaged) + sum(thread.is_alive() for thread in self._threads) == 3

    def close(self) -> None:
        """Ends it."""
        self._client.close()
        for thread in self._threads:
            thread.join(WAIT_S)

    def _read(self, index: int) -> None:
        reader = self._readers[index]
        try:
            while True:
                reader.next(WAIT_S).close()
                self.received[index] += 1
        except StreamClosed:
            return
        except ProtocolError as error:
            self.told.append(error)
        except McpdError as error:
            self.error = error


class Scene:
    """A daemon, a stream that flows through it, and what the daemon has while nobody attacks."""

    def __init__(self, folder: Path) -> None:
        self.daemon = RunningDaemon(folder)

    def __enter__(self) -> Scene:
        self.daemon.__enter__()
        self.bystander = Bystander(self.daemon.socket, slots=32).__enter__()
        self.client = connect(self.daemon.socket, name="looks on")
        # The first named segment starts the reaper, which stays.
        self.client.create_stream("first", slot_nbytes=64, memory="posix").close()
        self.quiet = self.held()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.client.close()
        self.bystander.__exit__(kind, error, traceback)
        self.daemon.__exit__(kind, error, traceback)

    def held(self) -> dict[str, object]:
        """Descriptors, memory, sessions and leases of the daemon, and names in /dev/shm."""
        daemon = self.client.status()["daemon"]
        prefix = f"mcpd.{os.geteuid()}.{daemon['pid']}."
        return {
            "fds": daemon["fds"],
            "memory": daemon["memory_bytes"],
            "sessions": daemon["sessions"],
            "leases": sorted((row["kind"], row["id"]) for row in self.client.list("leases")),
            "names": sorted(name for name in os.listdir("/dev/shm") if name.startswith(prefix)),
        }


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with Scene(tmp_path_factory.mktemp("scene")) as made:
        yield made


@pytest.mark.parametrize("name", ATTACKS)
def test_attack_harms_only_itself(scene: Scene, name: str) -> None:
    crowd = Crowd(scene.daemon.socket, "bystander")
    try:
        with Attack(scene.daemon.socket, name, "bystander", ATTACK_S) as attack:
            attack.wait_ready().begin()
            scene.bystander.check()
            if name in STOPS:
                wait_until(lambda: _state(attack.pid) == "T", WAIT_S, "it has stopped itself")
            else:
                outcome = attack.outcome()
                assert outcome, "it did nothing"
                assert not FORBIDDEN & set(outcome), outcome
            scene.bystander.check()
            crowd.check()
        scene.bystander.check()
        crowd.check()
    finally:
        crowd.close()
    wait_until(
        lambda: scene.held() == scene.quiet, WAIT_S, lambda: f"{scene.held()} / {scene.quiet}"
    )
    assert "Traceback" not in scene.daemon.stderr


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
