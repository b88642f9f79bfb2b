"""Models are found, loaded and loaded again: a worker that dies comes back or says why not."""

from __future__ import annotations

import os
import resource
import shutil
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mcpd.shm import Client, ModelFailed, NotFound, Results, TimedOut, WriterStream, connect
from tests.support.daemon import RunningDaemon, wait_until
from tests.support.models import write_trivial

NOT_A_MODEL = b"this is no model"


@pytest.fixture
def client(daemon: RunningDaemon) -> Iterator[Client]:
    """A session with the daemon that has the small models."""
    with connect(daemon.socket) as client:
        yield client


def model(client: Client, name: str, version: int = 0) -> dict[str, Any]:
    """The model's row."""
    return next(
        row
        for row in client.list("models")
        if row["name"] == name and version in (0, row["version"])
    )


def make_camera(client: Client, name: str = "cam0") -> WriterStream:
    """A stream of small pictures."""
    return client.create_stream(name, width=64, height=48, format="rgb24")


def show(stream: WriterStream, level: int) -> int:
    """Publishes one picture of that grey."""
    with stream.acquire(30) as slot:
        slot.planes[0][:] = level
    return slot.seq


def has_restarted(client: Client, times: int) -> bool:
    """Whether the worker has been started again so often."""
    return bool(model(client, "trivial")["restarts"] == times)


def gives_a_result(results: Results, stream: WriterStream) -> bool:
    """Whether a frame that is shown now, or was before, has its result soon."""
    show(stream, 100)
    try:
        return results.next(1.0).status == "ok"
    except TimedOut:
        return False


def test_model_is_loaded_when_it_is_first_asked_for(client: Client) -> None:
    assert model(client, "trivial")["state"] == "stopped"
    stream = make_camera(client)
    with client.results("cam0", model="trivial") as results:
        row = model(client, "trivial")
        assert (row["state"], row["version"], row["engine"]) == ("ready", 1, "onnx")
        assert row["pid"] > 0
        assert row["rss_bytes"] > 0
        assert row["inputs"]["image"]["dtype"] == "uint8"
        (worker,) = client.list("workers")
        assert (worker["pid"], worker["model"], worker["bindings"]) == (row["pid"], "trivial", 1)
        assert worker["streams"] == ["cam0"]
        show(stream, 7)
        assert results.next(30).tensors["mean"][0].tolist() == [7, 7, 7]
    assert model(client, "tiny-image")["state"] == "stopped"


@pytest.mark.parametrize(
    ("load", "ready"), [("all", {"trivial", "tiny-image"}), ("trivial", {"trivial"})]
)
def test_models_wanted_at_start_are_loaded(
    tmp_path: Path, model_repository: Path, load: str, ready: set[str]
) -> None:
    with (
        RunningDaemon(tmp_path, model_repository, load=load) as running,
        connect(running.socket) as client,
    ):

        def loaded() -> set[str]:
            return {row["name"] for row in client.list("models") if row["state"] == "ready"}

        wait_until(lambda: loaded() == ready, 60, f"{ready} are loaded")


def test_killed_worker_comes_back_and_results_go_on(client: Client) -> None:
    stream = make_camera(client)
    with client.results("cam0", model="trivial", frames="lossless") as results:
        for expected in range(3):
            show(stream, 1)
            results.next(30).close()
            os.kill(model(client, "trivial")["pid"], signal.SIGKILL)
            wait_until(partial(has_restarted, client, expected + 1), 30, "it is noticed")
            # The reader notices by itself, waits for the new worker, and gets new frames' results.
            wait_until(lambda: gives_a_result(results, stream), 60, "results go on")
        assert results.reopened == 3


def test_worker_that_is_told_to_leave_is_followed_by_the_next(client: Client) -> None:
    stream = make_camera(client)
    with client.results("cam0", model="trivial", frames="lossless") as results:
        show(stream, 1)
        results.next(30).close()
        os.kill(model(client, "trivial")["pid"], signal.SIGTERM)
        wait_until(partial(has_restarted, client, 1), 30, "it is noticed")
        wait_until(lambda: gives_a_result(results, stream), 60, "results go on")
        assert results.reopened == 1


def test_worker_that_dies_while_nobody_watches_comes_back(client: Client) -> None:
    make_camera(client)
    client.results("cam0", model="trivial").close()
    first = model(client, "trivial")["pid"]
    os.kill(first, signal.SIGKILL)
    wait_until(
        lambda: (
            model(client, "trivial")["state"] == "ready"
            and model(client, "trivial")["pid"] != first
        ),
        60,
        "a new worker is ready",
    )


