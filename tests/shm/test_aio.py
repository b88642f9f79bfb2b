"""The asyncio client: the same names, and an await that is cancelled leaves nothing behind."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mcpd.shm import (
    DaemonUnavailable,
    NotFound,
    StreamClosed,
    TimedOut,
    WorkerDied,
    WouldBlock,
    aio,
)
from mcpd.shm.segment import process_start_ticks
from tests.support.daemon import RunningDaemon, wait_until
from tests.support.descriptors import no_descriptor_leaked

RED = np.full((16, 24, 3), (255, 0, 0), np.uint8)


def run(daemon: RunningDaemon, body: Callable[[aio.AsyncClient], Awaitable[None]]) -> None:
    """Runs a test's body in a loop of its own, with a client; nothing may be left afterwards."""

    async def main() -> None:
        async with aio.connect(daemon.socket, name="tester") as client:
            await asyncio.wait_for(body(client), 60)
            assert await leases(client) == []

    with no_descriptor_leaked():
        asyncio.run(main())


async def leases(client: aio.AsyncClient) -> list[str]:
    """What this session still has, once what was cancelled is given back."""
    mine: list[str] = []
    for _ in range(500):
        rows = await client.list("leases")
        mine = [f"{r['kind']} {r['name']}" for r in rows if r["session"] == client.session]
        if not mine:
            return []
        await asyncio.sleep(0.01)
    return mine


@asynccontextmanager
async def cam(client: aio.AsyncClient, name: str) -> AsyncIterator[aio.AsyncWriterStream]:
    """A name for each test: what comes under a name again goes on with its numbers."""
    async with client.create_stream(name, width=24, height=16, format="rgb24") as stream:
        yield stream


def test_frames_go_from_writer_to_reader(shared: RunningDaemon) -> None:
    async def body(client: aio.AsyncClient) -> None:
        async with (
            cam(client, "cam0") as stream,
            client.open_stream("cam0", policy="lossless") as reader,
        ):

            async def write() -> None:
                for number in range(30):
                    async with stream.acquire() as slot:
                        slot.planes[0][...] = number
                stream.end()

            writing = asyncio.create_task(write())
            seen = [int(frame.planes[0][0, 0, 0]) async for frame in reader]
            await writing
            assert seen == list(range(30))
            assert reader.stats()["received"] == stream.stats()["published"] == 30

    run(shared, body)


def test_what_is_opened_may_be_awaited_instead(shared: RunningDaemon) -> None:
    async def body(client: aio.AsyncClient) -> None:
        stream = await client.create_stream("cam1", width=8, height=8, format="gray8")
        reader = await client.open_stream("cam1")
        slot = await stream.acquire()
        slot.publish()
        with await reader.next() as frame:
            assert frame.seq == 1
        await reader.close()
        await stream.close()
        await stream.close()

    run(shared, body)


def test_nothing_there_would_block_and_times_out(shared: RunningDaemon) -> None:
    async def body(client: aio.AsyncClient) -> None:
        async with cam(client, "cam2"), client.open_stream("cam2") as reader:
            with pytest.raises(WouldBlock):
                await reader.next(0)
            with pytest.raises(TimedOut, match=r"no frame came in 0\.01 s"):
                await reader.next(0.01)

    run(shared, body)


def test_lossless_reader_that_reads_makes_room_for_a_waiting_writer(shared: RunningDaemon) -> None:
    async def body(client: aio.AsyncClient) -> None:
        async with (
            cam(client, "cam3") as stream,
            client.open_stream("cam3", policy="lossless") as reader,
        ):

            async def fill() -> None:
                while True:
                    async with stream.acquire(0.01):
                        pass

            with pytest.raises(TimedOut, match="no slot came free"):
                await fill()
            waiting = asyncio.ensure_future(stream.acquire()._make())
            await asyncio.sleep(0)
            for _ in range(4):
                (await reader.next()).close()
            (await waiting).publish()

    run(shared, body)


