"""A lossless reader that holds its writer up is reported, then evicted; the others go on."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mcpd.shm import Client, InvalidRequest, StreamClosed, WriterStream, connect
from mcpd.shm.aio import connect as connect_async
from tests.support.actor import Actor
from tests.support.bystander import Bystander
from tests.support.daemon import RunningDaemon, wait_until
from tests.support.numbered import NumberedReader, NumberedWriter, check_numbered, write_numbered

LIMIT_S = 0.4
HEAD, BLOCKED_SINCE = 64, 320  # in the writer's control object, see docs/protocol.md


@pytest.fixture
def strict(tmp_path: Path) -> Iterator[RunningDaemon]:
    """A daemon that evicts soon."""
    with RunningDaemon(tmp_path, arguments=["--stall-limit", str(LIMIT_S)]) as running:
        yield running


def make(client: Client, name: str = "cam0", slots: int = 16) -> WriterStream:
    return client.create_stream(name, width=64, height=16, format="gray8", slots=slots)


def row_of(client: Client, reader: int) -> dict[str, Any]:
    return next((row for row in client.list("readers") if row["id"] == reader), {})


def evicted(client: Client, reader: int) -> bool:
    return bool(row_of(client, reader).get("evicted"))


def pretend(name: str, head: int) -> None:
    """What a writer in this process says that lies: it has published, and waits for room."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if f"mcpd:wctl:{name}" in line and " rw-s " in line:
            start = int(line.split("-")[0], 16)
            with open("/proc/self/mem", "r+b", buffering=0) as memory:
                for offset, value in ((HEAD, head), (BLOCKED_SINCE, 1)):
                    memory.seek(start + offset)
                    memory.write(value.to_bytes(8, "little"))


def test_stalled_reader_is_evicted_with_the_reason_and_everybody_else_goes_on(
    strict: RunningDaemon,
) -> None:
    with (
        Bystander(strict.socket) as bystander,
        connect(strict.socket, name="camera") as client,
        connect(strict.socket, name="sleepy") as other,
    ):
        stream = make(client)
        reader = other.open_stream("cam0", policy="lossless")
        brisk = NumberedReader(client.open_stream("cam0", policy="lossless"))
        held = None
        with NumberedWriter(stream) as writer:
            held = reader.next(10)
            wait_until(lambda: evicted(client, reader.reader_id), 30, "it is evicted")
            writer.wait_frames(100)
            row = row_of(client, reader.reader_id)
            assert (row["state"], row["stall_limit_s"]) == ("quarantined", LIMIT_S)
            assert "held up the writer of stream 'cam0' for" in row["evicted"]
            with pytest.raises(StreamClosed) as caught:
                reader.next(10)
            assert caught.value.reason == reader.ended == "evicted"
            assert row["evicted"] in str(caught.value)
            assert "its limit is 0.4 s" in str(caught.value)
            assert check_numbered(held) == held.seq  # what it holds stays as it is
            (lease,) = [r for r in client.list("leases") if r["id"] == reader.reader_id]
            assert [pin[0] for pin in lease["pins"]] == [held.seq]
            held.close()
            reader.close()
            assert row_of(client, reader.reader_id) == {}
            last = writer.stop()
        assert brisk.finish() == list(range(1, last + 1))
        brisk.stream.close()
        bystander.check()
    assert f"reader={reader.reader_id}" in strict.stderr
    assert "holds its writer up for" in strict.stderr
    assert "client=sleepy evicted: it held up the writer" in strict.stderr


def test_reader_that_goes_on_slowly_is_not_evicted(strict: RunningDaemon) -> None:
    with connect(strict.socket) as client:
        stream = make(client)
        reader = client.open_stream("cam0", policy="lossless")
        pause = threading.Event()
        with NumberedWriter(stream) as writer:
            for _ in range(10):
                pause.wait(LIMIT_S / 4)
                reader.next(10).close()
            assert not evicted(client, reader.reader_id)
            drained = threading.Thread(target=lambda: list(reader))
            drained.start()
            writer.stop()
            stream.end()
            drained.join(30)


def test_stopped_reader_is_evicted_and_kept_apart_until_it_is_gone(strict: RunningDaemon) -> None:
    with (
        connect(strict.socket) as client,
        Actor(strict.socket, "read", "cam0", "lossless") as slow,
    ):
        stream = make(client)
        with NumberedWriter(stream) as writer:
            slow.wait_ready()
            os.kill(slow.pid, signal.SIGSTOP)
            wait_until(lambda: any(r["evicted"] for r in client.list("readers")), 30, "evicted")
            writer.wait_frames(100)
            (row,) = client.list("readers")
            assert (row["pid"], row["state"]) == (slow.pid, "quarantined")
            os.kill(slow.pid, signal.SIGCONT)
            assert "was evicted: it held up the writer" in slow.wait_end()
            wait_until(lambda: client.list("readers") == [], 10, "it is gone with its process")
            writer.stop()


