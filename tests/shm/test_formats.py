"""Pixel formats: planes that fit, aligned, in order; sizes that cannot be are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.shm.errors import InvalidRequest
from mcpd.shm.formats import (
    ENCODED,
    FORMAT_CODES,
    MAX_SIDE,
    check_frame,
    frame_layout,
    plane_shapes,
)

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


@given(st.sampled_from(PLANAR), st.integers(1, 1400), st.integers(1, 1400))
def test_planes_are_aligned_and_do_not_overlap(format: str, width: int, height: int) -> None:
    width += width % 2 if format == "yuyv422" else 0
    layout = frame_layout(format, width, height)
    end = 0
    for plane in layout.planes:
        assert plane.offset % 64 == plane.stride % 64 == 0
        assert plane.offset >= end
        assert plane.row_nbytes <= plane.stride < plane.row_nbytes + 64
        end = plane.end
    assert end <= layout.nbytes


@pytest.mark.parametrize("size", [(1, 1), (7, 5), (8, 5), (7, 4)])
def test_odd_sides_have_a_chroma_sample_for_the_last_pixel(size: tuple[int, int]) -> None:
    width, height = size
    chroma = ((height + 1) // 2, (width + 1) // 2)
    shapes = [shape for shape, _ in plane_shapes("i420", width, height)]
    assert shapes == [(height, width), chroma, chroma]
    shapes = [shape for shape, _ in plane_shapes("nv12", width, height)]
    assert shapes == [(height, width), (*chroma, 2)]


def test_odd_width_is_an_error_only_where_pixels_share_chroma_in_pairs() -> None:
    with pytest.raises(InvalidRequest, match="width 641 is odd, yuyv422 needs it even") as caught:
        check_frame("yuyv422", 641, 480)
    assert "640" in caught.value.hint
    check_frame("yuyv422", 640, 481)
    check_frame("i420", 641, 481)
    check_frame("rgb24", 641, 481)


def test_strides_and_offsets_may_be_chosen() -> None:
    tight = frame_layout("bgr24", 7, 5, (21,))
    assert [(plane.offset, plane.stride) for plane in tight.planes] == [(0, 21)]
    wide = frame_layout("i420", 8, 4, (100, 50, 50))
    assert [plane.offset for plane in wide.planes] == [0, 448, 576]
    placed = frame_layout("nv12", 8, 4, None, (4096, 8192))
    assert [(plane.offset, plane.stride) for plane in placed.planes] == [(4096, 64), (8192, 64)]
    assert placed.nbytes == placed.planes[1].end


def test_planes_may_interlace_but_share_no_byte() -> None:
    imc4 = frame_layout("i420", 8, 4, (8, 8, 8), (0, 32, 36))
    assert imc4.nbytes == 48
    with pytest.raises(InvalidRequest, match="planes 1 and 2 overlap at byte 35"):
        frame_layout("i420", 8, 4, (8, 8, 8), (0, 32, 35))
    with pytest.raises(InvalidRequest, match="planes 0 and 1 overlap at byte 24"):
        frame_layout("nv12", 8, 4, (8, 8), (0, 24))


@pytest.mark.parametrize(
    ("strides", "offsets", "said"),
    [
        ((64, 64), None, "2 strides for i420, which has 3 planes"),
        (None, (0,), "1 offsets for i420"),
        ((64, 3, 64), None, "stride 3 of plane 1 is less than its rows of 4 bytes"),
        ((-64, 64, 64), None, "stride -64 of plane 0"),
        ((64, 64, 64), (-1, 512, 1024), "plane 0 from byte -1"),
        ((1 << 62, 64, 64), None, "does not fit a slot; a slot has at most 1099511627776"),
        ((64, 64, 64), (0, 1 << 63, 1024), "does not fit a slot"),
        ((64, 64, 64), (0, 1024, (1 << 64) - 64), "does not fit a slot"),
    ],
)
def test_layout_that_cannot_be_is_refused(
    strides: tuple[int, ...] | None, offsets: tuple[int, ...] | None, said: str
) -> None:
    with pytest.raises(InvalidRequest, match=said):
        frame_layout("i420", 8, 4, strides, offsets)


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
