"""Workers that die under who shares or waits for their results, with either client."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from mcpd.shm import Client, InvalidRequest, TimedOut, WorkerDied, aio, connect
from mcpd.shm.results import ResultReader, open_results
from tests.support.daemon import RunningDaemon, wait_until
from tests.support.descriptors import no_descriptor_leaked

RED = np.full((16, 24, 3), (255, 0, 0), np.uint8)


def worker_pid(client: Client, model: str) -> int:
    """The process that has the model loaded."""
    return next(int(row["pid"]) for row in client.list("models") if row["name"] == model)


def run(daemon: RunningDaemon, body: Callable[[aio.AsyncClient, Client], Awaitable[None]]) -> None:
    """Runs a test's body with an asyncio client, and another one to ask about workers."""

    async def main() -> None:
        with connect(daemon.socket) as asker:
            async with aio.connect(daemon.socket, name="tester") as client:
                await asyncio.wait_for(body(client, asker), 60)

    with no_descriptor_leaked():
        asyncio.run(main())


def test_threads_that_share_results_go_on_together_after_their_worker_died(
    client: Client,
) -> None:
    threads_count = 4
    seen: list[int] = []
    with (
        client.create_stream("shared", width=24, height=16, format="rgb24") as stream,
        client.results("shared", model="tiny-image", timeout_s=30) as results,
    ):
        stop = threading.Event()

        def feed() -> None:
            while not stop.wait(0.002):
                with stream.acquire() as slot:
                    slot.planes[0][...] = RED

        def reopened(times: int) -> bool:
            return results.reopened == times

        def follow() -> None:
            for result in results:
                seen.append(result.source_seq)

        threads = [threading.Thread(target=follow) for _ in range(threads_count)]
        feeder = threading.Thread(target=feed)
        for thread in (feeder, *threads):
            thread.start()
        try:
            for times in range(1, 3):
                wait_until(lambda: bool(seen), 30, "results flow")
                os.kill(worker_pid(client, "tiny-image"), signal.SIGKILL)
                wait_until(partial(reopened, times), 30, "it was opened anew, once")
                seen.clear()
                wait_until(lambda: len(seen) > 3, 30, "results go on")
            assert all(thread.is_alive() for thread in threads)
            readers = [row for row in client.list("leases") if row["kind"] == "reader"]
            assert len([row for row in readers if row["name"] == "shared@tiny-image"]) == 1
        finally:
            results.close()
            stop.set()
            for thread in (feeder, *threads):
                thread.join(30)
        assert not any(thread.is_alive() for thread in threads)


def test_results_that_could_not_be_had_again_are_tried_again_by_the_next_call(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        client.create_stream("again", width=24, height=16, format="rgb24", slots=32) as stream,
        client.results("again", model="tiny-image", frames="lossless") as results,
    ):
        os.kill(worker_pid(client, "tiny-image"), signal.SIGKILL)
        with monkeypatch.context() as patch:

            def fail(*_: object) -> None:
                raise TimedOut("not loaded")

            patch.setattr("mcpd.shm.results.open_results", fail)
            with pytest.raises(TimedOut, match="not loaded"):
                results.next(30)
        with pytest.raises(TimedOut, match="no frame came"):
            results.next(20)  # it is there again, and nothing to be read
        with stream.acquire(10) as slot:
            slot.planes[0][...] = RED
        assert results.next(30).ok


def test_run_that_its_worker_died_with_is_told_at_once(client: Client) -> None:
    with (
        client.create_stream("once", width=24, height=16, format="rgb24") as stream,
        client.results("once", model="tiny-image", once=True) as results,
    ):
        with stream.acquire(10) as slot:
            slot.planes[0][...] = RED
        os.kill(worker_pid(client, "tiny-image"), signal.SIGSTOP)
        results.run_once()
        os.kill(worker_pid(client, "tiny-image"), signal.SIGKILL)
        with pytest.raises(WorkerDied, match="run_once"):
            results.next(60)
        results.run_once()
        assert results.next(30).ok


def test_request_that_was_given_up_is_not_waited_for_again(client: Client) -> None:
    with client.requests("trivial", width=8, height=8, format="rgb24") as requests:
        pid = worker_pid(client, "trivial")
        os.kill(pid, signal.SIGSTOP)
        try:
            pending = requests.submit(requests.acquire(5))
            with pytest.raises(TimedOut):
                pending.collect(0.01)
        finally:
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(TimedOut):
            pending.collect()


