"""Which instruction sets the processor has for preparation."""

from __future__ import annotations

import os
from unittest import mock

from mcpd.native import _core
from tests.support.pictures import make_picture, options


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
