"""Slots and frames: views of shared memory itself, with the right shapes, for as long as needed."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from mcpd.shm.bundle import Tensor, TensorSpec, describe_frame, describe_tensors
from mcpd.shm.errors import InvalidRequest, LimitExceeded, ProtocolError
from mcpd.shm.formats import ENCODED, FORMAT_CODES
from mcpd.shm.frame import NO_TIME
from tests.support.streams import LocalStream


@pytest.fixture
def bundles() -> Iterator[LocalStream]:
    """A stream whose slots hold varying tensors of at most two pages."""
    with LocalStream(slot_nbytes=8192) as stream:
        yield stream


@pytest.mark.parametrize("format", sorted(FORMAT_CODES.keys() - ENCODED))
@pytest.mark.parametrize("size", [(66, 34), (66, 35), (67, 34), (67, 35), (1, 1), (2, 1)])
def test_planes_written_are_the_planes_read(format: str, size: tuple[int, int]) -> None:
    width, height = size
    width += width % 2 if format == "yuyv422" else 0
    with LocalStream(describe_frame(format, width, height)) as stream:
        reader = stream.attach()
        rng = np.random.default_rng(1)
        with stream.writer.acquire(0) as slot:
            written = [rng.integers(0, 256, plane.shape, np.uint8) for plane in slot.planes]
            for plane, pixels in zip(slot.planes, written, strict=True):
                plane[...] = pixels
        with reader.next(0) as frame:
            for plane, pixels in zip(frame.planes, written, strict=True):
                np.testing.assert_array_equal(plane, pixels)
            assert (frame.format, frame.width, frame.height) == (format, width, height)
            assert frame.nbytes == frame.description.extent


def test_frame_of_a_writer_with_other_strides_is_read_right() -> None:
    """Planes out of order, rows of odd lengths apart, one interlaced with another."""
    strides, offsets = (37, 19, 19), (4097, 3001, 3011)
    layout = describe_frame("i420", 17, 9, strides=strides, offsets=offsets)
    with LocalStream(layout, slot_nbytes=8192) as stream:
        reader = stream.attach()
        rng = np.random.default_rng(1)
        luma = rng.integers(0, 256, (9, 17), np.uint8)
        chroma = rng.integers(0, 256, (2, 5, 9), np.uint8)
        with stream.writer.acquire(0) as slot:
            data = np.frombuffer(slot.buffer, np.uint8)
            for row in range(9):
                data[4097 + 37 * row :][:17] = luma[row]
            for row in range(5):
                data[3001 + 19 * row :][:9] = chroma[0, row]
                data[3011 + 19 * row :][:9] = chroma[1, row]
            del data
        with reader.next(0) as frame:
            for plane, wanted in zip(frame.planes, (luma, *chroma), strict=True):
                np.testing.assert_array_equal(plane, wanted)


def test_frame_tells_its_colours_and_rotation() -> None:
    told: dict[str, Any] = {"rotation": 90, "matrix": "bt601", "range": "full"}
    for kept in (told, {"rotation": 0, "matrix": "", "range": ""}):
        with LocalStream(describe_frame("i420", 6, 4, **kept)) as stream:
            reader = stream.attach()
            stream.writer.acquire(0).publish()
            with reader.next(0) as frame:
                told_by_frame = {name: getattr(frame, name) for name in kept}
                assert told_by_frame == kept


@pytest.mark.parametrize("format", ["rgb24", "i420", "nv12", "gray8"])
@pytest.mark.parametrize("rotation", [0, 90, 180, 270])
def test_upright_turns_clockwise_and_copies_nothing(format: str, rotation: int) -> None:
    with LocalStream(describe_frame(format, 7, 5, rotation=rotation)) as stream:
        reader = stream.attach()
        with stream.writer.acquire(0) as slot:
            for plane in slot.planes:
                plane[...] = 0
                plane[0, 0] = 200  # top left as stored
        with reader.next(0) as frame:
            corner = {0: (0, 0), 90: (0, -1), 180: (-1, -1), 270: (-1, 0)}[rotation]
            for plane, stored in zip(frame.upright(), frame.planes, strict=True):
                shape = stored.shape if rotation % 180 == 0 else stored.shape[1::-1]
                assert plane.shape[:2] == shape[:2]
                assert (plane[corner] == 200).all()
                assert (plane != 0).any(axis=-1).sum() == 1 if plane.ndim == 3 else True
                assert np.shares_memory(plane, stored)
                assert not plane.flags.writeable


def test_turned_yuyv422_frame_has_no_upright_view() -> None:
    with LocalStream(describe_frame("yuyv422", 6, 4, rotation=180)) as stream:
        reader = stream.attach()
        stream.writer.acquire(0).publish()
        with reader.next(0) as frame, pytest.raises(InvalidRequest, match="180 degrees"):
            frame.upright()


def test_upright_view_kept_after_close_keeps_the_pin() -> None:
    with LocalStream(describe_frame("gray8", 64, 4, rotation=90), slots=5) as stream:
        reader = stream.attach(max_pins=1)
        stream.writer.acquire(0).publish()
        with reader.next(0) as frame:
            (kept,) = frame.upright()
        stream.writer.acquire(0).publish()
        with pytest.raises(LimitExceeded, match="all 1 pins are in use"):
            reader.next(0)
        del kept


def test_shapes_of_planes_are_those_of_the_format() -> None:
    shapes = {
        "rgb24": [(4, 6, 3)],
        "gray8": [(4, 6)],
        "i420": [(4, 6), (2, 3), (2, 3)],
        "nv12": [(4, 6), (2, 3, 2)],
        "yuyv422": [(4, 6, 2)],
    }
    for format, expected in shapes.items():
        with LocalStream(describe_frame(format, 6, 4)) as stream, stream.writer.acquire(0) as slot:
            assert [plane.shape for plane in slot.planes] == expected


def test_what_the_writer_stores_a_reader_sees_without_a_copy() -> None:
    with LocalStream(describe_frame("gray8", 64, 4)) as stream:
        reader = stream.attach()
        slot = stream.writer.acquire(0)
        plane = slot.planes[0]
        slot.publish()
        with reader.next(0) as frame:
            plane[3, 63] = 200
            assert frame.planes[0][3, 63] == 200
        del plane


def test_views_of_a_frame_are_read_only() -> None:
    with LocalStream(describe_frame("gray8", 64, 4)) as stream:
        reader = stream.attach()
        stream.writer.acquire(0).publish()
        with reader.next(0) as frame:
            assert frame.buffer.readonly
            with pytest.raises(ValueError, match="read-only"):
                frame.planes[0][0, 0] = 1


def test_metadata_travels_with_the_frame() -> None:
    with LocalStream(describe_frame("gray8", 64, 4)) as stream:
        reader = stream.attach()
        with stream.writer.acquire(0) as slot:
            slot.pts_ns, slot.capture_ns, slot.deadline_ns = 1, 2, 3
            slot.trace_id = bytes(range(16))
            slot.flags = 1
        with reader.next(0) as frame:
            assert (frame.pts_ns, frame.capture_ns, frame.deadline_ns) == (1, 2, 3)
            assert (frame.trace_id, frame.flags, frame.seq) == (bytes(range(16)), 1, 1)
            assert frame.publish_ns == slot.publish_ns > 0


def test_times_not_set_are_not_known() -> None:
    with LocalStream(describe_frame("gray8", 64, 4)) as stream:
        reader = stream.attach()
        with stream.writer.acquire(0):
            pass
        with reader.next(0) as frame:
            assert (frame.pts_ns, frame.capture_ns, frame.deadline_ns) == (NO_TIME,) * 3
            assert frame.trace_id in (b"", bytes(16))


def test_exception_in_the_block_abandons_the_slot() -> None:
    with LocalStream(describe_frame("gray8", 64, 4)) as stream:
        with pytest.raises(ZeroDivisionError), stream.writer.acquire(0) as slot:
            _ = slot.index / 0
        assert (stream.writer.stats()["published"], stream.writer.stats()["abandoned"]) == (0, 1)


def test_slot_is_published_once() -> None:
    with LocalStream(describe_frame("gray8", 64, 4)) as stream:
        with stream.writer.acquire(0) as slot:
            slot.publish()
        with pytest.raises(InvalidRequest, match="cannot be published"):
            slot.publish()
        with pytest.raises(InvalidRequest, match="is published"):
            _ = slot.planes
        slot.abandon()
        assert stream.writer.stats()["published"] == 1


def test_view_kept_after_publish_keeps_the_slot_from_reuse() -> None:
    with LocalStream(describe_frame("gray8", 64, 4), slots=4, holds=2) as stream:
        slot = stream.writer.acquire(0)
        kept = slot.planes[0]
        kept[...] = 9
        slot.publish()
        for _ in range(10):
            with stream.writer.acquire(0) as other:
                assert other.index != slot.index
                other.planes[0][...] = 1
        assert (kept == 9).all()
        del kept


def test_view_kept_after_close_keeps_the_pin() -> None:
    with LocalStream(describe_frame("gray8", 64, 4), slots=5) as stream:
        reader = stream.attach(max_pins=1)
        with stream.writer.acquire(0) as slot:
            slot.planes[0][...] = 7
        frame = reader.next(0)
        kept = frame.planes[0]
        frame.close()
        frame.close()
        with pytest.raises(InvalidRequest, match="is closed"):
            _ = frame.planes
        with stream.writer.acquire(0):
            pass
        with pytest.raises(LimitExceeded, match="all 1 pins are in use"):
            reader.next(0)
        for _ in range(8):
            with stream.writer.acquire(0) as slot:
                slot.planes[0][...] = 1
        assert (kept == 7).all()
        del kept
        gc.collect()
        reader.next(0).close()


def test_result_carries_what_its_frame_carried() -> None:
    with (
        LocalStream(describe_frame("gray8", 64, 4)) as frames,
        LocalStream(slot_nbytes=4096) as results,
    ):
        reader, taker = frames.attach(), results.attach()
        with frames.writer.acquire(0) as slot:
            slot.pts_ns, slot.trace_id = 5, b"t" * 16
        with reader.next(0) as frame, results.writer.acquire(0) as answer:
            answer.set_source(frame)
            answer.set_tensors({})
        with taker.next(0) as result:
            assert (result.source_seq, result.source_stream, result.pts_ns) == (1, 1, 5)
            assert (result.source_publish_ns, result.trace_id) == (slot.publish_ns, b"t" * 16)
            assert (result.nbytes, result.tensors) == (0, {})


def test_description_that_lies_is_a_protocol_error_and_frees_the_pin(bundles: LocalStream) -> None:
    reader = bundles.attach(max_pins=1)
    honest = describe_tensors({"x": TensorSpec("uint8", (100,))})
    for tensor, said in [
        (Tensor("x", "uint8", (9000,), (1,), 0, 9000), "aligned"),
        (Tensor("x", "uint8", (100,), (4096,), 0, 100), "does not fit"),
    ]:
        with bundles.writer.acquire(0) as slot:
            slot.describe(honest)
            lie = describe_tensors({})
            object.__setattr__(lie, "tensors", (tensor,))
            slot.core.describe(lie.packed)
        with reader.next(0) as frame, pytest.raises(ProtocolError, match=said):
            _ = frame.tensors


def test_description_of_more_than_was_used_is_a_protocol_error(bundles: LocalStream) -> None:
    reader = bundles.attach()
    with bundles.writer.acquire(0) as slot:
        slot.describe(describe_tensors({"x": TensorSpec("uint8", (100,))}))
        slot.nbytes = 50
    with reader.next(0) as frame, pytest.raises(ProtocolError, match=r"100 bytes.*used 50"):
        _ = frame.tensors
