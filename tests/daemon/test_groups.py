"""Readers of one group share the frames: each goes to one of them, whoever of them dies."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from mcpd.shm import Client, InvalidRequest, LimitExceeded, StreamClosed, WouldBlock, connect
from tests.support.actor import Actor
from tests.support.daemon import RunningDaemon, wait_until
from tests.support.descriptors import no_descriptor_leaked
from tests.support.numbered import NumberedReader, NumberedWriter, check_numbered, write_numbered
from tests.support.raw import RawSession


def make(client: Client, slots: int = 32) -> Any:
    return client.create_stream("cam0", width=64, height=16, format="gray8", slots=slots)


def groups(client: Client) -> list[dict[str, Any]]:
    """Leases of groups."""
    return [row for row in client.list("leases") if row["kind"] == "group"]


@pytest.mark.parametrize(
    ("policy", "depth", "whole"), [("lossless", 0, True), ("fifo", 16, False), ("latest", 0, False)]
)
def test_each_frame_goes_to_one_member(
    bare_daemon: RunningDaemon, policy: str, depth: int, whole: bool
) -> None:
    with no_descriptor_leaked(), connect(bare_daemon.socket) as client:
        stream = make(client, slots=40)
        members = [
            NumberedReader(client.open_stream("cam0", policy=policy, depth=depth, group="g"))
            for _ in range(4)
        ]
        other = NumberedReader(client.open_stream("cam0", policy="lossless", group="other"))
        alone = NumberedReader(client.open_stream("cam0", policy="lossless"))
        with NumberedWriter(stream, pause_s=0.0003) as writer:
            wait_until(lambda: stream.stats()["head"] >= 300, 60, "frames flow")
            last = writer.stop()
        every = list(range(1, last + 1))
        parts = sorted(number for member in members for number in member.finish())
        assert len(parts) == len(set(parts)), "a frame came to two members"
        assert parts[-1] == last
        assert parts == every if whole else set(parts) <= set(every)
        assert other.finish() == alone.finish() == every
        for reader in (*members, other, alone):
            reader.stream.close()
        assert groups(client) == []


def test_killed_members_leave_their_frames_to_the_others(bare_daemon: RunningDaemon) -> None:
    with connect(bare_daemon.socket) as client:
        stream = make(client, slots=48)
        done: Counter[int] = Counter()
        lock = threading.Lock()
        readers: list[threading.Thread] = []

        def start() -> Actor:
            actor = Actor(bare_daemon.socket, "member", "cam0", "g").wait_ready()

            def collect() -> None:
                assert actor.process.stdout is not None
                with actor.process.stdout as lines:
                    for line in lines:
                        with lock:
                            done[int(line)] += 1

            thread = threading.Thread(target=collect)
            thread.start()
            readers.append(thread)
            return actor

        actors = [start() for _ in range(4)]
        with NumberedWriter(stream, pause_s=0.0) as writer:
            for _ in range(6):
                before = stream.stats()["head"]
                wait_until(lambda at=before: stream.stats()["head"] > at + 20, 60, "frames flow")  # type: ignore[misc]
                threading.Event().wait(random.uniform(0, 0.01))
                victim = actors.pop(random.randrange(len(actors)))
                victim.process.kill()
                bury(victim)
                if len(actors) < 3:
                    actors.append(start())
            last = writer.stop()
        for actor in actors:
            assert bury(actor) == 0
        for thread in readers:
            thread.join(60)
        missing = set(range(1, last + 1)) - set(done)
        assert not missing, f"nobody finished {sorted(missing)}"
        assert set(done) == set(range(1, last + 1))
        repeats = sum(count - 1 for count in done.values())
        assert repeats <= 6 * 2, "only what the dead had in work is done twice"
        wait_until(lambda: groups(client) == [], 10, "the group is gone with its last member")


def bury(actor: Actor) -> int:
    """Waits for the end of a process of which a thread reads the output; its status."""
    status = actor.process.wait(60)
    for pipe in (actor.process.stdin, actor.process.stderr):
        assert pipe is not None
        pipe.close()
    return status


def test_frame_that_a_member_gives_back_goes_to_another(bare_daemon: RunningDaemon) -> None:
    with connect(bare_daemon.socket) as client:
        stream = make(client)
        first, second = (client.open_stream("cam0", policy="lossless", group="g") for _ in range(2))
        alone = client.open_stream("cam0", policy="lossless")
        write_numbered(stream, 2)
        frame = first.next(10)
        plane = frame.planes[0]
        with pytest.raises(InvalidRequest, match="views of it are held"):
            frame.give_back()
        assert frame.seq == int(plane[0, 0]) == 1
        del plane
        frame.give_back()
        with pytest.raises(InvalidRequest):
            _ = frame.planes
        again = second.next(10)
        assert check_numbered(again) == 1
        again.close()
        for number in (1, 2):
            frame = alone.next(10)
            frame.give_back()  # there is no group: it is done
            assert frame.seq == number


def test_what_a_member_had_in_work_when_it_left_goes_to_another(
    bare_daemon: RunningDaemon,
) -> None:
    with connect(bare_daemon.socket) as client:
        stream = make(client)
        first, second = (client.open_stream("cam0", policy="lossless", group="g") for _ in range(2))
        write_numbered(stream, 2)
        held = first.next(10)
        assert held.seq == 1
        with second.next(10) as frame:
            assert frame.seq == 2
        seen: list[int] = []
        waiter = threading.Thread(target=lambda: seen.append(check_numbered(second.next(30))))
        waiter.start()
        first.close()  # the other sleeps by now, or soon
        waiter.join(30)
        assert seen == [1]
        held.close()


def test_end_of_a_group_waits_for_what_others_have_in_work(bare_daemon: RunningDaemon) -> None:
    with connect(bare_daemon.socket) as client:
        stream = make(client)
        first, second = (client.open_stream("cam0", policy="lossless", group="g") for _ in range(2))
        write_numbered(stream)
        held = first.next(10)
        stream.end()
        rest = NumberedReader(second)
        assert held.seq == 1
        wait_until(lambda: second.look_again_s is not None, 10, "the other waits for the frame")
        first.close()
        assert rest.finish() == [1]


def test_members_keep_their_frames_across_a_resize(bare_daemon: RunningDaemon) -> None:
    with connect(bare_daemon.socket) as client:
        stream = make(client)
        first, second = (client.open_stream("cam0", policy="lossless", group="g") for _ in range(2))
        write_numbered(stream, 2)
        held = first.next(10)
        stream.resize(width=128)
        write_numbered(stream, 2)
        with second.next(10) as frame:
            assert frame.seq == 2
        # The first has frame 1 in work: it goes on at once, the second waits whether that is done.
        with first.next(10) as frame:
            assert (frame.seq, frame.generation) == (3, 2)
        assert check_numbered(held) == 1
        held.close()
        with second.next(10) as frame:
            assert (frame.seq, frame.generation) == (4, 2)
        stream.end()
        for member in (first, second):
            with pytest.raises(StreamClosed):
                member.next(10)
        assert [row["members"] for row in groups(client) if row["generation"] == 1] == []


def test_group_of_another_policy_or_depth_is_refused_naming_both(
    bare_daemon: RunningDaemon,
) -> None:
    with connect(bare_daemon.socket) as client:
        make(client)
        client.open_stream("cam0", policy="fifo", depth=4, group="g")
        others: list[tuple[dict[str, Any], str]] = [
            ({"policy": "lossless"}, "'fifo' and depth 4; this reader asks for 'lossless' and 0"),
            ({"policy": "fifo", "depth": 5}, "depth 4; this reader asks for 'fifo' and 5"),
        ]
        for how, text in others:
            with pytest.raises(InvalidRequest, match=text) as caught:
                client.open_stream("cam0", group="g", **how)
            assert "another name" in caught.value.hint
        client.open_stream("cam0", policy="lossless", group="h").close()
        assert [row["name"] for row in groups(client)] == ["cam0/g"]


def test_group_that_does_not_fit_leaves_nothing(bare_daemon: RunningDaemon) -> None:
    with connect(bare_daemon.socket) as client:
        make(client, slots=8)
        memory = client.status()["daemon"]["memory_bytes"]
        hows: list[dict[str, Any]] = [{"policy": "fifo", "depth": 7}, {"max_pins": 9}]
        for how in hows:
            with pytest.raises(LimitExceeded):
                client.open_stream("cam0", group="g", **how)
        assert groups(client) == []
        assert client.status()["daemon"]["memory_bytes"] == memory


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"policy": "newest"}, "policy 'newest' is not one of"),
        ({"policy": "fifo"}, "depth is 0"),
        ({"policy": "fifo", "depth": -1}, "depth is -1"),
        ({"policy": "fifo", "depth": 1 << 40}, "depth is 1099511627776"),
        ({"depth": 3}, "only fifo and lossless have one"),
        ({"max_pins": 0}, "max_pins is 0"),
        ({"group": "no spaces"}, "group name 'no spaces'"),
        ({"group": "x" * 100}, "group name"),
        ({"group": 7}, "group"),
        ({"follow": 3}, "follow"),
    ],
)
def test_daemon_refuses_what_the_client_would_not_send(
    shared_streams: RunningDaemon, fields: dict[str, Any], text: str
) -> None:
    with connect(shared_streams.socket) as client, RawSession(shared_streams.socket) as raw:
        client.create_stream("cam0", slot_nbytes=64)
        answer = raw.ask(type="attach_reader", stream="cam0", **fields)
        assert answer["code"] == "invalid"
        assert text in answer["message"]
        assert raw.ask(type="status")["type"] == "reply"


@pytest.fixture(scope="module")
def shared_streams(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = tmp_path_factory.mktemp("daemon")
    with RunningDaemon(folder) as running:
        yield running


def test_status_names_the_stalled_member_that_a_writer_waits_for(
    bare_daemon: RunningDaemon,
) -> None:
    with (
        connect(bare_daemon.socket) as client,
        connect(bare_daemon.socket, name="stalled") as other,
    ):
        stream = make(client, slots=12)
        stalled = other.open_stream("cam0", policy="lossless", group="g")
        stream.acquire().publish()
        frame = stalled.next(10)
        with suppress(WouldBlock):
            for _ in range(100):
                stream.acquire(0).publish()
        waiting = threading.Thread(target=lambda: stream.acquire(60).abandon())
        waiting.start()
        wait_until(lambda: stream.stats()["blocked_since_ns"] > 0, 30, "the writer waits")
        command = [sys.executable, "-P", "-m", "mcpd.cli.main", "status"]
        shown = subprocess.run(
            command, env=bare_daemon.env, capture_output=True, text=True, timeout=60, check=True
        ).stdout
        behind = stream.stats()["head"] - frame.seq
        text = f"cam0: its writer waits for pid {os.getpid()} (stalled), lossless, {behind} frames"
        assert text in shown, shown
        for _ in range(behind):
            frame.close()
            frame = stalled.next(10)
        waiting.join(60)
