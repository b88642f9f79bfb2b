"""Who holds what: end-of-file revokes, the process's end frees, all is listed in between."""

from __future__ import annotations

import mmap
import os
import signal
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from mcpd.shm import (
    Client,
    LimitExceeded,
    NotFound,
    ReaderStream,
    StreamClosed,
    TimedOut,
    connect,
)
from mcpd.shm.transport import close_fds
from tests.support.actor import Actor
from tests.support.bystander import Bystander
from tests.support.daemon import RunningDaemon, wait_until
from tests.support.raw import RawSession


def leases(client: Client, name: str) -> list[dict[str, Any]]:
    """Leases of streams, segments and readers of that stream."""
    return [lease for lease in client.list("leases") if name in lease["name"]]


def states(client: Client, name: str) -> set[str]:
    """In which states they are."""
    return {lease["state"] for lease in leases(client, name)}


def read_to_the_end(reader: ReaderStream) -> None:
    """Reads what is left; raises StreamClosed."""
    while True:
        reader.next(10).close()


def test_everything_handed_out_is_a_lease_with_its_owner(bare_daemon: RunningDaemon) -> None:
    with connect(bare_daemon.socket, name="camera") as client:
        stream = client.create_stream("cam0", slot_nbytes=8192)
        reader = client.open_stream("cam0", policy="lossless", max_pins=3)
        with stream.acquire() as slot:
            slot.buffer[:4] = b"mcpd"
        frame = reader.next(10)
        found = {lease["kind"]: lease for lease in leases(client, "cam0")}
        assert set(found) == {"stream", "segment", "reader"}
        for lease in found.values():
            assert lease["session"] == client.session
            assert lease["pid"] == os.getpid()
            assert lease["client"] == "camera"
            assert lease["since"] > 0
            assert lease["state"] == "live"
        assert found["reader"]["policy"] == "lossless"
        assert [pin[0] for pin in found["reader"]["pins"]] == [1]
        segments = [lease for lease in leases(client, "cam0") if lease["kind"] == "segment"]
        assert {lease["name"] for lease in segments} == {"mcpd:payload:cam0", "mcpd:wctl:cam0"}
        assert sum(lease["bytes"] for lease in segments) >= 8 * 8192
        frame.close()
        reader.close()
        stream.close()
        assert leases(client, "cam0") == []
        assert client.status()["daemon"]["memory_bytes"] == 0


def test_stream_row_tells_geometry_writer_and_progress(bare_daemon: RunningDaemon) -> None:
    with connect(bare_daemon.socket, name="camera") as client:
        stream = client.create_stream("cam0", width=64, height=48, format="i420")
        reader = client.open_stream("cam0")
        for _ in range(3):
            with stream.acquire() as slot:
                slot.planes[0][:] = 0
        (row,) = client.list("streams")
        assert (row["name"], row["kind"], row["format"]) == ("cam0", "frames", "i420")
        assert (row["width"], row["height"], row["slots"]) == (64, 48, 8)
        assert (row["writer"], row["writer_pid"]) == ("camera", os.getpid())
        assert (row["readers"], row["head"], row["published"]) == (1, 3, 3)
        reader.close()


def test_stream_of_a_killed_writer_ends_for_its_readers(bare_daemon: RunningDaemon) -> None:
    with (
        Actor(bare_daemon.socket, "write", "cam0") as writer,
        connect(bare_daemon.socket) as client,
    ):
        writer.wait_ready()
        reader = client.open_stream("cam0", policy="lossless")
        reader.next(10).close()
        writer.kill()
        with pytest.raises(StreamClosed) as caught:
            read_to_the_end(reader)
        assert caught.value.reason == "writer_died"
        with pytest.raises(NotFound):
            client.open_stream("cam0")
        assert states(client, "cam0") == {"draining", "live"}  # its memory, while it is read
        reader.close()
        wait_until(lambda: not leases(client, "cam0"), 10, "the memory is free")
        client.create_stream("cam0", slot_nbytes=64).close()


