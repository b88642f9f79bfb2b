"""The example programs, built against an installed libmcpd alone and run with a live daemon."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from mcpd.shm import connect
from mcpd.shm.errors import NotFound, StreamClosed
from mcpd.shm.reader_stream import ReaderStream
from tests.support.daemon import RunningDaemon, wait_until
from tests.support.libmcpd import ROOT, compile_program, pkg_config

EXAMPLES = ROOT / "native/examples"
FFMPEG = ("libavformat", "libavcodec", "libavutil")
DECODE_SOURCES = ("decode.c", "slot_buffers.c", "picture.c")
TIMEOUT_S = 60
CODECS = {
    "libx264": ("mp4", "yuv420p", {"bf": "3", "refs": "4", "preset": "veryfast"}),
    "mpeg4": ("mp4", "yuv420p", {"bf": "2"}),
    "mjpeg": ("mkv", "yuvj420p", {}),
    "libvpx-vp9": ("mkv", "yuv420p", {"deadline": "realtime", "cpu-used": "8"}),
    "ffv1": ("mkv", "gray", {}),
}
"""By name of PyAV's encoder: container, pixel format, options."""


class Clip(NamedTuple):
    """A video, and what PyAV decodes of it."""

    path: Path
    frames: list[list[NDArray[np.uint8]]]
    """Of each, its planes without padding."""
    pts_ns: list[int]

    @property
    def luma_sums(self) -> list[str]:
        return [f"{zlib.adler32(planes[0].tobytes()):08x}" for planes in self.frames]


