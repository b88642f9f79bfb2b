"""Descriptions: byte for byte those of layout.h, and nothing foreign in them is believed."""

from __future__ import annotations

import re
import struct
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.shm.bundle import (
    HEAD_NBYTES,
    KIND_FRAME,
    TENSOR_NBYTES,
    Description,
    Tensor,
    TensorSpec,
    describe_frame,
    describe_tensors,
    parse_description,
)
from mcpd.shm.dtypes import DTYPES
from mcpd.shm.errors import InvalidRequest, ProtocolError
from mcpd.shm.formats import (
    ENCODED,
    FORMAT_CODES,
    MATRIX_CODES,
    MAX_NBYTES,
    RANGE_CODES,
    Plane,
)

ROOT = Path(__file__).parents[2]
SLOT_NBYTES = 1 << 20

# Prints a description that the compiler laid out, and what the names stand for.
PROGRAM = r"""
#include <stdio.h>
#include <string.h>
#include "layout.h"
int main(void)
{
    static struct mcpd_description d;
    d.kind = MCPD_FRAME; d.format = MCPD_I420; d.width = 640; d.height = 480; d.rotation = 90;
    d.matrix = MCPD_BT601; d.range = MCPD_FULL; d.nplanes = 3; d.ntensors = 2;
    for (int i = 0; i < 3; i++) { d.plane_offset[i] = 64 * i; d.plane_stride[i] = 640 + i; }
    for (int i = 0; i < 2; i++) {
        struct mcpd_tensor *t = &d.tensors[i];
        strcpy(t->name, i ? "second" : "first");
        t->dtype = i ? MCPD_FLOAT16 : MCPD_UINT8; t->ndim = 2; t->flags = i; t->scale = 0.5f * i;
        t->zero_point = -3 * i; t->offset = 640 * i; t->nbytes = 100 + i;
        for (int k = 0; k < 2; k++) { t->shape[k] = 10 + k; t->strides[k] = 1 + k; }
    }
    fwrite(&d, 128 + 2 * 192, 1, stdout);
    return 0;
}
"""


def test_packed_bytes_are_those_of_the_c_structs(tmp_path: Path) -> None:
    source = tmp_path / "layout.c"
    source.write_text(PROGRAM)
    include = [f"-I{ROOT}/native/include", f"-I{ROOT}/native/src"]
    subprocess.run(
        ["cc", "-std=c11", *include, str(source), "-o", str(tmp_path / "layout")], check=True
    )
    compiled = subprocess.run([tmp_path / "layout"], check=True, capture_output=True).stdout
    tensors = tuple(
        Tensor(
            name,
            dtype,
            (10, 11),
            (1, 2),
            640 * i,
            100 + i,
            scale=0.5 * i,
            zero_point=-3 * i,
            flags=i,
        )
        for i, (name, dtype) in enumerate([("first", "uint8"), ("second", "float16")])
    )
    planes = tuple(Plane(64 * i, 640 + i, 480, 640, (480, 640)) for i in range(3))
    ours = Description(KIND_FRAME, "i420", 640, 480, 90, "bt601", "full", planes, tensors)
    assert ours.packed == compiled


def test_codes_are_those_of_the_c_header() -> None:
    header = (ROOT / "native/include/mcpd.h").read_text()
    codes = {
        **{f"MCPD_{name.upper()}": code for name, code in FORMAT_CODES.items()},
        **{f"MCPD_{name.upper()}": code for name, code in MATRIX_CODES.items()},
        **{f"MCPD_{name.upper()}": code for name, code in RANGE_CODES.items()},
        **{f"MCPD_{name.upper()}": code for name, (code, _, _) in DTYPES.items()},
    }
    codes = {name.replace("[", "_").rstrip("]"): code for name, code in codes.items()}
    for name, code in codes.items():
        assert f"{name} = {code}," in header.replace("\n", " ") or f"{name} = {code} " in header


