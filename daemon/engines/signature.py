"""Checks that a model file has the inputs and outputs that its model.toml speaks of."""

from __future__ import annotations

from collections.abc import Mapping

from mcpd.daemon.engines.engine import TensorInfo
from mcpd.daemon.models.model_toml import InputConfig
from mcpd.daemon.models.repository import ModelConfig
from mcpd.shm.errors import ModelFailed

MAX_TENSORS = 16
MAX_NAME_NBYTES = 31
"""What a slot can carry; native/src/layout.h."""


def check_signature(
    config: ModelConfig, inputs: Mapping[str, TensorInfo], outputs: Mapping[str, TensorInfo]
) -> None:
    """Holds a model file's declared inputs and outputs against its configuration.

    Raises:
        ModelFailed: Lists every difference.
    """
    problems = _input_problems(config, inputs) + _output_problems(config, outputs)
    if problems:
        listed = "".join(f"\n  {problem}" for problem in problems)
        raise ModelFailed(
            f"model {config.name!r} is not as {config.path / 'model.toml'} says:{listed}"
        )


def image_shape(config: InputConfig) -> tuple[int, int, int, int]:
    """The shape of an image input's tensor, for a batch of one."""
    channels = 1 if config.channels == "gray" else 3
    if config.layout == "nchw":
        return (1, channels, config.height, config.width)
    return (1, config.height, config.width, channels)


def _input_problems(config: ModelConfig, inputs: Mapping[str, TensorInfo]) -> list[str]:
    problems = []
    for item in config.inputs:
        info = inputs.get(item.name)
        if info is None:
            problems.append(f'input "{item.name}": the model has {_names(inputs)}')
        elif item.kind == "image":
            want = TensorInfo(item.dtype, image_shape(item))
            sizes = zip(info.shape, want.shape, strict=False)
            fits = len(info.shape) == 4 and all(have in (-1, size) for have, size in sizes)
            if not fits or info.dtype != want.dtype:
                problems.append(f'input "{item.name}" is to be {want}, the model takes {info}')
    configured = {item.name for item in config.inputs}
    for name in inputs:
        if name not in configured:
            problems.append(f'input "{name}" of the model has no [[input]]')
    return problems


def _output_problems(config: ModelConfig, outputs: Mapping[str, TensorInfo]) -> list[str]:
    if config.decode.kind == "detections":
        wanted = (("boxes", config.decode.boxes), ("scores", config.decode.scores))
        return [
            f'decode.{key} = "{name}": the model has {_names(outputs)}'
            for key, name in wanted
            if name not in outputs
        ]
    problems = []
    if len(outputs) > MAX_TENSORS:
        problems.append(f"{len(outputs)} outputs, a result has room for {MAX_TENSORS}")
    for name in outputs:
        if len(name.encode()) > MAX_NAME_NBYTES:
            problems.append(f'output "{name}": the name has more than {MAX_NAME_NBYTES} bytes')
    return problems


def _names(tensors: Mapping[str, TensorInfo]) -> str:
    return ", ".join(f'"{name}" ({info})' for name, info in tensors.items())
