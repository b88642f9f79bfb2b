"""Decoders: a model's raw outputs to the tensors of a result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from numpy.typing import NDArray

from mcpd.daemon.models.repository import ModelConfig

Transform = tuple[float, float, float, float]
"""(ax, bx, ay, by): source x = ax * input x + bx, source y = ay * input y + by, in pixels."""

IDENTITY: Transform = (1.0, 0.0, 1.0, 0.0)


class Decoder(Protocol):
    """Turns the outputs of one run into a result. Holds no state between runs."""

    max_nbytes: int
    """Bytes of the largest result, each tensor rounded up to 64; 0: as large as the outputs are."""

    def decode(
        self,
        outputs: Mapping[str, NDArray[Any]],
        transform: Transform,
        source_size: tuple[int, int],
    ) -> dict[str, NDArray[Any]]:
        """The tensors of the result, C-contiguous.

        Args:
            outputs: Of a batch of one, as the engine gave them.
            transform: From model-input pixels to source pixels.
            source_size: Width and height of the source in pixels.

        Raises:
            ModelFailed: The outputs have not the shape that this decoder reads.
        """
        ...


def make_decoder(config: ModelConfig) -> Decoder:
    """The decoder that the model's configuration asks for."""
    if config.decode.kind == "detections":
        from mcpd.daemon.decoders.detect import DetectionDecoder

        image = config.inputs[0] if config.inputs[0].kind == "image" else None
        return DetectionDecoder(config.decode, (image.width, image.height) if image else None)
    from mcpd.daemon.decoders.tensors import TensorDecoder

    return TensorDecoder()
