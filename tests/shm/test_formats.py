"""Pixel formats: planes that fit, aligned, in order; sizes that cannot be are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.shm.errors import InvalidRequest
from mcpd.shm.formats import ENCODED, FORMAT_CODES, MAX_SIDE, check_frame, frame_layout

PLANAR = sorted(FORMAT_CODES.keys() - ENCODED)


@pytest.mark.parametrize(
    ("format", "shapes", "nbytes"),
    [
        ("rgb24", [(1080, 1920, 3)], 6_220_800),
        ("bgr24", [(1080, 1920, 3)], 6_220_800),
        ("rgba", [(1080, 1920, 4)], 8_294_400),
        ("bgra", [(1080, 1920, 4)], 8_294_400),
        ("gray8", [(1080, 1920)], 2_073_600),
        ("nv12", [(1080, 1920), (540, 960, 2)], 3_110_400),
        ("i420", [(1080, 1920), (540, 960), (540, 960)], 3_110_400),
        ("yuyv422", [(1080, 1920, 2)], 4_147_200),
    ],
)
def test_full_hd_has_the_planes_of_its_format(
    format: str, shapes: list[tuple[int, ...]], nbytes: int
) -> None:
    layout = frame_layout(format, 1920, 1080)
    assert [plane.shape for plane in layout.planes] == shapes
    assert layout.nbytes == nbytes


@given(st.sampled_from(PLANAR), st.integers(1, 700), st.integers(1, 700))
def test_planes_are_aligned_and_do_not_overlap(format: str, width: int, height: int) -> None:
    width, height = 2 * width, 2 * height
    layout = frame_layout(format, width, height)
    end = 0
    for plane in layout.planes:
        assert plane.offset % 64 == plane.stride % 64 == 0
        assert plane.offset >= end
        assert plane.row_nbytes <= plane.stride < plane.row_nbytes + 64
        end = plane.end
    assert end <= layout.nbytes


@pytest.mark.parametrize("format", ["i420", "nv12", "yuyv422"])
def test_odd_width_is_an_error_where_neighbours_share_chroma(format: str) -> None:
    with pytest.raises(InvalidRequest, match=f"width 641 is odd, {format} needs it even") as caught:
        check_frame(format, 641, 480)
    assert "640" in caught.value.hint


def test_odd_height_is_an_error_only_where_rows_share_chroma() -> None:
    with pytest.raises(InvalidRequest, match="height 481 is odd"):
        check_frame("i420", 640, 481)
    check_frame("yuyv422", 640, 481)
    check_frame("rgb24", 641, 481)


@pytest.mark.parametrize("side", [0, -2, MAX_SIDE + 1, 2**40])
def test_side_out_of_bounds_is_an_error(side: int) -> None:
    with pytest.raises(InvalidRequest, match=rf"width {side} is not in 1..{MAX_SIDE}"):
        check_frame("rgb24", side, 480)
    with pytest.raises(InvalidRequest, match=rf"height {side} is not in"):
        check_frame("rgb24", 480, side)


def test_unknown_format_is_answered_with_the_known_ones() -> None:
    with pytest.raises(InvalidRequest, match="'cmyk'") as caught:
        check_frame("cmyk", 640, 480)
    assert "i420" in caught.value.hint


def test_encoded_formats_have_no_planes() -> None:
    check_frame("jpeg", 641, 481)
    with pytest.raises(InvalidRequest, match="encoded"):
        frame_layout("jpeg", 640, 480)


@pytest.mark.parametrize("format", PLANAR)
def test_largest_frame_has_a_layout(format: str) -> None:
    assert frame_layout(format, MAX_SIDE, MAX_SIDE).nbytes >= MAX_SIDE * MAX_SIDE