def test_cancelled_waits_leave_no_pins(shared: RunningDaemon) -> None:
    async def body(client: aio.AsyncClient) -> None:
        async with cam(client, "cam4") as stream, client.open_stream("cam4", max_pins=1) as reader:
            for _ in range(20):
                waiting = asyncio.ensure_future(reader.next())
                await asyncio.sleep(0)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
            async with stream.acquire():
                pass
            with await reader.next(5) as frame:
                assert frame.seq == 1

    run(shared, body)


def test_cancelled_opening_leaves_no_reader_and_no_stream(shared: RunningDaemon) -> None:
    async def body(client: aio.AsyncClient) -> None:
        # Many slots: what is given back counts until the daemon has heard of it.
        async with client.create_stream("base", slots=100, width=8, height=8, format="rgb24"):
            names = (f"other-{number}" for number in itertools.count())
            openings: list[Callable[[], Any]] = [
                lambda: client.open_stream("base"),
                lambda: client.create_stream(next(names), slot_nbytes=1),
                lambda: client.results("base", model="tiny-image"),
                lambda: client.requests("trivial", width=8, height=8, format="rgb24"),
            ]
            for make in openings:
                for rounds in (0, 1, 2, 5, 20):
                    opening = asyncio.ensure_future(make()._make())
                    for _ in range(rounds):
                        await asyncio.sleep(0.0005)
                    opening.cancel()
                    try:
                        made = await opening
                    except asyncio.CancelledError:
                        continue
                    await made.close()
        # run() sees that nothing is left

    run(shared, body)


def test_two_tasks_may_wait_for_one_reader(shared: RunningDaemon) -> None:
    async def body(client: aio.AsyncClient) -> None:
        async with (
            cam(client, "cam6") as stream,
            client.open_stream("cam6", policy="lossless") as reader,
        ):
            tasks = [asyncio.create_task(reader.next(10)) for _ in range(2)]
            await asyncio.sleep(0)
            for _ in range(2):
                async with stream.acquire():
                    pass
            frames = await asyncio.gather(*tasks)
            assert sorted(frame.seq for frame in frames) == [1, 2]
            for frame in frames:
                frame.close()

    run(shared, body)


def test_results_flow_and_end_with_the_stream(shared: RunningDaemon) -> None:
    async def body(client: aio.AsyncClient) -> None:
        async with (
            cam(client, "cam7") as stream,
            client.results("cam7", model="tiny-image", frames="lossless", timeout_s=20) as results,
        ):
            for number in range(1, 6):
                async with stream.acquire() as slot:
                    slot.planes[0][...] = RED
                result = await results.next()
                assert result.source_seq == number
                assert [found.label for found in result.detections] == ["red"]
            stream.end()
            assert [result async for result in results] == []

    run(shared, body)


def test_run_once_and_infer(shared: RunningDaemon) -> None:
    async def body(client: aio.AsyncClient) -> None:
        async with cam(client, "cam8") as stream:
            async with stream.acquire() as slot:
                slot.planes[0][...] = RED
            result = await client.run_once("cam8", model="tiny-image")
            assert [found.label for found in result.detections] == ["red"]
        results = await asyncio.gather(*(client.infer("tiny-image", RED) for _ in range(4)))
        assert [len(result.detections) for result in results] == [1] * 4
        with pytest.raises(NotFound):
            await client.infer("gpt", RED)
        await asyncio.to_thread(client._client._inference.close)

    run(shared, body)


def test_requests_of_many_tasks_get_their_own_results(shared: RunningDaemon) -> None:
    async def body(client: aio.AsyncClient) -> None:
        async with client.requests("trivial", width=8, height=8, format="rgb24") as requests:

            async def ask(level: int) -> None:
                for _ in range(10):
                    slot = await requests.acquire(10)
                    slot.planes[0][...] = level
                    result = await requests.collect(requests.submit(slot), 10)
                    assert result["mean"].tolist() == [[level] * 3]

            await asyncio.gather(*(ask(level) for level in range(3)))

    run(shared, body)


