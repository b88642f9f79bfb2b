"""One frame through one model: prepare, run, decode."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mcpd.daemon.decoders import IDENTITY, Decoder, Transform, make_decoder
from mcpd.daemon.engines import open_engine
from mcpd.daemon.engines.engine import Engine, TensorInfo
from mcpd.daemon.engines.signature import check_signature, image_shape
from mcpd.daemon.models.model_toml import InputConfig
from mcpd.daemon.models.repository import ModelConfig
from mcpd.native import _core
from mcpd.shm.bundle import KIND_FRAME, Description
from mcpd.shm.errors import InvalidRequest, McpdError
from mcpd.shm.formats import FORMAT_CODES, MATRIX_CODES, RANGE_CODES

_PREPARATIONS = 16
"""Geometries whose tables are kept; a worker serves few streams and each has one."""

_HD_HEIGHT = 720
"""Video of fewer rows that names no colour matrix is BT.601, other BT.709, as players assume."""


class FrameLike(Protocol):
    """What a run needs of mcpd.shm.frame.Frame."""

    @property
    def description(self) -> Description: ...
    @property
    def buffer(self) -> memoryview: ...
    @property
    def planes(self) -> tuple[NDArray[np.uint8], ...]: ...
    @property
    def tensors(self) -> Mapping[str, NDArray[Any]]: ...


class ModelRunner:
    """A loaded model that turns frames into results. Used by one thread at a time.

    The input tensor of an image model is allocated once. A tensor model is given views of the slot:
    nothing is copied, unless the rows of a frame are padded, which no engine takes.

    Attributes:
        prepare_ns: Time that the latest run took to make the model's input; likewise infer_ns and
            decode_ns.
    """

    def __init__(self, config: ModelConfig, version_path: Path) -> None:
        self.config = config
        self.prepare_ns = self.infer_ns = self.decode_ns = 0
        self._version_path = version_path
        self._engine: Engine | None = None
        self._decoder: Decoder = make_decoder(config)
        self._image = config.inputs[0] if config.inputs[0].kind == "image" else None
        self._batch: NDArray[Any] = np.zeros(0)
        self._load_ns = self._warm_ns = 0
        if self._image is not None:
            self._batch = np.zeros(image_shape(self._image), self._image.dtype)
        self._batch_view = self._batch.data
        self._padded_by: _core.Preparation | None = None
        self._preparation = lru_cache(_PREPARATIONS)(self._make_preparation)

    def load(self) -> None:
        """Loads the model's file and checks it against its configuration.

        Raises:
            ModelFailed: It cannot be loaded, or has other inputs or outputs.
        """
        start = time.monotonic_ns()
        engine = open_engine(self.config, self._version_path)
        try:
            check_signature(self.config, engine.inputs, engine.outputs)
        except McpdError:
            engine.close()
            raise
        self._engine = engine
        self._load_ns = time.monotonic_ns() - start

    def warm_up(self) -> None:
        """Runs the model on zeros, so that the first frame finds everything allocated.

        A model whose input size only a frame tells is left cold.

        Raises:
            ModelFailed: It cannot run.
        """
        start = time.monotonic_ns()
        inputs = {}
        for name, info in self._loaded().inputs.items():
            shape = self._batch.shape if self._image is not None else info.shape
            if -1 in shape:
                return
            inputs[name] = np.zeros(shape, info.dtype)
        self._loaded().run(inputs)
        self._warm_ns = time.monotonic_ns() - start

    def run(self, frame: FrameLike) -> dict[str, NDArray[Any]]:
        """The result's tensors for a frame, in memory of their own.

        Raises:
            InvalidRequest: The frame is not what the model takes.
            ModelFailed: The model failed on it.
        """
        engine = self._loaded()
        start = time.monotonic_ns()
        description = frame.description
        transform = IDENTITY
        if self._image is not None:
            transform = self._prepare(frame, description)
            inputs = {self._image.name: self._batch}
        else:
            inputs = self._tensors(frame, description, engine.inputs)
        prepared = time.monotonic_ns()
        outputs = engine.run(inputs)
        inferred = time.monotonic_ns()
        size = (description.width, description.height)
        result = self._decoder.decode(outputs, transform, size)
        self.prepare_ns = prepared - start
        self.infer_ns = inferred - prepared
        self.decode_ns = time.monotonic_ns() - inferred
        return result

    @property
    def result_nbytes(self) -> int:
        """Bytes that a result slot must have for any result; 0: not known before a frame comes."""
        if self._decoder.max_nbytes:
            return self._decoder.max_nbytes
        total = 0
        for info in self._loaded().outputs.values():
            # Runs are of one frame, so a leading size left open is 1.
            shape = (1, *info.shape[1:]) if info.shape[:1] == (-1,) else info.shape
            if -1 in shape:
                return 0
            nbytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(info.dtype).itemsize
            total += -(-nbytes // 64) * 64
        return total

    @property
    def details(self) -> dict[str, Any]:
        """What a worker reports of a loaded model, made of plain values."""
        engine = self._loaded()
        return {
            "engine": self.config.engine,
            "provider": engine.provider,
            "load_s": self._load_ns / 1e9,
            "warm_s": self._warm_ns / 1e9,
            "inputs": _plain(engine.inputs),
            "outputs": _plain(engine.outputs),
        }

    def close(self) -> None:
        """Frees the model. Idempotent."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _loaded(self) -> Engine:
        if self._engine is None:
            raise InvalidRequest(f"model {self.config.name!r} is not loaded", "Call load() first")
        return self._engine

    def _prepare(self, frame: FrameLike, description: Description) -> Transform:
        if description.kind != KIND_FRAME:
            held = f"{description.format} data" if description.format else "tensors"
            raise InvalidRequest(
                f"the model takes images, the slot holds {held}",
                "Publish frames in a pixel format, such as i420 or rgb24",
            )
        try:
            preparation = self._preparation(description)
            # Engines leave their input as it is, so that the padding of the frame before is there.
            padded = preparation is self._padded_by
            self._padded_by = None
            preparation.run(frame.buffer, self._batch_view, padded=padded)
            self._padded_by = preparation
        except ValueError as error:
            raise InvalidRequest(f"the frame cannot be prepared: {error}") from error
        return preparation.transform

    def _make_preparation(self, description: Description) -> _core.Preparation:
        image = self._image or InputConfig("")
        quantised = image.dtype in ("uint8", "int8")
        default_matrix = "bt709" if description.height >= _HD_HEIGHT else "bt601"
        return _core.Preparation(
            format=FORMAT_CODES[description.format],
            width=description.width,
            height=description.height,
            plane_offsets=tuple(plane.offset for plane in description.planes),
            plane_strides=tuple(plane.stride for plane in description.planes),
            matrix=MATRIX_CODES[description.matrix or default_matrix],
            range=RANGE_CODES[description.range or "limited"],
            out_width=image.width,
            out_height=image.height,
            layout=image.layout,
            dtype=image.dtype,
            channels=image.channels,
            resize=image.resize,
            sampling=image.sampling,
            scale=image.scale,
            mean=image.mean,
            std=image.std,
            pad_value=image.pad_value,
            quant_scale=image.quant_scale if quantised else 0.0,
            zero_point=image.zero_point,
        )

    def _tensors(
        self, frame: FrameLike, description: Description, infos: Mapping[str, TensorInfo]
    ) -> dict[str, NDArray[Any]]:
        """The model's inputs as views of the slot."""
        given: Mapping[str, NDArray[Any]] = frame.tensors
        if description.kind == KIND_FRAME and len(infos) == 1 and len(description.planes) == 1:
            given = {name: _with_batch(frame.planes[0], info) for name, info in infos.items()}
        elif len(infos) == 1 and len(given) == 1:
            # One for one: the names need not agree.
            ((name, info),), (only,) = infos.items(), given.values()
            given = {name: only} if info.accepts(only) else given
        inputs = {}
        for name, info in infos.items():
            array = given.get(name)
            if array is None or not info.accepts(array):
                have = ", ".join(_describe(key, value) for key, value in given.items())
                wanted = ", ".join(f"{key} {value}" for key, value in infos.items())
                held = f"{description.format} frames" if description.format else "no tensors"
                raise InvalidRequest(f"the model takes {wanted}; the slot holds {have or held}")
            inputs[name] = array if array.flags.c_contiguous else np.ascontiguousarray(array)
        return inputs


def _with_batch(plane: NDArray[np.uint8], info: TensorInfo) -> NDArray[np.uint8]:
    """A frame's plane with the dimensions of 1 that a model has around it."""
    if plane.ndim == 2 and len(info.shape) == 4:
        return plane[None, :, :, None]
    return plane[None] if plane.ndim + 1 == len(info.shape) else plane


def _describe(name: str, array: NDArray[Any]) -> str:
    return f"{name} {TensorInfo(array.dtype.name, array.shape)}"


def _plain(tensors: Mapping[str, TensorInfo]) -> dict[str, Any]:
    return {
        name: {"dtype": info.dtype, "shape": list(info.shape)} for name, info in tensors.items()
    }
