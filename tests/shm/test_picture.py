"""PyAV's frames into slots: as they are, or converted by swscale with no copy in between."""

from __future__ import annotations

import subprocess
import sys
import threading
from fractions import Fraction
from typing import Any

import av
import av.filter
import numpy as np
import pytest
from numpy.typing import NDArray

from mcpd.shm import swscale
from mcpd.shm.bundle import Description, describe_frame
from mcpd.shm.errors import InvalidRequest
from mcpd.shm.formats import ENCODED, FORMAT_CODES, frame_layout
from mcpd.shm.picture import copy_frame, write_frame
from tests.support.streams import LocalStream

AV_NAMES = {"i420": "yuv420p", "gray8": "gray"}
"""PyAV's names of formats where ours differ."""
PLANAR = sorted(FORMAT_CODES.keys() - ENCODED)
SOURCES = (
    *("yuv420p", "yuvj420p", "nv12", "nv21", "rgb24", "bgr24", "rgba", "bgra", "gray", "yuyv422"),
    *("uyvy422", "yuv422p", "yuv444p", "yuv420p10le", "yuv422p10le", "p010le", "gbrp", "rgb0"),
    *("gray16le", "rgb48le", "yuva420p"),
)

Bytes = NDArray[np.uint8]


def noisy(width: int, height: int, format: str) -> av.VideoFrame:
    frame = av.VideoFrame(width, height, format)
    random = np.random.default_rng(width * 7 + height)
    for plane in frame.planes:
        plane.update(random.integers(16, 236, plane.buffer_size, np.uint8).tobytes())
    return frame


def rows_of(frame: av.VideoFrame, description: Description) -> list[Bytes]:
    """The planes of a frame of the description's format, padding left out."""
    return [
        np.ndarray(plane.shape, np.uint8, bytes(source), 0, (source.line_size, *plane.shape[2:], 1))
        for source, plane in zip(frame.planes, description.planes, strict=True)
    ]


def written(frame: av.VideoFrame, description: Description, **options: Any) -> list[Bytes]:
    with LocalStream(description) as stream:
        reader = stream.attach()
        with stream.writer.acquire(0) as slot:
            slot.write_frame(frame, **options)
        with reader.next(0) as got:
            return [plane.copy() for plane in got.planes]


def watched(patch: pytest.MonkeyPatch) -> list[bool]:
    """What every conversion from now on says: whether it went straight into the slot."""
    direct: list[bool] = []
    convert = swscale.convert

    def watching(*arguments: Any) -> bool:
        direct.append(convert(*arguments))
        return direct[-1]

    patch.setattr(swscale, "convert", watching)
    return direct


# ---- as they are -------------------------------------------------------------------------------


@pytest.mark.parametrize("non_temporal", [False, True])
@pytest.mark.parametrize("format", PLANAR)
@pytest.mark.parametrize("size", [(66, 34), (67, 35), (1, 1)])
def test_frames_of_the_slots_format_are_copied_as_they_are(
    format: str, size: tuple[int, int], non_temporal: bool
) -> None:
    width, height = size
    width += width % 2 if format == "yuyv422" else 0
    frame = noisy(width, height, AV_NAMES.get(format, format))
    description = describe_frame(format, width, height)
    got = written(frame, description, non_temporal=non_temporal)
    for plane, wanted in zip(got, rows_of(frame, description), strict=True):
        np.testing.assert_array_equal(plane, wanted)


def test_full_range_frames_of_jpeg_are_i420() -> None:
    frame = noisy(66, 34, "yuvj420p")
    description = describe_frame("i420", 66, 34, range="full")
    for plane, wanted in zip(written(frame, description), rows_of(frame, description), strict=True):
        np.testing.assert_array_equal(plane, wanted)


@pytest.mark.parametrize(
    ("frame", "description", "said"),
    [
        ((64, 48, "yuv420p"), ("i420", 64, 32), "has 64x48 pixels, the slot 64x32"),
        ((64, 48, "yuv420p10le"), ("i420", 64, 48), "is yuv420p10le, the slot i420"),
        ((64, 48, "yuv420p"), ("nv12", 64, 48), "is yuv420p, the slot nv12"),
        ((64, 48, "pal8"), ("rgb24", 64, 48), "is pal8, the slot rgb24"),
        ((64, 48, "yuvj420p"), ("i420", 64, 48), "has colour range full, the slot limited"),
    ],
)
def test_frame_that_is_another_is_refused_with_the_way_to_convert_it(
    frame: tuple[int, int, str], description: tuple[str, int, int], said: str
) -> None:
    with LocalStream(describe_frame(*description)) as stream:
        slot = stream.writer.acquire(0)
        with pytest.raises(InvalidRequest, match=said) as caught:
            slot.write_frame(noisy(*frame))
        assert "convert=True" in caught.value.hint
        assert "swscale" in caught.value.hint
        slot.abandon()


