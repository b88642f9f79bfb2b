"""Reads a model.toml: how a model's inputs are prepared and its outputs decoded.

docs/models.md is its reference. Loads no engine and no numpy: the daemon reads it too.
"""

from __future__ import annotations

import os
import stat
import tomllib
from pathlib import Path
from typing import Any

from msgspec import Struct, convert

from mcpd.daemon.models.table import (
    BOOLEAN,
    INTEGER,
    NUMBER,
    NUMBERS,
    STRING,
    Key,
    read_table,
    show,
)

ENGINE_FILES = {"onnx": "model.onnx"}
"""The file in a version's folder that each engine loads."""

MAX_LABELS_NBYTES = 32 * 1024
"""Class names travel in one control message of 64 KiB."""

MAX_TOML_NBYTES = 1024 * 1024

MAX_SIDE = 16384
"""Pixels; what preparation can do."""

_TENSOR_INPUT_KEYS = {
    "name": Key(type=STRING),
    "kind": Key(type=STRING, default="image", choices=("image", "tensor")),
}
_IMAGE_INPUT_KEYS = _TENSOR_INPUT_KEYS | {
    "width": Key(type=INTEGER, least=1, most=MAX_SIDE),
    "height": Key(type=INTEGER, least=1, most=MAX_SIDE),
    "layout": Key(type=STRING, default="nchw", choices=("nchw", "nhwc")),
    "dtype": Key(type=STRING, default="float32", choices=("float32", "float16", "uint8", "int8")),
    "channels": Key(type=STRING, default="rgb", choices=("rgb", "bgr", "gray")),
    "resize": Key(type=STRING, default="stretch", choices=("stretch", "letterbox", "crop")),
    "sampling": Key(type=STRING, default="half_pixel", choices=("half_pixel", "corner", "area")),
    "scale": Key(type=NUMBER, default=1.0, nonzero=True),
    "mean": Key(type=NUMBERS, default=[0.0], lengths=(1, 3)),
    "std": Key(type=NUMBERS, default=[1.0], lengths=(1, 3), nonzero=True),
    "pad_value": Key(type=NUMBER, default=0.0, least=0, most=255),
    "quant_scale": Key(type=NUMBER, default=1.0, least=0, nonzero=True),
    "zero_point": Key(type=INTEGER, default=0, least=-128, most=255),
}
_TENSORS_DECODE_KEYS = {
    "kind": Key(type=STRING, default="tensors", choices=("tensors", "detections")),
}
_DETECTIONS_DECODE_KEYS = _TENSORS_DECODE_KEYS | {
    "boxes": Key(type=STRING),
    "box_format": Key(type=STRING, choices=("yxyx_unit", "xyxy_unit", "xyxy", "cxcywh")),
    "scores": Key(type=STRING),
    "score_threshold": Key(type=NUMBER, default=0.4, least=0, most=1),
    "nms_iou": Key(type=NUMBER, default=0.6, least=0, most=1),
    "max_detections": Key(type=INTEGER, default=100, least=1, most=1000),
    "class_agnostic": Key(type=BOOLEAN, default=False),
    "labels": Key(type=STRING, default=""),
}
_RUN_KEYS = {
    "threads": Key(type=INTEGER, default=0, least=0, most=256),
    "instances": Key(type=INTEGER, default=1, least=1, most=1),
    "provider": Key(type=STRING, default="cpu", choices=("cpu",)),
    "time_limit_s": Key(type=NUMBER, default=30.0, least=0.1, most=86400),
    "load_limit_s": Key(type=NUMBER, default=300.0, least=0.1, most=86400),
}


class InputConfig(Struct, frozen=True):
    """One input of a model: an image to prepare from a frame, or a tensor to pass as it is."""

    name: str
    kind: str = "image"
    width: int = 0
    height: int = 0
    layout: str = "nchw"
    dtype: str = "float32"
    channels: str = "rgb"
    resize: str = "stretch"
    sampling: str = "half_pixel"
    scale: float = 1.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    pad_value: float = 0.0
    """A pixel level, 0..255, normalised as the others are."""
    quant_scale: float = 1.0
    """Of uint8 and int8: round_half_even(value / quant_scale) + zero_point, within the type."""
    zero_point: int = 0


class DecodeConfig(Struct, frozen=True):
    """What a model's outputs mean."""

    kind: str = "tensors"
    boxes: str = ""
    box_format: str = ""
    scores: str = ""
    score_threshold: float = 0.4
    nms_iou: float = 0.6
    max_detections: int = 100
    class_agnostic: bool = False
    labels: tuple[str, ...] = ()
    """Class names, by class index."""


class RunConfig(Struct, frozen=True):
    """How a model is run."""

    threads: int = 0
    """0: the engine chooses, within the cores this process may use."""
    instances: int = 1
    provider: str = "cpu"
    time_limit_s: float = 30.0
    """Of one frame; a worker that is at one for longer is replaced."""
    load_limit_s: float = 300.0
    """From the start of a worker until its model is loaded and warm."""


class ModelToml(Struct, frozen=True):
    """What a model.toml says."""

    engine: str
    """"": chosen by the model's file."""
    inputs: tuple[InputConfig, ...]
    decode: DecodeConfig
    run: RunConfig


