"""What calls of a client that reconnects do while the daemon is away, and what ends them."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future
from concurrent.futures import ThreadPoolExecutor as Pool
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np
import pytest

from mcpd.shm import (
    AlreadyExists,
    Client,
    DaemonUnavailable,
    InvalidRequest,
    LimitExceeded,
    McpdError,
    StreamClosed,
    WouldBlock,
    connect,
)
from mcpd.shm.results import Results
from tests.support.daemon import RunningDaemon, wait_until
from tests.support.descriptors import no_descriptor_leaked
from tests.support.numbered import check_numbered, write_numbered
from tests.support.sessions import (
    away,
    break_off,
    in_thread,
    make_kept,
    wait_for_session,
)

T = TypeVar("T")
WAIT_S = 30.0


def would_block(results: Results) -> bool:
    try:
        results.next(0).close()
    except WouldBlock:
        return True
    return False


def test_requests_wait_for_the_daemon(mortal: RunningDaemon, kept: Client, name: str) -> None:
    lost, restored = threading.Event(), threading.Event()
    reasons: list[McpdError] = []

    def on_lost(reason: McpdError) -> None:
        reasons.append(reason)
        lost.set()

    with connect(mortal.socket, reconnect=True, on_lost=on_lost, on_restored=restored.set) as told:
        first = told.daemon_pid
        with away(mortal):
            assert lost.wait(WAIT_S)
            assert isinstance(reasons[0], DaemonUnavailable)
            assert not restored.is_set()
            with pytest.raises(DaemonUnavailable, match=r"away for \d"):
                told.sessions.run(lambda session: session.session, 0.05)
            with pytest.raises(DaemonUnavailable):
                told.stop()  # that would be the next one
            status = Pool(1).submit(told.status)
            opening = Pool(1).submit(make_kept, told, name)
        assert status.result(WAIT_S)["daemon"]["pid"] == mortal.pid != first
        assert restored.wait(WAIT_S)
        opening.result(WAIT_S).close()
        assert told.list("streams") == []


def test_a_name_that_another_has_taken_is_told_and_had_again_when_it_is_free(
    mortal: RunningDaemon, name: str
) -> None:
    thief: list[Client] = []

    def steal() -> None:
        thief.append(connect(mortal.socket, name="thief"))
        thief[0].create_stream(name, slot_nbytes=4096)

    with connect(mortal.socket, reconnect=True, on_restored=steal) as kept:
        stream = make_kept(kept, name)
        with away(mortal):
            pass
        wait_until(lambda: kept.connection.lost is False and bool(thief), WAIT_S, "stolen")
        with pytest.raises(AlreadyExists, match=rf"'{name}' cannot be had again.*'{name}' exists"):
            stream.acquire(0.5)
        with pytest.raises(WouldBlock):
            stream.acquire(0)
        thief[0].close()
        assert write_numbered(stream) == 1


def test_patience_with_a_name_that_is_taken_ends_also_without_a_time_limit(
    mortal: RunningDaemon, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("mcpd.shm.sessions.PATIENCE_S", 0.2)
    other = connect(mortal.socket)

    def steal() -> None:
        def taken() -> bool:
            with suppress(AlreadyExists):  # the session that was broken off is about to end
                other.create_stream(name, slot_nbytes=4096, slots=5)
                return True
            return False

        wait_until(taken, WAIT_S, "stolen")

    with connect(mortal.socket, reconnect=True, on_restored=steal) as kept:
        stream = make_kept(kept, name)
        reading = kept.open_stream(name, max_pins=15)
        before = kept.connection
        break_off(before)
        wait_for_session(kept, before)
        with pytest.raises(AlreadyExists, match="cannot be had again"):
            stream.acquire()
        with pytest.raises(LimitExceeded, match="cannot be had again"):
            reading.next()
        other.close()
        assert write_numbered(stream) == 1
        assert check_numbered(reading.next(WAIT_S)) == 1


def test_close_while_the_daemon_is_away_ends_every_wait_at_once(
    mortal: RunningDaemon, name: str
) -> None:
    with no_descriptor_leaked():
        kept = connect(mortal.socket, reconnect=True)
        stream = make_kept(kept, name)
        reading = kept.open_stream(name)
        with away(mortal), Pool(3) as pool:
            wait_until(lambda: kept.connection.lost, WAIT_S, "the kept knows")
            waits: list[Future[Any]] = [
                pool.submit(stream.acquire),
                pool.submit(reading.next),
                pool.submit(kept.status),
            ]
            kept.close()
            for wait in waits:
                with pytest.raises((StreamClosed, DaemonUnavailable)):
                    wait.result(WAIT_S)
            assert "mcpd-reconnect" not in {thread.name for thread in threading.enumerate()}
        with pytest.raises(StreamClosed):
            stream.acquire()
        kept.close()


def test_stream_that_its_user_ended_is_not_made_again(
    mortal: RunningDaemon, kept: Client, name: str
) -> None:
    stream, closed = make_kept(kept, name), make_kept(kept, f"{name}-closed")
    stream.end()
    with away(mortal):
        wait_until(lambda: kept.connection.lost, WAIT_S, "the kept knows")
        closed.close()
    assert kept.list("streams") == []
    with pytest.raises(StreamClosed):
        stream.acquire(0)
    stream.close()


def test_resize_asks_the_next_daemon(mortal: RunningDaemon, kept: Client, name: str) -> None:
    with (
        make_kept(kept, name) as stream,
        kept.open_stream(name, policy="lossless") as reading,
    ):
        write_numbered(stream)
        with away(mortal):
            wait_until(lambda: kept.connection.lost, WAIT_S, "the kept knows")
            with in_thread(lambda: stream.resize(width=32)) as resizing:
                pass_time = threading.Event()
                pass_time.wait(0.05)
                assert not resizing.done()
                mortal.start()
                resizing.result(WAIT_S)
                mortal.kill()
        assert write_numbered(stream) == 2
        assert [reading.next(WAIT_S).description.width for _ in range(2)] == [64, 32]


def test_forked_child_is_told_that_the_session_is_its_parents(kept: Client, name: str) -> None:
    stream = make_kept(kept, name)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        text = ""
        try:
            kept.status()
        except InvalidRequest as error:
            text = str(error)
        kept.close()
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as told:
        assert "used in its child" in told.read()
    os.waitpid(pid, 0)
    assert write_numbered(stream) == 1
    stream.close()


def test_first_daemon_is_waited_for(mortal: RunningDaemon) -> None:
    with away(mortal):
        with pytest.raises(DaemonUnavailable, match="no daemon answers"):
            connect(mortal.socket, reconnect=True, timeout_s=0.05)
        opening = Pool(1).submit(connect, mortal.socket, reconnect=True, timeout_s=WAIT_S)
    opening.result(WAIT_S).close()


def test_callbacks_without_reconnect_are_refused(mortal: RunningDaemon) -> None:
    with pytest.raises(InvalidRequest, match="reconnect"):
        connect(mortal.socket, on_restored=lambda: None)


def test_results_and_infer_go_on(mortal: RunningDaemon, kept: Client, name: str) -> None:
    red = np.full((16, 24, 3), (255, 0, 0), np.uint8)
    with (
        kept.create_stream(name, width=24, height=16, format="rgb24") as stream,
        kept.results(name, model="tiny-image") as results,
        kept.requests("tiny-image", width=24, height=16, format="rgb24") as requests,
    ):
        stop = threading.Event()

        def feed() -> None:
            while not stop.wait(0.002):
                with stream.acquire(WAIT_S) as slot:
                    slot.planes[0][...] = red

        with in_thread(feed):
            try:
                assert results.next(WAIT_S).ok
                assert kept.infer("tiny-image", red).ok
                slot = requests.acquire(WAIT_S)
                with away(mortal):
                    wait_until(lambda: kept.connection.lost, WAIT_S, "the kept knows")
                    wait_until(lambda: would_block(results), WAIT_S, "no results")
                    with pytest.raises(DaemonUnavailable, match="away"):
                        kept.infer("tiny-image", red, timeout_s=0.05)
                    asked = Pool(1).submit(kept.infer, "tiny-image", red)
                assert asked.result(WAIT_S).ok
                assert results.next(WAIT_S).ok
                assert results.reopened == 1
                with pytest.raises(DaemonUnavailable, match="Acquire another"):
                    requests.submit(slot)
                again = requests.acquire(WAIT_S)
                again.planes[0][...] = red
                assert requests.submit(again).collect(WAIT_S).ok
            finally:
                stop.set()
