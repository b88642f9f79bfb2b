"""Preparation against an independent reference in float64: formats, sizes, colour, resize rules.

Every test runs by each instruction set that the processor has.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mcpd.native import _core
from tests.support.pictures import (
    BT601,
    BT709,
    FORMATS,
    FULL,
    LIMITED,
    Picture,
    make_picture,
    options,
    reference,
)
from tests.support.prepare import BOUND, assert_prepared_right, prepare

pytestmark = pytest.mark.usefixtures("isa")

# ---- right answers -------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("size", [(64, 48), (20, 14), (8, 6), (62, 2), (2, 38)])
def test_every_format_and_size_is_prepared_right(format: str, size: tuple[int, int]) -> None:
    assert_prepared_right(make_picture(format, *size, padding=13))


@pytest.mark.parametrize("format", [name for name in FORMATS if name != "yuyv422"])
@pytest.mark.parametrize("size", [(63, 47), (1, 1), (1, 9), (9, 1), (3, 3), (21, 14)])
def test_odd_sizes_are_prepared_right(format: str, size: tuple[int, int]) -> None:
    assert_prepared_right(make_picture(format, *size, padding=5))


@pytest.mark.parametrize(
    ("format", "matrix", "range", "channels"),
    list(itertools.product(FORMATS, (BT601, BT709), (LIMITED, FULL), ("rgb", "bgr", "gray"))),
)
def test_every_matrix_and_range_is_prepared_right(
    format: str, matrix: int, range: int, channels: str
) -> None:
    picture = make_picture(format, 40, 30)
    assert_prepared_right(picture, matrix=matrix, range=range, channels=channels)


@pytest.mark.parametrize(
    ("format", "resize", "sampling", "size"),
    list(
        itertools.product(
            ("rgb24", "i420", "yuyv422"),
            ("stretch", "letterbox", "crop"),
            ("half_pixel", "corner"),
            ((30, 30), (50, 20), (16, 40), (64, 48), (7, 5), (1, 1)),
        )
    ),
)
def test_every_resize_rule_is_prepared_right(
    format: str, resize: str, sampling: str, size: tuple[int, int]
) -> None:
    assert_prepared_right(
        make_picture(format, 64, 48),
        resize=resize,
        sampling=sampling,
        out_width=size[0],
        out_height=size[1],
        pad_value=114.0,
    )


def test_a_1080p_frame_is_prepared_right() -> None:
    picture = make_picture("i420", 1920, 1080)
    assert_prepared_right(picture, resize="letterbox", out_width=640, out_height=640)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("channels", ["rgb", "gray"])
def test_values_are_normalised_by_channel(layout: str, channels: str) -> None:
    picture = make_picture("rgb24", 40, 30)
    count = 3 if channels == "rgb" else 1
    normalisation = {
        "scale": 1 / 255,
        "mean": (0.485, 0.456, 0.406)[:count],
        "std": (0.229, 0.224, 0.225)[:count],
    }
    changes = {"layout": layout, "channels": channels, "resize": "letterbox", **normalisation}
    got = prepare(picture, **changes).astype(np.float64)
    want = reference(picture, **changes)
    got = got if layout == "nhwc" else got.transpose(1, 2, 0)
    assert np.abs(got - want).max() <= BOUND / 255 / 0.224


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_bytes_are_rounded_and_kept_in_range(layout: str) -> None:
    picture = make_picture("rgb24", 40, 30)
    changes: dict[str, Any] = {"layout": layout, "scale": 2.0, "mean": (100.0,)}
    got = prepare(picture, dtype="uint8", **changes)
    exact = prepare(picture, **changes)
    assert got.dtype == np.uint8
    assert np.array_equal(got, np.rint(np.clip(exact, 0, 255)).astype(np.uint8))


@pytest.mark.parametrize("scale", [1.0, 1 / 255, 1e-7, 3e-9, 300.0])
def test_half_floats_are_rounded_as_numpy_rounds_them(scale: float) -> None:
    picture = make_picture("rgb24", 40, 30)
    changes: dict[str, Any] = {"scale": scale, "mean": (scale * 100,)}
    got = prepare(picture, dtype="float16", **changes)
    with np.errstate(over="ignore"):
        want = prepare(picture, **changes).astype(np.float16)
    assert np.array_equal(got.view(np.uint16), want.view(np.uint16))


def test_an_unscaled_rgb_frame_comes_through_unchanged() -> None:
    picture = make_picture("rgb24", 31, 17)
    got = prepare(picture, out_width=31, out_height=17, layout="nhwc", dtype="uint8")
    assert np.array_equal(got, np.stack(picture.components, axis=-1))


def test_corner_sampling_of_a_doubled_image_repeats_its_corners() -> None:
    row = np.array([[0, 100, 200]], np.uint8)
    picture = Picture("gray8", 3, 1, row.reshape(-1), (0,), (3,), (row,))
    changes: dict[str, Any] = {"out_width": 6, "out_height": 1, "channels": "gray"}
    corner = prepare(picture, sampling="corner", **changes).reshape(-1)
    centre = prepare(picture, sampling="half_pixel", **changes).reshape(-1)
    assert corner.tolist() == pytest.approx([0, 50, 100, 150, 200, 200], abs=BOUND)
    assert centre.tolist() == pytest.approx([0, 25, 75, 125, 175, 200], abs=BOUND)


@pytest.mark.parametrize("resize", ["stretch", "letterbox", "crop"])
def test_the_transform_maps_output_corners_to_source_corners(resize: str) -> None:
    picture = make_picture("rgb24", 64, 48)
    chosen = options(picture, resize=resize, out_width=30, out_height=30)
    ax, bx, ay, by = _core.Preparation(**chosen).transform
    if resize == "stretch":
        assert (bx, by, ax * 30 + bx, ay * 30 + by) == pytest.approx((0, 0, 64, 48))
    elif resize == "letterbox":  # 30 x 23 pixels from row 3 on
        assert (bx, ay * 3 + by) == pytest.approx((0, 0))
        assert (ax * 30 + bx, ay * 26 + by) == pytest.approx((64, 48))
    else:  # 48 x 48 pixels from column 8 on
        assert (bx, by, ax * 30 + bx, ay * 30 + by) == pytest.approx((8, 0, 56, 48))


def test_each_image_of_a_batch_has_its_place() -> None:
    picture = make_picture("i420", 40, 30)
    preparation = _core.Preparation(**options(picture))
    batch = np.full((3, 3, 14, 20), -1, np.float32)
    preparation.run(picture.data.data, batch.data, 1)
    assert (batch[[0, 2]] == -1).all()
    assert np.array_equal(batch[1], prepare(picture))


def test_threads_may_share_a_preparation() -> None:
    picture = make_picture("nv12", 320, 240)
    preparation = _core.Preparation(**options(picture, out_width=100, out_height=100))
    want = prepare(picture, out_width=100, out_height=100)
    outs = [np.zeros((3, 100, 100), np.float32) for _ in range(4)]

    def run(out: NDArray[np.float32]) -> None:
        for _ in range(20):
            preparation.run(picture.data.data, out.data)

    threads = [threading.Thread(target=run, args=(out,)) for out in outs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(out, want) for out in outs)


# ---- the reference sees a fault ------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [
        {"matrix": BT601},
        {"range": FULL},
        {"sampling": "corner"},
        {"resize": "crop"},
        {"channels": "bgr"},
    ],
)
def test_the_reference_tells_a_wrong_rule_from_the_right_one(fault: dict[str, Any]) -> None:
    picture = make_picture("i420", 64, 30)
    got = prepare(picture, **fault).astype(np.float64).transpose(1, 2, 0)
    assert np.abs(got - reference(picture)).max() > 10 * BOUND


# ---- bad input -----------------------------------------------------------------------------------

Change = Callable[[Picture], dict[str, Any]]

BAD: dict[str, tuple[Change, str]] = {
    "unknown format": (lambda _: {"format": 99}, "format 99"),
    "encoded format": (lambda _: {"format": 64}, "format 64"),
    "no width": (lambda _: {"width": 0}, "size 0x30"),
    "huge width": (lambda _: {"width": 1 << 20}, "size 1048576x30"),
    "no output": (lambda _: {"out_height": 0}, "output size 20x0"),
    "planes of another format": (
        lambda _: {"plane_offsets": (0,), "plane_strides": (40,)},
        "1 planes given, the format has 3",
    ),
    "unequal planes": (lambda _: {"plane_strides": (40, 20)}, "2 plane strides for 3"),
    "short stride": (lambda _: {"plane_strides": (39, 20, 20)}, "stride 39"),
    "stride without end": (
        lambda _: {"plane_strides": (1 << 63, 20, 20)},
        "beyond any buffer",
    ),
    "offset without end": (
        lambda _: {"plane_offsets": ((1 << 64) - 1, 0, 0)},
        "beyond any buffer",
    ),
    "unknown matrix": (lambda _: {"matrix": 3}, "matrix 3"),
    "unknown range": (lambda _: {"range": 0}, "range 0"),
    "unknown layout": (lambda _: {"layout": "chwn"}, "layout is 'chwn'"),
    "unknown dtype": (lambda _: {"dtype": "float64"}, "dtype is 'float64'"),
    "unknown channels": (lambda _: {"channels": "hsv"}, "channels is 'hsv'"),
    "unknown resize": (lambda _: {"resize": "fit"}, "resize is 'fit'"),
    "unknown sampling": (lambda _: {"sampling": "cubic"}, "sampling is 'cubic'"),
    "no deviation": (lambda _: {"std": (0.0,)}, "std not 0"),
    "infinite mean": (lambda _: {"mean": (np.inf,)}, "finite"),
    "no number": (lambda _: {"scale": np.nan}, "finite"),
    "two means": (lambda _: {"mean": (0.0, 0.0)}, "mean has 2 values"),
    "three means of gray": (
        lambda _: {"mean": (0.0, 0.0, 0.0), "channels": "gray"},
        "mean has 3 values",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_geometry_is_refused_with_its_value(case: str) -> None:
    change, words = BAD[case]
    picture = make_picture("i420", 40, 30)
    with pytest.raises(ValueError, match=words):
        _core.Preparation(**options(picture, **change(picture)))


def test_an_odd_width_of_yuyv422_is_refused() -> None:
    picture = make_picture("yuyv422", 40, 30)
    with pytest.raises(ValueError, match="even width, not 39"):
        _core.Preparation(**options(picture, width=39))


@pytest.mark.parametrize("format", FORMATS)
def test_a_source_of_one_byte_too_few_is_refused(format: str) -> None:
    picture = make_picture(format, 40, 30, padding=7)
    preparation = _core.Preparation(**options(picture))
    out = np.zeros((3, 14, 20), np.float32)
    needed = picture.data.size - 7
    preparation.run(picture.data.data[:needed], out.data)
    with pytest.raises(ValueError, match=f"has {needed - 1} bytes, its geometry needs {needed}"):
        preparation.run(picture.data.data[: needed - 1], out.data)


def test_an_output_that_is_too_small_is_refused() -> None:
    picture = make_picture("rgb24", 40, 30)
    preparation = _core.Preparation(**options(picture))
    out = np.zeros((2, 3, 14, 20), np.float32)
    for index in (2, -1):
        with pytest.raises(ValueError, match=f"image {index} does not fit"):
            preparation.run(picture.data.data, out.data, index)
    with pytest.raises(ValueError, match="image 0 does not fit"):
        preparation.run(picture.data.data, out.reshape(-1)[:839].data)


def test_an_output_that_is_read_only_or_out_of_line_is_refused() -> None:
    picture = make_picture("rgb24", 40, 30)
    preparation = _core.Preparation(**options(picture))
    memory = bytearray(preparation.out_nbytes + 16)
    misplaced = 1 + np.frombuffer(memory, np.uint8).ctypes.data % 2
    with pytest.raises(ValueError, match="aligned"):
        preparation.run(picture.data.data, memoryview(memory)[misplaced:])
    with pytest.raises((BufferError, TypeError)):
        preparation.run(picture.data.data, bytes(preparation.out_nbytes))


def test_a_read_only_source_is_read() -> None:
    picture = make_picture("gray8", 40, 30)
    preparation = _core.Preparation(**options(picture))
    out = np.zeros((3, 14, 20), np.float32)
    preparation.run(picture.data.tobytes(), out.data)
    assert np.array_equal(out, prepare(picture))