def test_waiting_reader_is_woken_by_its_writers_death(bare_daemon: RunningDaemon) -> None:
    with RawSession(bare_daemon.socket) as raw, connect(bare_daemon.socket) as client:
        answer = raw.ask(type="create_stream", name="still", spec={"slots": 8, "slot_nbytes": 64})
        raw.ask(type="seal_stream", stream=answer["result"]["stream"])

        def admit() -> None:
            raw.send(type="reply", id=raw.receive()["id"], result={"start_seq": 1})

        writer = threading.Thread(target=admit)
        writer.start()
        reader = client.open_stream("still")
        writer.join()
        threading.Timer(0.05, raw.close).start()
        with pytest.raises(StreamClosed) as caught:
            reader.next(30)
        assert caught.value.reason == "writer_died"


def test_writer_and_readers_that_die_at_once_leave_nothing(bare_daemon: RunningDaemon) -> None:
    with (
        Bystander(bare_daemon.socket) as bystander,
        Actor(bare_daemon.socket, "write", "cam0").wait_ready() as writer,
        Actor(bare_daemon.socket, "read", "cam0") as reader,
        Actor(bare_daemon.socket, "read", "cam0", "lossless") as other,
        connect(bare_daemon.socket) as client,
    ):
        actors = [writer, reader.wait_ready(), other.wait_ready()]
        os.kill(bare_daemon.pid, signal.SIGSTOP)  # it is to find all of them dead at once
        try:
            for actor in actors:
                actor.kill()
        finally:
            os.kill(bare_daemon.pid, signal.SIGCONT)
        wait_until(lambda: not leases(client, "cam0"), 10, "their leases are gone")
        client.create_stream("cam0", slot_nbytes=64).close()
        bystander.check()
    assert "Traceback" not in bare_daemon.stderr


def test_reason_that_a_writer_made_up_does_not_stand_in_the_way_of_its_end(
    bare_daemon: RunningDaemon,
) -> None:
    ended = slice(192, 196)  # of struct mcpd_wctl
    with connect(bare_daemon.socket) as client:
        with RawSession(bare_daemon.socket) as writer:
            spec = {"slots": 8, "slot_nbytes": 4096}
            writer.send(type="create_stream", id=1, name="evil", spec=spec)
            _, fds, _, _ = socket.recv_fds(writer.sock, 65536, 3)
            with mmap.mmap(fds[0], 4096) as control:
                control[ended] = (99).to_bytes(4, "little")
            close_fds(fds)
        wait_until(lambda: states(client, "evil") == {"quarantined"}, 10, "its end")
        assert leases(client, "evil")[0]["reason"] == "writer_died"
        client.create_stream("evil", slot_nbytes=64).close()
    assert "Traceback" not in bare_daemon.stderr


def test_closed_connection_revokes_but_a_live_process_is_quarantined(
    bare_daemon: RunningDaemon,
) -> None:
    with Actor(bare_daemon.socket, "hold", "held") as actor, connect(bare_daemon.socket) as client:
        actor.wait_ready()
        wait_until(lambda: states(client, "held") == {"quarantined"}, 10, "quarantine")
        session = next(row for row in client.list("sessions") if row["pid"] == actor.pid)
        assert session["state"] == "quarantined"
        assert client.status()["daemon"]["memory_bytes"] > 0
        client.create_stream("held", slot_nbytes=64).close()  # the name is free already
        actor.kill()
        wait_until(lambda: not leases(client, "held"), 10, "its leases are gone")
        assert client.status()["daemon"]["memory_bytes"] == 0
        assert len(client.list("sessions")) == 1


def test_dead_reader_gives_its_pins_back(bare_daemon: RunningDaemon) -> None:
    with connect(bare_daemon.socket) as client:
        stream = client.create_stream("cam0", width=64, height=48, format="rgb24", slots=6)
        for _ in range(6):  # each would pin a slot for ever if it were not given back
            with Actor(bare_daemon.socket, "read", "cam0", "lossless") as reader:
                wait_until(lambda: len(stream.readers) == 1, 30, "the reader has joined")
                with stream.acquire(10) as slot:
                    slot.planes[0][:] = 1
                reader.wait_ready()
                reader.kill()
            wait_until(lambda: not leases(client, "cam0")[3:], 10, "the reader's lease is gone")
        for _ in range(20):
            with stream.acquire(10) as slot:
                slot.planes[0][:] = 2