def test_colour_matrix_counts_where_both_tell_it() -> None:
    frame = noisy(64, 48, "yuv420p")
    assert written(frame, describe_frame("i420", 64, 48, matrix="bt709"))
    frame.colorspace = 5
    with pytest.raises(InvalidRequest, match="has colour matrix bt601, the slot bt709"):
        written(frame, describe_frame("i420", 64, 48, matrix="bt709"))
    for matrix in ("bt601", ""):
        assert written(frame, describe_frame("i420", 64, 48, matrix=matrix))
    assert len(written(frame, describe_frame("i420", 64, 48), convert=True)) == 3
    gray = noisy(64, 48, "gray")
    gray.colorspace = 5
    assert written(gray, describe_frame("gray8", 64, 48, matrix="bt709"))


# ---- converted ---------------------------------------------------------------------------------


@pytest.mark.parametrize("format", PLANAR)
@pytest.mark.parametrize("source", SOURCES)
def test_conversion_into_the_slot_is_the_same_as_pyavs(
    monkeypatch: pytest.MonkeyPatch, source: str, format: str
) -> None:
    frame = noisy(96, 50, source)
    for width, height in ((96, 50), (64, 33)):
        description = describe_frame(format, width, height, matrix="bt601")
        with monkeypatch.context() as patch:
            direct = watched(patch)
            ours = written(frame, description, convert=True)
        with monkeypatch.context() as patch:
            patch.setattr(swscale, "convert", lambda *_: False)
            theirs = written(frame, description, convert=True)
        assert direct in ([True], [])  # [] where nothing has to be converted
        for mine, other in zip(ours, theirs, strict=True):
            difference = np.abs(mine.astype(int) - other)
            assert difference.max() <= 2, (width, difference.max(), difference.mean())


def test_palettes_are_converted_the_longer_way() -> None:
    frame = noisy(64, 48, "pal8")
    description = describe_frame("rgb24", 64, 48)
    (got,) = written(frame, description, convert=True)
    np.testing.assert_array_equal(got, frame.to_ndarray(format="rgb24"))


def flipped(frame: av.VideoFrame) -> av.VideoFrame:
    """The frame with its rows from the bottom up, by a negative stride, as a filter gives it."""
    graph = av.filter.Graph()
    source = graph.add_buffer(
        width=frame.width, height=frame.height, format=frame.format, time_base=Fraction(1, 25)
    )
    flip, sink = graph.add("vflip"), graph.add("buffersink")
    source.link_to(flip)
    flip.link_to(sink)
    graph.configure()
    graph.push(frame)
    turned = graph.pull()
    assert isinstance(turned, av.VideoFrame)
    assert turned.planes[0].line_size < 0
    return turned


@pytest.mark.parametrize("format", ["rgb24", "i420", "gray8"])
@pytest.mark.parametrize("width", [64, 21])
def test_frames_with_rows_from_the_bottom_up_are_the_right_way_up(format: str, width: int) -> None:
    frame = noisy(width, 48, AV_NAMES.get(format, format))
    description = describe_frame(format, width, 48)
    got = written(flipped(frame), description)
    for plane, wanted in zip(got, rows_of(frame, description), strict=True):
        np.testing.assert_array_equal(plane, wanted[::-1])
    description = describe_frame("bgra", width, 48, matrix="bt601")
    (got_bgra,) = written(flipped(frame), description, convert=True)
    (wanted_bgra,) = written(frame, description, convert=True)
    difference = np.abs(got_bgra.astype(int) - wanted_bgra[::-1])
    # Chroma of i420 is between two rows, which ones depends on the direction.
    assert difference.max() <= (2 if format != "i420" else 255)
    assert difference.mean() < 30


@pytest.mark.parametrize(
    ("format", "source"),
    [("gray8", "yuv420p"), ("gray8", "yuvj420p"), ("gray8", "gray16le"), ("rgb24", "gray")],
)
def test_rgb_and_gray_have_all_levels(format: str, source: str) -> None:
    frame = av.VideoFrame(64, 32, source)
    white = 235 if source == "yuv420p" else 255
    for index, plane in enumerate(frame.planes):
        plane.update(bytes([128 if index else white]) * plane.buffer_size)
    (got,) = written(frame, describe_frame(format, 64, 32), convert=True)
    assert got.min() >= 254


