"""The ONNX Runtime engine, on the CPU."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from mcpd.daemon.engines.engine import TensorInfo
from mcpd.daemon.models.repository import ModelConfig
from mcpd.shm.errors import ModelFailed

MAX_THREADS = 8
"""Of one model when model.toml leaves the number open; more seldom pays for one frame."""

_DTYPES = {
    "tensor(bool)": "bool",
    "tensor(double)": "float64",
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(int16)": "int16",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
    "tensor(int8)": "int8",
    "tensor(uint16)": "uint16",
    "tensor(uint32)": "uint32",
    "tensor(uint64)": "uint64",
    "tensor(uint8)": "uint8",
}


class OnnxEngine:
    """One ONNX Runtime session. See Engine for the methods."""

    def __init__(self) -> None:
        self.provider = "cpu"
        self.inputs: dict[str, TensorInfo] = {}
        self.outputs: dict[str, TensorInfo] = {}
        self._path = Path()
        self._session: Any = None
        self._failures: tuple[type[Exception], ...] = ()

    def load(self, path: Path, config: ModelConfig) -> None:
        onnxruntime = _import_runtime()
        onnxruntime.disable_telemetry_events()
        self._path = path
        self._failures = _failures()
        if not path.is_file():
            raise ModelFailed(f"model file {path} does not exist")
        try:
            session = onnxruntime.InferenceSession(
                str(path),
                _options(onnxruntime, config.run.threads),
                providers=["CPUExecutionProvider"],
            )
        except self._failures as error:
            raise ModelFailed(
                f"{path} ({path.stat().st_size} bytes) is not an ONNX model that can be loaded: "
                f"{_reason(error)}",
                "Check the file with onnx.checker, or fetch it again",
            ) from error
        self.inputs = _describe(session.get_inputs(), path)
        self.outputs = _describe(session.get_outputs(), path)
        self._session = session

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        # run() wraps C-contiguous CPU arrays where they lie, read-only ones too.
        try:
            outputs = self._session.run(list(self.outputs), dict(inputs))
        except self._failures as error:
            raise ModelFailed(f"{self._path} failed on this input: {_reason(error)}") from error
        return dict(zip(self.outputs, outputs, strict=True))

    def close(self) -> None:
        self._session = None


def _import_runtime() -> Any:
    # From 1.29 on it reports to Microsoft over the network, from its import on, unless told not to.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        import onnxruntime
    except ImportError as error:
        raise ModelFailed(
            f"onnxruntime cannot be imported: {error}",
            "Install it with: pip install 'mcpd-inference[onnx]'",
        ) from error
    return onnxruntime


def _failures() -> tuple[type[Exception], ...]:
    """ONNX Runtime's exceptions, which have no base of their own, and those of its Python part."""
    state: Any = import_module("onnxruntime.capi.onnxruntime_pybind11_state")

    return (
        state.EPFail,
        state.EngineError,
        state.Fail,
        state.InvalidArgument,
        state.InvalidGraph,
        state.InvalidProtobuf,
        state.ModelLoaded,
        state.NoModel,
        state.NoSuchFile,
        state.NotImplemented,
        state.RuntimeException,
        RuntimeError,
        TypeError,
        ValueError,
    )


def _options(onnxruntime: Any, threads: int) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors; the rest would go to the worker's stderr unasked
    # A number of our own, because the default also pins the threads to cores.
    available = min(len(os.sched_getaffinity(0)), MAX_THREADS)
    options.intra_op_num_threads = threads or available
    options.inter_op_num_threads = 1
    # Threads spin within a run, and stop when it ends: at 30 frames/s on two cores spinning on
    # between runs cost 48 ms of CPU a frame instead of 25, and not spinning was slower.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return options


def _describe(arguments: Any, path: Path) -> dict[str, TensorInfo]:
    described = {}
    for argument in arguments:
        if argument.type not in _DTYPES:
            raise ModelFailed(
                f"{path}: {argument.name!r} is a {argument.type}, which cannot be passed in a slot",
                f"Supported are {', '.join(_DTYPES)}",
            )
        shape = tuple(size if isinstance(size, int) else -1 for size in argument.shape)
        described[argument.name] = TensorInfo(_DTYPES[argument.type], shape)
    return described


def _reason(error: BaseException) -> str:
    """What ONNX Runtime said, in one line, without its prefix."""
    text = " ".join(str(error).split())
    # "[ONNXRuntimeError] : 7 : INVALID_PROTOBUF : Load model from ..."
    return text.removeprefix("[ONNXRuntimeError] : ").lstrip("0123456789 :").rstrip(".")[:500]