def test_worker_that_the_system_does_not_let_start_is_tried_again(
    daemon: RunningDaemon, client: Client
) -> None:
    show(make_camera(client), 1)
    client.run_once("cam0", model="trivial").close()
    files = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (4, files[1]))
    try:
        os.kill(model(client, "trivial")["pid"], signal.SIGKILL)
        wait_until(lambda: model(client, "trivial")["state"] == "failed", 30, "it cannot")
        assert "Too many open files" in model(client, "trivial")["error"]
    finally:
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, files)
    wait_until(lambda: model(client, "trivial")["state"] == "ready", 60, "it is tried again")
    assert "Traceback" not in daemon.stderr


def test_model_that_cannot_be_loaded_says_why_and_is_tried_again(
    tmp_path: Path, model_repository: Path
) -> None:
    models = tmp_path / "models"
    shutil.copytree(model_repository, models)
    file = models / "trivial" / "1" / "model.onnx"
    good = file.read_bytes()
    file.write_bytes(NOT_A_MODEL)
    with RunningDaemon(tmp_path, models) as running, connect(running.socket) as client:
        stream = make_camera(client)
        with pytest.raises(ModelFailed, match="trivial"):
            client.results("cam0", model="trivial")
        wait_until(lambda: model(client, "trivial")["restarts"] >= 2, 60, "it is tried again")
        file.write_bytes(good)
        wait_until(lambda: model(client, "trivial")["state"] == "ready", 60, "it recovers")
        with client.results("cam0", model="trivial") as results:
            show(stream, 3)
            assert results.next(30).status == "ok"


def test_model_that_failed_answers_at_once_while_it_waits_to_be_tried_again(
    tmp_path: Path, model_repository: Path
) -> None:
    models = tmp_path / "models"
    shutil.copytree(model_repository, models)
    (models / "trivial" / "1" / "model.onnx").write_bytes(NOT_A_MODEL)
    with (
        RunningDaemon(tmp_path, models, load="trivial") as running,
        connect(running.socket) as client,
    ):
        make_camera(client)
        wait_until(lambda: model(client, "trivial")["restarts"] >= 3, 60, "back-off grows")
        wait_until(lambda: not model(client, "trivial")["pid"], 60, "it waits")
        restarts = model(client, "trivial")["restarts"]
        with pytest.raises(ModelFailed, match="trivial"):
            client.results("cam0", model="trivial")
        assert model(client, "trivial")["restarts"] == restarts


def test_new_model_is_found_without_a_restart(tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    with RunningDaemon(tmp_path, models) as running, connect(running.socket) as client:
        stream = make_camera(client)
        with pytest.raises(NotFound):
            client.results("cam0", model="late")
        write_trivial(models, "late")
        with client.results("cam0", model="late") as results:
            show(stream, 9)
            assert results.next(30).model == "late"


def test_load_models_starts_everything_and_forgets_what_is_gone(
    tmp_path: Path, model_repository: Path
) -> None:
    models = tmp_path / "models"
    shutil.copytree(model_repository, models)
    with RunningDaemon(tmp_path, models) as running, connect(running.socket) as client:
        shutil.rmtree(models / "tiny-image")
        assert client.load_models() == ["trivial"]
        wait_until(lambda: model(client, "trivial")["state"] == "ready", 60, "it is loaded")
        assert {row["name"] for row in client.list("models")} == {"trivial"}


def test_older_version_is_served_beside_the_newest(tmp_path: Path) -> None:
    models = tmp_path / "models"
    write_trivial(models, version=1)
    write_trivial(models, version=2)
    with RunningDaemon(tmp_path, models) as running, connect(running.socket) as client:
        make_camera(client)
        with (
            client.results("cam0", model="trivial") as newest,
            client.results("cam0", model="trivial", version=1) as older,
        ):
            assert (newest.version, older.version) == (2, 1)
        with pytest.raises(NotFound, match="no version 3"):
            client.results("cam0", model="trivial", version=3)


def test_what_a_model_prints_cannot_reach_the_daemons_stdout(
    daemon: RunningDaemon, client: Client
) -> None:
    make_camera(client)
    with client.results("cam0", model="trivial"):
        worker = Path("/proc") / str(model(client, "trivial")["pid"]) / "fd"
        assert os.readlink(worker / "0") == "/dev/null"
        # What it writes to either goes through the daemon to its standard error.
        assert os.readlink(worker / "1") == os.readlink(worker / "2")
        assert os.readlink(worker / "1") != os.readlink(f"/proc/{daemon.pid}/fd/1")
