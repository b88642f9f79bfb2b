"""Many readers of one stream, each as it likes, and what is told about them."""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest

from mcpd.shm import LimitExceeded, StreamClosed, WouldBlock, connect
from tests.support.actor import Actor
from tests.support.daemon import RunningDaemon, wait_until
from tests.support.descriptors import no_descriptor_leaked
from tests.support.numbered import (
    NumberedReader,
    NumberedWriter,
    check_numbered,
    read_to_the_end,
    write_numbered,
)

HOWS: list[dict[str, Any]] = [
    {"policy": "lossless"},
    {"policy": "lossless", "depth": 40},
    {"policy": "latest"},
    {"policy": "fifo", "depth": 4},
    {"policy": "latest", "every_n": 3},
    {"policy": "lossless", "every_n": 5},
    {"policy": "latest", "max_fps": 50},
    {"policy": "lossless", "group": "a"},
    {"policy": "fifo", "depth": 8, "group": "b"},
]


def test_sixty_four_readers_of_every_kind_do_not_disturb_each_other(
    bare_daemon: RunningDaemon,
) -> None:
    with (
        no_descriptor_leaked(),
        connect(bare_daemon.socket) as client,
        connect(bare_daemon.socket) as other,
    ):
        stream = client.create_stream("cam0", width=64, height=16, format="gray8", slots=64 + 16)
        kinds = [HOWS[number % len(HOWS)] for number in range(64)]
        readers = [NumberedReader(other.open_stream("cam0", max_pins=1, **how)) for how in kinds]
        with pytest.raises(LimitExceeded, match="has 64 readers, the most there can be"):
            other.open_stream("cam0", max_pins=1)
        with NumberedWriter(stream, pause_s=0.002) as writer:
            wait_until(lambda: stream.stats()["head"] >= 100, 120, "frames flow")
            rows = client.list("readers")
            last = writer.stop()
        assert len(rows) == 64
        every = set(range(1, last + 1))
        shares: dict[str, list[int]] = {}
        for how, reader in zip(kinds, readers, strict=True):
            numbers = reader.finish()
            if how.get("group"):
                shares.setdefault(how["group"], []).extend(numbers)
            elif how["policy"] == "lossless" and "every_n" not in how:
                assert set(numbers) == every
            elif how.get("every_n") == 5:
                gaps = {b - a for a, b in itertools.pairwise(numbers)}
                assert gaps == {5}
            else:
                assert set(numbers) <= every
                assert numbers[-1] > last - 60
        assert sorted(shares["a"]) == sorted(every)
        assert len(shares["b"]) == len(set(shares["b"]))
        for reader in readers:
            reader.stream.close()


def test_readers_come_and_go_while_frames_flow(bare_daemon: RunningDaemon) -> None:
    with (
        no_descriptor_leaked(),
        connect(bare_daemon.socket) as client,
        connect(bare_daemon.socket) as other,
    ):
        stream = client.create_stream("cam0", width=64, height=16, format="gray8", slots=64)
        steady = NumberedReader(client.open_stream("cam0", policy="lossless"))
        stopping = threading.Event()
        errors: list[BaseException] = []

        def come_and_go(seed: int) -> None:
            choice = random.Random(seed)
            try:
                while not stopping.is_set():
                    with other.open_stream("cam0", max_pins=1, **choice.choice(HOWS)) as reader:
                        before = 0
                        for _ in range(choice.randrange(5)):
                            with reader.next(30) as frame:
                                assert check_numbered(frame) > before
                                before = frame.seq
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=come_and_go, args=(seed,)) for seed in range(6)]
        with NumberedWriter(stream) as writer:
            for thread in threads:
                thread.start()
            wait_until(lambda: bool(errors) or stream.stats()["head"] > 600, 120, "frames flow")
            stopping.set()
            for thread in threads:
                thread.join(60)
            last = writer.stop()
        assert errors == []
        assert steady.finish() == list(range(1, last + 1))
        steady.stream.close()
        kinds = {row["kind"] for row in client.list("leases")}
        assert kinds == {"stream", "segment"}


