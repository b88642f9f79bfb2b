"""Bundles: tensors of every dtype come back as they were, bits, scales and all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mcpd.shm.bundle import TensorSpec, describe_tensors
from mcpd.shm.errors import InvalidRequest, LimitExceeded
from mcpd.shm.frame import FLAG_QUANTISED
from tests.support.streams import LocalStream


@pytest.fixture
def bundles() -> Iterator[LocalStream]:
    """A stream whose slots hold varying tensors of at most two pages."""
    with LocalStream(slot_nbytes=8192) as stream:
        yield stream


def test_bundles_of_varying_shapes_come_back(bundles: LocalStream) -> None:
    reader = bundles.attach("lossless")
    for count in (0, 1, 7, 50, 2):
        boxes = np.arange(count * 4, dtype=np.float32).reshape(count, 4)
        labels = np.arange(count, dtype=np.int32)
        with bundles.writer.acquire(0) as slot:
            slot.set_tensors({"boxes": boxes, "labels": labels})
        with reader.next(0) as frame:
            np.testing.assert_array_equal(frame.tensors["boxes"], boxes)
            np.testing.assert_array_equal(frame.tensors["labels"], labels)
            assert frame.tensors["boxes"].shape == (count, 4)


@pytest.mark.parametrize(
    "array",
    [
        np.array(3.5),
        np.array([True, False]),
        np.arange(24, dtype=">i4").reshape(2, 3, 4),
        np.arange(24).reshape(4, 6)[::2, ::-3],
        np.ones((1, 2, 1, 2, 1, 2, 1, 2), np.complex64),
        np.array([1.5, -2.0], np.float16),
        *(
            np.array([0, 1, 2], np.dtype(code))
            for code in "?bBhHiIlLqQefdFD"  # every one of numpy's that is no text, object or long
        ),
        np.array(["2026-11-30T12:00:00.123456789", "NaT"], "datetime64[ns]"),
        *(np.array([5, -3, "NaT"], f"timedelta64[{unit}]") for unit in ("s", "ms", "us", "ns")),
        *(np.array([5, -3], f"datetime64[{unit}]") for unit in ("s", "ms", "us")),
    ],
)
def test_arrays_of_any_layout_are_carried_by_value(bundles: LocalStream, array: Any) -> None:
    reader = bundles.attach()
    with bundles.writer.acquire(0) as slot:
        slot.set_tensors({"x": array})
    with reader.next(0) as frame:
        np.testing.assert_array_equal(frame.tensors["x"], array)
        assert frame.tensors["x"].dtype == array.dtype.newbyteorder("=")


@pytest.mark.parametrize(
    "name",
    [
        *("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"),
        "float8_e8m0fnu",
    ],
)
def test_floats_that_numpy_lacks_are_carried_as_their_bits(bundles: LocalStream, name: str) -> None:
    dtype = getattr(ml_dtypes, name)
    array = np.array([1.5, 3.0, 0.1, 240.0], np.float32).astype(dtype)
    reader = bundles.attach()
    with bundles.writer.acquire(0) as slot:
        slot.set_tensors({"x": array, "turned": array[::-1]})
    with reader.next(0) as frame:
        assert frame.description.tensor("x").dtype == name
        bits = frame.tensors["x"]
        assert bits.dtype == {1: np.uint8, 2: np.uint16}[array.itemsize]
        np.testing.assert_array_equal(bits.view(dtype), array)
        np.testing.assert_array_equal(frame.tensors["turned"].view(dtype), array[::-1])


def test_tensors_are_shared_through_dlpack(bundles: LocalStream) -> None:
    reader = bundles.attach(max_pins=1)
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    with bundles.writer.acquire(0) as slot:
        slot.set_tensors({"x": array})
    with reader.next(0) as frame:
        ours = frame.tensors["x"]
        try:
            shared = np.from_dlpack(ours)
        except BufferError:  # DLPack before 1.0 cannot say that memory is read-only
            assert np.lib.NumpyVersion(np.__version__) < "2.1.0"
            return
        assert np.shares_memory(shared, ours)
        np.testing.assert_array_equal(shared, array)
        del ours
    stream_has_moved_on = bundles.writer.acquire(0)
    stream_has_moved_on.publish()
    with pytest.raises(LimitExceeded, match="all 1 pins are in use"):
        reader.next(0)
    del shared


def test_quantised_tensors_come_with_scale_and_zero_point(bundles: LocalStream) -> None:
    reader = bundles.attach("lossless")
    real = np.array([-1.0, 0.0, 0.5, 1.0], np.float32)
    stored = np.round(real / 0.25 + 100).astype(np.uint8)
    with bundles.writer.acquire(0) as slot:
        slot.set_tensors({"x": stored, "plain": real}, quantised={"x": (0.25, 100)})
        assert slot.flags & FLAG_QUANTISED
    with reader.next(0) as frame:
        told = frame.description.tensor("x")
        assert (told.scale, told.zero_point, frame.description.tensor("plain").scale) == (
            *(0.25, 100),
            0,
        )
        assert frame.flags & FLAG_QUANTISED
        levels = frame.tensors["x"].astype(np.float32)
        np.testing.assert_array_equal((levels - told.zero_point) * told.scale, real)
    with bundles.writer.acquire(0) as slot:
        slot.set_tensors({"x": stored}, quantised={"x": (0.25, 100)})
        slot.set_tensors({"x": stored})
        assert not slot.flags & FLAG_QUANTISED
        with pytest.raises(InvalidRequest, match="quantised names"):
            slot.set_tensors({"x": stored}, quantised={"y": (0.25, 100)})


def test_bundle_larger_than_the_slot_is_refused_with_both_sizes(bundles: LocalStream) -> None:
    with bundles.writer.acquire(0) as slot:
        with pytest.raises(LimitExceeded, match="takes 8200 bytes, the slot has 8192"):
            slot.set_tensors({"x": np.zeros(8200, np.uint8)})
        slot.abandon()


def test_array_that_is_no_tensor_is_refused(bundles: LocalStream) -> None:
    with bundles.writer.acquire(0) as slot:
        with pytest.raises(InvalidRequest, match="unknown dtype 'object'"):
            slot.set_tensors({"x": np.array([None])})
        with pytest.raises(InvalidRequest, match="unknown dtype"):
            slot.set_tensors({"x": np.array(["text"])})
        slot.abandon()


def test_fixed_tensors_are_views_to_fill() -> None:
    description = describe_tensors({"image": TensorSpec("uint8", (1, 4, 4, 3))})
    with LocalStream(description) as stream:
        reader = stream.attach()
        with stream.writer.acquire(0) as slot:
            slot.tensors["image"][...] = 5
        with reader.next(0) as frame:
            assert frame.tensors["image"].shape == (1, 4, 4, 3)
            assert (frame.tensors["image"] == 5).all()
