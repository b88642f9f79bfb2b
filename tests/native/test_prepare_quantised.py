"""Quantised preparation: uint8 and int8 by a scale and a zero point."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from mcpd.native import _core
from tests.support.pictures import Picture, make_picture, options
from tests.support.prepare import prepare

pytestmark = pytest.mark.usefixtures("isa")


def quantised(value: NDArray[Any], scale: float, zero_point: int, dtype: str) -> NDArray[Any]:
    """As ONNX's QuantizeLinear."""
    limits = np.iinfo(np.dtype(dtype))
    result: NDArray[Any] = np.clip(np.rint(value / scale) + zero_point, limits.min, limits.max)
    return result


@pytest.mark.parametrize(
    ("dtype", "scale", "zero_point"),
    [
        ("int8", 1 / 127, 0),
        ("int8", 0.0078125, -128),
        ("int8", 0.02, 13),
        ("int8", 1e-9, 127),
        ("uint8", 1 / 255, 0),
        ("uint8", 0.0186, 114),
        ("uint8", 10.0, 255),
    ],
)
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("format", ["i420", "bgr24"])
def test_values_are_quantised(
    dtype: str, scale: float, zero_point: int, layout: str, format: str
) -> None:
    picture = make_picture(format, 45, 31)
    changes: dict[str, Any] = {
        "layout": layout,
        "scale": 1 / 255,
        "mean": (0.485, 0.456, 0.406),
        "std": (0.229, 0.224, 0.225),
        "resize": "letterbox",
        "pad_value": 114.0,
    }
    got = prepare(picture, dtype=dtype, quant_scale=scale, zero_point=zero_point, **changes)
    assert got.dtype == np.dtype(dtype)
    value = prepare(picture, **changes).astype(np.float64)
    # float32 holds a value divided by its scale to 1 in 2^23: near a half, either side is right.
    slack = 1e-5 + np.abs(value / scale) * 2**-22
    low = quantised(value - slack * scale, scale, zero_point, dtype)
    high = quantised(value + slack * scale, scale, zero_point, dtype)
    assert ((low <= got) & (got <= high)).all()
    assert (low == high).mean() > 0.99


def test_halves_are_rounded_to_even() -> None:
    row = np.arange(256, dtype=np.uint8)[None]
    picture = Picture("gray8", 256, 1, row.reshape(-1), (0,), (256,), (row,))
    changes: dict[str, Any] = {"out_width": 256, "out_height": 1, "channels": "gray"}
    halves = prepare(picture, dtype="uint8", quant_scale=2.0, **changes).reshape(-1)
    assert np.array_equal(halves, np.rint(np.arange(256) / 2))
    signed = prepare(
        picture, dtype="int8", quant_scale=2.0, zero_point=-3, mean=(128.0,), **changes
    ).reshape(-1)
    assert np.array_equal(signed, np.rint((np.arange(256) - 128) / 2) - 3)


def test_values_beyond_the_type_are_its_ends() -> None:
    picture = make_picture("gray8", 40, 30)
    changes: dict[str, Any] = {"mean": (128.0,), "std": (1e-6,), "channels": "gray"}
    got = prepare(picture, dtype="int8", quant_scale=1e-6, zero_point=5, **changes)
    assert set(np.unique(got)) <= {-128, 5, 127}


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    dtype=st.sampled_from(["int8", "uint8"]),
    scale=st.floats(1e-4, 1e3),
    zero_point=st.integers(0, 255),
    width=st.integers(1, 70),
)
def test_any_scale_and_zero_point(dtype: str, scale: float, zero_point: int, width: int) -> None:
    zero_point -= 128 if dtype == "int8" else 0
    picture = make_picture("rgb24", width, 5)
    changes: dict[str, Any] = {"out_width": width, "out_height": 5, "mean": (100.0,)}
    got = prepare(picture, dtype=dtype, quant_scale=scale, zero_point=zero_point, **changes)
    value = prepare(picture, **changes).astype(np.float64)
    slack = scale * 1e-5 + np.abs(value) * 2**-22
    low = quantised(value - slack, scale, zero_point, dtype)
    high = quantised(value + slack, scale, zero_point, dtype)
    assert ((low <= got) & (got <= high)).all()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dtype": "int8", "zero_point": 128}, "zero_point 128 is outside -128..127"),
        ({"dtype": "uint8", "zero_point": -1}, "zero_point -1 is outside 0..255"),
        ({"dtype": "int8", "quant_scale": -1.0}, "quant_scale -1 must be finite and above 0"),
        ({"dtype": "int8", "quant_scale": np.nan}, "quant_scale nan must be finite"),
        ({"dtype": "int8", "quant_scale": np.inf}, "quant_scale inf must be finite"),
        ({"dtype": "float32", "quant_scale": 0.5}, "are for uint8 and int8 alone"),
        ({"dtype": "float16", "zero_point": 1}, "are for uint8 and int8 alone"),
        ({"scale": 1e38}, "beyond float32"),
        ({"scale": 1e300, "std": (1e-300,)}, "beyond float32"),
        ({"dtype": "uint8", "quant_scale": 1e-300, "scale": 1e200}, "beyond float32"),
        ({"pad_value": 1e300, "scale": 1e10}, "beyond float32"),
    ],
)
def test_a_quantisation_out_of_range_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        _core.Preparation(**options(make_picture("rgb24", 40, 30), **changes))