def test_codes_of_dtypes_are_those_of_the_protocol_page() -> None:
    page = (ROOT / "docs/protocol.md").read_text().replace("\n", " ")
    for name, (code, _, _) in DTYPES.items():
        assert f"{code} {name}" in page or (code >= 32 and "[" in name)


@pytest.mark.parametrize("format", ["rgb24", "i420", "nv12", "gray8", "yuyv422", "jpeg"])
def test_frame_comes_back_as_it_was_described(format: str) -> None:
    ours = describe_frame(format, 640, 480, rotation=270, matrix="bt601", range="full")
    assert parse_description(ours.packed, SLOT_NBYTES) == ours
    assert ours.extent <= SLOT_NBYTES


def test_tensors_are_laid_out_aligned_in_order() -> None:
    ours = describe_tensors(
        {
            "boxes": TensorSpec("float32", (7, 4)),
            "count": TensorSpec("int32", ()),
            "nothing": TensorSpec("float32", (0, 4)),
            "bits": TensorSpec("bfloat16", (3, 5)),
        }
    )
    assert [(t.offset, t.nbytes) for t in ours.tensors] == [(0, 112), (128, 4), (192, 0), (192, 30)]
    assert ours.tensors[0].strides == (16, 4)
    assert ours.extent == 222
    assert parse_description(ours.packed, SLOT_NBYTES) == ours


@pytest.mark.parametrize(
    ("dtype", "shape"), [("float31", (1,)), ("float32", (1,) * 9), ("float32", (2, -1))]
)
def test_tensor_that_cannot_be_is_refused(dtype: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidRequest):
        TensorSpec(dtype, shape)


@pytest.mark.parametrize(
    ("dtype", "said"),
    [
        ("float128", "astype('float64')"),
        ("complex256", "astype('complex128')"),
        ("datetime64[D]", "astype('datetime64[ns]')"),
        ("timedelta64", "astype('timedelta64[ns]')"),
        ("str96", "UTF-8"),
        ("bytes24", "UTF-8"),
        ("object", "UTF-8"),
        ("void64", "Send each field"),
        ("uint4", "packed"),
        ("float8_e4m3", "view('uint8')"),
        ("float31", "Known: bool, uint8"),
    ],
)
def test_dtype_that_is_not_carried_is_answered_with_what_to_send(dtype: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=f"unknown dtype '{re.escape(dtype)}'") as caught:
        TensorSpec(dtype, (1,))
    assert said in caught.value.hint


@pytest.mark.parametrize(
    ("dtype", "scale", "zero_point", "said"),
    [
        ("float32", 0.5, 0, "float32 with scale 0.5"),
        ("float8_e5m2", 0.5, 3, "zero point 3 of float8_e5m2"),
        ("uint8", -0.5, 0, "scale -0.5"),
        ("uint8", 0.0, 3, "scale 0.0 with zero point 3"),
        ("uint8", float("nan"), 0, "scale nan"),
        ("uint8", float("inf"), 0, "scale inf"),
        ("uint8", 1e300, 0, "scale 1e\\+300 is not a float32"),
        ("uint8", 1e-300, 0, "is 0 as a float32"),
        ("uint8", 0.5, 1 << 31, "zero point 2147483648"),
    ],
)
def test_quantisation_that_cannot_be_is_refused(
    dtype: str, scale: float, zero_point: int, said: str
) -> None:
    with pytest.raises(InvalidRequest, match=said):
        TensorSpec(dtype, (1,), scale, zero_point)