def read_model_toml(folder: Path, problems: list[str]) -> ModelToml:
    """Reads `folder`/model.toml and the labels it names.

    Args:
        folder: The model's folder.
        problems: Every fault is added: file, key, value and what is allowed. The result is of use
            only when none was.
    """
    path = folder / "model.toml"
    table = _load(path, problems)
    if table is None:
        return ModelToml("", (), DecodeConfig(), RunConfig())
    run = read_table(_subtable(table, "run", problems), _RUN_KEYS, "model.toml: run.", problems)
    return ModelToml(
        engine=_read_engine(table, problems),
        inputs=_read_inputs(table.get("input"), problems),
        decode=_read_decode(folder, _subtable(table, "decode", problems), problems),
        run=convert(run, RunConfig),
    )


def _load(path: Path, problems: list[str]) -> dict[str, Any] | None:
    try:
        return tomllib.loads(_read_text(path, MAX_TOML_NBYTES))
    except FileNotFoundError:
        problems.append("model.toml is missing; docs/models.md shows what it needs")
    except OSError as error:
        problems.append(f"model.toml cannot be read: {error.strerror}")
    except ValueError as error:  # a TOMLDecodeError, or an integer too long for Python
        problems.append(f"model.toml is not TOML: {error}")
    except RecursionError:
        problems.append("model.toml is not TOML: it is nested too deeply")
    return None


def _read_text(path: Path, limit_nbytes: int) -> str:
    """The text of a regular file; a pipe, which would block, and a device are refused.

    Raises:
        OSError: It cannot be read, or is no file.
        ValueError: It is too long, or not UTF-8.
    """
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(0, "it is not a file")
        if status.st_size > limit_nbytes:
            raise ValueError(f"has {status.st_size} bytes, the limit is {limit_nbytes}")
        return file.read(limit_nbytes).decode()


def _subtable(table: dict[str, Any], name: str, problems: list[str]) -> dict[str, Any]:
    value = table.get(name, {})
    if isinstance(value, dict):
        return value
    problems.append(f"model.toml: {name} = {show(value)}: must be a table, [{name}]")
    return {}


def _read_engine(table: dict[str, Any], problems: list[str]) -> str:
    keys = {"engine": Key(type=STRING, default="", choices=tuple(ENGINE_FILES))}
    sections = ("input", "decode", "run")
    own = {name: value for name, value in table.items() if name not in sections}
    return str(read_table(own, keys, "model.toml: ", problems)["engine"])


def _read_inputs(tables: object, problems: list[str]) -> tuple[InputConfig, ...]:
    if not isinstance(tables, list) or not tables or not all(isinstance(t, dict) for t in tables):
        problems.append("model.toml: input: must be one or more tables, [[input]]")
        return ()
    inputs: list[InputConfig] = []
    for index, table in enumerate(tables):
        where = f"model.toml: input[{index}]."
        before = len(problems)
        keys = _TENSOR_INPUT_KEYS if table.get("kind") == "tensor" else _IMAGE_INPUT_KEYS
        values = read_table(table, keys, where, problems)
        for key in ("mean", "std"):
            if values.get("channels") == "gray" and len(values[key]) != 1:
                problems.append(f"{where}{key} = {show(values[key])}: gray has one channel, not 3")
        problems += [where + problem for problem in _quantisation_problems(values)]
        if len(problems) == before:
            inputs.append(convert(values, InputConfig))
    if len(tables) > 1 and any(table.get("kind", "image") == "image" for table in tables):
        problems.append("model.toml: input: a model with an image input has that input alone")
    names = [item.name for item in inputs]
    for name in sorted({name for name in names if names.count(name) > 1}):
        problems.append(f'model.toml: input: name = "{name}" is there twice')
    return tuple(inputs)


def _quantisation_problems(values: dict[str, Any]) -> list[str]:
    """What is wrong with keys of which each alone is right."""
    zero_point, dtype = values.get("zero_point", 0), values.get("dtype", "uint8")
    if dtype not in ("uint8", "int8"):
        return [
            f"{key} = {show(values[key])}: {dtype} is not quantised, uint8 and int8 are"
            for key, none in (("quant_scale", 1), ("zero_point", 0))
            if values[key] != none
        ]
    least, most = (-128, 127) if dtype == "int8" else (0, 255)
    if not least <= zero_point <= most:
        return [f"zero_point = {zero_point}: {dtype} is {least} to {most}"]
    return []


def _read_decode(path: Path, table: dict[str, Any], problems: list[str]) -> DecodeConfig:
    detections = table.get("kind") == "detections"
    keys = _DETECTIONS_DECODE_KEYS if detections else _TENSORS_DECODE_KEYS
    before = len(problems)
    values = read_table(table, keys, "model.toml: decode.", problems)
    if values.get("labels"):
        values["labels"] = _read_labels(path, values["labels"], problems)
    else:
        values["labels"] = ()
    return convert(values, DecodeConfig) if len(problems) == before else DecodeConfig()


def _read_labels(path: Path, name: str, problems: list[str]) -> tuple[str, ...]:
    where = f'model.toml: decode.labels = "{name}"'
    if "/" in name or "\0" in name or name in (".", ".."):
        problems.append(f"{where}: must be the name of a file in the model's folder")
        return ()
    try:
        text = _read_text(path / name, MAX_LABELS_NBYTES)
    except FileNotFoundError:
        problems.append(f"{where}: there is no {path / name}")
        return ()
    except OSError as error:
        problems.append(f"{where}: {path / name} cannot be read: {error.strerror}")
        return ()
    except UnicodeDecodeError:
        problems.append(f"{where}: {path / name} is not UTF-8 text")
        return ()
    except ValueError as error:
        problems.append(f"{where}: {error}")
        return ()
    return tuple(line.strip() for line in text.rstrip().splitlines())
