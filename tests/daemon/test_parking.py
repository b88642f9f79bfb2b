"""A model whose worker keeps failing is parked with its reason; the others are not disturbed."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mcpd.daemon.config import parse
from mcpd.daemon.models.repository import read_model
from mcpd.daemon.parking import MAX_BACKOFF_S, Failures, how_it_ended, stamp_files
from mcpd.daemon.worker_log import LINE_LENGTH, WorkerLog
from mcpd.shm import Client, ModelFailed, NotFound, WorkerDied, connect
from tests.cli.command import run_mcpd
from tests.support.daemon import RunningDaemon, wait_until
from tests.support.faulty import faulty_daemon, write_model
from tests.support.faulty_levels import Fault

PARK = ("--park-after", "3")


def model(client: Client, name: str = "trivial") -> dict[str, Any]:
    """The model's row."""
    return next(row for row in client.list("models") if row["name"] == name)


def wait_parked(client: Client, name: str = "trivial") -> dict[str, Any]:
    """The model's row once it is parked."""
    wait_until(lambda: model(client, name)["state"] == "parked", 60, "it is parked")
    return model(client, name)


def image(level: int) -> dict[str, np.ndarray[Any, Any]]:
    """An input of that level."""
    return {"image": np.full((1, 8, 8, 3), level, np.uint8)}


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """An empty repository."""
    folder = tmp_path / "models"
    folder.mkdir()
    return folder


@pytest.fixture
def running(tmp_path: Path, models: Path) -> Iterator[RunningDaemon]:
    """A daemon that parks at the third failure, with one model that is as frames say."""
    write_model(models)
    with faulty_daemon(tmp_path, models, *PARK) as daemon:
        yield daemon


def test_model_that_crashes_at_load_is_parked_with_its_reason_and_others_go_on(
    tmp_path: Path, models: Path
) -> None:
    write_model(models, "bad", fault="crash")
    write_model(models, "good")
    with faulty_daemon(tmp_path, models, *PARK, load="all") as daemon, connect(daemon.socket) as c:
        row = wait_parked(c, "bad")
        assert "failed 3 times" in row["error"]
        assert "SIGSEGV" in row["error"]
        assert "the fault: no such device" in daemon.stderr
        assert "the fault: no such device" in row["error"]
        assert (row["failures"], row["restarts"], row["pid"]) == (3, 3, 0)
        assert "mcpd models load bad" in row["next_step"]
        with pytest.raises(ModelFailed, match=r"parked.*SIGSEGV") as caught:
            c.infer("bad", image(1))
        assert "mcpd models load bad" in caught.value.hint
        assert model(c, "bad")["restarts"] == 3, "asking does not start it"
        shown = run_mcpd("status", socket=daemon.socket).out
        assert "parked: its worker failed 3 times" in shown
        assert "mcpd models load bad" in shown
        assert c.infer("good", image(7)).ok
        assert model(c, "good")["restarts"] == 0


def test_model_that_is_parked_under_who_waits_for_it_tells_them_at_once(
    running: RunningDaemon,
) -> None:
    with connect(running.socket) as client:
        stream = client.create_stream("cam", width=8, height=8, format="rgb24")
        results = client.results("cam", model="trivial", frames="lossless")
        errors: list[BaseException] = []

        def read() -> None:
            try:
                for result in results:
                    result.close()
            except Exception as error:
                errors.append(error)

        reader = threading.Thread(target=read)
        reader.start()

        def feed() -> bool:
            with stream.acquire(1) as slot:
                slot.planes[0][:] = Fault.CRASH
            return bool(errors)

        wait_until(feed, 60, "who reads its results is told")
        reader.join(30)
        assert isinstance(errors[0], ModelFailed), errors
        assert "parked" in str(errors[0])
        results.close()


