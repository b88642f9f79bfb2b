"""infer: a model on pictures and videos, decoded straight into request slots."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.cli.clips import BLUE, GREEN, RED, write_picture, write_video
from tests.cli.command import run_mcpd, start_mcpd
from tests.support.daemon import RunningDaemon, wait_until
from tests.support.models import TRIVIAL_TOML, write_model, write_trivial

CLIP = [RED, GREEN, BLUE] * 5


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    return write_video(tmp_path / "clip.mp4", CLIP)


def labels(document: dict[str, object]) -> list[list[str]]:
    results = document["results"]
    assert isinstance(results, list)
    return [[found["label"] for found in result["detections"]] for result in results]


def test_picture_gives_a_table_of_what_is_in_it(daemon: RunningDaemon, tmp_path: Path) -> None:
    picture = write_picture(tmp_path / "green.png", GREEN, width=33, height=21)
    ran = run_mcpd("infer", "tiny-image", str(picture), socket=daemon.socket)
    assert (ran.status, ran.err) == (0, "")
    assert "33x21" in ran.out
    (line,) = [line for line in ran.out.splitlines() if line.startswith("green")]
    assert line.split() == ["green", "1.00", "0.0", "0.0", "33.0", "21.0"]


def test_picture_gives_a_document_with_json(daemon: RunningDaemon, tmp_path: Path) -> None:
    picture = write_picture(tmp_path / "red.png", RED)
    ran = run_mcpd("infer", "tiny-image", str(picture), "--json", socket=daemon.socket)
    assert (ran.status, ran.err) == (0, "")
    document = ran.document
    (result,) = document.pop("results")
    assert document.pop("latency_ms") > 0
    assert document == {
        "file": str(picture),
        "model": "tiny-image",
        "version": 1,
        "width": 64,
        "height": 48,
    }
    assert result["latency_ms"] > 0
    assert result["detections"] == [{"label": "red", "score": 1.0, "box": [0, 0, 64, 48]}]


def test_video_gives_its_first_frame_unless_told_otherwise(
    daemon: RunningDaemon, clip: Path
) -> None:
    ran = run_mcpd("infer", "tiny-image", str(clip), "--json", socket=daemon.socket)
    assert labels(ran.document) == [["red"]]


def test_more_frames_than_are_in_flight_come_in_order(daemon: RunningDaemon, clip: Path) -> None:
    words = ("infer", "tiny-image", str(clip), "--frames", "100", "--json")
    ran = run_mcpd(*words, socket=daemon.socket)
    assert labels(ran.document) == [["red"], ["green"], ["blue"]] * 5
    stamps = [result["pts_s"] for result in ran.document["results"]]
    assert stamps == [round(number * 0.04, 6) for number in range(len(CLIP))]


def test_time_says_where_to_begin(daemon: RunningDaemon, clip: Path) -> None:
    words = ("infer", "tiny-image", str(clip), "--time", "0.3", "--frames", "2")
    ran = run_mcpd(*words, socket=daemon.socket)
    assert ran.status == 0
    first, second = ran.out.splitlines()
    assert first.startswith("00:00.320")
    assert "blue" in first
    assert "red" in second


def test_time_behind_the_end_is_an_error(daemon: RunningDaemon, clip: Path) -> None:
    ran = run_mcpd("infer", "tiny-image", str(clip), "--time", "60", socket=daemon.socket)
    assert ran.status == 1
    assert "no frame at 60 s" in ran.err


def test_min_score_leaves_the_others_out(daemon: RunningDaemon, tmp_path: Path) -> None:
    picture = write_picture(tmp_path / "dim.png", (150, 0, 0))
    words = ("infer", "tiny-image", str(picture), "--json")
    assert labels(run_mcpd(*words, socket=daemon.socket).document) == [["red"]]
    ran = run_mcpd(*words, "--min-score", "0.9", socket=daemon.socket)
    assert (ran.status, labels(ran.document)) == (0, [[]])


def test_tensor_model_gets_the_pixels_as_they_are(daemon: RunningDaemon, tmp_path: Path) -> None:
    picture = write_picture(tmp_path / "odd.png", (10, 20, 30), width=64, height=48)
    words = ("infer", "trivial", str(picture), "--json")
    for _ in range(2):  # the model is loaded the second time
        ran = run_mcpd(*words, socket=daemon.socket)
        assert (ran.status, ran.err) == (0, "")
        (result,) = ran.document["results"]
        (mean,) = result["tensors"].values()
        assert mean == {"dtype": "float32", "shape": [1, 3], "first": [10.0, 20.0, 30.0]}


def test_values_that_json_has_not_are_null(tmp_path: Path) -> None:
    values = numpy_helper.from_array(np.array([np.nan, -np.inf, 1.5], np.float32), "values")
    image = helper.make_tensor_value_info("image", TensorProto.UINT8, [1, "height", "width", 3])
    out = helper.make_tensor_value_info("out", TensorProto.FLOAT, [3])
    node = helper.make_node("Identity", ["values"], ["out"])
    graph = helper.make_graph([node], "no-numbers", [image], [out], [values])
    write_model(tmp_path / "models", "no-numbers", graph, TRIVIAL_TOML)
    picture = write_picture(tmp_path / "red.png", RED)
    with RunningDaemon(tmp_path, tmp_path / "models") as running:
        ran = run_mcpd("infer", "no-numbers", str(picture), "--json", socket=running.socket)
    assert ran.status == 0
    assert "NaN" not in ran.out
    (result,) = ran.document["results"]
    assert result["tensors"]["out"]["first"] == [None, None, 1.5]


def test_unknown_model_is_an_error_that_names_those_there_are(
    daemon: RunningDaemon, tmp_path: Path
) -> None:
    picture = write_picture(tmp_path / "red.png", RED)
    ran = run_mcpd("infer", "nothing", str(picture), socket=daemon.socket)
    assert ran.status == 1
    assert "'nothing'" in ran.err
    assert "tiny-image" in ran.err


@pytest.mark.parametrize("exists", [True, False])
def test_file_that_is_no_picture_is_an_error(
    daemon: RunningDaemon, tmp_path: Path, exists: bool
) -> None:
    if exists:
        (tmp_path / "bad.png").write_text("no picture")
    path = str(tmp_path / "bad.png")
    ran = run_mcpd("infer", "tiny-image", path, "--json", socket=daemon.socket)
    assert ran.status == 1
    assert ran.document["error"]["code"] == ("invalid" if exists else "not_found")
    assert path in ran.document["error"]["message"]


@pytest.mark.parametrize(("signum", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signal_ends_it_while_its_file_says_nothing(
    daemon: RunningDaemon, tmp_path: Path, signum: int, status: int
) -> None:
    pipe = tmp_path / "pipe.mp4"
    os.mkfifo(pipe)
    writers: list[int] = []

    def opened() -> bool:
        with suppress(OSError):  # ENXIO: nobody reads it yet
            writers.append(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
        return bool(writers)

    with start_mcpd("infer", "tiny-image", str(pipe), socket=daemon.socket) as process:
        try:
            wait_until(opened, 60, "it waits for the pipe")
            process.send_signal(signum)
            assert process.communicate(timeout=60) == ("", "")
            assert process.returncode == status
        finally:
            process.kill()
            for writer in writers:
                os.close(writer)


def test_model_file_that_is_none_is_an_error(tmp_path: Path) -> None:
    models = tmp_path / "models"
    (write_trivial(models) / "model.onnx").write_text("no model")
    picture = write_picture(tmp_path / "red.png", RED)
    with RunningDaemon(tmp_path, models) as running:
        ran = run_mcpd("infer", "trivial", str(picture), socket=running.socket)
        assert ran.status == 1
        assert "trivial" in ran.err
        assert run_mcpd("status", socket=running.socket).status == 0
