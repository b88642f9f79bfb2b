"""The source: real clips played into streams of a real daemon, and every way in which it ends."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mcpd.shm import ReaderStream
from mcpd.shm.client import Client, connect
from mcpd.shm.frame import FLAG_KEYFRAME, NO_TIME
from tests.cli.clips import BLUE, GREEN, RED, truncate, write_noise, write_picture, write_video
from tests.support.daemon import RunningDaemon, wait_until

TIMEOUT_S = 60.0
FRAME_NS = 40_000_000
COLOURS = [RED, GREEN, BLUE] * 5


@contextmanager
def source(daemon: RunningDaemon, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A source that plays into stream `v`; killed if it still runs at the end."""
    words = [sys.executable, "-P", "-m", "mcpd.daemon.source", *map(str, arguments)]
    with subprocess.Popen(
        [*words, "--stream", "v", "--socket", daemon.socket],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def finish(process: subprocess.Popen[str]) -> tuple[int, list[dict[str, Any]], str]:
    """Its exit status, the JSON lines of its standard output, and its standard error."""
    out, err = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, [json.loads(line) for line in out.splitlines()], err


def stream_exists(client: Client) -> Callable[[], bool]:
    return lambda: any(
        row["name"] == "v" and row["state"] == "live" for row in client.list("streams")
    )


@contextmanager
def reading(daemon: RunningDaemon, policy: str = "lossless") -> Iterator[ReaderStream]:
    """A reader of `v`, attached as soon as it is there."""
    with connect(daemon.socket) as client:
        wait_until(stream_exists(client), TIMEOUT_S, "the source has made its stream")
        with client.open_stream("v", policy=policy) as reader:
            yield reader


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    """Fifteen frames, one colour each, 25 a second."""
    return write_video(tmp_path / "clip.mp4", COLOURS)


def test_every_frame_arrives_in_order_with_its_picture_and_times(
    bare_daemon: RunningDaemon, clip: Path
) -> None:
    wanted = (
        "--max-speed",
        "--wait-readers",
        1,
        "--format",
        "rgb24",
        "--json",
        "--progress",
        "none",
    )
    with source(bare_daemon, clip, *wanted) as process:
        with reading(bare_daemon) as reader:
            seen = 0
            for number, frame in enumerate(reader):
                (pixels,) = frame.planes
                assert pixels.shape == (48, 64, 3)
                assert np.abs(pixels.astype(int) - COLOURS[number]).max() < 32
                assert frame.seq == number + 1
                assert frame.pts_ns == number * FRAME_NS
                assert frame.capture_ns != NO_TIME
                assert frame.capture_ns <= frame.publish_ns
                seen += 1
        status, (summary,), err = finish(process)
    assert (status, err) == (0, "")
    assert seen == len(COLOURS)
    assert summary["event"] == "summary"
    assert summary["frames"] == len(COLOURS)
    assert summary["nbytes"] == len(COLOURS) * 64 * 48 * 3
    assert summary["loops"] == 1
    assert summary["seconds"] > 0
    assert summary["cpu_s"] > 0
    assert summary["startup_cpu_s"] > 0
    assert {"rchar", "wchar", "read_bytes", "write_bytes"} <= summary["io"].keys()


def test_format_is_the_decoders_own_unless_another_is_asked_for(
    bare_daemon: RunningDaemon, clip: Path
) -> None:
    for wanted, made in (("auto", "i420"), ("nv12", "nv12"), ("bgr24", "bgr24")):
        with source(bare_daemon, clip, "--wait-readers", 1, "--format", wanted) as process:
            with reading(bare_daemon) as reader:
                frame = reader.next(TIMEOUT_S)
                assert frame.description.format == made
                frame.close()
            assert finish(process)[0] == 0


def test_key_frames_are_marked(bare_daemon: RunningDaemon, tmp_path: Path) -> None:
    clip = write_video(tmp_path / "still.mkv", [RED] * 10)
    with source(bare_daemon, clip, "--max-speed", "--wait-readers", 1) as process:
        with reading(bare_daemon) as reader:
            marked = [bool(frame.flags & FLAG_KEYFRAME) for frame in reader]
        assert finish(process)[0] == 0
    assert marked[0]
    assert not all(marked)


def test_loops_go_on_in_time(bare_daemon: RunningDaemon, clip: Path) -> None:
    wanted = ("--max-speed", "--wait-readers", 1, "--loop", 3, "--json", "--progress", "none")
    with source(bare_daemon, clip, *wanted) as process:
        with reading(bare_daemon) as reader:
            stamps = [frame.pts_ns for frame in reader]
        status, (summary,), _ = finish(process)
    assert status == 0
    assert summary["loops"] == 3
    assert stamps == [number * FRAME_NS for number in range(3 * len(COLOURS))]


def test_file_is_played_at_its_own_pace(bare_daemon: RunningDaemon, clip: Path) -> None:
    with source(bare_daemon, clip, "--wait-readers", 1) as process:
        with reading(bare_daemon) as reader:
            published = [frame.publish_ns for frame in reader]
        assert finish(process)[0] == 0
    # The first one may have been late; from then on none is early.
    assert published[-1] - published[0] > (len(COLOURS) - 4) * FRAME_NS


def test_picture_is_one_frame(bare_daemon: RunningDaemon, tmp_path: Path) -> None:
    picture = write_picture(tmp_path / "red.png", RED, width=33, height=21)
    with source(bare_daemon, picture, "--wait-readers", 1) as process:
        with reading(bare_daemon) as reader:
            shapes = [frame.planes[0].shape for frame in reader]
        assert finish(process)[0] == 0
    assert shapes == [(21, 33, 3)]


def test_truncated_video_gives_its_frames_and_then_an_error(
    bare_daemon: RunningDaemon, tmp_path: Path
) -> None:
    clip = truncate(write_noise(tmp_path / "noise.mkv", 40), 0.5)
    with source(bare_daemon, clip, "--max-speed", "--wait-readers", 1) as process:
        with reading(bare_daemon) as reader:
            frames = sum(1 for _ in reader)
        status, _, err = finish(process)
    assert status == 1
    assert 10 <= frames < 40
    assert err.startswith("mcpd: error: ")
    assert "truncated" in err


@pytest.mark.parametrize("content", [b"", b"no video at all" * 100])
def test_file_that_is_no_video_is_an_error(
    bare_daemon: RunningDaemon, tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "bad.mp4").write_bytes(content)
    with source(bare_daemon, tmp_path / "bad.mp4", "--json") as process:
        status, (told,), err = finish(process)
    assert (status, err) == (1, "")
    assert told["error"]["code"] == "invalid"
    assert "bad.mp4" in told["error"]["message"]


@pytest.mark.parametrize("format", ["i420", "nv12"])
def test_picture_of_odd_sides_goes_into_formats_that_share_chroma(
    bare_daemon: RunningDaemon, tmp_path: Path, format: str
) -> None:
    picture = write_picture(tmp_path / "odd.png", RED, width=33, height=21)
    with source(bare_daemon, picture, "--wait-readers", 1, "--format", format) as process:
        with reading(bare_daemon) as reader, reader.next(TIMEOUT_S) as frame:
            assert [plane.shape[:2] for plane in frame.planes[:2]] == [(21, 33), (11, 17)]
            last = [int(plane.reshape(-1)[-1]) for plane in frame.planes]
        assert finish(process)[0] == 0
    assert last[-1] > 200  # Cr of red


def test_name_that_is_taken_is_an_error(bare_daemon: RunningDaemon, clip: Path) -> None:
    with (
        connect(bare_daemon.socket) as client,
        client.create_stream("v", width=64, height=48, format="rgb24"),
        source(bare_daemon, clip) as process,
    ):
        status, _, err = finish(process)
    assert status == 1
    assert "'v' exists" in err


def test_no_daemon_is_exit_status_3(tmp_path: Path, clip: Path) -> None:
    with RunningDaemon(tmp_path) as running:
        running.stop()
        with source(running, clip) as process:
            status, _, err = finish(process)
        running.start()
    assert status == 3
    assert "mcpd start" in err


def test_waits_for_its_readers(bare_daemon: RunningDaemon, clip: Path) -> None:
    wanted = ("--max-speed", "--wait-readers", 2, "--json", "--progress", "json")
    with source(bare_daemon, clip, *wanted) as process:
        with reading(bare_daemon) as first:
            assert process.stdout is not None
            waiting = [json.loads(process.stdout.readline()) for _ in range(2)]
            assert waiting == [
                {"event": "waiting", "readers": readers, "wanted": 2} for readers in (0, 1)
            ]
            with reading(bare_daemon) as second:
                # In turn: each of them holds the source back.
                pairs = [(a.seq, b.seq) for a, b in zip(first, second, strict=True)]
        assert pairs == [(seq, seq) for seq in range(1, len(COLOURS) + 1)]
        assert finish(process)[0] == 0


def test_source_whose_reader_is_behind_waits_and_is_not_done_before_it(
    bare_daemon: RunningDaemon, clip: Path
) -> None:
    wanted = ("--max-speed", "--wait-readers", 1, "--slots", 5, "--json", "--progress", "none")
    with source(bare_daemon, clip, *wanted) as process:
        with reading(bare_daemon) as reader:
            wait_until(lambda: _published(bare_daemon) > 0, TIMEOUT_S, "it has begun")
            assert sum(1 for _ in reader) == len(COLOURS)
            assert process.poll() is None  # it lets the last frames be read in peace
        status, (summary,), _ = finish(process)
    assert status == 0
    assert summary["frames"] == len(COLOURS)


@pytest.mark.parametrize(("signum", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signal_ends_the_stream_in_order(
    bare_daemon: RunningDaemon, clip: Path, signum: int, status: int
) -> None:
    with source(bare_daemon, clip, "--loop", "--wait-readers", 1) as process:
        with reading(bare_daemon) as reader:
            reader.next(TIMEOUT_S).close()
            process.send_signal(signum)
            for frame in reader:  # StreamClosed, were it for another reason than "closed"
                frame.close()
        assert finish(process)[0] == status


@pytest.mark.parametrize(("signum", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signal_ends_it_while_its_source_says_nothing(
    bare_daemon: RunningDaemon, signum: int, status: int
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as camera:
        camera.settimeout(TIMEOUT_S)
        address = f"http://127.0.0.1:{camera.getsockname()[1]}/"
        with source(bare_daemon, address) as process, camera.accept()[0]:
            process.send_signal(signum)
            assert finish(process) == (status, [], "")


@pytest.mark.parametrize("state", ["paced", "waiting for readers", "held back"])
def test_daemon_that_dies_ends_it_at_once(tmp_path: Path, state: str) -> None:
    clip = write_video(tmp_path / "slow.mkv", [RED, GREEN], fps=1)
    arguments: tuple[object, ...] = ("--loop", "--wait-readers", 9)
    if state == "paced":
        arguments = ("--loop",)
    elif state == "held back":
        arguments = ("--loop", "--wait-readers", 1, "--max-speed")
    with RunningDaemon(tmp_path) as running, source(running, clip, *arguments) as process:
        with reading(running) as reader:
            if state == "held back":
                # Of 8 slots no more than these can be filled while their reader takes none.
                wait_until(lambda: _published(running) >= 6, TIMEOUT_S, "it is held back")
            elif state == "paced":
                reader.next(TIMEOUT_S).close()
            running.kill()
            status, _, err = finish(process)
        running.start()
    assert status == 1
    assert err.startswith("mcpd: error: the daemon went away")
    assert err.count("mcpd: error") == 1


def test_daemon_that_stops_in_order_ends_it_too(tmp_path: Path, clip: Path) -> None:
    with RunningDaemon(tmp_path) as running, source(running, clip, "--loop") as process:
        with reading(running, "latest") as reader:
            reader.next(TIMEOUT_S).close()
            running.stop()
        status, _, err = finish(process)
        running.start()
    assert status == 1
    assert err.count("mcpd: error") == 1


def test_killed_source_leaves_nothing(bare_daemon: RunningDaemon, clip: Path) -> None:
    with source(bare_daemon, clip, "--loop") as process, connect(bare_daemon.socket) as client:
        wait_until(stream_exists(client), TIMEOUT_S, "the stream is there")
        process.kill()
        process.wait(TIMEOUT_S)
        wait_until(lambda: client.list("leases") == [], TIMEOUT_S, "its leases are gone")


def test_frames_are_in_no_pipe_or_socket(bare_daemon: RunningDaemon, tmp_path: Path) -> None:
    clip = write_video(tmp_path / "large.mp4", COLOURS * 4, width=1280, height=720)
    wanted = ("--max-speed", "--wait-readers", 1, "--json", "--progress", "none")
    with source(bare_daemon, clip, *wanted) as process:
        with reading(bare_daemon) as reader:
            frames = sum(1 for _ in reader)
        status, (summary,), _ = finish(process)
    assert status == 0
    assert summary["io"]["wchar"] / frames < 4096
    assert summary["nbytes"] == frames * 1280 * 720 * 3 // 2


def _published(daemon: RunningDaemon) -> int:
    with connect(daemon.socket) as client:
        return sum(int(row["published"]) for row in client.list("streams"))