def write_clip(path: Path, codec: str, width: int, height: int, count: int) -> Path:
    """A picture that moves and is hard to predict, so that frames refer to others."""
    _, pixels, options = CODECS[codec]
    random = np.random.default_rng(5)
    noise = random.integers(0, 40, (height, width), np.uint8)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=25, options=options)
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height, stream.pix_fmt = width, height, pixels
        stream.time_base = Fraction(1, 25)
        rows, columns = np.mgrid[0:height, 0:width]
        for number in range(count):
            ramp = (columns + 3 * number) // 2 + (rows + number) // 3
            gray = (ramp % 200 + np.roll(noise, number * 5, 1)).astype(np.uint8)
            image = np.stack([gray, gray // 2 + number, 255 - gray], axis=-1)
            frame = av.VideoFrame.from_ndarray(image.astype(np.uint8), format="rgb24")
            frame.pts = number
            container.mux(stream.encode(frame.reformat(format=pixels)))
        container.mux(stream.encode())
    return path


def planes_of(frame: av.VideoFrame) -> list[NDArray[np.uint8]]:
    return [
        np.frombuffer(memoryview(plane), np.uint8)
        .reshape(-1, plane.line_size)[:, : plane.width]
        .copy()
        for plane in frame.planes
    ]


def decoded(path: Path) -> Clip:
    clip = Clip(path, [], [])
    with av.open(str(path)) as container:
        for frame in container.decode(video=0):
            clip.frames.append(planes_of(frame))
            if frame.pts is not None and frame.time_base is not None:  # a bare stream has none
                clip.pts_ns.append(round(frame.pts * frame.time_base * 1_000_000_000))
    return clip


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Clip]:
    """Small clips by codec; sides that are no multiple of a block, so that decoders crop."""
    folder = tmp_path_factory.mktemp("clips")
    made = {}
    for codec, (container, _, _) in CODECS.items():
        path = write_clip(folder / f"{codec}.{container}", codec, 322, 178, 24)
        made[codec] = decoded(path)
    return made


def need_ffmpeg() -> None:
    """Skips where FFmpeg's headers are missing, unless this is a machine that has to have them."""
    missing = subprocess.run(["pkg-config", "--exists", *FFMPEG], check=False).returncode != 0
    if missing and os.environ.get("MCPD_REQUIRE_FFMPEG") == "1":
        pytest.fail("FFmpeg's development packages should be here and are not")
    if missing:
        pytest.skip("apt-get install libavformat-dev libavcodec-dev libavutil-dev pkg-config")


def build_decode(prefix: Path, folder: Path, replaced: Mapping[str, str] | None = None) -> Path:
    """mcpd-decode from a copy of its sources, with pieces of slot_buffers.c replaced."""
    need_ffmpeg()
    copy = folder / "examples"
    shutil.copytree(EXAMPLES, copy)
    text = (copy / "slot_buffers.c").read_text()
    for honest, planted in (replaced or {}).items():
        assert honest in text
        text = text.replace(honest, planted)
    (copy / "slot_buffers.c").write_text(text)
    sources = [str(copy / name) for name in DECODE_SOURCES]
    libraries = pkg_config(prefix, "--cflags", "--libs", *FFMPEG)
    flags = ["-std=c11", "-O1", *sources, *libraries, "-lm", "-pthread"]
    return compile_program(prefix, folder / "mcpd-decode", *flags)


@pytest.fixture(scope="module")
def decode(prefix: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_decode(prefix, tmp_path_factory.mktemp("decode"))


@pytest.fixture(scope="module")
def read(prefix: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    binary = tmp_path_factory.mktemp("read") / "mcpd-read"
    return compile_program(prefix, binary, "-std=c11", "-O1", str(EXAMPLES / "read.c"))


@contextmanager
def started(daemon: RunningDaemon, *command: str | Path) -> Iterator[subprocess.Popen[str]]:
    """A program that talks to the daemon; killed if it is still there at the end."""
    process = subprocess.Popen(
        [*map(str, command)],
        env=daemon.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def finished(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, out, err


@contextmanager
def attached(daemon: RunningDaemon, policy: str = "lossless") -> Iterator[ReaderStream]:
    """A Python reader of `cam`, once it is there."""
    with connect(daemon.socket) as session:
        found: list[ReaderStream] = []

        def attach() -> bool:
            try:
                found.append(session.open_stream("cam", policy=policy))
            except (NotFound, StreamClosed):  # or it has just ended, and the next is not there yet
                return False
            return True

        wait_until(attach, TIMEOUT_S, "the stream cam is there")
        yield found[0]


def read_all(reader: ReaderStream) -> Clip:
    """Every frame that a reader gets until its stream is closed."""
    clip = Clip(Path(), [], [])
    while True:
        try:
            frame = reader.next(TIMEOUT_S)
        except StreamClosed:
            assert reader.ended == "closed"
            return clip
        with frame:
            clip.frames.append([plane.copy() for plane in frame.planes])
            clip.pts_ns.append(frame.pts_ns)


def same(seen: Clip, wanted: Clip) -> bool:
    if len(seen.frames) != len(wanted.frames):
        return False
    return seen.pts_ns == wanted.pts_ns and all(
        np.array_equal(a, b)
        for planes, others in zip(seen.frames, wanted.frames, strict=True)
        for a, b in zip(planes, others, strict=True)
    )


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("codec", CODECS)
def test_the_reader_prints_what_the_writer_decodes(
    decode: Path,
    read: Path,
    clips: Mapping[str, Clip],
    bare_daemon: RunningDaemon,
    codec: str,
    threads: int,
) -> None:
    clip = clips[codec]
    options = ("--readers", "1", "--threads", str(threads), "--pins", "2")
    with started(bare_daemon, decode, clip.path, "cam", *options) as writer:
        with connect(bare_daemon.socket) as session:
            wait_until(lambda: session.list("streams") != [], TIMEOUT_S, "the stream is there")
        with started(bare_daemon, read, "cam", "--policy", "lossless") as reader:
            status, out, err = finished(reader)
            assert (status, "ended: closed" in err) == (0, True), err
        status, _, said = finished(writer)
        assert status == 0, said
    lines = [dict(re.findall(r"(\w+)=(\S+)", line)) for line in out.splitlines()]
    assert [int(line["seq"]) for line in lines] == list(range(1, len(clip.frames) + 1))
    assert [int(line["pts_ns"]) for line in lines] == clip.pts_ns
    assert [line["sum"] for line in lines] == clip.luma_sums
    assert lines[0]["key"] == "1"
    assert f"in_place={len(clip.frames)} copied=0 streams=1" in said


def test_python_reads_the_very_frames(
    decode: Path, clips: Mapping[str, Clip], bare_daemon: RunningDaemon
) -> None:
    clip = clips["libx264"]
    with started(bare_daemon, decode, clip.path, "cam", "--readers", "1", "--pins", "2") as writer:
        with attached(bare_daemon) as reader:
            assert same(read_all(reader), clip)
        assert finished(writer)[0] == 0


def test_a_writer_that_does_not_hold_reference_frames_is_caught(
    prefix: Path, tmp_path: Path, clips: Mapping[str, Clip], bare_daemon: RunningDaemon
) -> None:
    planted = build_decode(prefix, tmp_path, {"meta, in_place);": "meta, 0);"})
    clip = clips["libx264"]
    command = (planted, clip.path, "cam", "--readers", "1", "--pins", "2")
    with started(bare_daemon, *command) as writer, attached(bare_daemon) as reader:
        seen = read_all(reader)
        finished(writer)
    assert not same(seen, clip)


@pytest.mark.parametrize("threads", ["1", "3"])
def test_a_change_of_size_makes_the_stream_anew(
    decode: Path, tmp_path: Path, bare_daemon: RunningDaemon, threads: str
) -> None:
    small = decoded(write_clip(tmp_path / "small.h264", "libx264", 160, 96, 12))
    large = decoded(write_clip(tmp_path / "large.h264", "libx264", 322, 178, 12))
    both = tmp_path / "both.h264"
    both.write_bytes(small.path.read_bytes() + large.path.read_bytes())
    command = (decode, both, "cam", "--readers", "1", "--threads", threads)
    with started(bare_daemon, *command) as writer:
        for clip in (small, large):
            with attached(bare_daemon) as reader:
                seen = read_all(reader)
            assert [p[0].shape for p in seen.frames] == [p[0].shape for p in clip.frames]
            assert all(
                np.array_equal(a[0], b[0]) for a, b in zip(seen.frames, clip.frames, strict=True)
            )
        status, _, said = finished(writer)
    assert status == 0, said
    assert "streams=2" in said


def test_a_format_that_no_slot_has_is_a_clear_error(
    decode: Path, tmp_path: Path, bare_daemon: RunningDaemon
) -> None:
    path = tmp_path / "deep.mkv"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("ffv1", rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv444p10le"
        container.mux(stream.encode(av.VideoFrame(64, 48, "yuv444p10le")))
        container.mux(stream.encode())
    with started(bare_daemon, decode, path, "cam") as writer:
        status, _, said = finished(writer)
    assert status == 1
    assert "yuv444p10le" in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("/none/clip.mp4", "cam"), "No such file"),
        ((__file__, "cam"), "Invalid data"),
        (("CLIP", "no/name"), "stream name"),
    ],
)
def test_what_the_writer_cannot_do_it_says(
    decode: Path,
    clips: Mapping[str, Clip],
    bare_daemon: RunningDaemon,
    arguments: tuple[str, ...],
    words: str,
) -> None:
    given = [str(clips["libx264"].path) if one == "CLIP" else one for one in arguments]
    with started(bare_daemon, decode, *given) as writer:
        status, _, said = finished(writer)
    assert status == 1
    assert words in said


def test_sigint_ends_the_writer_in_order(
    decode: Path, clips: Mapping[str, Clip], bare_daemon: RunningDaemon
) -> None:
    command = (decode, clips["libx264"].path, "cam", "--realtime", "--readers", "1")
    with started(bare_daemon, *command) as writer, attached(bare_daemon) as reader:
        reader.next(TIMEOUT_S).close()
        writer.send_signal(signal.SIGINT)
        assert finished(writer)[0] == 0
        assert len(read_all(reader).frames) < len(clips["libx264"].frames) - 1


def leases_of(daemon: RunningDaemon, *pids: int) -> list[dict[str, Any]]:
    with connect(daemon.socket) as session:
        rows = session.list("leases") + session.list("sessions")
        return [row for row in rows if row["pid"] in pids]


def test_a_killed_writer_leaves_nothing(
    decode: Path, read: Path, clips: Mapping[str, Clip], bare_daemon: RunningDaemon
) -> None:
    command = (decode, clips["libx264"].path, "cam", "--realtime", "--readers", "1")
    with started(bare_daemon, *command) as writer:
        with connect(bare_daemon.socket) as session:
            wait_until(lambda: session.list("streams") != [], TIMEOUT_S, "the stream is there")
        with started(bare_daemon, read, "cam") as reader:
            assert reader.stdout is not None
            assert reader.stdout.readline().startswith("seq=")
            writer.kill()
            status, _, err = finished(reader)
            assert (status, "ended: writer_died" in err) == (1, True), err
        pids = (writer.pid, reader.pid)
        wait_until(lambda: leases_of(bare_daemon, *pids) == [], TIMEOUT_S, "nothing is left")


def test_a_killed_reader_leaves_nothing(
    decode: Path, read: Path, clips: Mapping[str, Clip], bare_daemon: RunningDaemon
) -> None:
    clip = clips["libx264"]
    with started(bare_daemon, decode, clip.path, "cam", "--readers", "2") as writer:
        with connect(bare_daemon.socket) as session:
            wait_until(lambda: session.list("streams") != [], TIMEOUT_S, "the stream is there")
        with (
            started(bare_daemon, read, "cam", "--policy", "lossless") as reader,
            attached(bare_daemon) as own,
        ):
            assert reader.stdout is not None
            assert reader.stdout.readline().startswith("seq=")
            reader.kill()
            # A lossless reader that is dead does not hold the writer back.
            assert same(read_all(own), clip)
            assert finished(writer)[0] == 0
            wait_until(
                lambda: leases_of(bare_daemon, reader.pid) == [], TIMEOUT_S, "nothing is left"
            )


def test_the_reader_prints_what_a_model_finds(read: Path, daemon: RunningDaemon) -> None:
    with (
        connect(daemon.socket) as session,
        session.create_stream("cam", width=32, height=16, format="rgb24") as stream,
        started(daemon, read, "cam", "--model", "tiny-image", "--count", "2") as reader,
    ):
        while reader.poll() is None:
            with stream.acquire(TIMEOUT_S) as slot:
                slot.planes[0][...] = (255, 0, 0)
                slot.publish()
            signal.sigtimedwait((), 0.02)
        status, out, err = finished(reader)
    assert status == 0, err
    for line in out.splitlines():
        assert "status=0" in line
        assert line.endswith(" red=1.000@0.0,0.0,32.0,16.0")
