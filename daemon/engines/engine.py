"""What an engine is: a runtime with a model loaded in it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from mcpd.daemon.models.repository import ModelConfig


class TensorInfo(Struct, frozen=True):
    """An input or output as the model file declares it."""

    dtype: str
    """As numpy names it."""
    shape: tuple[int, ...]
    """-1 for a size that is known only when the model runs."""

    def accepts(self, array: NDArray[Any]) -> bool:
        """Whether an array has this dtype and a shape that fits."""
        return (
            array.dtype == np.dtype(self.dtype)
            and array.ndim == len(self.shape)
            and all(want in (-1, have) for want, have in zip(self.shape, array.shape, strict=True))
        )

    def __str__(self) -> str:
        sizes = ", ".join("?" if size < 0 else str(size) for size in self.shape)
        return f"{self.dtype} [{sizes}]"


class Engine(Protocol):
    """A loaded model. Used by one thread at a time.

    Attributes:
        provider: The device and library that runs it, such as "cpu".
        inputs: By name, in the model's order.
        outputs: By name, in the model's order.
    """

    provider: str
    inputs: dict[str, TensorInfo]
    outputs: dict[str, TensorInfo]

    def load(self, path: Path, config: ModelConfig) -> None:
        """Loads the model file.

        Raises:
            ModelFailed: The file is not a model of this engine, or cannot run here.
        """
        ...

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Runs the model on C-contiguous arrays, which may be read-only and are not copied.

        Returns:
            Every output, in memory of its own.

        Raises:
            ModelFailed: The model refused the input or failed on it.
        """
        ...

    def close(self) -> None:
        """Frees the model. Idempotent."""
        ...
