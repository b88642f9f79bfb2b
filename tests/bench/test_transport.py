"""The transport benchmark moves real frames by each way, and a missed goal is called missed."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from bench.transport import LIMIT, SETTLE, Pair, Round, goals_of
from bench.transports import TRANSPORTS, McpdStream, PlainEventfd, Transport
from tests.support.daemon import RunningDaemon


@pytest.mark.parametrize("make", TRANSPORTS)
@pytest.mark.parametrize("filled", [True, False])
def test_every_transport_moves_frames_and_leaves_nothing(
    bare_daemon: RunningDaemon, make: Callable[[], Transport], filled: bool
) -> None:
    before = set(os.listdir("/dev/shm"))
    with Pair(make()) as pair:
        pair.open(bare_daemon.socket)
        for _ in range(2):
            taken = pair.run(SETTLE + 10, filled)
            assert 0 < taken.p50_us <= taken.p99_us
            assert taken.cpu_us > 0
    assert set(os.listdir("/dev/shm")) <= before


def test_process_that_fails_is_an_error_and_not_a_hang() -> None:
    with Pair(McpdStream()) as pair, pytest.raises(Exception, match="no daemon answers"):
        pair.open("/nowhere/mcpd.sock")


def rounds(ours_us: float) -> dict[tuple[str, bool], list[Round]]:
    return {
        (name, filled): [Round(p50_us, p50_us, 1.0)] * 3
        for name, p50_us in ((McpdStream.name, ours_us), (PlainEventfd.name, 10.0))
        for filled in (True, False)
    }


def test_goal_that_was_missed_is_called_missed() -> None:
    assert [goal["ok"] for goal in goals_of(rounds(10.0 * LIMIT))] == [True, True]
    missed = goals_of(rounds(10.0 * LIMIT + 1))
    assert [goal["ok"] for goal in missed] == [False, False]
    assert missed[0]["name"].startswith("wake p50 / eventfd floor")
