"""Values of a wrong type, or beyond every limit, are refused as such, with their name."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mcpd.shm.aio_waiting import Waiting
from mcpd.shm.bundle import TensorSpec, describe_frame
from mcpd.shm.errors import InvalidRequest, LimitExceeded, shown
from mcpd.shm.reading import Reading
from mcpd.shm.spec import stream_spec
from tests.support.streams import LocalStream

GRAY = describe_frame("gray8", 64, 4)
HUGE = 10**400
ENDLESS = 10**5000
"""More digits than Python prints."""
ENDLESS_PARAM = pytest.param(ENDLESS, id="endless")
SPEC = TensorSpec("uint8", (4,))


def spec(**values: Any) -> Any:
    usual: dict[str, Any] = {
        "width": 0,
        "height": 0,
        "format": "",
        "tensors": None,
        "slots": 8,
        "holds": 2,
        "history": 1,
        "memory": "memfd",
        "matrix": "bt709",
        "range": "limited",
        "rotation": 0,
        "kind": None,
        "slot_nbytes": None,
    }
    return stream_spec(**{**usual, **values})


def gray(**values: Any) -> Any:
    return spec(**{"format": "gray8", "width": 64, "height": 4, **values})


@pytest.mark.parametrize(
    ("make", "values", "text"),
    [
        (spec, {"tensors": "x"}, "tensors is 'x'"),
        (spec, {"tensors": (1,)}, r"tensors is \(1,\)"),
        (spec, {"tensors": ""}, "tensors is ''"),
        (spec, {"tensors": {"x": 1}}, "tensor 'x' is 1"),
        (spec, {"tensors": {3: SPEC}}, "tensor name 3 is not of 1..31 bytes"),
        (spec, {"tensors": {"\ud800": SPEC}}, r"tensor name '\\ud800' is not"),
        (spec, {"tensors": {"x": SPEC}, "kind": []}, r"kind \[\] is not one of frames"),
        (spec, {"tensors": {"x": SPEC}, "kind": {}}, r"kind {} is not one of frames"),
        (spec, {"tensors": {"x": SPEC}, "slot_nbytes": "5"}, "slot_nbytes is '5'"),
        (gray, {"strides": "x"}, "strides is 'x'"),
        (gray, {"strides": b"x"}, "strides is b'x'"),
        (gray, {"strides": 64}, "strides is 64"),
        (gray, {"strides": [math.nan]}, r"strides is \[nan\]"),
        (gray, {"strides": [None]}, r"strides is \[None\]"),
        (gray, {"strides": [ENDLESS]}, "strides has of type int"),
        (gray, {"offsets": [True]}, r"offsets is \[True\]"),
        (gray, {"format": ["gray8"]}, "unknown pixel format"),
        (gray, {"width": "64"}, "width '64' is not in 1..16384"),
        (gray, {"width": 64.0}, r"width 64\.0 is not in 1..16384"),
        (gray, {"width": ENDLESS}, "width of type int"),
        (gray, {"rotation": 90.0}, r"rotation 90\.0 is not one of"),
        (TensorSpec, {"dtype": "uint8", "shape": 4}, "shape 4 is not"),
        (TensorSpec, {"dtype": "uint8", "shape": ("4",)}, "is not of whole numbers"),
        (Reading, {"max_fps": HUGE}, "max_fps is 10{70,}.*it must be 0.001"),
        (Reading, {"max_fps": ENDLESS}, "max_fps is of type int"),
        (Reading, {"every_n": ENDLESS}, "every_n is of type int"),
        (Reading, {"follow": math.nan}, "follow is nan"),
        (Reading, {"skip_expired": "no"}, "skip_expired is 'no'"),
    ],
)
def test_value_that_nothing_can_have_is_refused_by_name(
    make: Callable[..., Any], values: dict[str, Any], text: str
) -> None:
    with pytest.raises(InvalidRequest, match=text):
        make(**values)


def test_integers_of_numpy_are_integers() -> None:
    _, description = gray(width=np.int64(64), strides=np.array([128]), offsets=(np.uint8(64),))
    assert description.planes[0][:2] == (64, 128)
    assert TensorSpec("uint8", (np.int32(4),)).shape == (4,)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arrays", "quantised", "text"),
    [
        ({3: np.zeros(4)}, None, "tensor name 3 is not"),
        ({"\ud800": np.zeros(4)}, None, "is not of 1..31 bytes"),
        ({"x": [1, 2]}, None, "tensor 'x' is a list, not an array"),
        ({"x": None}, None, "tensor 'x' is a NoneType, not an array"),
        ([np.zeros(4)], None, "arrays is "),
        ({"x": np.zeros(4, np.uint8)}, {"x": 1.0}, r"quantised has 1\.0 for 'x'"),
        ({"x": np.zeros(4, np.uint8)}, "x", "quantised is 'x'"),
    ],
)
def test_tensors_that_are_none_are_refused(arrays: Any, quantised: Any, text: str) -> None:
    with LocalStream(slot_nbytes=4096) as stream, stream.writer.acquire(0) as slot:
        with pytest.raises(InvalidRequest, match=text):
            slot.set_tensors(arrays, quantised=quantised)
        slot.set_tensors({"x": np.zeros(4)})


@pytest.mark.parametrize("timeout_s", ["x", [], HUGE, ENDLESS_PARAM, 1j])
def test_time_to_wait_that_is_no_time_is_refused(timeout_s: Any) -> None:
    with LocalStream(GRAY) as stream:
        reader = stream.attach()
        for wait in (reader.next, stream.writer.acquire):
            with pytest.raises(InvalidRequest, match="timeout_s is "):
                wait(timeout_s)
        waiting = Waiting(lambda: reader)
        with pytest.raises(InvalidRequest, match="timeout_s is "):
            asyncio.run(waiting.attempt(lambda: reader.next(0), timeout_s, "nothing"))


@pytest.mark.parametrize("count", [2**32, HUGE, ENDLESS_PARAM])
def test_more_recent_frames_than_pins_are_refused(count: int) -> None:
    with LocalStream(GRAY) as stream, pytest.raises(LimitExceeded, match="pins"):
        stream.attach().recent(count)


@pytest.mark.parametrize("value", [-1, 2**64, ENDLESS_PARAM])
@pytest.mark.parametrize("name", ["flags", "status", "source_seq", "model_version", "nbytes"])
def test_field_out_of_its_range_is_named(name: str, value: int) -> None:
    with LocalStream(GRAY) as stream, stream.writer.acquire(0) as slot:
        with pytest.raises(OverflowError, match=f"^{name} must be 0 to "):
            setattr(slot, name, value)
        with pytest.raises(TypeError, match=f"^{name} must be an integer"):
            setattr(slot, name, "5")


def test_long_values_are_cut() -> None:
    assert len(shown("x" * 1000)) < 90


def test_first_slot_is_not_held_while_numpy_is_imported() -> None:
    program = (
        "import sys; from tests.support.streams import LocalStream\n"
        "from mcpd.shm.bundle import describe_frame\n"
        "assert 'numpy' not in sys.modules\n"
        "with LocalStream(describe_frame('gray8', 64, 4)) as stream:\n"
        "    assert 'numpy' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
