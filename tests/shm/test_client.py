"""The client against a real daemon: streams, results and requests, and what breaks them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mcpd.shm import (
    AlreadyExists,
    Client,
    DaemonUnavailable,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    StreamClosed,
    TensorSpec,
    TimedOut,
    connect,
)
from mcpd.shm.segment import SHM_DIRECTORY
from tests.support.daemon import RunningDaemon
from tests.support.descriptors import no_descriptor_leaked


def maps(pid: int | str = "self") -> list[str]:
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return [line for line in lines if "mcpd:" in line or "/dev/shm/mcpd." in line]


# ---- connecting ----------------------------------------------------------------------------------


def test_no_socket_is_a_daemon_that_is_not_there(tmp_path: Path) -> None:
    with no_descriptor_leaked(), pytest.raises(DaemonUnavailable) as caught:
        connect(tmp_path / "none.sock")
    assert "none.sock: No such file" in caught.value.message
    assert "mcpd start" in caught.value.hint


def test_socket_that_nobody_listens_on_is_a_daemon_that_is_not_there() -> None:
    path = f"/tmp/mcpd-dead-{os.getpid()}.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
    try:
        with pytest.raises(DaemonUnavailable, match="refused"):
            connect(path)
    finally:
        os.unlink(path)


def test_socket_path_too_long_is_told_with_the_limit(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"has \d+ bytes, the limit is 107"):
        connect(tmp_path / ("x" * 120))


def test_socket_comes_from_the_environment(
    shared: RunningDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MCPD_SOCKET", shared.socket)
    with connect() as client:
        assert client.socket == shared.socket
        assert client.daemon_pid == shared.pid


def test_daemon_that_does_not_greet_times_out(tmp_path: Path) -> None:
    path = f"/tmp/mcpd-mute-{os.getpid()}.sock"
    with no_descriptor_leaked(), socket.socket(socket.AF_UNIX) as mute:
        mute.bind(path)
        mute.listen()
        try:
            with pytest.raises(TimedOut):
                connect(path, timeout_s=0.05)
        finally:
            os.unlink(path)


def test_status_and_lists_name_this_session(client: Client) -> None:
    assert client.status()["daemon"]["pid"] == client.daemon_pid
    (row,) = [row for row in client.list("sessions") if row["session"] == client.session]
    assert (row["client"], row["pid"]) == ("tester", os.getpid())
    with pytest.raises(InvalidRequest, match="no table 'cats'"):
        client.list("cats")


def test_long_list_comes_in_one_piece(client: Client) -> None:
    streams = [
        client.create_stream(f"many-{number}", slots=4, holds=1, slot_nbytes=1)
        for number in range(130)
    ]
    names = [row["name"] for row in client.list("streams")]
    assert [name for name in names if name.startswith("many-")] == [s.name for s in streams]
    for stream in streams:
        stream.close()


# ---- streams -------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", ["memfd", "posix"])
def test_frames_go_from_writer_to_reader(client: Client, memory: str) -> None:
    with (
        client.create_stream("cam0", width=64, height=48, format="i420", memory=memory) as stream,
        client.open_stream("cam0", policy="lossless") as reader,
    ):
        for number in range(20):
            with stream.acquire() as slot:
                slot.planes[0][...] = number
                slot.pts_ns = number
            with reader.next(5) as frame:
                assert (frame.planes[0] == number).all()
                assert frame.pts_ns == number
        assert (stream.stats()["published"], reader.stats()["received"]) == (20, 20)


def test_name_is_free_again_when_close_returns(client: Client) -> None:
    for _ in range(3):
        with client.create_stream("again", width=64, height=48, format="gray8") as stream:
            with pytest.raises(AlreadyExists):
                client.create_stream("again", width=64, height=48, format="gray8")
            assert stream.name == "again"


def test_posix_stream_has_a_name_while_it_lives(client: Client) -> None:
    with client.create_stream("p", width=64, height=48, format="gray8", memory="posix") as stream:
        name = stream.grant.shm_name
        assert (SHM_DIRECTORY / name.lstrip("/")).exists()
        assert f".{client.daemon_pid}." in name
    assert not (SHM_DIRECTORY / name.lstrip("/")).exists()


def test_bundles_of_fixed_tensors_travel(client: Client) -> None:
    specs = {"x": TensorSpec("float32", (2, 3)), "y": TensorSpec("int64", ())}
    with client.create_stream("t", tensors=specs) as stream, client.open_stream("t") as reader:
        with stream.acquire() as slot:
            slot.tensors["x"][...] = [[1, 2, 3], [4, 5, 6]]
            slot.tensors["y"][...] = -7
        with reader.next(5) as frame:
            assert frame.tensors["x"].tolist() == [[1, 2, 3], [4, 5, 6]]
            assert frame.tensors["y"] == -7


@pytest.mark.parametrize(
    ("arguments", "kind", "said"),
    [
        ({"width": 641, "height": 480, "format": "yuyv422"}, InvalidRequest, "641"),
        ({"width": 640, "height": 480}, InvalidRequest, "without a format"),
        ({"width": 640, "height": 480, "format": "cmyk"}, InvalidRequest, "cmyk"),
        ({}, InvalidRequest, "no slot_nbytes"),
        ({"format": "jpeg", "width": 8, "height": 8}, InvalidRequest, "no fixed size"),
        (
            {"width": 640, "height": 480, "format": "rgb24", "slot_nbytes": 1000},
            LimitExceeded,
            "takes 921600 bytes, slot_nbytes is 1000",
        ),
        ({"slot_nbytes": 1, "slots": 0}, InvalidRequest, "slots is 0"),
        ({"slot_nbytes": 1, "slots": 2**40}, InvalidRequest, str(2**40)),
        ({"slot_nbytes": 1, "slots": 2**70}, InvalidRequest, "cannot be encoded"),
        ({"slot_nbytes": 1, "memory": "disk"}, InvalidRequest, "'disk'"),
        ({"slot_nbytes": 1, "kind": "cats"}, InvalidRequest, "'cats'"),
        ({"slot_nbytes": 0}, InvalidRequest, "slot_nbytes is 0"),
    ],
)
def test_stream_that_cannot_be_is_refused_and_leaves_nothing(
    client: Client, arguments: dict[str, Any], kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind, match=said):
        client.create_stream("bad", **arguments)
    assert "bad" not in [row["name"] for row in client.list("streams")]
    assert maps() == []


@pytest.mark.parametrize("name", ["", "a/b", ".hidden", "x" * 64, "~1-1", "a b", "\0"])
def test_name_that_cannot_be_is_refused(client: Client, name: str) -> None:
    with pytest.raises(InvalidRequest, match="name"):
        client.create_stream(name, slot_nbytes=1)


def test_reader_of_nothing_is_not_found(client: Client) -> None:
    with pytest.raises(NotFound, match="'nobody'"):
        client.open_stream("nobody")


def test_too_many_pins_are_refused_and_the_stream_goes_on(client: Client) -> None:
    with client.create_stream("few", width=8, height=8, format="gray8") as stream:
        with pytest.raises(LimitExceeded):
            client.open_stream("few", max_pins=20)
        with client.open_stream("few") as reader, stream.acquire():
            pass
        assert reader.ended == "closed"


def test_closing_the_client_closes_its_streams(shared: RunningDaemon) -> None:
    with no_descriptor_leaked():
        client = connect(shared.socket)
        stream = client.create_stream("mine", width=8, height=8, format="gray8")
        reader = client.open_stream("mine")
        client.close()
        client.close()
        with pytest.raises(StreamClosed):
            stream.acquire(0)
        with pytest.raises(StreamClosed):
            reader.next(0)
        assert maps() == []
        with pytest.raises(DaemonUnavailable):
            client.status()


def test_hundred_streams_leave_neither_memory_nor_descriptors(client: Client) -> None:
    for number in range(100):
        with client.create_stream("s", width=64, height=48, format="i420") as stream:
            with client.open_stream("s") as reader, stream.acquire():
                pass
            assert reader.name == "s", number
    assert maps() == []
    assert [row for row in client.list("leases") if row["session"] == client.session] == []


WRITER = """
import sys, time
from mcpd.shm import connect
client = connect(sys.argv[1])
stream = client.create_stream("theirs", width=64, height=48, format="gray8")
for number in range(5):
    with stream.acquire() as slot:
        slot.planes[0][...] = number
