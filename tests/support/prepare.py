"""Frames prepared by the code under test, and which instruction sets the processor has for it."""

from __future__ import annotations

import os
from typing import Any, Final
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from mcpd.native import _core
from tests.support.pictures import Picture, make_picture, options, reference

BOUND: Final = 0.1
"""Levels of 0..255 by which a prepared pixel may differ: MCPD_PREPARE_ERROR in prepare.h."""


def isas() -> list[str]:
    """The names that `MCPD_PREPARE` may have here, the fastest first."""
    found = []
    for name in ("avx2", "scalar"):
        with mock.patch.dict(os.environ, {"MCPD_PREPARE": name}):
            try:
                found.append(_core.Preparation(**options(make_picture("gray8", 64, 2))).isa)
            except ValueError as error:
                if "does not have" not in str(error):
                    raise
    return found


def empty_images(count: int, **chosen: Any) -> NDArray[Any]:
    """A batch tensor for a preparation with those options; its values are none that it makes."""
    channels = 1 if chosen["channels"] == "gray" else 3
    size = (chosen["out_height"], chosen["out_width"])
    shape = (channels, *size) if chosen["layout"] == "nchw" else (*size, channels)
    return np.full((count, *shape), 99, chosen["dtype"])


def prepare(picture: Picture, **changes: Any) -> NDArray[Any]:
    """The picture prepared by the code under test, as one image without a batch dimension."""
    chosen = options(picture, **changes)
    preparation = _core.Preparation(**chosen)
    out = empty_images(1, **chosen)
    assert out.nbytes == preparation.out_nbytes
    preparation.run(picture.data.data, out.data)
    image: NDArray[Any] = out[0]
    return image


def assert_prepared_right(picture: Picture, **changes: Any) -> None:
    """Within BOUND of the reference, for options that leave pixels as they are."""
    got = prepare(picture, **changes).astype(np.float64)
    want = reference(picture, **changes)
    if options(picture, **changes)["layout"] == "nchw":
        got = got.transpose(1, 2, 0)
    assert np.abs(got - want).max() <= BOUND