def test_reader_may_ask_for_less_and_not_for_more(strict: RunningDaemon, tmp_path: Path) -> None:
    with connect(strict.socket) as client:
        make(client)
        limits = {}
        for asked in (0.0, 0.1, 60.0):
            reader = client.open_stream("cam0", policy="lossless", max_pins=1, stall_limit_s=asked)
            limits[asked] = row_of(client, reader.reader_id)["stall_limit_s"]
        assert limits == {0.0: LIMIT_S, 0.1: 0.1, 60.0: LIMIT_S}
        latest = client.open_stream("cam0", max_pins=1)
        assert row_of(client, latest.reader_id)["stall_limit_s"] == 0
        for bad in (-1.0, float("nan"), "1", True):
            with pytest.raises(InvalidRequest, match="stall_limit_s is"):
                client.open_stream("cam0", policy="lossless", stall_limit_s=bad)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="with policy 'latest'"):
            client.open_stream("cam0", stall_limit_s=1.0)
    folder = tmp_path / "other"
    folder.mkdir()
    with (
        RunningDaemon(folder, arguments=["--stall-limit", "0"]) as daemon,
        connect(daemon.socket) as client,
    ):
        make(client)
        never = client.open_stream("cam0", policy="lossless")
        less = client.open_stream("cam0", policy="lossless", stall_limit_s=0.1)
        rows = [row_of(client, reader.reader_id)["stall_limit_s"] for reader in (never, less)]
        assert rows == [0, 0.1]


def test_status_names_who_is_about_to_be_evicted(tmp_path: Path) -> None:
    with (
        RunningDaemon(tmp_path, arguments=["--stall-limit", "60"]) as daemon,
        connect(daemon.socket, name="sleepy") as client,
    ):
        stream = make(client)
        reader = client.open_stream("cam0", policy="lossless")
        with NumberedWriter(stream) as writer:
            wait_until(lambda: row_of(client, reader.reader_id)["stalled_s"] > 0, 30, "it stalls")
            command = [sys.executable, "-P", "-m", "mcpd.cli.main", "status"]
            env = {**daemon.env, "COLUMNS": "80"}
            shown = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
            assert f"waits for pid {os.getpid()} (sleepy), lossless" in shown.stdout
            assert "evicted in 5" in shown.stdout, shown.stdout
            drained = threading.Thread(target=lambda: list(reader))
            drained.start()
            writer.stop()
            stream.end()
            drained.join(30)


def test_reader_asleep_on_its_descriptor_hears_of_its_eviction(strict: RunningDaemon) -> None:
    with connect(strict.socket) as client:
        make(client)
        reader = client.open_stream("cam0", policy="lossless")
        caught: list[StreamClosed] = []

        def sleep() -> None:
            try:
                reader.next()
            except StreamClosed as error:
                caught.append(error)

        thread = threading.Thread(target=sleep)
        thread.start()
        wait_until(lambda: reader.stats()["asleep"] == 1, 10, "it sleeps")
        pretend("cam0", 5)
        thread.join(30)
        assert [error.reason for error in caught] == ["evicted"]


def test_asyncio_reader_hears_of_its_eviction(strict: RunningDaemon) -> None:
    async def run() -> str:
        async with connect_async(strict.socket) as client:
            await client.create_stream("cam0", width=64, height=16, format="gray8", slots=16)
            reader = await client.open_stream("cam0", policy="lossless")
            waits = asyncio.ensure_future(reader.next())
            async with asyncio.timeout(10):
                while not reader.stream.stats()["asleep"]:
                    await asyncio.sleep(0.005)
            pretend("cam0", 5)
            async with asyncio.timeout(30):
                with pytest.raises(StreamClosed) as caught:
                    await waits
            with pytest.raises(StreamClosed, match="was evicted"):
                await reader.next(0)
            return caught.value.reason

    assert asyncio.run(run()) == "evicted"


def test_evicted_members_work_goes_to_the_others_when_it_is_gone(tmp_path: Path) -> None:
    with (
        RunningDaemon(tmp_path) as daemon,
        connect(daemon.socket) as client,
        Actor(daemon.socket, "member", "cam0", "g", str(LIMIT_S)) as slow,
    ):
        stream = make(client, slots=24)
        slow.wait_ready()
        write_numbered(stream, 1)
        assert slow.process.stdout is not None
        assert slow.process.stdout.readline() == "1\n"
        os.kill(slow.pid, signal.SIGSTOP)
        other = client.open_stream("cam0", policy="lossless", group="g")
        with NumberedWriter(stream) as writer:
            wait_until(lambda: any(r["evicted"] for r in client.list("readers")), 30, "evicted")
            (row,) = [r for r in client.list("readers") if r["evicted"]]
            assert (row["pid"], row["group"]) == (slow.pid, "g")
            numbers: list[int] = []
            thread = threading.Thread(target=lambda: numbers.extend(f.seq for f in other))
            thread.start()
            writer.wait_frames(50)
            slow.kill()
            last = writer.stop()
            stream.end()
            thread.join(30)
        # What it had in work came to the other; frame 2 may have been done before the stop.
        assert len(numbers) == len(set(numbers))
        assert set(range(3, last + 1)) <= set(numbers)
        other.close()


def test_reader_is_evicted_in_every_generation_that_it_has_not_left(strict: RunningDaemon) -> None:
    with connect(strict.socket) as client:
        stream = make(client)
        reader = client.open_stream("cam0", policy="lossless")
        write_numbered(stream, 3)
        stream.resize(width=32)
        with NumberedWriter(stream) as writer:
            wait_until(
                lambda: len([r for r in client.list("readers") if r["evicted"]]) == 2,
                30,
                "it is evicted from both",
            )
            writer.wait_frames(50)
            with pytest.raises(StreamClosed, match="evicted"):
                reader.next(10)
            reader.close()
            wait_until(lambda: client.list("readers") == [], 10, "it is gone")
            writer.stop()