print("ready", flush=True)
time.sleep(1000)
"""


def test_reader_learns_that_its_writer_died(client: Client, shared: RunningDaemon) -> None:
    with subprocess.Popen(
        [sys.executable, "-P", "-c", WRITER, shared.socket], stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
        with client.open_stream("theirs") as reader:
            with reader.next(5) as frame:
                assert (frame.planes[0] == 4).all()
                writer.kill()
                with pytest.raises(StreamClosed) as caught:
                    reader.next(10)
                assert (frame.planes[0] == 4).all()
            assert caught.value.reason == "writer_died"
    with client.create_stream("theirs", width=8, height=8, format="gray8"):
        pass


FORK = """
import os, sys
from mcpd.shm import connect
with connect(sys.argv[1]) as client:
    stream = client.create_stream("mine", width=8, height=8, format="gray8")
    reader = client.open_stream("mine", policy="lossless")
    child = os.fork()
    if child == 0:
        for end in (reader, stream, client):
            end.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, "the child failed"
    with stream.acquire(5) as slot:
        slot.planes[0][...] = 4
    with reader.next(5) as frame:
        assert (frame.planes[0] == 4).all()
"""


def test_forked_child_that_closes_what_it_inherited_disturbs_nothing(
    shared: RunningDaemon,
) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", FORK, shared.socket],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_time_that_nobody_can_wait_is_refused(shared: RunningDaemon) -> None:
    with pytest.raises(InvalidRequest, match="timeout_s is -1"):
        connect(shared.socket, timeout_s=-1)
