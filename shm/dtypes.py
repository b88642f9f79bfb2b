"""Element types of tensors: what is carried, under which code, and what to do with all others."""

from __future__ import annotations

import math

from mcpd.shm.errors import InvalidRequest

DTYPES: dict[str, tuple[int, int, str]] = {
    "bool": (1, 1, "bool"),
    "uint8": (2, 1, "uint8"),
    "int8": (3, 1, "int8"),
    "uint16": (4, 2, "uint16"),
    "int16": (5, 2, "int16"),
    "uint32": (6, 4, "uint32"),
    "int32": (7, 4, "int32"),
    "uint64": (8, 8, "uint64"),
    "int64": (9, 8, "int64"),
    "float16": (10, 2, "float16"),
    "float32": (11, 4, "float32"),
    "float64": (12, 8, "float64"),
    "complex64": (13, 8, "complex64"),
    "complex128": (14, 16, "complex128"),
    "bfloat16": (15, 2, "uint16"),
    "float8_e4m3fn": (16, 1, "uint8"),
    "float8_e5m2": (17, 1, "uint8"),
    "float8_e4m3fnuz": (19, 1, "uint8"),
    "float8_e5m2fnuz": (20, 1, "uint8"),
    "float8_e8m0fnu": (21, 1, "uint8"),
    "datetime64[s]": (32, 8, "datetime64[s]"),
    "datetime64[ms]": (33, 8, "datetime64[ms]"),
    "datetime64[us]": (34, 8, "datetime64[us]"),
    "datetime64[ns]": (35, 8, "datetime64[ns]"),
    "timedelta64[s]": (36, 8, "timedelta64[s]"),
    "timedelta64[ms]": (37, 8, "timedelta64[ms]"),
    "timedelta64[us]": (38, 8, "timedelta64[us]"),
    "timedelta64[ns]": (39, 8, "timedelta64[ns]"),
}
"""By name: the code of enum mcpd_dtype, bytes of an element, and numpy's name for its bits.

The names are numpy's, and for what numpy lacks those of ml_dtypes and torch."""

_INTEGERS = frozenset({"uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"})
_SCALED = _INTEGERS | {name for name in DTYPES if name.startswith("float8")}
_ASTYPE = {"longdouble": "float64", "float128": "float64", "clongdouble": "complex128",
           "complex256": "complex128"}  # fmt: skip
"""What to send instead of dtypes that are not carried; dtype_advice has the others."""


def check_quantisation(dtype: str, scale: float, zero_point: int) -> None:
    """Checks what says how a tensor's numbers are quantised.

    Raises:
        InvalidRequest: Neither integers nor float8, or a scale or zero point that cannot be.
    """
    if scale == 0 and zero_point == 0:
        return
    if not 0 < scale < math.inf:
        raise InvalidRequest(f"scale {scale} with zero point {zero_point} is not a number above 0")
    if dtype not in _SCALED:
        raise InvalidRequest(f"{dtype} with scale {scale}: only integers and float8 are quantised")
    if zero_point and dtype not in _INTEGERS:
        raise InvalidRequest(f"zero point {zero_point} of {dtype}: only integers have one")
    if not -(1 << 31) <= zero_point < 1 << 31:
        raise InvalidRequest(f"zero point {zero_point} is not of 32 bits")


def dtype_advice(dtype: str) -> str:
    """What to do with an array of a dtype that is not carried."""
    if dtype in _ASTYPE:
        return f"Send array.astype({_ASTYPE[dtype]!r})."
    if dtype.startswith(("datetime64", "timedelta64")):
        return f"Units are s, ms, us and ns: send array.astype('{dtype.split('[')[0]}[ns]')."
    if dtype in ("int4", "uint4", "int2", "uint2", "float4_e2m1fn"):
        return "Elements of less than a byte are not carried: send them packed, as uint8."
    if dtype.startswith("float8"):
        return "Send array.view('uint8'), and say in the tensor's name what the bits are."
    if dtype.startswith(("str", "bytes", "object")):
        return "Send text as UTF-8 bytes: numpy.frombuffer(text.encode(), 'uint8')."
    if dtype.startswith(("void", "record")):
        return "Send each field as a tensor of its own."
    return f"Known: {', '.join(DTYPES)}."
