"""One frame through one model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from mcpd.daemon.engines.onnx import OnnxEngine
from mcpd.daemon.models.repository import read_model
from mcpd.daemon.worker.pipeline import ModelRunner
from mcpd.shm.bundle import Description, TensorSpec, describe_frame, describe_tensors
from mcpd.shm.errors import InvalidRequest, ModelFailed
from mcpd.shm.formats import Plane
from tests.support.models import write_model, write_tiny_image, write_trivial


class StillFrame:
    """A frame in ordinary memory, laid out as one in a slot; read-only."""

    def __init__(self, description: Description, nbytes: int = 0) -> None:
        self.description = description
        self._memory = bytearray(nbytes or description.extent or 64)
        self.buffer = memoryview(self._memory).toreadonly()

    def fill(self, *planes: Any) -> StillFrame:
        """Writes each plane, broadcast to its shape."""
        for plane, values in zip(self.description.planes, planes, strict=True):
            _view(plane, self._memory)[...] = values
        return self

    def fill_tensor(self, name: str, values: Any) -> StillFrame:
        for tensor in self.description.tensors:
            if tensor.name == name:
                view: NDArray[Any] = np.ndarray(
                    tensor.shape, tensor.dtype, self._memory, tensor.offset, tensor.strides
                )
                view[...] = values
        return self

    @property
    def planes(self) -> tuple[NDArray[np.uint8], ...]:
        return tuple(_view(plane, self.buffer) for plane in self.description.planes)

    @property
    def tensors(self) -> Mapping[str, NDArray[Any]]:
        return {
            item.name: np.ndarray(item.shape, item.dtype, self.buffer, item.offset, item.strides)
            for item in self.description.tensors
        }


def _view(plane: Plane, memory: bytearray | memoryview) -> NDArray[np.uint8]:
    strides = (plane.stride, *plane.shape[2:], 1)
    return np.ndarray(plane.shape, np.uint8, memory, plane.offset, strides)


def frame(format: str, width: int, height: int, **colour: Any) -> StillFrame:
    return StillFrame(describe_frame(format, width, height, **colour))


def open_runner(version_path: Path) -> ModelRunner:
    runner = ModelRunner(read_model(version_path.parent), version_path)
    runner.load()
    runner.warm_up()
    return runner


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[ModelRunner]:
    runner = open_runner(write_tiny_image(tmp_path))
    yield runner
    runner.close()


@pytest.fixture
def trivial(tmp_path: Path) -> Iterator[ModelRunner]:
    runner = open_runner(write_trivial(tmp_path))
    yield runner
    runner.close()


def test_a_red_frame_is_detected_as_red_in_source_pixels(tiny: ModelRunner) -> None:
    result = tiny.run(frame("rgb24", 64, 48).fill((255, 0, 0)))
    assert result["boxes"].tolist() == [[0, 0, 64, 48]]
    assert result["labels"].tolist() == [0]
    assert result["scores"].tolist() == pytest.approx([1.0])
    assert tiny.config.decode.labels[0] == "red"


@pytest.mark.parametrize(
    ("format", "planes"),
    [
        ("bgr24", [(255, 0, 0)]),
        ("bgra", [(255, 0, 0, 7)]),
        ("i420", [32, 240, 118]),
        ("nv12", [32, (240, 118)]),
    ],
)
def test_blue_is_blue_in_every_format(tiny: ModelRunner, format: str, planes: list[Any]) -> None:
    result = tiny.run(frame(format, 64, 48).fill(*planes))
    assert result["labels"].tolist() == [2]
    assert result["scores"].tolist() == pytest.approx([1.0], abs=0.01)


def test_a_frame_that_names_no_matrix_gets_that_of_its_size(tiny: ModelRunner) -> None:
    scores = {}
    for matrix, height in (("", 48), ("bt601", 48), ("", 720), ("bt709", 720)):
        still = frame("i420", 64, height).fill(150, 150, 110)
        if not matrix:
            plain = still.description
            still.description = Description(
                plain.kind, plain.format, plain.width, plain.height, planes=plain.planes
            )
        else:
            still = frame("i420", 64, height, matrix=matrix).fill(150, 150, 110)
        scores[matrix, height] = tiny.run(still)["scores"][0]
    assert scores["", 48] == scores["bt601", 48]
    assert scores["", 720] == scores["bt709", 720]
    assert scores["", 48] != scores["", 720]


def test_a_dark_frame_gives_an_empty_result(tiny: ModelRunner) -> None:
    result = tiny.run(frame("rgb24", 64, 48).fill(0))
    assert {name: len(array) for name, array in result.items()} == {
        "boxes": 0,
        "scores": 0,
        "labels": 0,
    }


def test_streams_of_several_sizes_take_turns(tiny: ModelRunner) -> None:
    for width in (64, 32, 64, 128):
        result = tiny.run(frame("rgb24", width, 48).fill((0, 255, 0)))
        assert result["boxes"].tolist() == [[0, 0, width, 48]]


def test_the_time_of_each_stage_is_told(tiny: ModelRunner) -> None:
    tiny.run(frame("rgb24", 64, 48).fill((255, 0, 0)))
    assert min(tiny.prepare_ns, tiny.infer_ns, tiny.decode_ns) > 0


def test_a_result_fits_the_size_that_was_told(tiny: ModelRunner, trivial: ModelRunner) -> None:
    for runner in (tiny, trivial):
        result = runner.run(frame("rgb24", 64, 48).fill((255, 255, 255)))
        assert sum(-(-array.nbytes // 64) * 64 for array in result.values()) <= runner.result_nbytes


def test_the_details_are_plain_values(tiny: ModelRunner) -> None:
    details = tiny.details
    assert (details["engine"], details["provider"]) == ("onnx", "cpu")
    assert details["load_s"] > 0
    assert details["warm_s"] > 0
    assert details["inputs"] == {"images": {"dtype": "float32", "shape": [-1, 3, 8, 8]}}


@pytest.mark.parametrize("width", [64, 50])
def test_a_tensor_model_takes_the_plane_of_a_frame(trivial: ModelRunner, width: int) -> None:
    # 50 pixels are 150 bytes, so rows are padded.
    still = frame("rgb24", width, 48).fill((1, 2, 3))
    assert trivial.run(still)["mean"].tolist() == [[1, 2, 3]]


def test_a_tensor_model_is_given_the_slot_itself(
    trivial: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    still = frame("rgb24", 64, 48).fill((1, 2, 3))
    run = OnnxEngine.run
    seen: list[bool] = []

    def watch(engine: OnnxEngine, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        seen.extend(np.shares_memory(array, still.planes[0]) for array in inputs.values())
        return run(engine, inputs)

    monkeypatch.setattr(OnnxEngine, "run", watch)
    trivial.run(still)
    assert seen == [True]


def test_a_tensor_model_takes_a_bundle(trivial: ModelRunner) -> None:
    for name in ("image", "anything"):
        description = describe_tensors({name: TensorSpec("uint8", (1, 5, 6, 3))})
        still = StillFrame(description).fill_tensor(name, 4)
        assert trivial.run(still)["mean"].tolist() == [[4, 4, 4]]


def test_a_model_of_two_tensors_takes_them_by_name(tmp_path: Path) -> None:
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in ("a", "b", "c")]
    node = helper.make_node("Sub", ["a", "b"], ["c"])
    graph = helper.make_graph([node], "subtract", infos[:2], infos[2:])
    toml = '[[input]]\nname = "a"\nkind = "tensor"\n[[input]]\nname = "b"\nkind = "tensor"\n'
    runner = open_runner(write_model(tmp_path, "subtract", graph, toml))
    spec = TensorSpec("float32", (2,))
    still = StillFrame(describe_tensors({"b": spec, "a": spec}))
    still.fill_tensor("a", 5).fill_tensor("b", 3)
    assert runner.run(still)["c"].tolist() == [2, 2]
    assert runner.details["warm_s"] > 0
    half = StillFrame(describe_tensors({"a": spec}))
    with pytest.raises(InvalidRequest, match=r"takes a float32 \[2\], b float32 \[2\]"):
        runner.run(half)
    runner.close()


def test_a_gray_frame_may_be_a_tensor_of_four_dimensions(tmp_path: Path) -> None:
    image = helper.make_tensor_value_info("x", TensorProto.UINT8, [1, "h", "w", 1])
    same = helper.make_tensor_value_info("y", TensorProto.UINT8, [1, "h", "w", 1])
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [image], [same])
    runner = open_runner(write_model(tmp_path, "g", graph, '[[input]]\nname="x"\nkind="tensor"'))
    result = runner.run(frame("gray8", 64, 2).fill(np.arange(64, dtype=np.uint8)))
    assert result["y"].shape == (1, 2, 64, 1)
    assert result["y"][0, 1, :, 0].tolist() == list(range(64))
    assert runner.result_nbytes == 0
    runner.close()


QUANTISED_TOML = """\
[[input]]
name = "x"
width = 4
height = 4
dtype = "int8"
channels = "gray"
resize = "letterbox"
sampling = "area"
pad_value = 255
scale = 0.00392156862745098
quant_scale = 0.0078125
zero_point = -1
"""


def test_a_quantised_input_is_averaged_scaled_and_padded(tmp_path: Path) -> None:
    image = helper.make_tensor_value_info("x", TensorProto.INT8, [1, 1, 4, 4])
    same = helper.make_tensor_value_info("y", TensorProto.INT8, [1, 1, 4, 4])
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [image], [same])
    runner = open_runner(write_model(tmp_path, "g", graph, QUANTISED_TOML))
    levels = np.zeros((8, 16), np.uint8)
    levels[::2, ::4] = 255
    wide, high = frame("gray8", 16, 8).fill(levels), frame("gray8", 8, 16).fill(levels.T)
    eighth = round(1 / 8 * 128) - 1
    for _ in range(2):  # one after the other, and each after the other
        for one in (wide, wide, high):
            got = runner.run(one)["y"][0, 0]
            got = got if one is wide else got.T
            assert got.tolist() == [[127] * 4, [eighth] * 4, [eighth] * 4, [127] * 4]
    runner.close()


def test_a_frame_of_another_kind_is_refused(tiny: ModelRunner, trivial: ModelRunner) -> None:
    with pytest.raises(InvalidRequest, match="takes images, the slot holds tensors"):
        tiny.run(StillFrame(describe_tensors({"x": TensorSpec("uint8", (3,))})))
    with pytest.raises(InvalidRequest, match="takes images, the slot holds jpeg data"):
        tiny.run(frame("jpeg", 64, 48))
    with pytest.raises(InvalidRequest, match="the slot holds i420 frames"):
        trivial.run(frame("i420", 64, 48).fill(1, 2, 3))
    with pytest.raises(InvalidRequest, match=r"the slot holds image uint8 \[1, 48, 64, 4\]"):
        trivial.run(frame("rgba", 64, 48).fill(1))
    with pytest.raises(InvalidRequest, match=r"the slot holds x float32 \[3\]"):
        trivial.run(StillFrame(describe_tensors({"x": TensorSpec("float32", (3,))})))


def test_a_slot_shorter_than_its_description_is_refused(tiny: ModelRunner) -> None:
    still = frame("rgb24", 64, 48)
    still.buffer = still.buffer[:-1]
    with pytest.raises(InvalidRequest, match="the source has 9215 bytes, its geometry needs 9216"):
        tiny.run(still)


def test_a_model_that_is_not_loaded_says_so(tmp_path: Path) -> None:
    version_path = write_tiny_image(tmp_path)
    runner = ModelRunner(read_model(version_path.parent), version_path)
    with pytest.raises(InvalidRequest, match="is not loaded"):
        runner.run(frame("rgb24", 64, 48))


def test_a_model_of_another_shape_than_configured_is_not_loaded(tmp_path: Path) -> None:
    version_path = write_tiny_image(tmp_path)
    toml = version_path.parent / "model.toml"
    toml.write_text(toml.read_text().replace("height = 8", "height = 16"))
    runner = ModelRunner(read_model(version_path.parent), version_path)
    with pytest.raises(ModelFailed, match="the model takes"):
        runner.load()
    with pytest.raises(InvalidRequest, match="is not loaded"):
        runner.warm_up()
