"""Ways to fill a slot: arrays of any strides, encoded payloads of any length, OpenCV in place."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from mcpd.native import _core
from mcpd.shm import Client
from mcpd.shm.bundle import describe_frame, describe_tensors
from mcpd.shm.errors import InvalidRequest
from mcpd.shm.formats import ENCODED, FORMAT_CODES, frame_layout
from mcpd.shm.writing import copy_plane
from tests.support.streams import LocalStream

PLANAR = sorted(FORMAT_CODES.keys() - ENCODED)
Bytes = NDArray[np.uint8]


def noise(*shape: int) -> Bytes:
    return np.random.default_rng(sum(shape)).integers(0, 256, shape, np.uint8)


def planes_of(format: str, width: int, height: int) -> list[Bytes]:
    return [noise(*plane.shape) for plane in frame_layout(format, width, height).planes]


def written(description: Any, image: Any, **options: Any) -> list[Bytes]:
    """What a reader sees of an image that was written."""
    with LocalStream(description) as stream:
        reader = stream.attach()
        with stream.writer.acquire(0) as slot:
            slot.write(image, **options)
        with reader.next(0) as frame:
            return [plane.copy() for plane in frame.planes]


# ---- arrays ------------------------------------------------------------------------------------


@pytest.mark.parametrize("non_temporal", [False, True])
@pytest.mark.parametrize("format", PLANAR)
@pytest.mark.parametrize("size", [(66, 34), (1, 1), (333, 35)])
def test_planes_given_are_the_planes_read(
    format: str, size: tuple[int, int], non_temporal: bool
) -> None:
    width, height = size
    width += width % 2 if format == "yuyv422" else 0
    planes = planes_of(format, width, height)
    image = planes if len(planes) > 1 else planes[0]
    got = written(describe_frame(format, width, height), image, non_temporal=non_temporal)
    for plane, wanted in zip(got, planes, strict=True):
        np.testing.assert_array_equal(plane, wanted)


@pytest.mark.parametrize("format", ["i420", "nv12"])
@pytest.mark.parametrize("size", [(8, 6), (6, 2), (64, 48)])
def test_one_array_of_all_planes_is_taken_apart(format: str, size: tuple[int, int]) -> None:
    width, height = size
    stacked = noise(height * 3 // 2, width)
    got = written(describe_frame(format, width, height), stacked)
    np.testing.assert_array_equal(np.concatenate([p.reshape(-1) for p in got]), stacked.reshape(-1))


@pytest.mark.parametrize("non_temporal", [False, True])
@pytest.mark.parametrize(
    "view",
    [
        lambda a: a[::-1],
        lambda a: a[:, ::-1],
        lambda a: a[..., ::-1],
        lambda a: a[::-1, ::-1, ::-1],
        lambda a: np.asfortranarray(a),
        lambda a: np.repeat(a, 2, 1)[:, ::2],
        lambda a: np.repeat(a, 3, 0)[::3],
        lambda a: np.broadcast_to(a[:1], a.shape),
        lambda a: np.broadcast_to(a[:, :1], a.shape),
        lambda a: a.tolist() and memoryview(a),
    ],
)
@pytest.mark.parametrize("strides", [None, (41 * 3,), (41 * 3 + 7,)])
def test_arrays_of_any_strides_are_copied(
    view: Any, strides: tuple[int] | None, non_temporal: bool
) -> None:
    image = view(noise(23, 41, 3))
    description = describe_frame("rgb24", 41, 23, strides=strides)
    (got,) = written(description, image, non_temporal=non_temporal)
    np.testing.assert_array_equal(got, np.asarray(image))


@pytest.mark.parametrize(
    ("format", "image", "said"),
    [
        ("rgb24", noise(4, 6), "image is uint8 (4, 6), rgb24 of this size is uint8 (4, 6, 3)"),
        ("rgb24", noise(6, 4, 3), "image is uint8 (6, 4, 3)"),
        ("rgb24", np.zeros((4, 6, 3), np.float32), "image is float32 (4, 6, 3)"),
        ("rgb24", [noise(4, 6, 3), noise(4, 6, 3)], "image is uint8 (4, 6, 3) and (4, 6, 3)"),
        ("i420", noise(4, 6), "i420 of this size is uint8 (4, 6) and (2, 3) and (2, 3)"),
        ("i420", [noise(4, 6), noise(2, 3)], "image is uint8 (4, 6) and (2, 3),"),
        ("nv12", [noise(4, 6), noise(2, 6)], "(2, 3, 2)"),
    ],
)
def test_image_that_is_not_the_slots_is_refused(format: str, image: Any, said: str) -> None:
    with LocalStream(describe_frame(format, 6, 4)) as stream, stream.writer.acquire(0) as slot:
        with pytest.raises(InvalidRequest) as caught:
            slot.write(image)
        assert said in caught.value.message
        slot.abandon()


def test_odd_picture_in_one_array_is_refused() -> None:
    with LocalStream(describe_frame("i420", 5, 4)) as stream, stream.writer.acquire(0) as slot:
        with pytest.raises(InvalidRequest, match=r"image is uint8 \(6, 5\)"):
            slot.write(noise(6, 5))
        slot.abandon()


def test_slot_of_tensors_takes_no_image() -> None:
    description = describe_tensors({})
    with (
        LocalStream(description, slot_nbytes=4096) as stream,
        stream.writer.acquire(0) as slot,
        pytest.raises(InvalidRequest, match="holds no picture"),
    ):
        slot.write(noise(4, 6))


def test_copy_onto_itself_is_as_numpy_has_it() -> None:
    data = np.arange(100, dtype=np.uint8).reshape(10, 10)
    wanted = data[:-1].copy()
    copy_plane(data[1:], data[:-1])
    np.testing.assert_array_equal(data[1:], wanted)


@given(
    st.integers(1, 40), st.integers(1, 300), st.integers(0, 70), st.integers(0, 70), st.booleans()
)
def test_copied_rows_are_those_of_numpy_and_nothing_else_changes(
    rows: int, columns: int, start: int, padding: int, non_temporal: bool
) -> None:
    source = noise(rows, columns + padding)[:, padding:]
    whole = np.full(start + rows * (columns + 70 - padding) + 70, 9, np.uint8)
    wanted = whole.copy()
    for each in (whole, wanted):
        target = np.ndarray((rows, columns), np.uint8, each, start, (columns + 70 - padding, 1))
        if each is whole:
            _core.copy_rows(target.data, source.data, non_temporal)
        else:
            target[...] = source
    np.testing.assert_array_equal(whole, wanted)


@pytest.mark.parametrize(
    ("target", "source", "said"),
    [
        (noise(4, 5), noise(4, 6), "dimension 1 is 5 in the target, 6 in the source"),
        (noise(4, 5), noise(5, 5), "dimension 0 is 4"),
        (noise(4, 5), noise(4, 5, 1), "2 dimensions of 1 bytes, source 3 of 1"),
        (noise(4, 5), np.zeros((4, 5), np.uint16), "source 2 of 2"),
    ],
)
def test_core_refuses_what_differs(target: Bytes, source: Bytes, said: str) -> None:
    before = target.copy()
    with pytest.raises(ValueError, match=said):
        _core.copy_rows(target.data, source.data)
    np.testing.assert_array_equal(target, before)


SQUARE = noise(10, 10)


@pytest.mark.parametrize(
    ("target", "source", "copied"),
    [
        (noise(4, 5), noise(4, 10)[:, ::2], False),
        (noise(4, 5, 3)[:, :, ::-1], noise(4, 5, 3), False),
        (noise(4, 1, 1)[:, ::-1], noise(4, 3, 1)[:, ::3], True),
        (SQUARE[1:], SQUARE[:-1], False),
        (SQUARE[:5], SQUARE[4::-1], False),
        (SQUARE[:5], SQUARE[9:4:-1], True),
        (SQUARE[9:5:-1], SQUARE[:4], True),
        (SQUARE[9:5:-1], SQUARE[3:7], False),
        (SQUARE[:0], SQUARE[:0], True),
    ],
)
def test_core_leaves_alone_what_it_cannot_copy(target: Bytes, source: Bytes, copied: bool) -> None:
    before, wanted = target.copy(), source.copy()
    assert _core.copy_rows(target.data, source.data) is copied
    np.testing.assert_array_equal(target, wanted if copied else before)


def test_core_refuses_what_is_read_only() -> None:
    with pytest.raises((BufferError, ValueError)):
        _core.copy_rows(b"abc", b"abd")
    _core.copy_rows(bytearray(0), b"")


def test_copy_leaves_other_threads_running() -> None:
    source = np.broadcast_to(noise(1, 1 << 20), (1 << 10, 1 << 20))
    target = np.lib.stride_tricks.as_strided(np.empty(1 << 20, np.uint8), source.shape, (0, 1))
    state = ["waiting"]

    def copy() -> None:
        state[0] = "copying"
        _core.copy_rows(target.data, source.data)
        state[0] = "done"

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # nobody is made to give the GIL up
    try:
        thread = threading.Thread(target=copy)
        thread.start()
        seen = set()
        while state[0] != "done":
            seen.add(state[0])
            time.sleep(0)
        thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert "copying" in seen


# ---- OpenCV ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("clip") / "clip.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 25, (66, 48))
    assert writer.isOpened()
    for number in range(3):
        image = np.full((48, 66, 3), (200, 20 * number, 60), np.uint8)
        image[:20] = 30
        writer.write(image)
    writer.release()
    return path


@pytest.mark.parametrize("strides", [None, (66 * 3,)])
def test_opencv_writes_into_the_slot_in_place(clip: Path, strides: tuple[int] | None) -> None:
    expected = cv2.VideoCapture(str(clip))
    capture = cv2.VideoCapture(str(clip))
    with LocalStream(describe_frame("bgr24", 66, 48, strides=strides)) as stream:
        reader = stream.attach("lossless")
        for _ in range(3):
            assert capture.grab()
            with stream.writer.acquire(0) as slot:
                if strides:
                    assert slot.planes[0].flags.c_contiguous
                got, image = capture.retrieve(slot.planes[0])
                address = slot.planes[0].__array_interface__["data"]
                assert got
                assert image.__array_interface__["data"] == address
                assert slot.retrieve(capture)
            ok, wanted = expected.read()
            assert ok
            with reader.next(0) as frame:
                np.testing.assert_array_equal(frame.planes[0], wanted)
        with stream.writer.acquire(0) as slot:
            assert not capture.grab()
            assert not slot.retrieve(capture)
            slot.abandon()


def test_capture_of_another_size_or_format_is_refused(clip: Path) -> None:
    capture = cv2.VideoCapture(str(clip))
    assert capture.grab()
    for format, width, said in (
        ("bgr24", 64, "OpenCV gives frames of 66x48 bgr24 uint8, the slot is 64x48 bgr24"),
        ("gray8", 66, "OpenCV gives frames of 66x48 bgr24"),
        ("rgb24", 66, "slot holds rgb24 frames, OpenCV gives bgr24"),
        ("i420", 66, "slot holds i420 frames"),
    ):
        with LocalStream(describe_frame(format, width, 48)) as stream:
            slot = stream.writer.acquire(0)
            with pytest.raises(InvalidRequest, match=said):
                slot.retrieve(capture)
            slot.abandon()


# ---- through a daemon --------------------------------------------------------------------------


def test_odd_frames_with_chosen_strides_go_through_the_daemon_and_a_model(client: Client) -> None:
    for format in ("i420", "nv12"):
        planes = [np.full((17, 25), 81, np.uint8)]
        planes += [np.full((9, 13), 90, np.uint8), np.full((9, 13), 240, np.uint8)]
        if format == "nv12":
            planes = [planes[0], np.stack(planes[1:], axis=-1)]
        strides = (31, 26, 14)[: len(planes)]
        name = f"odd-{format}"
        with (
            client.create_stream(
                name, width=25, height=17, format=format, matrix="bt601", strides=strides
            ) as writer,
            client.open_stream(name, policy="lossless") as reader,
            client.results(name, model="tiny-image", policy="lossless") as results,
        ):
            with writer.acquire(5) as slot:
                slot.write(planes)
            with reader.next(5) as frame:
                assert tuple(plane.stride for plane in frame.description.planes) == strides
                for plane, wanted in zip(frame.planes, planes, strict=True):
                    np.testing.assert_array_equal(plane, wanted)
            with results.next(30) as result:
                (found,) = result.detections
                assert found.label == "red"
                assert (found.x1, found.y1) == pytest.approx((25, 17))