def test_table_of_readers_tells_what_each_does(bare_daemon: RunningDaemon) -> None:
    with connect(bare_daemon.socket, name="viewer") as client:
        stream = client.create_stream("cam0", width=64, height=16, format="gray8", slots=24)
        lossless = client.open_stream("cam0", policy="lossless", max_pins=3)
        fifo = client.open_stream("cam0", policy="fifo", depth=2, follow=True)
        latest = client.open_stream("cam0", every_n=2)
        member = client.open_stream("cam0", policy="lossless", group="g")
        write_numbered(stream, 10)
        held = lossless.next(0)
        for reader in (fifo, latest, member):
            reader.next(0).close()
        rows = {row["id"]: row for row in client.list("readers")}
        assert len(rows) == 4
        for row in rows.values():
            assert (row["name"], row["stream"], row["generation"]) == ("cam0", stream.stream_id, 1)
            assert (row["client"], row["pid"], row["state"]) == ("viewer", os.getpid(), "live")
            assert sum(row["latency"]) == row["received"] == 1
        row = rows[lossless.reader_id]
        assert (row["policy"], row["max_pins"], row["lag"], row["pinned"]) == ("lossless", 3, 9, 1)
        assert row["pinned_since_ns"] > 0
        row = rows[fifo.reader_id]
        assert (row["depth"], row["follow"], row["dropped"], row["lag"]) == (2, True, 8, 1)
        row = rows[latest.reader_id]
        assert (row["skipped"], row["lag"], row["pinned"]) == (9, 0, 0)
        row = rows[member.reader_id]
        assert (row["group"], row["lag"]) == ("g", 9)
        held.close()
        (row,) = client.list("streams")
        assert (row["published"], row["would_block"], row["blocked_since_ns"]) == (10, 0, 0)


def test_recent_frames_and_thinning_over_a_daemon(bare_daemon: RunningDaemon) -> None:
    with connect(bare_daemon.socket) as client:
        stream = client.create_stream(
            "cam0", width=64, height=16, format="gray8", slots=24, history=4
        )
        write_numbered(stream, 10)
        reader = client.open_stream("cam0", max_pins=8)
        frames = reader.recent(3)
        assert [check_numbered(frame) for frame in frames] == [8, 9, 10]
        for frame in frames:
            frame.close()
        with pytest.raises(WouldBlock):
            reader.next(0)
        stream.resize(width=32)
        write_numbered(stream, 2)
        frames = reader.recent(4)
        assert [check_numbered(frame) for frame in frames] == [11, 12]
        for frame in frames:
            frame.close()
        late = client.open_stream("cam0", skip_expired=True)
        with stream.acquire() as slot:
            slot.deadline_ns = 1
        with pytest.raises(WouldBlock):
            late.next(0)
        assert late.stats()["expired"] == 1


def test_lossless_reader_that_is_stopped_is_named_in_status(bare_daemon: RunningDaemon) -> None:
    with (
        connect(bare_daemon.socket, name="camera") as client,
        Actor(bare_daemon.socket, "read", "cam0", "lossless") as slow,
    ):
        stream = client.create_stream("cam0", width=64, height=16, format="gray8", slots=12)
        other = client.open_stream("cam0")
        with NumberedWriter(stream) as writer:
            slow.wait_ready()
            os.kill(slow.pid, signal.SIGSTOP)
            wait_until(lambda: stream.stats()["blocked_since_ns"] > 0, 30, "the writer waits")
            other.next(10).close()
            command = [sys.executable, "-P", "-m", "mcpd.cli.main", "status"]
            env = {**bare_daemon.env, "COLUMNS": "80"}
            shown = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
            assert shown.returncode == 0, shown.stderr
            text = f"cam0: its writer waits for pid {slow.pid} (actor read), lossless, "
            assert text in shown.stdout, shown.stdout
            assert max(map(len, shown.stdout.splitlines())) <= 80, shown.stdout
            rows = [row for row in shown.stdout.splitlines() if row.startswith("cam0  ")]
            assert rows[1].split()[1:4] == ["1", "-", "1"], shown.stdout
            os.kill(slow.pid, signal.SIGCONT)
            wait_until(lambda: not stream.stats()["blocked_since_ns"], 30, "the writer goes on")
            assert writer.stop() > 0
        with pytest.raises(StreamClosed):
            read_to_the_end(other)