def test_readers_beyond_the_slots_are_told_how_many_it_takes(bare_daemon: RunningDaemon) -> None:
    with connect(bare_daemon.socket) as client:
        client.create_stream("cam0", slot_nbytes=64, slots=8)
        client.open_stream("cam0", max_pins=4)
        with pytest.raises(LimitExceeded, match="8 slots and would need 9") as caught:
            client.open_stream("cam0", max_pins=1)
        assert "slots=9" in caught.value.hint
        assert len(leases(client, "cam0")) == 4  # nothing is left of the refused one


def test_reader_beyond_sixty_four_is_refused(bare_daemon: RunningDaemon) -> None:
    with connect(bare_daemon.socket) as client:
        client.create_stream("cam0", slot_nbytes=64, slots=80)
        for _ in range(64):
            client.open_stream("cam0", max_pins=1)
        with pytest.raises(LimitExceeded, match="64 readers"):
            client.open_stream("cam0", max_pins=1)


def test_writer_that_does_not_answer_costs_its_reader_a_time_out_and_nobody_else(
    bare_daemon: RunningDaemon,
) -> None:
    with Bystander(bare_daemon.socket), RawSession(bare_daemon.socket) as raw:
        answer = raw.ask(type="create_stream", name="mute", spec={"slots": 8, "slot_nbytes": 64})
        raw.ask(type="seal_stream", stream=answer["result"]["stream"])
        with connect(bare_daemon.socket) as client:
            with pytest.raises(TimedOut, match=f"pid {os.getpid()}"):
                client.open_stream("mute")
            kinds = {lease["kind"] for lease in leases(client, "mute")}
            assert kinds == {"stream", "segment"}


def test_posix_segment_has_a_name_while_it_lives(bare_daemon: RunningDaemon) -> None:
    prefix = f"mcpd.{os.geteuid()}.{bare_daemon.pid}."

    def names() -> list[str]:
        return [name for name in os.listdir("/dev/shm") if name.startswith(prefix)]

    with connect(bare_daemon.socket) as client:
        stream = client.create_stream("cam0", slot_nbytes=8192, memory="posix")
        (name,) = names()
        assert stream.grant.shm_name == f"/{name}"
        path = Path("/dev/shm") / name
        assert path.stat().st_mode & 0o777 == 0o600
        reader = client.open_stream("cam0", policy="lossless")
        with stream.acquire() as slot:
            slot.buffer[:5] = b"named"
        with reader.next(10) as frame:
            assert bytes(frame.buffer[:5]) == b"named"
        assert path.read_bytes().count(b"named") == 1  # the same pages, by name
        reader.close()
        stream.close()
        assert names() == []


def test_posix_segments_of_a_killed_writer_lose_their_names(bare_daemon: RunningDaemon) -> None:
    prefix = f"mcpd.{os.geteuid()}.{bare_daemon.pid}."
    raw = RawSession(bare_daemon.socket)
    raw.ask(
        type="create_stream", name="cam0", spec={"slots": 8, "slot_nbytes": 64, "memory": "posix"}
    )
    assert [name for name in os.listdir("/dev/shm") if name.startswith(prefix)]
    raw.close()
    wait_until(
        lambda: not [name for name in os.listdir("/dev/shm") if name.startswith(prefix)],
        10,
        "no name is left",
    )


def test_memory_limit_of_the_configuration_holds(tmp_path: Path) -> None:
    with (
        RunningDaemon(tmp_path, arguments=["--memory-limit", "1M"]) as running,
        connect(running.socket) as client,
    ):
        with pytest.raises(LimitExceeded, match=r"of the configured 1\.0 MiB"):
            client.create_stream("big", slot_nbytes=1 << 20)
        client.create_stream("small", slot_nbytes=4096)


def test_request_streams_are_private(bare_daemon: RunningDaemon) -> None:
    with connect(bare_daemon.socket) as client, RawSession(bare_daemon.socket) as raw:
        name = f"~{client.session}-1"
        client.create_stream(name, slot_nbytes=64, kind="requests")
        assert client.list("streams") == []
        assert raw.ask(type="attach_reader", stream=name)["code"] == "not_found"
        assert raw.ask(type="open_results", stream=name, model="x")["code"] == "not_found"
