"""Who sends more than its share is read more slowly; who sends little never waits for it."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from mcpd.daemon import pace
from mcpd.daemon.pace import COST_S, Pace
from mcpd.shm import connect
from mcpd.shm.limits import Limits
from tests.support.bystander import Bystander
from tests.support.daemon import RunningDaemon, wait_until
from tests.support.raw import RawSession

_BODY = b"\x82\xa4type\xa5reply\xa2id\x01"
UNASKED = len(_BODY).to_bytes(4, "little") + _BODY
LIMITS = Limits(session_rate=100, user_rate=150, max_rate=200)


@pytest.fixture
def now_s(monkeypatch: pytest.MonkeyPatch) -> float:
    monkeypatch.setattr("mcpd.daemon.pace.time.monotonic", lambda: 50.0)
    return 50.0


def drain(pacer: pace.Pacer, now_s: float) -> int:
    """Messages until it has to wait."""
    count = 0
    while pacer.wait_s(now_s) == 0:
        pacer.spend(0)
        count += 1
    return count


def test_session_may_burst_and_then_goes_at_its_rate(now_s: float) -> None:
    pacer = Pace(LIMITS).pacer(0)
    assert drain(pacer, now_s) == 100
    assert pacer.wait_s(now_s) == pytest.approx(0.01)
    assert drain(pacer, now_s + 0.1) == 10
    assert drain(pacer, now_s + 100) == 100  # what it did not use it has not for ever


def test_message_that_takes_long_costs_more_but_never_more_than_a_moment(now_s: float) -> None:
    pacer = Pace(LIMITS).pacer(0)
    pacer.spend(50 * COST_S)
    assert drain(pacer, now_s) == 50
    pacer.spend(3600)
    assert pacer.wait_s(now_s) <= pace.MAX_DEBT_S + 0.02


def test_busy_sessions_of_a_user_share_its_rate_and_a_quiet_one_does_not_wait(
    now_s: float,
) -> None:
    every = Pace(LIMITS)
    busy, other, quiet, stranger = (every.pacer(uid) for uid in (0, 0, 0, 1))
    assert drain(busy, now_s) == 100
    assert drain(other, now_s) == 51  # half of its own, then what is left of the user's
    assert other.wait_s(now_s) > 0
    assert quiet.wait_s(now_s) == 0
    assert drain(stranger, now_s) == 51  # all together have used 200 by now
    assert quiet.wait_s(now_s) == 0


def test_worker_and_a_rate_of_zero_are_not_held_back(now_s: float) -> None:
    assert Pace(LIMITS).pacer(0, is_worker=True).wait_s(now_s) == 0
    free = Pace(Limits(session_rate=0, user_rate=0, max_rate=0)).pacer(0)
    for _ in range(10_000):
        free.spend(1)
    assert free.wait_s(now_s) == 0


def test_flooder_is_slowed_and_not_refused_and_a_bystander_goes_on(
    bare_daemon: RunningDaemon,
) -> None:
    answered = 0
    with Bystander(bare_daemon.socket) as bystander, RawSession(bare_daemon.socket) as raw:

        def flood() -> None:
            for number in range(1, 3001):
                raw.send(type="list", what="nothing", id=number)

        def read() -> None:
            nonlocal answered
            while answered < 3000 and raw.receive():
                answered += 1

        number = raw.greeting["result"]["session"]
        threads = [threading.Thread(target=work) for work in (flood, read)]
        began = time.monotonic()
        for thread in threads:
            thread.start()
        with connect(bare_daemon.socket) as client:
            wait_until(lambda: answered > 100, 30, "it is answered")
            bystander.check()
            (row,) = [r for r in client.list("sessions") if r["session"] == number]
            assert row["paused"] > 0 or answered < 1000
            for thread in threads:
                thread.join(60)
            (row,) = [r for r in client.list("sessions") if r["session"] == number]
        assert answered == 3000
        assert row["paused"] > 0
        assert time.monotonic() - began >= 1.5  # a burst of 1000, then 1000 a second at most


def test_end_of_a_flooder_is_seen_though_much_of_it_waits(tmp_path: Path) -> None:
    with (
        RunningDaemon(tmp_path, arguments=["--session-rate", "50"]) as daemon,
        connect(daemon.socket) as client,
    ):
        with RawSession(daemon.socket) as raw:
            raw.ask(type="create_stream", name="a", spec={"slots": 8, "slot_nbytes": 64})
            raw.sock.settimeout(0.2)
            with pytest.raises(TimeoutError):
                raw.sock.sendall(UNASKED * 1_000_000)  # the daemon reads no more, and it is full

        def states() -> set[str]:
            return {lease["state"] for lease in client.list("leases")}

        wait_until(lambda: states() == {"quarantined"}, 20, "its stream has ended")
