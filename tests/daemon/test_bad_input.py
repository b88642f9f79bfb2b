"""Bad input of every kind is a clear error, and nothing else is disturbed."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mcpd.shm import ModelFailed, NotFound, connect
from tests.support.bystander import Bystander
from tests.support.daemon import RunningDaemon
from tests.support.raw import RawSession

SPEC: dict[str, Any] = {"slots": 8, "slot_nbytes": 4096}


@pytest.fixture(scope="module")
def shared(
    tmp_path_factory: pytest.TempPathFactory, model_repository: Path
) -> Iterator[tuple[RunningDaemon, Bystander]]:
    """One daemon for all that is bad, and a stream that flows through it all the time."""
    folder = tmp_path_factory.mktemp("daemon")
    with (
        RunningDaemon(folder, model_repository) as running,
        Bystander(running.socket) as bystander,
    ):
        yield running, bystander


@pytest.fixture
def disturbed(shared: tuple[RunningDaemon, Bystander]) -> Iterator[RunningDaemon]:
    """That daemon, with its stream looked at before and after the test."""
    running, bystander = shared
    bystander.check()
    yield running
    bystander.check()


def create(session: RawSession, name: str = "bad", **spec: Any) -> dict[str, Any]:
    """Asks for a stream."""
    return session.ask(type="create_stream", name=name, spec={**SPEC, **spec})


def test_message_of_65_kib_ends_its_session_with_the_limit(disturbed: RunningDaemon) -> None:
    with RawSession(disturbed.socket) as session:
        session.send_body(b"x" * 65 * 1024)
        error = session.receive()
        assert (error["type"], error["code"], error.get("id", 0)) == ("error", "protocol", 0)
        assert "66560" in error["message"]
        assert "65536" in error["message"]
        assert session.receive() == {}


@pytest.mark.parametrize("garbage", [b"\x93\x01\x02\x03", b"\xff" * 40, b"GET / HTTP/1.1", b"\x80"])
def test_garbage_bytes_end_their_session(disturbed: RunningDaemon, garbage: bytes) -> None:
    with RawSession(disturbed.socket) as session:
        session.send_body(garbage)
        error = session.receive()
        assert (error["type"], error["code"]) == ("error", "protocol")
        assert session.receive() == {}


def test_garbage_without_a_length_ends_its_session(disturbed: RunningDaemon) -> None:
    with RawSession(disturbed.socket, hello=False) as session:
        session.sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert session.receive()["code"] == "protocol"
        assert session.receive() == {}


def test_wrong_version_is_told_the_right_one(disturbed: RunningDaemon) -> None:
    with RawSession(disturbed.socket, hello=False) as session:
        error = session.ask(type="hello", versions=[7, 99])
        assert error["code"] == "version"
        assert "[7, 99]" in error["message"]
        assert session.receive() == {}


def test_request_before_hello_ends_its_session(disturbed: RunningDaemon) -> None:
    with RawSession(disturbed.socket, hello=False) as session:
        assert session.ask(type="status")["code"] == "protocol"
        assert session.receive() == {}


def test_unknown_type_is_an_error_under_its_id_and_the_session_goes_on(
    disturbed: RunningDaemon,
) -> None:
    with RawSession(disturbed.socket) as session:
        error = session.ask(type="make_coffee", sugar=2)
        assert error["code"] == "invalid"
        assert "make_coffee" in error["message"]
        assert session.ask(type="status")["type"] == "reply"


@pytest.mark.parametrize(
    ("spec", "code", "seen"),
    [
        ({"slots": 0}, "invalid", "slots is 0"),
        ({"slots": 2**40}, "invalid", f"slots is {2**40}"),
        ({"slots": -1}, "invalid", "slots is -1"),
        ({"slots": 2**64 - 1}, "invalid", "slots"),
        ({"slots": "many"}, "invalid", "many"),
        ({"slot_nbytes": 2**62}, "invalid", f"slot_nbytes is {2**62}"),
        ({"slots": 4096, "slot_nbytes": 2**40}, "no_memory", "asks for"),
        ({"slots": 2}, "limit", "would need 5"),
        (
            {"format": "yuyv422", "width": 641, "height": 480, "slot_nbytes": 2**20},
            "invalid",
            "641",
        ),
        ({"format": "rgb24", "width": 640, "height": 480}, "invalid", "921600"),
        ({"format": "cmyk", "width": 64, "height": 48}, "invalid", "cmyk"),
        ({"kind": "results"}, "invalid", "only a worker"),
        ({"memory": "disk"}, "invalid", "disk"),
        ({"holds": 10**9}, "invalid", "holds"),
    ],
)
def test_stream_with_impossible_geometry_is_refused(
    disturbed: RunningDaemon, spec: dict[str, Any], code: str, seen: str
) -> None:
    with RawSession(disturbed.socket) as session:
        error = create(session, **spec)
        assert error["code"] == code
        assert seen in error["message"]
        assert session.ask(type="status")["type"] == "reply"


@pytest.mark.parametrize("name", ["a/b", "../../etc", "", "~9-9", "x" * 100, "a\0b"])
def test_stream_with_a_bad_name_is_refused(disturbed: RunningDaemon, name: str) -> None:
    with RawSession(disturbed.socket) as session:
        error = create(session, name)
        assert error["code"] == "invalid"
        assert "letter" in error["hint"]


def test_name_that_is_taken_is_refused(disturbed: RunningDaemon) -> None:
    with RawSession(disturbed.socket) as session:
        error = create(session, "bystander")
        assert (error["code"], "bystander" in error["message"]) == ("exists", True)


@pytest.mark.parametrize(
    "fields",
    [
        {"type": "seal_stream", "stream": 10**6},
        {"type": "close_stream", "stream": 10**6},
        {"type": "detach_reader", "reader": 10**6},
        {"type": "run_once", "reader": 10**6},
        {"type": "attach_reader", "stream": "nobody"},
    ],
)
def test_what_does_not_exist_is_not_found(disturbed: RunningDaemon, fields: dict[str, Any]) -> None:
    with RawSession(disturbed.socket) as session:
        assert session.ask(**fields)["code"] == "not_found"


def test_what_belongs_to_another_session_is_not_touched(disturbed: RunningDaemon) -> None:
    with RawSession(disturbed.socket) as session, connect(disturbed.socket) as client:
        for lease in client.list("leases"):
            if lease["kind"] == "stream":
                assert session.ask(type="close_stream", stream=lease["id"])["code"] == (
                    "not_permitted"
                )
            if lease["kind"] == "reader":
                assert session.ask(type="detach_reader", reader=lease["id"])["code"] == (
                    "not_permitted"
                )


def test_messages_for_workers_are_not_for_clients(disturbed: RunningDaemon) -> None:
    with RawSession(disturbed.socket) as session:
        for kind in ("worker_state", "worker_stats", "serve"):
            assert session.ask(type=kind, state="ready")["code"] == "invalid"


def test_unsealed_stream_cannot_be_read(disturbed: RunningDaemon) -> None:
    with RawSession(disturbed.socket) as session:
        assert create(session, "unsealed")["type"] == "reply"
        assert session.ask(type="attach_reader", stream="unsealed")["code"] == "not_found"


def test_unknown_model_is_told_which_there_are(disturbed: RunningDaemon) -> None:
    with connect(disturbed.socket) as client:
        with pytest.raises(NotFound, match="no model 'yolo99'") as caught:
            client.results("bystander", model="yolo99")
        assert "trivial" in caught.value.hint
        assert "mcpd models fetch" in caught.value.hint


def test_model_file_that_is_not_one_says_so_at_once(tmp_path: Path, model_repository: Path) -> None:
    models = tmp_path / "models"
    shutil.copytree(model_repository, models)
    (models / "trivial" / "1" / "model.onnx").write_bytes(b"this is no model")
    with (
        RunningDaemon(tmp_path, models) as running,
        Bystander(running.socket),
        connect(running.socket) as client,
    ):
        with pytest.raises(ModelFailed, match="trivial"):
            client.results("bystander", model="trivial")
        row = next(row for row in client.list("models") if row["name"] == "trivial")
        assert row["state"] in ("failed", "starting")


def test_model_toml_that_cannot_be_read_is_shown(tmp_path: Path, model_repository: Path) -> None:
    models = tmp_path / "models"
    shutil.copytree(model_repository, models)
    (models / "trivial" / "model.toml").write_text("[[input]\nname = 3")
    with (
        RunningDaemon(tmp_path, models) as running,
        Bystander(running.socket),
        connect(running.socket) as client,
    ):
        with pytest.raises(ModelFailed, match=r"model\.toml"):
            client.results("bystander", model="trivial")
        row = next(row for row in client.list("models") if row["name"] == "trivial")
        assert row["state"] == "broken"


def test_second_daemon_names_the_first(disturbed: RunningDaemon) -> None:
    second = subprocess.run(disturbed.command, capture_output=True, text=True, env=disturbed.env)
    assert second.returncode == 1
    lines = second.stderr.splitlines()
    assert lines[0].startswith("mcpd: error: ")
    assert f"pid {disturbed.pid}" in lines[0]
    assert "mcpd stop" in lines[1]


def test_socket_path_too_long_gives_both_lengths(tmp_path: Path) -> None:
    daemon = RunningDaemon(tmp_path)
    path = "/tmp/" + "x" * 120
    command = [path if part == daemon.socket else part for part in daemon.command]
    ended = subprocess.run(command, capture_output=True, text=True, env=daemon.env)
    os.rmdir(os.path.dirname(daemon.socket))
    assert ended.returncode == 1
    assert "125 bytes, the limit is 107" in ended.stderr
    assert "Traceback" not in ended.stderr
