"""watch: frames and detections as they come, and every way in which it ends."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mcpd.shm import Client, WriterStream, connect
from tests.cli.clips import BLUE, GREEN, RED, write_video
from tests.cli.command import Ran, run_mcpd, start_mcpd
from tests.support.daemon import RunningDaemon, wait_until

CLIP = [RED, GREEN, BLUE] * 4
READER_TIMEOUT_S = 30.0


def watch_clip(daemon: RunningDaemon, tmp_path: Path, *arguments: str) -> Ran:
    """Runs watch on a stream that plays CLIP for it, every frame of it."""
    clip = write_video(tmp_path / "clip.mp4", CLIP)
    source = ("push", str(clip), "--stream", "v", "--max-speed", "--wait-readers", "1")
    with start_mcpd(*source, socket=daemon.socket) as pushing, connect(daemon.socket) as client:
        wait_until(lambda: bool(client.list("streams")), READER_TIMEOUT_S, "the stream is there")
        ran = run_mcpd("watch", "v", "--frames", "lossless", *arguments, socket=daemon.socket)
        told = pushing.communicate(timeout=READER_TIMEOUT_S)[1]
        assert pushing.returncode == 0, told
    return ran


@contextmanager
def live_stream(daemon: RunningDaemon) -> Iterator[tuple[Client, WriterStream]]:
    """A stream `v` that this process writes."""
    with (
        connect(daemon.socket) as client,
        client.create_stream("v", width=64, height=48, format="rgb24") as stream,
    ):
        yield client, stream


def publish(stream: WriterStream, pts_ns: int | None = None) -> None:
    with stream.acquire(READER_TIMEOUT_S) as slot:
        slot.planes[0][...] = RED
        if pts_ns is not None:
            slot.pts_ns = pts_ns


def test_frames_are_shown_to_the_last_one(daemon: RunningDaemon, tmp_path: Path) -> None:
    ran = watch_clip(daemon, tmp_path)
    assert (ran.status, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert len(lines) == len(CLIP)
    assert lines[-1].startswith("00:00.440  #12  64x48 i420")


def test_frames_are_json_lines_with_json(daemon: RunningDaemon, tmp_path: Path) -> None:
    ran = watch_clip(daemon, tmp_path, "--json")
    assert (ran.status, ran.err) == (0, "")
    frames = ran.documents
    assert [frame["seq"] for frame in frames] == list(range(1, len(CLIP) + 1))
    assert [frame["pts_s"] for frame in frames] == [round(n * 0.04, 6) for n in range(len(CLIP))]
    assert all((frame["width"], frame["height"]) == (64, 48) for frame in frames)
    assert all(frame["age_ms"] >= 0 for frame in frames)


def test_detections_are_shown_as_text(daemon: RunningDaemon, tmp_path: Path) -> None:
    ran = watch_clip(daemon, tmp_path, "--model", "tiny-image")
    assert (ran.status, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert len(lines) == len(CLIP)
    for line, label in zip(lines, ["red", "green", "blue"] * 4, strict=True):
        assert f"1 {label} | {label} " in line
        assert line.endswith("[0 0 64 48]")


def test_detections_are_json_lines_with_json(daemon: RunningDaemon, tmp_path: Path) -> None:
    ran = watch_clip(daemon, tmp_path, "--model", "tiny-image", "--json")
    assert (ran.status, ran.err) == (0, "")
    labels = [[found["label"] for found in result["detections"]] for result in ran.documents]
    assert labels == [["red"], ["green"], ["blue"]] * 4
    (found,) = ran.documents[0]["detections"]
    assert found["score"] > 0.9
    assert found["box"] == [0, 0, 64, 48]
    assert [result["seq"] for result in ran.documents] == list(range(1, len(CLIP) + 1))
    assert all(result["latency_ms"] > 0 for result in ran.documents)


def test_detections_are_chosen_by_label_and_score(daemon: RunningDaemon, tmp_path: Path) -> None:
    chosen = ("--label", "green", "--label", "blue", "--min-score", "0.5")
    ran = watch_clip(daemon, tmp_path, "--model", "tiny-image", "--json", *chosen)
    labels = [[found["label"] for found in result["detections"]] for result in ran.documents]
    assert labels == [[], ["green"], ["blue"]] * 4


def test_limit_ends_it_while_the_stream_goes_on(daemon: RunningDaemon) -> None:
    with live_stream(daemon) as (_, stream):
        publish(stream)
        ran = run_mcpd("watch", "v", "--limit", "1", "--json", socket=daemon.socket)
        assert ran.status == 0
        assert len(ran.documents) == 1
        assert ran.documents[0]["pts_s"] is None
        publish(stream)


def test_tensors_of_other_models_are_summarised(daemon: RunningDaemon) -> None:
    with live_stream(daemon) as (_, stream):
        publish(stream, 1_000_000_000)
        words = ("watch", "v", "--model", "trivial", "--limit", "1")
        with start_mcpd(*words, "--json", socket=daemon.socket) as watching:
            wait_until(lambda: bool(stream.readers), READER_TIMEOUT_S, "the worker reads")
            publish(stream, 2_000_000_000)
            out, err = watching.communicate(timeout=READER_TIMEOUT_S)
    assert (watching.returncode, err) == (0, "")
    (mean,) = json.loads(out)["tensors"].values()
    assert mean == {"dtype": "float32", "shape": [1, 3], "first": [255.0, 0.0, 0.0]}


def test_stream_whose_writer_dies_is_an_error(daemon: RunningDaemon, tmp_path: Path) -> None:
    clip = write_video(tmp_path / "clip.mp4", CLIP)
    source = ("push", str(clip), "--stream", "v", "--loop", "--wait-readers", "1")
    with start_mcpd(*source, socket=daemon.socket) as pushing, connect(daemon.socket) as client:
        wait_until(lambda: bool(client.list("streams")), READER_TIMEOUT_S, "the stream is there")
        with start_mcpd("watch", "v", socket=daemon.socket) as watching:
            assert watching.stdout is not None
            assert watching.stdout.readline()
            pushing.kill()
            _, err = watching.communicate(timeout=READER_TIMEOUT_S)
            assert watching.returncode == 1
            assert "mcpd: error: " in err
            assert "writer died" in err


def test_unknown_stream_and_model_are_errors_that_name_what_there_is(
    daemon: RunningDaemon,
) -> None:
    with live_stream(daemon):
        ran = run_mcpd("watch", "nothing", socket=daemon.socket)
        assert ran.status == 1
        assert "'nothing'" in ran.err
        ran = run_mcpd("watch", "v", "--model", "nothing", "--json", socket=daemon.socket)
        assert ran.status == 1
        assert ran.document["error"]["code"] == "not_found"
        assert "tiny-image" in ran.document["error"]["hint"]


def test_filters_without_a_model_are_wrong_usage(daemon: RunningDaemon) -> None:
    assert run_mcpd("watch", "v", "--label", "cat", socket=daemon.socket).status == 2


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_signal_that_ends_it_is_quiet(daemon: RunningDaemon, signum: int) -> None:
    with (
        live_stream(daemon) as (_, stream),
        start_mcpd("watch", "v", socket=daemon.socket) as watching,
    ):
        publish(stream)
        assert watching.stdout is not None
        assert watching.stdout.readline()
        watching.send_signal(signum)
        _, err = watching.communicate(timeout=READER_TIMEOUT_S)
        assert (watching.returncode, err) == (128 + signum, "")


def test_reader_of_its_output_may_go_away(daemon: RunningDaemon) -> None:
    with (
        live_stream(daemon) as (_, stream),
        start_mcpd("watch", "v", socket=daemon.socket) as watching,
    ):
        assert watching.stdout is not None
        assert watching.stderr is not None
        publish(stream)
        watching.stdout.readline()
        watching.stdout.close()
        publish(stream)
        assert watching.wait(READER_TIMEOUT_S) == 128 + signal.SIGPIPE
        assert watching.stderr.read() == ""


@pytest.mark.parametrize("model", [(), ("--model", "tiny-image")])
def test_daemon_that_dies_ends_it_with_an_error(
    tmp_path: Path, model_repository: Path, model: tuple[str, ...]
) -> None:
    with (
        RunningDaemon(tmp_path, model_repository) as running,
        live_stream(running) as (_, stream),
        start_mcpd("watch", "v", *model, socket=running.socket) as watching,
    ):
        wait_until(lambda: bool(stream.readers), READER_TIMEOUT_S, "it reads")
        publish(stream)
        assert watching.stdout is not None
        assert watching.stdout.readline()
        running.kill()
        _, err = watching.communicate(timeout=READER_TIMEOUT_S)
        assert watching.returncode in (1, 3)
        assert err.startswith("mcpd: error: ")
        assert "Traceback" not in err