def test_scale_and_zero_point_are_in_the_description() -> None:
    ours = describe_tensors(
        {
            "logits": TensorSpec("uint8", (1, 90), 0.1, 128),
            "weights": TensorSpec("float8_e4m3fn", (4,), 2.0),
            "plain": TensorSpec("int8", (4,)),
        }
    )
    theirs = parse_description(ours.packed, SLOT_NBYTES)
    assert theirs == ours
    assert (theirs.tensor("logits").scale, theirs.tensor("logits").zero_point) == (
        struct.unpack("<f", struct.pack("<f", 0.1))[0],
        128,
    )
    assert theirs.quantised
    assert not describe_tensors({"plain": TensorSpec("int8", (4,))}).quantised
    with pytest.raises(InvalidRequest, match="no tensor 'boxes'; the slot holds 'logits', 'wei"):
        theirs.tensor("boxes")


@pytest.mark.parametrize("name", ["", "x" * 32, "a\0b", "\u00e9" * 16])
def test_name_that_does_not_fit_its_field_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="tensor name"):
        describe_tensors({name: TensorSpec("uint8", (1,))})


def test_seventeen_tensors_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="17 tensors"):
        describe_tensors({f"t{i}": TensorSpec("uint8", (1,)) for i in range(17)})


@pytest.mark.parametrize(
    ("what", "value"), [("matrix", "bt2020"), ("range", "studio"), ("rotation", 45)]
)
def test_unknown_colour_or_rotation_is_refused(what: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=f"{what} {value!r} is not one of"):
        describe_frame("i420", 640, 480, **{what: value})


FRAME = describe_frame("i420", 640, 480)
BUNDLE = describe_tensors({"a": TensorSpec("float32", (10, 10)), "b": TensorSpec("uint8", (5,))})


def changed(data: bytes, offset: int, code: str, value: float) -> bytes:
    field = struct.pack(f"<{code}", value)
    return data[:offset] + field + data[offset + len(field) :]


@pytest.mark.parametrize(
    ("offset", "code", "value", "said"),
    [
        (0, "I", 0, "kind 0"),
        (0, "I", 4, "kind 4"),
        (4, "I", 0, "unknown pixel format"),
        (4, "I", 1, "3 planes, rgb24 has 1"),
        (4, "I", 64, "kind 2 with format 64"),
        (8, "I", 1282, "does not fit a slot"),
        (8, "I", 2**32 - 1, "width 4294967295"),
        (12, "I", 0, "height 0"),
        (12, "I", 16000, "does not fit a slot"),
        (16, "I", 91, "rotation 91"),
        (24, "I", 4, "4 planes"),
        (28, "I", 17, "ntensors 17"),
        (28, "I", 1, "ntensors 1 in 128 bytes"),
        (32, "Q", 2**64 - 1, "does not fit a slot"),
        (32, "Q", SLOT_NBYTES, "does not fit a slot"),
        (64, "Q", 639, "does not fit a slot"),
        (64, "Q", 2**63, "does not fit a slot"),
    ],
)
def test_frame_that_reaches_out_of_its_slot_is_refused(
    offset: int, code: str, value: int, said: str
) -> None:
    with pytest.raises(ProtocolError, match=said):
        parse_description(changed(FRAME.packed, offset, code, value), SLOT_NBYTES)


@pytest.mark.parametrize(
    ("offset", "code", "value", "said"),
    [
        (0, "B", 0, "tensor name"),
        (0, "B", 0xFF, "tensor name"),
        (32, "H", 0, "unknown dtype 0"),
        (32, "H", 18, "unknown dtype 18"),
        (34, "B", 9, "9 dimensions"),
        (36, "f", -1.0, "scale -1.0"),
        (36, "f", float("nan"), "scale nan"),
        (36, "f", 1.0, "float32 with scale 1.0"),
        (48, "Q", 8, "aligned"),
        (48, "Q", 2**64 - 64, "aligned"),
        (56, "Q", 2**64 - 1, "aligned"),
        (56, "Q", 399, "does not fit its 399 bytes"),
        (64, "Q", 11, "does not fit its 400 bytes"),
        (64, "Q", 2**63, "does not fit"),
        (128, "q", -40, "does not fit"),
        (128, "q", 41, "does not fit"),
        (136, "q", 2**62, "does not fit"),
    ],
)
def test_tensor_that_reaches_out_of_its_slot_is_refused(
    offset: int, code: str, value: float, said: str
) -> None:
    with pytest.raises(ProtocolError, match=said):
        parse_description(changed(BUNDLE.packed, HEAD_NBYTES + offset, code, value), SLOT_NBYTES)


