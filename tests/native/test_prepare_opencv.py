"""Preparation beside OpenCV, where both define the same: INTER_LINEAR and INTER_AREA.

OpenCV is no dependency: without it these tests are skipped.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.pictures import BT601, FULL, LIMITED, Picture, make_picture
from tests.support.prepare import BOUND, prepare

cv2: Any = pytest.importorskip("cv2")
pytestmark = pytest.mark.usefixtures("isa")

PACKED = {"rgb24": 3, "bgr24": 3, "rgba": 4, "gray8": 1}
EXACT = 0.002
"""Levels by which float32 in OpenCV may differ from the reference."""


def pixels(picture: Picture) -> NDArray[Any]:
    """[height, width, channels] float32 of the components, as red, green and blue or gray."""
    return np.stack(picture.components, axis=-1).astype(np.float32)


def assert_near(got: NDArray[Any], want: NDArray[Any], bound: float) -> None:
    want = want.reshape(want.shape[0], want.shape[1], -1)
    assert np.abs(got.astype(np.float64) - want).max() <= bound


@pytest.mark.parametrize("format", PACKED)
@pytest.mark.parametrize(
    ("size", "out"),
    [((64, 48), (20, 14)), ((63, 47), (64, 48)), ((40, 30), (97, 61)), ((192, 108), (64, 36))],
)
def test_bilinear_is_inter_linear(format: str, size: tuple[int, int], out: tuple[int, int]) -> None:
    picture = make_picture(format, *size)
    channels = "gray" if format == "gray8" else "rgb"
    got = prepare(picture, layout="nhwc", channels=channels, out_width=out[0], out_height=out[1])
    want = cv2.resize(pixels(picture), out, interpolation=cv2.INTER_LINEAR)
    assert_near(got, want, BOUND + EXACT)


@pytest.mark.parametrize("format", PACKED)
@pytest.mark.parametrize(
    ("size", "out"),
    [
        ((64, 48), (16, 12)),  # by whole factors
        ((60, 42), (20, 14)),
        ((60, 42), (30, 6)),
        ((64, 48), (20, 14)),  # by fractions
        ((63, 47), (17, 13)),
        ((192, 108), (100, 100)),
        ((64, 48), (64, 13)),
        ((9, 9), (1, 1)),
    ],
)
def test_area_is_inter_area(format: str, size: tuple[int, int], out: tuple[int, int]) -> None:
    picture = make_picture(format, *size)
    channels = "gray" if format == "gray8" else "rgb"
    got = prepare(
        picture, layout="nhwc", channels=channels, out_width=out[0], out_height=out[1],
        sampling="area",
    )  # fmt: skip
    want = cv2.resize(pixels(picture), out, interpolation=cv2.INTER_AREA)
    assert_near(got, want, BOUND + EXACT)


@pytest.mark.parametrize("format", ["i420", "nv12"])
def test_flat_colours_are_those_of_cvtcolor(format: str) -> None:
    """OpenCV's is BT.601 of limited range; it rounds to levels, and takes luma below 16 as 16."""
    picture = make_picture(format, 32, 16)
    luma = picture.data[: 32 * 16].reshape(16, 32)
    rows = np.random.default_rng(5).integers((16, 0, 0), 256, (40, 3), np.uint8)
    code = cv2.COLOR_YUV2RGB_I420 if format == "i420" else cv2.COLOR_YUV2RGB_NV12
    for y, u, v in rows:
        luma[:] = y
        chroma = picture.data[32 * 16 :]
        if format == "i420":
            chroma[: chroma.size // 2], chroma[chroma.size // 2 :] = u, v
        else:
            chroma[0::2], chroma[1::2] = u, v
        want = cv2.cvtColor(picture.data.reshape(24, 32), code)
        got = prepare(
            picture, layout="nhwc", out_width=32, out_height=16, matrix=BT601, range=LIMITED
        )
        assert_near(got, want, 1.0)


def test_gray_of_rgb_is_that_of_cvtcolor() -> None:
    picture = make_picture("rgb24", 40, 30)
    got = prepare(
        picture, layout="nhwc", channels="gray", out_width=40, out_height=30, matrix=BT601,
        range=FULL,
    )  # fmt: skip
    assert_near(got, cv2.cvtColor(pixels(picture), cv2.COLOR_RGB2GRAY), BOUND)
