"""asyncio readers go on in other memory, too, and an event loop watches one descriptor."""

from __future__ import annotations

import asyncio
import select
import threading
from collections.abc import Iterator

import pytest

from mcpd.shm import Client, InvalidRequest, LimitExceeded, StreamClosed, WouldBlock, aio, connect
from mcpd.shm.transport import close_fds
from tests.support.daemon import RunningDaemon
from tests.support.descriptors import no_descriptor_leaked
from tests.support.numbered import check_numbered, write_numbered


@pytest.fixture
def client(shared: RunningDaemon) -> Iterator[Client]:
    with no_descriptor_leaked(), connect(shared.socket) as made:
        yield made


def test_asyncio_readers_follow_resizes_and_writers(shared: RunningDaemon) -> None:
    async def main() -> None:
        async with aio.connect(shared.socket) as client:
            writer = await client.create_stream(
                "cam0", slots=24, width=64, height=16, format="gray8"
            )
            readers = [
                await client.open_stream("cam0", policy="lossless", follow=True),
                await client.open_stream("cam0", policy="lossless", group="g", follow=True),
                await client.open_stream("cam0", policy="lossless", group="g", follow=True),
            ]
            seen: list[list[tuple[int, int]]] = [[] for _ in readers]

            async def read(at: int) -> None:
                async for frame in readers[at]:
                    seen[at].append((frame.generation, check_numbered(frame)))

            tasks = [asyncio.create_task(read(at)) for at in range(len(readers))]
            for round_ in range(4):
                for _ in range(5):
                    async with writer.acquire(10) as slot:
                        number = writer.stats()["head"] + 1
                        slot.planes[0][:] = number % 251
                        slot.pts_ns = number
                if round_ == 1:
                    await writer.close()
                    writer = await client.create_stream(
                        "cam0", slots=24, width=32, height=16, format="gray8"
                    )
                else:
                    await writer.resize(width=64 + round_)
            while len(seen[0]) < 20 or len(seen[1]) + len(seen[2]) < 20:
                await asyncio.sleep(0.01)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            every = [(1 + at // 5, at + 1) for at in range(20)]
            assert seen[0] == every
            assert sorted(seen[1] + seen[2]) == every
            assert readers[0].recent.__doc__ is not None
            with pytest.raises(InvalidRequest, match="recent frames"):
                readers[0].recent(1)

    with no_descriptor_leaked():
        asyncio.run(asyncio.wait_for(main(), 60))


def test_end_of_an_asyncio_group_waits_for_what_others_have_in_work(
    shared: RunningDaemon,
) -> None:
    async def main() -> None:
        async with aio.connect(shared.socket) as client:
            writer = await client.create_stream("cam1", width=64, height=16, format="gray8")
            one = await client.open_stream("cam1", policy="lossless", group="g", max_pins=1)
            two = await client.open_stream("cam1", policy="lossless", group="g", max_pins=1)
            async with writer.acquire():
                pass
            held = await one.next(10)
            writer.end()

            async def rest() -> list[int]:
                return [frame.seq async for frame in two]

            task = asyncio.create_task(rest())
            await asyncio.sleep(0.05)
            assert not task.done()
            held.close()
            assert await asyncio.wait_for(task, 10) == []

    with no_descriptor_leaked():
        asyncio.run(asyncio.wait_for(main(), 60))


def test_descriptor_stays_the_same_and_tells_of_every_move(client: Client) -> None:
    stream = client.create_stream("cam2", slots=16, width=64, height=16, format="gray8")
    reader = client.open_stream("cam2", policy="lossless", follow=True)
    fd = reader.fileno()
    poll = select.poll()
    poll.register(fd, select.POLLIN)

    def take() -> int:
        """The next frame, as an event loop takes it."""
        while True:
            try:
                with reader.next(0) as frame:
                    return check_numbered(frame)
            except WouldBlock:
                if not reader.arm():
                    assert poll.poll(10_000), "nothing tells of the frame"
                    reader.disarm()

    def assert_idle() -> None:
        """Nothing is there, and the loop is not told of anything but once of the writer's end,
        which the daemon says at some time after it."""
        for _ in range(2):
            with pytest.raises(WouldBlock):
                reader.next(0)
            assert not reader.arm()
            if not poll.poll(0):
                return
            reader.disarm()
        raise AssertionError("readable for nothing")

    for number in range(1, 7):
        if number % 3 == 0:
            stream.resize(width=64 + number)
        elif number % 3 == 1 and number > 1:
            stream.close()
            assert_idle()
            stream = client.create_stream("cam2", slots=16, width=64, height=16, format="gray8")
            assert poll.poll(10_000), "nothing tells of the next writer"
            reader.disarm()
        assert write_numbered(stream) == number
        assert take() == number
        assert reader.fileno() == fd
    assert_idle()
    watched = select.poll()
    descriptors = reader.watch()
    for one in descriptors:
        watched.register(one, select.POLLIN)
    reader.close()
    assert watched.poll(10_000), "nobody is told of the end"
    for call in (reader.fileno, reader.watch, reader.arm, reader.disarm, reader.stats):
        with pytest.raises(StreamClosed):
            call()
    close_fds(descriptors)


def test_event_loop_that_is_armed_once_stays_so_across_a_resize(client: Client) -> None:
    stream = client.create_stream("cam3", slots=16, width=64, height=16, format="gray8")
    reader = client.open_stream("cam3", policy="lossless")
    assert not reader.arm()
    for number in range(1, 8):
        if number % 2 == 0:
            stream.resize(width=64 + number)
        write_numbered(stream)
        seen: list[int] = []
        while not seen:
            assert select.select([reader.fileno()], [], [], 10)[0]
            try:
                while True:
                    with reader.next(0) as frame:
                        seen.append(check_numbered(frame))
            except WouldBlock:
                pass
        assert seen == [number]


def test_recent_asks_for_free_pins_and_a_latest_reader(client: Client) -> None:
    stream = client.create_stream("cam4", slots=16, history=4, width=64, height=16, format="gray8")
    write_numbered(stream, 5)
    reader = client.open_stream("cam4", max_pins=2)
    with pytest.raises(LimitExceeded, match="fewer than 3 of 2 pins are free"):
        reader.recent(3)
    for count in (0, -1, True, 1.5):
        with pytest.raises(InvalidRequest, match="count is"):
            reader.recent(count)  # type: ignore[arg-type]
    for how in ({"policy": "lossless"}, {"group": "g"}):
        with pytest.raises(InvalidRequest, match="recent frames of stream 'cam4'"):
            client.open_stream("cam4", max_pins=1, **how).recent(1)  # type: ignore[arg-type]
    assert [frame.seq for frame in reader.recent(2)] == [4, 5]


def test_cancelled_resize_is_over_when_the_await_is(shared: RunningDaemon) -> None:
    async def main() -> None:
        async with aio.connect(shared.socket) as client:
            writer = await client.create_stream(
                "cam1", slots=24, width=64, height=16, format="gray8"
            )
            reader = await client.open_stream("cam1", policy="lossless")
            before, head = writer.stream.generation, writer.stats()["head"]
            begun, allowed = asyncio.Event(), threading.Event()
            loop = asyncio.get_running_loop()

            def admit() -> None:
                loop.call_soon_threadsafe(begun.set)
                assert allowed.wait(10)

            setattr(writer.stream, "on_reader", admit)  # noqa: B010
            resizing = asyncio.create_task(writer.resize(width=32))
            await begun.wait()
            for _ in range(2):
                resizing.cancel()
                await asyncio.sleep(0.01)
                assert not resizing.done()
            allowed.set()
            with pytest.raises(asyncio.CancelledError):
                await resizing
            generation = writer.stream.generation
            assert generation == before + 1
            async with writer.acquire(0):
                pass
            with await reader.next(10) as frame:
                assert (frame.generation, frame.seq) == (generation, head + 1)

    with no_descriptor_leaked():
        asyncio.run(main())