def test_small_slot_cannot_stand_for_a_huge_tensor() -> None:
    """A stride of 0 repeats what is there; a copy of it would need any amount of memory."""
    tensor = Tensor("x", "uint8", (1 << 40,), (0,), 0, 64)
    data = replace(BUNDLE, tensors=(tensor,)).packed
    with pytest.raises(ProtocolError, match="does not fit its 64 bytes"):
        parse_description(data, 4096)
    empty = Tensor("x", "uint8", (0, 1 << 60), (0, 0), 0, 0)
    with pytest.raises(ProtocolError, match="has shape"):
        parse_description(replace(BUNDLE, tensors=(empty,)).packed, 4096)


def test_two_tensors_of_one_name_are_refused() -> None:
    twice = replace(BUNDLE, tensors=(BUNDLE.tensors[0], BUNDLE.tensors[0]))
    with pytest.raises(ProtocolError, match="same name"):
        parse_description(twice.packed, SLOT_NBYTES)


@given(
    st.binary(min_size=HEAD_NBYTES, max_size=HEAD_NBYTES + 2 * TENSOR_NBYTES),
    st.integers(1, 1 << 24),
)
def test_any_bytes_are_refused_or_stay_inside_the_slot(data: bytes, slot_nbytes: int) -> None:
    check_inside(data, slot_nbytes)


@given(
    st.sampled_from([FRAME.packed, BUNDLE.packed]),
    st.lists(st.tuples(st.integers(0, 500), st.binary(min_size=1, max_size=8)), max_size=6),
)
def test_any_change_is_refused_or_stays_inside_the_slot(
    data: bytes, changes: list[tuple[int, bytes]]
) -> None:
    for offset, new in changes:
        data = (data[:offset] + new + data[offset + len(new) :])[: len(data)]
    check_inside(data, SLOT_NBYTES)


@given(
    st.sampled_from(sorted(FORMAT_CODES.keys() - ENCODED)),
    st.integers(1, 300),
    st.integers(1, 300),
    st.lists(st.integers(0, 700) | st.integers(0, 2**65), min_size=3, max_size=3),
    st.lists(st.integers(-10, 200_000) | st.integers(-(2**65), 2**65), min_size=3, max_size=3),
)
def test_any_layout_is_refused_or_its_bytes_are_apart_and_read_as_they_were_described(
    format: str, width: int, height: int, strides: list[int], offsets: list[int]
) -> None:
    count = {"i420": 3, "nv12": 2}.get(format, 1)
    try:
        ours = describe_frame(
            format, width, height, strides=strides[:count], offsets=offsets[:count]
        )
    except InvalidRequest:
        return
    assert ours.extent <= MAX_NBYTES
    assert parse_description(ours.packed, max(ours.extent, 1)) == ours
    with pytest.raises(ProtocolError, match="does not fit"):
        parse_description(ours.packed, ours.extent - 1)
    if ours.extent <= 1 << 20:
        taken = np.zeros(ours.extent, np.uint8)
        for plane in ours.planes:
            for row in range(plane.rows):
                start = plane.offset + row * plane.stride
                taken[start : start + plane.row_nbytes] += 1
        assert taken.max() == 1


def check_inside(data: bytes, slot_nbytes: int) -> None:
    try:
        description = parse_description(data, slot_nbytes)
    except ProtocolError:
        return
    assert description.extent <= slot_nbytes
    for tensor in description.tensors:
        count = 1
        for length in tensor.shape:
            count *= length
        assert count <= slot_nbytes
    assert parse_description(description.packed, slot_nbytes) == description
