"""Where preparation looks: regions of interest, area sampling, rotation, against the reference."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

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
from tests.support.prepare import BOUND, assert_prepared_right, isas, prepare

pytestmark = pytest.mark.usefixtures("isa")

SIZES = [(64, 48), (63, 47), (301, 33), (16, 5), (5, 3), (2, 1)]


def size_for(format: str, size: tuple[int, int]) -> tuple[int, int]:
    """The size, with an even width where the format needs it."""
    return (size[0] + size[0] % 2, size[1]) if format == "yuyv422" else size


# ---- regions of interest -------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("sampling", ["half_pixel", "corner", "area"])
@pytest.mark.parametrize(
    "roi", [(8, 4, 30, 20), (7, 5, 31, 21), (10.25, 3.5, 17.3, 30.1), (61.5, 0, 1.5, 47)]
)
def test_a_region_of_interest_is_prepared_right(
    format: str, sampling: str, roi: tuple[float, float, float, float]
) -> None:
    picture = make_picture(format, *size_for(format, (63, 47)), padding=3)
    for resize in ("stretch", "letterbox", "crop"):
        assert_prepared_right(picture, roi=roi, sampling=sampling, resize=resize)


@pytest.mark.parametrize("format", FORMATS)
def test_a_whole_region_is_the_same_to_the_bit_as_none(format: str) -> None:
    picture = make_picture(format, 64, 47)
    assert np.array_equal(prepare(picture, roi=(0, 0, 64, 47)), prepare(picture))


@pytest.mark.parametrize("format", ["rgb24", "bgra", "gray8"])
@pytest.mark.parametrize("sampling", ["half_pixel", "area"])
def test_a_whole_pixel_region_is_the_picture_cut_out(format: str, sampling: str) -> None:
    picture = make_picture(format, 64, 48)
    pixels = picture.data.reshape(48, -1)
    step = pixels.shape[1] // 64
    cut = np.ascontiguousarray(pixels[5:31, 9 * step : 50 * step])
    small = Picture(format, 41, 26, cut.reshape(-1), (0,), (cut.shape[1],), ())
    got = prepare(picture, roi=(9, 5, 41, 26), sampling=sampling)
    assert np.array_equal(got, prepare(small, sampling=sampling))


@pytest.mark.parametrize("format", ["rgb24", "i420"])
def test_pixels_outside_a_region_do_not_count(format: str) -> None:
    picture = make_picture(format, 64, 48)
    before = prepare(picture, roi=(20, 10, 16, 12))
    luma = picture.data[: 48 * 64 * (3 if format == "rgb24" else 1)].reshape(48, -1)
    step = luma.shape[1] // 64
    luma[:10], luma[22:], luma[:, : 20 * step], luma[:, 36 * step :] = 0, 255, 255, 0
    assert np.array_equal(prepare(picture, roi=(20, 10, 16, 12)), before)


# ---- area ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("size", SIZES)
def test_area_sampling_is_prepared_right(format: str, size: tuple[int, int]) -> None:
    picture = make_picture(format, *size_for(format, size), padding=7)
    for out in ((20, 14), (21, 16), (1, 1), (90, 5), (7, 70)):
        assert_prepared_right(picture, sampling="area", out_width=out[0], out_height=out[1])


@pytest.mark.parametrize(
    ("format", "matrix", "range", "channels"),
    list(
        itertools.product(
            ("nv12", "i420", "yuyv422"), (BT601, BT709), (LIMITED, FULL), ("rgb", "gray")
        )
    ),
)
def test_area_sampling_has_every_matrix_and_range(
    format: str, matrix: int, range: int, channels: str
) -> None:
    picture = make_picture(format, 80, 61)
    assert_prepared_right(
        picture, sampling="area", matrix=matrix, range=range, channels=channels, resize="letterbox"
    )


def test_area_sampling_by_a_whole_factor_is_the_mean_of_blocks() -> None:
    picture = make_picture("gray8", 60, 42)
    got = prepare(picture, sampling="area", channels="gray")
    blocks = picture.components[0].reshape(14, 3, 20, 3).mean((1, 3))
    assert np.abs(got[0] - blocks).max() <= 1 / 128


def test_area_sampling_of_a_1080p_frame_is_prepared_right() -> None:
    picture = make_picture("nv12", 1920, 1080)
    assert_prepared_right(
        picture, sampling="area", resize="letterbox", out_width=416, out_height=416
    )


def test_the_reference_tells_area_sampling_from_bilinear() -> None:
    picture = make_picture("rgb24", 64, 48)
    got = prepare(picture, sampling="area").astype(np.float64).transpose(1, 2, 0)
    assert np.abs(got - reference(picture)).max() > 10 * BOUND


# ---- rotation ------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("rotation", [90, 180, 270])
@pytest.mark.parametrize("sampling", ["half_pixel", "corner", "area"])
def test_a_turned_frame_is_prepared_right(format: str, rotation: int, sampling: str) -> None:
    for size in SIZES:
        picture = make_picture(format, *size_for(format, size), padding=5)
        for resize, layout in (("stretch", "nchw"), ("letterbox", "nhwc"), ("crop", "nchw")):
            assert_prepared_right(
                picture, rotation=rotation, sampling=sampling, resize=resize, layout=layout,
                out_width=37, pad_value=50.0,
            )  # fmt: skip


@pytest.mark.parametrize("format", ["rgb24", "bgra", "gray8"])
@pytest.mark.parametrize("rotation", [90, 180, 270])
@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8", "int8"])
def test_turning_is_what_numpy_makes_of_the_pixels(format: str, rotation: int, dtype: str) -> None:
    picture = make_picture(format, 45, 33)
    step = picture.data.size // (45 * 33)
    pixels = np.rot90(picture.data.reshape(33, 45, step), -rotation // 90)
    upright = np.ascontiguousarray(pixels)
    height, width = upright.shape[:2]
    turned = Picture(format, width, height, upright.reshape(-1), (0,), (width * step,), ())
    for layout in ("nchw", "nhwc"):
        got = prepare(picture, rotation=rotation, layout=layout, resize="letterbox", dtype=dtype)
        want = prepare(turned, layout=layout, resize="letterbox", dtype=dtype)
        # A position seen from its other end may round to the other side of 1/32768 of a pixel.
        assert np.abs(got.astype(np.float64) - want.astype(np.float64)).max() <= 1


@pytest.mark.parametrize("rotation", [0, 90, 180, 270])
@pytest.mark.parametrize("resize", ["stretch", "letterbox", "crop"])
def test_the_affine_map_leads_back_to_the_stored_pixel(rotation: int, resize: str) -> None:
    """A bright dot in the source is where the map says that its image comes from."""
    pixels = np.zeros((48, 64), np.uint8)
    pixels[30:32, 40:42] = 255
    picture = Picture("gray8", 64, 48, pixels.reshape(-1), (0,), (64,), ())
    changes: dict[str, Any] = {
        "rotation": rotation, "resize": resize, "roi": (10.5, 4, 50, 42.25), "channels": "gray",
        "out_width": 90, "out_height": 70,
    }  # fmt: skip
    image = prepare(picture, **changes)[0]
    rows, columns = np.nonzero(image > 200)
    x, y = columns.mean() + 0.5, rows.mean() + 0.5
    a, b, c, d, e, f = _core.Preparation(**options(picture, **changes)).affine
    assert a * x + b * y + c == pytest.approx(41, abs=0.3)
    assert d * x + e * y + f == pytest.approx(31, abs=0.3)


def test_the_transform_of_an_upright_frame_is_its_affine_map() -> None:
    picture = make_picture("rgb24", 64, 48)
    for rotation in (0, 180):
        one = _core.Preparation(**options(picture, rotation=rotation, roi=(3, 4, 20.5, 30)))
        a, b, c, d, e, f = one.affine
        assert one.transform == (a, c, e, f)
        assert (b, d) == (0, 0)
    turned = _core.Preparation(**options(picture, rotation=90))
    with pytest.raises(ValueError, match="use affine"):
        _ = turned.transform


# ---- any geometry --------------------------------------------------------------------------------


@st.composite
def geometries(draw: st.DrawFn) -> tuple[Picture, dict[str, Any]]:
    format = draw(st.sampled_from(sorted(FORMATS)))
    size = size_for(format, (draw(st.integers(1, 130)), draw(st.integers(1, 60))))
    changes: dict[str, Any] = {
        "out_width": draw(st.integers(1, 80)),
        "out_height": draw(st.integers(1, 80)),
        "resize": draw(st.sampled_from(["stretch", "letterbox", "crop"])),
        "sampling": draw(st.sampled_from(["half_pixel", "corner", "area"])),
        "rotation": draw(st.sampled_from([0, 90, 180, 270])),
        "layout": draw(st.sampled_from(["nchw", "nhwc"])),
        "channels": draw(st.sampled_from(["rgb", "bgr", "gray"])),
        "matrix": draw(st.sampled_from([BT601, BT709])),
        "range": draw(st.sampled_from([LIMITED, FULL])),
        "pad_value": draw(st.integers(0, 255)),
    }
    if draw(st.booleans()):
        # In 1/8: exact in binary, so that what a rectangle touches is the same for both.
        width, height = (draw(st.integers(1, 8 * n)) / 8 for n in size)
        changes["roi"] = (
            draw(st.integers(0, int(8 * (size[0] - width)))) / 8,
            draw(st.integers(0, int(8 * (size[1] - height)))) / 8,
            width,
            height,
        )
    return make_picture(format, *size, padding=draw(st.integers(0, 20))), changes


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(geometries())
def test_any_geometry_is_prepared_right_and_the_same_by_each(
    isa: str, geometry: tuple[Picture, dict[str, Any]]
) -> None:
    picture, changes = geometry
    assert_prepared_right(picture, **changes)
    images = []
    for name in isas():
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("MCPD_PREPARE", name)
            images.append(prepare(picture, **changes))
    assert all(np.array_equal(image, images[0]) for image in images)


# ---- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "roi",
    [
        (-1, 0, 10, 10),
        (0, 0, 64.5, 10),
        (60, 0, 5, 10),
        (0, 40, 10, 9),
        (0, 0, 1e-9, 10),
        (0, 0, -5, 10),
        (np.nan, 0, 10, 10),
        (0, 0, np.nan, 10),
        (0, 0, np.inf, 10),
        (1e308, 0, 1e308, 10),
    ],
)
def test_a_region_outside_the_frame_is_refused(roi: tuple[float, float, float, float]) -> None:
    with pytest.raises(ValueError, match="is not inside the frame of 64x48"):
        _core.Preparation(**options(make_picture("rgb24", 64, 48), roi=roi))


@pytest.mark.parametrize("roi", [(0, 0, 0, 0), (1, 1, 5), "whole", (0, 0, 5, 0)])
def test_a_region_that_is_none_is_refused(roi: Any) -> None:
    with pytest.raises(ValueError, match="roi"):
        _core.Preparation(**options(make_picture("rgb24", 64, 48), roi=roi))


@pytest.mark.parametrize("rotation", [1, 45, 360, 89])
def test_a_rotation_by_another_angle_is_refused(rotation: int) -> None:
    with pytest.raises(ValueError, match=f"rotation {rotation} is not 0, 90, 180 or 270"):
        _core.Preparation(**options(make_picture("rgb24", 64, 48), rotation=rotation))