def test_two_frames_of_one_stream_may_differ() -> None:
    """Contexts are kept by what is converted to what, and only so many."""
    description = describe_frame("rgb24", 64, 32)
    for _ in range(2):
        for side in range(32, 32 + 2 * swscale._CONTEXTS + 4, 2):
            frame = noisy(side, side, "yuv420p")
            (got,) = written(frame, description, convert=True)
            with_pyav = frame.reformat(64, 32, "rgb24", src_colorspace=5, src_color_range=1)
            assert np.abs(got.astype(int) - with_pyav.to_ndarray()).max() <= 2
    assert len(swscale._local.contexts) == swscale._CONTEXTS


def test_threads_convert_at_the_same_time() -> None:
    description = describe_frame("rgb24", 320, 240)
    frames = [noisy(320, 240, "yuv420p") for _ in range(4)]
    (wanted,) = written(frames[0], description, convert=True)
    wrong: list[int] = []

    def work(frame: av.VideoFrame) -> None:
        for _ in range(20):
            (got,) = written(frame, description, convert=True)
            wrong.extend([1] * int((got != wanted).any()))

    threads = [threading.Thread(target=work, args=(frame,)) for frame in frames]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# ---- what libswscale may write to ----------------------------------------------------------------


@pytest.mark.parametrize("tight", [False, True])
@pytest.mark.parametrize("format", PLANAR)
@pytest.mark.parametrize("source", ["yuv420p", "yuvj420p", "rgb24", "yuv422p", "nv12", "gray"])
def test_conversion_writes_rows_and_their_padding_only(
    source: str, format: str, tight: bool
) -> None:
    for width in (*range(2, 70, 2), 1, 33, 63, 95, 127, 129, 160):
        width += width % 2 if format == "yuyv422" else 0
        frame = noisy(width, 5, source)
        strides = None
        if tight:
            strides = tuple(plane.row_nbytes for plane in frame_layout(format, width, 5).planes)
        description = describe_frame(format, width, 5, strides=strides)
        owned = np.zeros(description.extent + 4096, bool)
        for plane in description.planes:
            for row in range(plane.rows):
                owned[2048 + plane.offset + row * plane.stride :][: plane.stride] = True
        for guard in (0xA5, 0x5A):
            memory = np.full(owned.size + 64, guard, np.uint8)
            memory = memory[-memory.__array_interface__["data"][0] % 64 :][: owned.size]
            planes = tuple(
                np.ndarray(
                    plane.shape,
                    np.uint8,
                    memory.data,
                    2048 + plane.offset,
                    (plane.stride, *plane.shape[2:], 1),
                )
                for plane in description.planes
            )
            copy_frame(frame, description, planes, convert=True)
            changed = np.flatnonzero(~owned & (memory != guard))
            assert changed.size == 0, (width, changed - 2048, description.extent)


@pytest.mark.parametrize(
    ("format", "width", "strides", "offsets", "fits"),
    [
        ("rgb24", 1920, None, None, True),
        ("rgb24", 1920, (5760,), None, True),
        ("rgb24", 1080, (3240,), None, False),
        ("i420", 854, None, None, True),
        ("rgb24", 21, None, None, False),
        ("rgb24", 64, None, (32,), False),
    ],
)
def test_only_layouts_with_room_are_converted_to_in_place(
    format: str, width: int, strides: Any, offsets: Any, fits: bool
) -> None:
    description = describe_frame(format, width, 48, strides=strides, offsets=offsets)
    assert all(map(swscale._has_room, description.planes)) == fits


# ---- the library -------------------------------------------------------------------------------


def test_pyavs_own_library_is_found_among_others() -> None:
    script = (
        "import cv2, av, glob, os\n"
        "from mcpd.shm import swscale\n"
        "found = swscale.load()\n"
        "print(found.swscale._name)\n"
        "print(os.path.realpath(os.path.join(os.path.dirname(av.__file__), '..')))\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", script], capture_output=True, text=True, check=True
    )
    path, folder = done.stdout.splitlines()
    if "libswscale" in path:
        assert path.startswith(folder) or "/lib/" in path
        assert "opencv" not in path


@pytest.mark.parametrize("version", [(4, 0, 0), (10, 0, 0), (9, 99, 99)])
def test_library_of_another_version_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, version: tuple[int, int, int]
) -> None:
    swscale.load.cache_clear()
    monkeypatch.setattr(av, "library_versions", {**av.library_versions, "libswscale": version})
    try:
        assert swscale.load() is None
        frame = noisy(64, 48, "yuv420p")
        (got,) = written(frame, describe_frame("rgb24", 64, 48), convert=True)
        assert got.shape == (48, 64, 3)
    finally:
        swscale.load.cache_clear()
    monkeypatch.undo()
    assert swscale.load() is not None


def test_picture_is_written_as_ever() -> None:
    description = describe_frame("rgb24", 64, 48)
    with LocalStream(description) as stream, stream.writer.acquire(0) as slot:
        write_frame(noisy(64, 48, "yuv420p"), slot)
        assert slot.planes[0].any()
