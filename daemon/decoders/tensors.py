"""The decoder of models whose outputs are the result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcpd.daemon.decoders import Transform


class TensorDecoder:
    """Passes every output on under its own name."""

    max_nbytes = 0

    def decode(
        self,
        outputs: Mapping[str, NDArray[Any]],
        transform: Transform,
        source_size: tuple[int, int],
    ) -> dict[str, NDArray[Any]]:
        return {
            name: array if array.flags.c_contiguous else np.array(array, order="C")
            for name, array in outputs.items()
        }
