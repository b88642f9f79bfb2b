"""What a model made of one frame: tensors, or detections, with where and when they came from."""

from __future__ import annotations

import itertools
import operator
import struct
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from mcpd.native import _core
from mcpd.shm.bundle import Tensor
from mcpd.shm.errors import STATUS_CODES, InvalidRequest, ProtocolError, from_wire
from mcpd.shm.frame import FLAG_PARTIAL

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mcpd.shm.frame import Frame

COPY_NBYTES = 64 * 1024
"""Tensors up to this size are copied out of the slot; larger ones stay there and keep it pinned."""

_ELEMENTS = {
    "bool": "?",
    "uint8": "B",
    "int8": "b",
    "uint16": "=H",
    "int16": "=h",
    "uint32": "=I",
    "int32": "=i",
    "uint64": "=Q",
    "int64": "=q",
    "float16": "=e",
    "float32": "=f",
    "float64": "=d",
}
"""Codes of the struct module by numpy's names."""

_DETECTIONS = {"boxes": ("float32", "f"), "scores": ("float32", "f"), "labels": ("int32", "i")}


class Detection(NamedTuple):
    """One object found in a frame; corners in pixels of the source frame."""

    x0: float
    y0: float
    x1: float
    y1: float
    score: float
    """0..1"""
    label: str
    """The class's name; its number as text if the model has no names."""
    class_id: int

    def to_dict(self) -> dict[str, Any]:
        """For JSON: {box: [x0, y0, x1, y1], score, label, class_id}."""
        return {
            "box": [self.x0, self.y0, self.x1, self.y1],
            "score": self.score,
            "label": self.label,
            "class_id": self.class_id,
        }


