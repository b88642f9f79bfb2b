"""Instruction sets of preparation: which one is taken, and that all make the same image."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from mcpd.native import _core
from tests.support.pictures import FORMATS, Picture, make_picture, options
from tests.support.prepare import isas

FASTEST = isas()[0]


def prepare(isa: str, picture: Picture, **changes: Any) -> tuple[str, NDArray[np.uint8]]:
    """Which instruction set ran, and the bytes of the image."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MCPD_PREPARE", isa)
        preparation = _core.Preparation(**options(picture, **changes))
    out = np.full(preparation.out_nbytes, 99, np.uint8)
    preparation.run(picture.data.data, out.data)
    return preparation.isa, out


def test_the_fastest_is_taken_where_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in (None, ""):
        if value is None:
            monkeypatch.delenv("MCPD_PREPARE", raising=False)
        else:
            monkeypatch.setenv("MCPD_PREPARE", value)
        assert _core.Preparation(**options(make_picture("i420", 64, 48))).isa == FASTEST


@pytest.mark.parametrize("isa", isas())
def test_the_one_that_is_named_is_taken(isa: str) -> None:
    assert prepare(isa, make_picture("i420", 64, 48))[0] == isa


def test_a_name_that_is_unknown_is_refused() -> None:
    with pytest.raises(ValueError, match="MCPD_PREPARE is 'sse9', not 'avx2' or 'scalar'"):
        prepare("sse9", make_picture("i420", 64, 48))


def test_rows_of_fewer_than_16_bytes_are_left_to_portable_code() -> None:
    assert prepare(FASTEST, make_picture("gray8", 15, 9))[0] == "scalar"
    assert prepare(FASTEST, make_picture("gray8", 16, 9))[0] == FASTEST
    assert prepare(FASTEST, make_picture("i420", 30, 9))[0] == "scalar"


@given(
    format=st.sampled_from(sorted(FORMATS)),
    width=st.integers(8, 400).map(lambda n: 2 * n),
    odd=st.booleans(),
    height=st.integers(1, 40),
    out_width=st.integers(1, 300),
    out_height=st.integers(1, 40),
    layout=st.sampled_from(["nchw", "nhwc"]),
    dtype=st.sampled_from(["float32", "float16", "uint8"]),
    channels=st.sampled_from(["rgb", "bgr", "gray"]),
    resize=st.sampled_from(["stretch", "letterbox", "crop"]),
    sampling=st.sampled_from(["half_pixel", "corner"]),
    scale=st.sampled_from([1.0, 1 / 255, 2 / 255, 1e-7, 300.0]),
    mean=st.sampled_from([0.0, 0.45, 100.0]),
)
def test_an_image_is_the_same_to_the_bit_by_each(
    format: str, width: int, odd: bool, height: int, **changes: Any
) -> None:
    picture = make_picture(format, width + (odd and format != "yuyv422"), height)
    changes["mean"] = (changes["mean"],)
    images = [prepare(isa, picture, **changes)[1] for isa in isas()]
    assert all(np.array_equal(image, images[-1]) for image in images)