def test_cancelled_request_does_not_disturb_the_next(shared: RunningDaemon) -> None:
    async def body(client: aio.AsyncClient) -> None:
        async with client.requests("trivial", width=8, height=8, format="rgb24") as requests:
            for _ in range(10):
                pending = requests.submit(await requests.acquire(10))
                collecting = asyncio.create_task(requests.collect(pending))
                await asyncio.sleep(0)
                collecting.cancel()
                await asyncio.wait([collecting])
            slot = await requests.acquire(10)
            slot.planes[0][...] = 8
            result = await requests.collect(requests.submit(slot), 10)
            assert result["mean"].tolist() == [[8, 8, 8]]
            assert requests.requests.in_flight == 0

    run(shared, body)


def test_requests_in_flight_fail_with_their_worker_and_the_next_one_succeeds(
    shared: RunningDaemon,
) -> None:
    async def body(client: aio.AsyncClient) -> None:
        async with client.requests("trivial", width=8, height=8, format="rgb24") as requests:
            (await requests.collect(requests.submit(await requests.acquire(10)), 10)).close()
            rows = await client.list("models")
            pid = next(int(row["pid"]) for row in rows if row["name"] == "trivial")
            os.kill(pid, signal.SIGSTOP)
            pending = requests.submit(await requests.acquire(10))
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(WorkerDied):
                await requests.collect(pending, 10)
            assert (await requests.collect(requests.submit(await requests.acquire(10)), 30)).ok

    run(shared, body)


def test_results_go_on_after_their_worker_died(shared: RunningDaemon) -> None:
    async def body(client: aio.AsyncClient) -> None:
        async with (
            cam(client, "cam12") as stream,
            client.results("cam12", model="tiny-image", timeout_s=30) as results,
        ):

            async def write() -> None:
                while True:
                    async with stream.acquire() as slot:
                        slot.planes[0][...] = RED
                    await asyncio.sleep(0.002)

            writing = asyncio.create_task(write())
            await results.next()
            rows = await client.list("models")
            pid = next(int(row["pid"]) for row in rows if row["name"] == "tiny-image")
            os.kill(pid, signal.SIGKILL)
            while not results.reopened:
                await results.next()
            writing.cancel()
            await asyncio.wait([writing])
            assert process_start_ticks(pid) is None

    run(shared, body)


def test_death_of_the_daemon_wakes_who_waits(tmp_path: Path, model_repository: Path) -> None:
    async def main(daemon: RunningDaemon) -> None:
        async with aio.connect(daemon.socket) as client:
            stream = await client.create_stream("cam13", width=8, height=8, format="gray8")
            reader = await client.open_stream("cam13")
            waiting = asyncio.create_task(reader.next())
            await asyncio.sleep(0)
            daemon.kill()
            with pytest.raises(StreamClosed):
                await asyncio.wait_for(waiting, 10)
            with pytest.raises(DaemonUnavailable):
                await client.open_stream("cam13")
            await reader.close()
            await stream.close()

    with no_descriptor_leaked(), RunningDaemon(tmp_path, model_repository) as daemon:
        asyncio.run(main(daemon))


def test_connection_that_is_cancelled_as_the_loop_ends_is_closed(shared: RunningDaemon) -> None:
    async def main() -> None:
        connecting = asyncio.ensure_future(aio.connect(shared.socket))
        await asyncio.sleep(0)
        connecting.cancel()
        # Only now: the thread of the loop's pool is done when the loop is about to end.
        asyncio.get_running_loop().call_later(0.05, os.kill, shared.pid, signal.SIGCONT)
        with pytest.raises(asyncio.CancelledError):
            await connecting

    with no_descriptor_leaked():
        os.kill(shared.pid, signal.SIGSTOP)
        try:
            asyncio.run(main())
        finally:
            os.kill(shared.pid, signal.SIGCONT)
        wait_until(lambda: "mcpd-io" not in [t.name for t in threading.enumerate()], 10, "it ends")


def test_no_daemon_is_told_as_by_the_other_client(tmp_path: Path) -> None:
    async def main() -> None:
        async with aio.connect(tmp_path / "none.sock"):
            pass

    with pytest.raises(DaemonUnavailable, match="no daemon answers"):
        asyncio.run(main())