class Result:
    """A result, copied out of its slot when it is made; only large tensors stay in shared memory.

    Times are CLOCK_MONOTONIC nanoseconds, mcpd.shm.frame.NO_TIME where not known. A context
    manager that closes.

    Attributes:
        seq: Its sequence number in the results stream.
        source_seq: The frame it was made from.
        source_stream: Number of that frame's stream.
        stream: Name of that stream.
        model: Name of the model, version: the one that ran.
        status: "ok", else the code of what failed, one of errors.STATUS_CODES.
        error: What failed, in words; "" if nothing did.
        pts_ns: The source frame's; likewise capture_ns, source_publish_ns, trace_id.
        awake_ns: When the worker had the frame.
        finish_ns: When the model was done.
        publish_ns: When the result was published.
        flags: Of the result's slot.
    """

    def __init__(
        self, frame: Frame, *, stream: str, model: str, version: int, labels: Sequence[str]
    ) -> None:
        """Takes what `frame` holds, and its pin if it must; the frame is closed otherwise.

        Raises:
            ProtocolError: The slot is described wrongly.
        """
        core = frame.core
        self.stream = stream
        self.model = model
        self.version = core.model_version or version
        self.seq = core.seq
        self.source_seq = core.source_seq
        self.source_stream = core.source_stream
        self.pts_ns = core.pts_ns
        self.capture_ns = core.capture_ns
        self.source_publish_ns = core.source_publish_ns
        self.awake_ns = core.awake_ns
        self.finish_ns = core.finish_ns
        self.publish_ns = core.publish_ns
        self.trace_id = core.trace_id
        self.flags = core.flags
        status = core.status
        self.status = STATUS_CODES[status] if status < len(STATUS_CODES) else "error"
        self._labels = labels
        self._arrays: dict[str, NDArray[Any]] | None = None
        self._detections: list[Detection] | None = None
        try:
            self._parts = _take(frame)
        except BaseException:
            frame.close()
            raise
        self.error = ""
        if status:
            self.error = self._text("error") or f"status {status}"

    @classmethod
    def lost(cls, source_seq: int, *, stream: str, model: str, version: int, error: str) -> Self:
        """What stands for the result of a frame that its worker died with.

        Its status is "worker_died". It comes from no slot: `seq` is 0, and `publish_ns` and
        `source_publish_ns` are when that was told.
        """
        self = cls.__new__(cls)
        self.stream, self.model, self.version = stream, model, version
        self.seq, self.source_seq, self.source_stream = 0, source_seq, 0
        self.publish_ns = self.source_publish_ns = time.monotonic_ns()
        self.pts_ns = self.capture_ns = self.awake_ns = self.finish_ns = _core.NO_TIME
        self.trace_id, self.flags = b"", 0
        self.status, self.error = "worker_died", error
        self._labels, self._arrays, self._detections, self._parts = (), None, None, {}
        return self

    @property
    def ok(self) -> bool:
        """Whether the model ran."""
        return self.status == "ok"

    @property
    def partial(self) -> bool:
        """Whether more results for the same frame follow."""
        return bool(self.flags & FLAG_PARTIAL)

    @property
    def latency_ns(self) -> int:
        """From the frame's publishing to the result's."""
        return self.publish_ns - self.source_publish_ns

    @property
    def tensors(self) -> dict[str, NDArray[Any]]:
        """The model's outputs by name, read-only; above COPY_NBYTES they keep their slot pinned."""
        if self._arrays is None:
            import numpy as np

            self._arrays = {
                # frombuffer holds the export of a slot's memory, and so its pin; see frame.py.
                name: np.ndarray(
                    tensor.shape, tensor.numpy_dtype, np.frombuffer(data, "u1"), 0, tensor.strides
                )
                if len(data)
                else np.empty(tensor.shape, tensor.numpy_dtype)
                for name, (tensor, data) in self._parts.items()
            }
        return self._arrays

    @property
    def detections(self) -> list[Detection]:
        """Objects found, best first as the model gave them; empty if it is not a detector.

        Made without numpy.

        Raises:
            ProtocolError: The three tensors of detections do not agree.
        """
        if self._detections is None:
            self._detections = self._read_detections()
        return self._detections

    def first(self, name: str, count: int) -> list[float | int]:
        """The first `count` elements of one output in C order, read without numpy.

        Elements are those of `tensors[name]`; a complex one is refused.

        Raises:
            InvalidRequest: No such output, or a complex one.
        """
        part = self._parts.get(name)
        code = _ELEMENTS.get(part[0].numpy_dtype) if part is not None else None
        if part is None or code is None:
            raise InvalidRequest(
                f"result has no output {name!r} of real numbers",
                f"Outputs: {', '.join(self._parts) or 'none'}.",
            )
        tensor, data = part
        positions = itertools.product(*map(range, tensor.shape))
        return [
            struct.unpack_from(code, data, sum(map(operator.mul, position, tensor.strides)))[0]
            for position in itertools.islice(positions, count)
        ]

    def raise_for_status(self) -> None:
        """Raises the error that `status` and `error` stand for; nothing if the model ran."""
        if self.status != "ok":
            raise from_wire(self.status, f"model {self.model!r}: {self.error}")

    def to_dict(self) -> dict[str, Any]:
        """For JSON: everything but the tensors' elements."""
        fields: dict[str, Any] = {
            name: getattr(self, name)
            for name in (
                *("stream", "model", "version", "seq", "source_seq", "status", "error", "pts_ns"),
                *("capture_ns", "source_publish_ns", "awake_ns", "finish_ns", "publish_ns"),
            )
        }
        fields["latency_ns"] = self.latency_ns
        fields["trace_id"] = self.trace_id.hex()
        fields["detections"] = [detection.to_dict() for detection in self.detections]
        fields["tensors"] = {
            name: {"dtype": tensor.dtype, "shape": list(tensor.shape)}
            for name, (tensor, _) in self._parts.items()
        }
        return fields

    def close(self) -> None:
        """Lets go of tensors that are still in shared memory. Idempotent."""
        self._parts = {}
        self._arrays = {}

    def __getitem__(self, name: str) -> NDArray[Any]:
        """One output by name."""
        return self.tensors[name]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        outputs = ", ".join(f"{name}{list(t.shape)}" for name, (t, _) in self._parts.items())
        return f"<Result {self.stream}#{self.source_seq} {self.model} {self.status}: {outputs}>"

    def _text(self, name: str) -> str:
        part = self._parts.get(name)
        return bytes(part[1]).decode(errors="replace") if part is not None else ""

    def _read_detections(self) -> list[Detection]:
        if not self.ok or not _DETECTIONS.keys() <= self._parts.keys():
            return []
        values: dict[str, list[Any]] = {}
        for name, (dtype, code) in _DETECTIONS.items():
            tensor, data = self._parts[name]
            if tensor.dtype != dtype or not _is_packed(tensor):
                raise ProtocolError(f"result tensor {name!r} is {tensor.dtype} {tensor.shape}")
            values[name] = list(struct.unpack_from(f"={tensor.nbytes // 4}{code}", data))
        boxes: list[float] = values["boxes"]
        scores: list[float] = values["scores"]
        labels: list[int] = values["labels"]
        if not len(boxes) == 4 * len(scores) == 4 * len(labels):
            raise ProtocolError(
                f"result has {len(boxes)} box corners, {len(scores)} scores and "
                f"{len(labels)} labels"
            )
        names = self._labels
        return [
            Detection(
                boxes[4 * index],
                boxes[4 * index + 1],
                boxes[4 * index + 2],
                boxes[4 * index + 3],
                scores[index],
                names[label] if 0 <= label < len(names) else str(label),
                label,
            )
            for index, label in enumerate(labels)
        ]


def _take(frame: Frame) -> dict[str, tuple[Tensor, bytes | memoryview]]:
    """The frame's tensors and their bytes. Closes the frame; large tensors keep its pin."""
    tensors = frame.description.tensors
    buffer = frame.buffer
    parts: dict[str, tuple[Tensor, bytes | memoryview]] = {}
    for tensor in tensors:
        data: bytes | memoryview = buffer[tensor.offset : tensor.offset + tensor.nbytes]
        if tensor.nbytes <= COPY_NBYTES:
            data = bytes(data)
        parts[tensor.name] = tensor, data
    frame.close()
    return parts


def _is_packed(tensor: Tensor) -> bool:
    step = 4
    for length, stride in zip(reversed(tensor.shape), reversed(tensor.strides), strict=True):
        if length > 1 and stride != step:
            return False
        step *= length
    return step == tensor.nbytes