def test_requests_closed_while_they_bind_anew_leave_no_reader(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = client.requests("trivial", width=8, height=8, format="rgb24")
    os.kill(worker_pid(client, "trivial"), signal.SIGKILL)
    wait_until(lambda: not requests.bound, 10, "the worker's end")

    def open_then_close(*arguments: Any) -> ResultReader:
        reader = open_results(*arguments)
        requests.close()
        return reader

    with monkeypatch.context() as patch:
        patch.setattr("mcpd.shm.requests.open_results", open_then_close)
        with pytest.raises(InvalidRequest, match="are closed"):
            requests.acquire(30)
    wait_until(
        lambda: all(row["session"] != client.session for row in client.list("leases")),
        10,
        "nothing is left",
    )


def test_results_let_go_of_a_dead_worker_before_they_wait_for_the_next_one(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers: list[dict[str, Any]] = []

    def look_then_open(*arguments: Any) -> ResultReader:
        readers.extend(
            row
            for row in client.list("leases")
            if row["kind"] == "reader" and row["session"] == client.session
        )
        return open_results(*arguments)

    with (
        client.create_stream("cam", width=24, height=16, format="rgb24") as stream,
        client.results("cam", model="tiny-image", timeout_s=30) as results,
    ):
        stream.acquire(5).publish()
        assert results.next().ok
        monkeypatch.setattr("mcpd.shm.results.open_results", look_then_open)
        os.kill(worker_pid(client, "tiny-image"), signal.SIGKILL)
        assert results.next().ok
        assert results.reopened == 1
    assert readers == []


def test_task_that_collects_is_woken_though_another_binds_to_the_next_worker(
    shared: RunningDaemon,
) -> None:
    async def body(client: aio.AsyncClient, asker: Client) -> None:
        async with client.requests("trivial", width=8, height=8, format="rgb24") as requests:
            (await requests.collect(requests.submit(await requests.acquire(10)), 10)).close()
            pid = worker_pid(asker, "trivial")
            os.kill(pid, signal.SIGSTOP)
            pending = requests.submit(await requests.acquire(10))
            collecting = asyncio.create_task(requests.collect(pending))
            await asyncio.sleep(0)
            os.kill(pid, signal.SIGKILL)
            # The loop does not run until the end is there: both tasks see it at the same time.
            wait_until(lambda: not requests.requests.bound, 10, "the worker's end")
            slot = await requests.acquire(30)
            with pytest.raises(WorkerDied):
                await asyncio.wait_for(collecting, 10)
            assert (await requests.collect(requests.submit(slot), 30)).ok

    run(shared, body)


def test_request_submitted_to_a_dead_worker_fails_and_does_not_wait(shared: RunningDaemon) -> None:
    async def body(client: aio.AsyncClient, asker: Client) -> None:
        async with client.requests("trivial", width=8, height=8, format="rgb24") as requests:
            slot = await requests.acquire(10)
            pid = worker_pid(asker, "trivial")
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: not requests.requests.bound, 10, "the worker's end")
            with pytest.raises(WorkerDied, match="submit it again"):
                await requests.collect(requests.submit(slot))
            assert (await requests.collect(requests.submit(await requests.acquire(30)), 30)).ok

    run(shared, body)


def test_tasks_that_share_results_go_on_together_after_their_worker_died(
    shared: RunningDaemon,
) -> None:
    async def body(client: aio.AsyncClient, asker: Client) -> None:
        async with (
            client.create_stream("cam", width=24, height=16, format="rgb24") as stream,
            client.results("cam", model="tiny-image", frames="lossless") as results,
        ):

            async def show() -> None:
                async with stream.acquire() as slot:
                    slot.planes[0][...] = RED

            tasks = [asyncio.create_task(results.next()) for _ in range(3)]
            await asyncio.sleep(0)
            os.kill(worker_pid(asker, "tiny-image"), signal.SIGKILL)
            while not results.reopened:
                await asyncio.sleep(0.01)
            for _ in tasks:
                await show()
            assert all(result.ok for result in await asyncio.gather(*tasks))
            assert results.reopened == 1

    run(shared, body)
