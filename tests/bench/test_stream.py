"""The stream benchmark moves real frames by each way, and a missed goal is called missed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.native import NativeEventfd, NativeStream, library
from bench.peers import PEERS, Iceoryx2, PosixIpc
from bench.stream import (
    CPU_LIMIT_US,
    FLOW,
    NATIVE_LIMIT,
    SETTLE,
    WAKE,
    WAKE_LIMIT,
    Case,
    Pair,
    Round,
    figures_of,
    goals_of,
    make,
    measure,
)
from bench.transports import McpdStream, PlainEventfd, Transport
from tests.support.daemon import RunningDaemon

FRAMES = SETTLE + 10


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    before = set(os.listdir("/dev/shm"))
    yield
    # A lock that iceoryx2 leaves for its next node.
    left = {name for name in os.listdir("/dev/shm") if not name.startswith("iox2_")}
    assert left <= before


@pytest.mark.parametrize("kind", WAKE)
def test_every_transport_moves_frames_with_pauses(
    bare_daemon: RunningDaemon, kind: Callable[[], Transport]
) -> None:
    with Pair(kind()) as pair:
        pair.open(bare_daemon.socket)
        for filled in (True, False):
            taken = pair.wake(FRAMES, filled)
            assert 0 < taken.p50_us <= taken.p99_us
            assert taken.cpu_us > 0


@pytest.mark.parametrize("kind", FLOW)
def test_every_peer_moves_frames_as_fast_as_they_go(
    bare_daemon: RunningDaemon, kind: Callable[[], Transport]
) -> None:
    with Pair(kind()) as pair:
        pair.open(bare_daemon.socket)
        for _ in range(2):
            assert pair.flow(FRAMES).per_s > 0


def test_process_that_fails_is_an_error_and_not_a_hang() -> None:
    with Pair(McpdStream()) as pair, pytest.raises(Exception, match="no daemon answers"):
        pair.open("/nowhere/mcpd.sock")


def test_reader_that_loses_frames_is_an_error(bare_daemon: RunningDaemon) -> None:
    with Pair(McpdStream("latest")) as pair:
        pair.open(bare_daemon.socket)
        with pytest.raises(ValueError, match="frames were lost"):
            pair.flow(1000)


def test_peer_that_is_not_installed_is_missing_and_not_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def absent(name: str) -> Any:
        raise ImportError(f"no {name} here")

    monkeypatch.setattr("bench.peers.importlib.import_module", absent)
    transports, missing = make(PEERS)
    assert {each.name for each in transports} == {PosixIpc.name, "shared_memory + Pipe"}
    for transport in transports:
        transport.close()
    assert missing[Iceoryx2.name] == "no iceoryx2 here"
    assert figures_of({}, missing)[Iceoryx2.name] == {"missing": "no iceoryx2 here"}


def test_c_that_does_not_compile_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("bench.native._SOURCES", tmp_path)
    library.cache_clear()
    with pytest.raises(RuntimeError, match=r"wake\.c"):
        library()
    library.cache_clear()


def rounds(
    over: float = 1.0, native: float = 1.0, iceoryx2: float = 10.0, flow: float = 1.0
) -> dict[Case, list[Round]]:
    """Ours over the floors, iceoryx2 over ours, and the best peer's frame rate over ours."""
    wakes = {
        PlainEventfd.name: 10.0,
        McpdStream.name: 10.0 * over,
        Iceoryx2.name: 10.0 * over * iceoryx2,
        NativeEventfd.name: 5.0,
        NativeStream.name: 5.0 * native,
    }
    taken = {
        (name, what): [Round(p50, p50, CPU_LIMIT_US, 1.0)] * 3
        for name, p50 in wakes.items()
        for what in ("filled", "not filled")
    }
    for number, kind in enumerate(PEERS):
        taken[kind.name, "flow"] = [Round(1.0, 1.0, flow, (100 - number) * flow)] * 3
    taken[McpdStream.name, "flow"] = [Round(1.0, 1.0, 1.0, 100.0)] * 3
    return taken


def missed(taken: dict[Case, list[Round]]) -> list[str]:
    return [goal["name"] for goal in goals_of(taken) if not goal["ok"]]


def test_goal_that_was_missed_is_called_missed() -> None:
    assert missed(rounds(over=WAKE_LIMIT, native=NATIVE_LIMIT)) == []
    assert missed(rounds(over=WAKE_LIMIT + 0.1)) == [
        "wake p50 / eventfd floor, filled",
        "wake p50 / eventfd floor, not filled",
    ]
    assert missed(rounds(native=NATIVE_LIMIT + 0.1)) == [
        "wake p50 / eventfd floor in C, filled",
        "wake p50 / eventfd floor in C, not filled",
    ]
    assert missed(rounds(iceoryx2=3.5)) == ["wake p50 of iceoryx2 / ours, filled"]
    assert missed(rounds(flow=1.1)) == [f"flow: frames/s / {Iceoryx2.name}"]
    assert missed(rounds(flow=0.9)) == [f"flow: cpu per frame / {Iceoryx2.name}"]


def test_goal_against_a_missing_peer_is_missed() -> None:
    taken = {case: each for case, each in rounds().items() if case[0] != Iceoryx2.name}
    assert [goal["name"] for goal in goals_of(taken) if goal["value"] is None] == [
        "wake p50 of iceoryx2 / ours, filled",
        "wake p50 of iceoryx2 / ours, not filled",
        f"flow: frames/s / {PosixIpc.name} (not in the run: iceoryx2)",
        f"flow: cpu per frame / {PosixIpc.name} (not in the run: iceoryx2)",
    ]


def test_every_case_is_measured() -> None:
    taken, missing = measure(1, FRAMES, FRAMES)
    assert missing == {}
    assert len(taken) == 2 * len(WAKE) + len(FLOW)
    assert len(figures_of(taken, missing)) == len(taken)