def test_parked_model_is_tried_anew_when_somebody_asks_for_it_to_be_loaded(
    running: RunningDaemon,
) -> None:
    with connect(running.socket) as client:
        for _ in range(3):
            with pytest.raises((WorkerDied, ModelFailed)):
                client.infer("trivial", image(Fault.CRASH))
        wait_parked(client)
        with pytest.raises(ModelFailed, match="parked"):
            client.infer("trivial", image(1))
        assert client.load_models("trivial") == ["trivial"]
        wait_until(lambda: model(client)["state"] == "ready", 60, "it is loaded")
        assert client.infer("trivial", image(1)).ok
        assert model(client)["failures"] == 0
        with pytest.raises(NotFound, match="none-such"):
            client.load_models("none-such")


def test_parked_model_whose_files_were_changed_is_tried_anew_when_it_is_asked_for(
    tmp_path: Path, models: Path
) -> None:
    folder = write_model(models, fault="crash")
    with faulty_daemon(tmp_path, models, *PARK, load="all") as daemon, connect(daemon.socket) as c:
        wait_parked(c)
        (folder / "fault").unlink()
        assert c.infer("trivial", image(9)).ok


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [("--park-after", "0", (0, 600.0)), ("--park-window", "1.5", (5, 1.5))],
)
def test_limits_of_parking_are_set_by_option(
    option: str, value: str, expected: tuple[int, float]
) -> None:
    settings = parse([option, value])
    assert (settings.park_after, settings.park_window_s) == expected


@pytest.mark.parametrize(
    ("option", "value"),
    [("--park-after", "-1"), ("--park-after", "x"), ("--park-window", "0"), ("--park-window", "y")],
)
def test_limits_of_parking_that_make_no_sense_are_refused(
    option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse([option, value])
    assert value in capsys.readouterr().err


def test_failures_outside_of_the_window_do_not_count() -> None:
    failures = Failures()
    for now_s in (0.0, 50.0, 99.0, 120.0):
        failures.add(now_s, 100.0)
    assert list(failures.of_late) == [50.0, 99.0, 120.0]
    assert failures.span_s == 70.0
    failures.forget()
    assert not failures.of_late


def test_back_off_grows_to_its_most_and_stays_there() -> None:
    failures = Failures()
    delays = [failures.next_delay_s() for _ in range(12)]
    assert delays == sorted(delays)
    assert delays[0] < delays[3] < delays[-1] == MAX_BACKOFF_S
    failures.in_a_row = 5000
    assert failures.next_delay_s() == MAX_BACKOFF_S


@pytest.mark.parametrize(
    ("status", "words"),
    [(3, "status 3"), (-11, "signal 11 (SIGSEGV)"), (-99, "signal 99")],
)
def test_exit_status_is_told_in_words(status: int, words: str) -> None:
    assert words in how_it_ended(status)


def test_stamps_tell_a_changed_a_new_and_a_lost_file(models: Path) -> None:
    folder = write_model(models)
    config = read_model(folder)
    stamps = [stamp_files(config, 1)]
    (folder / "1" / "weights.bin").write_bytes(b"w")
    stamps.append(stamp_files(config, 1))
    (folder / "1" / "model.onnx").write_bytes(b"m")
    stamps.append(stamp_files(config, 1))
    (folder / "model.toml").unlink()
    stamps.append(stamp_files(config, 1))
    assert len(set(stamps)) == 4


def test_log_passes_lines_on_and_keeps_the_last_within_bounds(
    capfd: pytest.CaptureFixture[str],
) -> None:
    async def relay() -> WorkerLog:
        reading, writing = os.pipe()
        log = WorkerLog(asyncio.get_running_loop(), reading)
        os.write(writing, b"".join(b"line %d\n" % n for n in range(20)) + b"\n" + b"x" * 5000)
        os.write(writing, b" and its end\nno newline")
        os.close(writing)
        await asyncio.sleep(0)
        log.close()
        log.close()
        return log

    log = asyncio.run(relay())
    assert log.last_lines[-1] == "no newline"
    assert log.last_lines[-2] == "x" * LINE_LENGTH
    assert log.last_lines[0] == "line 14"
    passed = capfd.readouterr().err
    assert passed.startswith("line 0\nline 1\n")
    assert passed.endswith(" and its end\nno newline\n")
