"""Video and pictures: every plane where it belongs, and a clear word about what is no video."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import av
import numpy as np
import pytest

from mcpd.shm.bundle import describe_frame, describe_tensors
from mcpd.shm.errors import InvalidRequest, McpdError, NotFound, TimedOut
from mcpd.shm.picture import Picture, frame_format, frame_matrix, frame_range, write_frame
from mcpd.shm.video import Video, open_video
from tests.support.descriptors import no_descriptor_leaked
from tests.support.streams import LocalStream

FRAMES = 40


def gradient(width: int, height: int, number: int = 0) -> av.VideoFrame:
    """A frame of smooth colours: compression and chroma change them little."""
    x = np.linspace(0, 200, width, dtype=np.float32)[None, :]
    y = np.linspace(0, 200, height, dtype=np.float32)[:, None]
    red, green = np.broadcast_to(x, (height, width)), np.broadcast_to(y, (height, width))
    blue = np.full((height, width), (number * 5) % 256, np.float32)
    image = np.stack([red, green, blue], axis=2).astype(np.uint8)
    return av.VideoFrame.from_ndarray(image, format="rgb24")


def write_video(
    path: Path, width: int = 128, height: int = 96, *, gop: int = 12, **options: str
) -> Path:
    with av.open(str(path), "w", options=options) as container:
        stream = container.add_stream("libx264", rate=20)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.gop_size = gop
        for number in range(FRAMES):
            image = gradient(width, height, number).to_ndarray()
            # Noise, so that a part of the file is a part of the frames.
            image[: height // 2] = np.random.default_rng(number).integers(0, 256, (1, width, 3))
            image[::3] = np.random.default_rng(number).integers(0, 256, image[::3].shape)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode(None))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("video")
    write_video(folder / "plain.mp4")
    write_video(folder / "fast.mp4", movflags="faststart")
    write_video(folder / "clip.mkv")
    return folder


def cut(path: Path, share: float) -> Path:
    """A copy with only the first part of a file."""
    data = path.read_bytes()
    cut = path.with_name(f"cut-{share}-{path.name}")
    cut.write_bytes(data[: int(len(data) * share)])
    return cut


def in_rgb(frame: av.VideoFrame, format: str, matrix: str, range: str) -> np.ndarray:
    """Writes a frame into a slot of a format, and what the slot holds, converted to RGB."""
    description = describe_frame(format, frame.width, frame.height, matrix=matrix, range=range)
    with LocalStream(description) as stream:
        reader = stream.attach()
        with stream.writer.acquire(0) as slot:
            write_frame(frame, slot)
        with reader.next(0) as got:
            planes = [plane.reshape(plane.shape[0], -1) for plane in got.planes]
    names = {"i420": "yuv420p", "gray8": "gray", "yuyv422": "yuyv422", "nv12": "nv12"}
    made = av.VideoFrame(frame.width, frame.height, names.get(format, format))
    for source, target in zip(planes, made.planes, strict=True):
        rows = np.zeros((target.height, target.line_size), np.uint8)
        rows[: source.shape[0], : source.shape[1]] = source
        target.update(rows.tobytes())
    code = {"bt601": 5, "bt709": 1}[matrix]
    return made.reformat(
        format="rgb24", src_colorspace=code, src_color_range={"limited": 1, "full": 2}[range]
    ).to_ndarray()


@pytest.mark.parametrize("name", ["plain.mp4", "fast.mp4", "clip.mkv"])
def test_video_gives_every_frame_with_its_time(folder: Path, name: str) -> None:
    with no_descriptor_leaked(), open_video(str(folder / name)) as video:
        assert (video.width, video.height, video.format) == (128, 96, "i420")
        assert (video.fps, video.live, video.rotation, video.range) == (20, False, 0, "limited")
        times = [picture.pts_ns for picture in video]
        assert len(times) == video.frames_read == FRAMES
        assert video.frames in (0, FRAMES)
        gaps = np.diff([time for time in times if time is not None])
        assert np.abs(gaps - 50_000_000).max() <= 1_000_000


def test_video_may_be_played_again(folder: Path) -> None:
    with no_descriptor_leaked(), open_video(str(folder / "plain.mp4")) as video:
        first = [picture.pts_ns for picture in video]
        video.rewind()
        assert [picture.pts_ns for picture in video] == first


@pytest.mark.parametrize("format", ["i420", "nv12", "rgb24", "bgr24", "rgba", "bgra", "yuyv422"])
@pytest.mark.parametrize("source", ["yuv420p", "nv12", "rgb24", "yuv444p", "bgr24", "yuyv422"])
def test_frame_of_any_format_goes_into_a_slot_of_any_format(source: str, format: str) -> None:
    frame = gradient(130, 62)  # rows that are padded
    original = frame.to_ndarray()
    converted = frame.reformat(
        format=source, dst_colorspace=5, dst_color_range=1 if source[0] in "yn" else 2
    )
    if source[0] in "yn":
        converted.colorspace, converted.color_range = 5, 1
    difference = np.abs(in_rgb(converted, format, "bt601", "limited").astype(int) - original)
    assert difference.mean() < 3, difference.mean()


def test_matrix_and_range_of_frame_and_slot_are_both_heeded() -> None:
    frame = gradient(128, 64)
    original = frame.to_ndarray()
    for matrix, code in (("bt601", 5), ("bt709", 1)):
        for range, number in (("limited", 1), ("full", 2)):
            for given, given_code in (("bt601", 5), ("bt709", 1)):
                source = frame.reformat(
                    format="yuv444p", dst_colorspace=given_code, dst_color_range=1
                )
                source.colorspace, source.color_range = given_code, 1
                assert (frame_matrix(source), frame_range(source)) == (given, "limited")
                got = in_rgb(source, "i420", matrix, range).astype(int)
                assert np.abs(got - original).mean() < 3, (matrix, range, given, code, number)


def test_frame_of_another_size_is_scaled_to_the_slot() -> None:
    description = describe_frame("rgb24", 64, 48)
    with LocalStream(description) as stream, stream.writer.acquire(0) as slot:
        write_frame(gradient(320, 240), slot)
        expected = gradient(64, 48).to_ndarray().astype(int)
        assert np.abs(slot.planes[0] - expected).mean() < 4


def test_slot_without_a_picture_is_refused() -> None:
    with (
        LocalStream(describe_tensors({}), slot_nbytes=4096) as stream,
        stream.writer.acquire(0) as slot,
        pytest.raises(InvalidRequest, match="holds no picture"),
    ):
        write_frame(gradient(8, 8), slot)


@pytest.mark.parametrize(
    ("size", "source", "expected"),
    [
        ((64, 48), "yuv420p", "i420"),
        ((64, 48), "yuv444p", "i420"),
        ((64, 48), "gray", "gray8"),
        ((65, 48), "yuv420p", "i420"),
        ((65, 47), "nv12", "nv12"),
        ((64, 47), "yuyv422", "yuyv422"),
        ((65, 47), "yuyv422", "i420"),
        ((65, 47), "yuv420p10le", "i420"),
        ((65, 47), "bgr24", "bgr24"),
        ((65, 47), "pal8", "rgb24"),
        ((64, 48), "gbrp", "rgb24"),
        ((64, 48), "gray16le", "gray8"),
    ],
)
def test_format_of_a_slot_follows_the_frame(
    size: tuple[int, int], source: str, expected: str
) -> None:
    assert frame_format(av.VideoFrame(*size, source)) == expected


def test_matrix_that_is_not_told_follows_the_height() -> None:
    assert frame_matrix(av.VideoFrame(640, 480, "yuv420p")) == "bt601"
    assert frame_matrix(av.VideoFrame(1280, 720, "yuv420p")) == "bt709"
    assert frame_range(av.VideoFrame(64, 48, "yuvj420p")) == "full"


@pytest.mark.parametrize(("name", "size"), [("a.png", (65, 47)), ("a.jpg", (64, 48))])
def test_picture_is_a_video_of_one_frame(tmp_path: Path, name: str, size: tuple[int, int]) -> None:
    from PIL import Image

    image = gradient(*size).to_ndarray()
    Image.fromarray(image).save(tmp_path / name)
    with open_video(str(tmp_path / name)) as video:
        assert (video.width, video.height) == size
        (picture,) = video
        got = in_rgb(picture.frame, video.format, video.matrix, video.range)
        assert np.abs(got.astype(int) - image).mean() < 4


def test_truncated_video_gives_the_frames_it_has_and_then_says_so(folder: Path) -> None:
    for name in ("fast.mp4", "clip.mkv"):
        with open_video(str(cut(folder / name, 0.6))) as video:
            pictures: list[Picture] = []
            with pytest.raises(InvalidRequest, match=r"truncated: \d+ frames") as caught:
                pictures.extend(video)
            assert 0 < video.frames_read < FRAMES
            assert f"truncated: {video.frames_read} frames" in caught.value.message


def no_index(folder: Path) -> Path:
    return cut(folder / "plain.mp4", 0.9)


def nothing(folder: Path) -> Path:
    (folder / "empty.mp4").write_bytes(b"")
    return folder / "empty.mp4"


def text(folder: Path) -> Path:
    (folder / "text.mp4").write_text("this is no video\n" * 100)
    return folder / "text.mp4"


def sound(folder: Path) -> Path:
    path = folder / "sound.wav"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("pcm_s16le", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), layout="mono")
        frame.sample_rate = 8000
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


@pytest.mark.parametrize("make", [no_index, nothing, text, sound, Path.absolute])
def test_what_is_no_video_is_refused_by_name(folder: Path, make: Callable[[Path], Path]) -> None:
    path = make(folder)
    with no_descriptor_leaked(), pytest.raises(InvalidRequest, match=str(path)):
        open_video(str(path))


def test_file_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"none\.mp4 cannot be opened: No such file"):
        open_video(str(tmp_path / "none.mp4"))


def test_camera_that_does_not_answer_is_told_without_its_password() -> None:
    with pytest.raises((NotFound, TimedOut)) as caught:
        open_video("rtsp://admin:secret@127.0.0.1:9/cam", timeout_s=2)
    assert "rtsp://127.0.0.1:9/cam" in caught.value.message
    assert "secret" not in str(caught.value)


def test_password_with_an_at_sign_is_not_told() -> None:
    with pytest.raises((NotFound, TimedOut)) as caught:
        open_video("rtsp://admin:top@secret@127.0.0.1:9/cam@home", timeout_s=2)
    assert "rtsp://127.0.0.1:9/cam@home" in caught.value.message
    assert "secret" not in str(caught.value)


def test_camera_that_accepts_and_says_nothing_is_a_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}/cam"
        with pytest.raises(TimedOut):
            open_video(address, timeout_s=0.2)


@pytest.mark.parametrize("name", ["12:30.mp4", "http:a.mp4", "concat:a.mp4", "file:a.mp4"])
def test_file_whose_name_looks_like_an_address_is_a_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(folder)
    Path(name).write_bytes(Path("plain.mp4").read_bytes())
    with open_video(name) as video:
        assert video.source == name
        assert len(list(video)) == FRAMES


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("list.ffconcat", "ffconcat version 1.0\nfile plain.mp4\n"),
        (
            "list.m3u8",
            "#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2,\nplain.mp4\n#EXT-X-ENDLIST\n",
        ),
        ("notes.txt", "words\n" * 100),
    ],
)
def test_file_without_pictures_in_it_is_refused(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    with pytest.raises(InvalidRequest, match=name):
        open_video(str(folder / name))


@pytest.mark.parametrize("name", ["plain.mp4", "fast.mp4", "clip.mkv", "clip.ts", "raw.h264"])
def test_skipping_begins_with_the_very_frame(folder: Path, name: str) -> None:
    if not (folder / name).exists():
        write_video(folder / name)
    with open_video(str(folder / name)) as video:
        stamps = [picture.pts_ns for picture in video]
        step_ns = round(1e9 / video.fps)
    shown = [number * step_ns if ns is None else ns for number, ns in enumerate(stamps)]
    for number in (1, 7, 24, 25, FRAMES - 1):
        with open_video(str(folder / name)) as video:
            video.skip_to((shown[number] - shown[0]) / 1e9 - 0.001)
            assert [picture.pts_ns for picture in video] == stamps[number:]
    with open_video(str(folder / name)) as video:
        video.skip_to(1e300)
        assert list(video) == []


def test_skipping_does_not_decode_what_is_skipped(tmp_path: Path) -> None:
    path = write_video(tmp_path / "long.mkv", gop=10)
    data = bytearray(path.read_bytes())
    with av.open(str(path)) as container:
        packets = [bytes(packet) for packet in container.demux(video=0)]
    for packet in packets[12:18]:
        start = data.index(packet)
        data[start : start + len(packet)] = b"\xff" * len(packet)
    path.write_bytes(data)
    with open_video(str(path)) as video:
        with suppress(McpdError):  # that some are missing
            list(video)
        assert video.damaged > 0
    with open_video(str(path)) as video:
        video.skip_to(1.85)
        assert len(list(video)) == 3
        assert video.damaged == 0


def test_damage_in_the_middle_is_skipped_and_counted(folder: Path, tmp_path: Path) -> None:
    data = bytearray((folder / "clip.mkv").read_bytes())
    for start in range(len(data) // 3, len(data) // 3 + 400, 7):
        data[start] ^= 0xFF
    path = tmp_path / "damaged.mkv"
    path.write_bytes(data)
    with open_video(str(path)) as video:
        with suppress(McpdError):  # that some are missing
            list(video)
        assert video.frames_read + video.damaged > FRAMES // 4


def test_closing_is_idempotent_and_ends_the_iteration(folder: Path) -> None:
    video: Video = open_video(str(folder / "plain.mp4"))
    pictures = iter(video)
    next(pictures)
    video.close()
    video.close()
    assert list(pictures) == []


def test_missing_package_is_told_with_the_extra_that_brings_it(folder: Path) -> None:
    script = (
        "import sys\n"
        "sys.modules['av'] = None\n"
        "from mcpd.shm.errors import NotFound\n"
        "from mcpd.shm.video import open_video\n"
        "try:\n"
        "    open_video('x.mp4')\n"
        "except NotFound as error:\n"
        "    print(error.hint)\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", script], capture_output=True, text=True, check=True
    )
    assert 'pip install "mcpd-inference[video]"' in done.stdout
