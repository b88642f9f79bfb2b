"""Model repositories for tests: small ONNX models with known answers that load in milliseconds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import GraphProto, TensorProto, checker, helper, numpy_helper, save_model

TRIVIAL_TOML = """\
[[input]]
name = "image"
kind = "tensor"
"""

TINY_IMAGE_TOML = """\
[[input]]
name = "images"
kind = "image"
width = 8
height = 8
layout = "nchw"
dtype = "float32"
channels = "rgb"
resize = "stretch"
sampling = "half_pixel"

[decode]
kind = "detections"
boxes = "boxes"
box_format = "yxyx_unit"
scores = "scores"
score_threshold = 0.4
nms_iou = 0.6
labels = "labels.txt"
"""

TINY_IMAGE_LABELS = ("red", "green", "blue")


def write_repository(folder: Path) -> Path:
    """Writes a repository with both test models, `trivial` and `tiny-image`; returns `folder`."""
    write_trivial(folder)
    write_tiny_image(folder)
    return folder


def write_trivial(folder: Path, name: str = "trivial", *, version: int = 1) -> Path:
    """uint8 `image` [1,H,W,3] to float32 `mean` [1,3] of the top left 4x4 pixels."""
    image = helper.make_tensor_value_info("image", TensorProto.UINT8, [1, "height", "width", 3])
    mean = helper.make_tensor_value_info("mean", TensorProto.FLOAT, [1, 3])
    nodes = [
        helper.make_node("Slice", ["image", "starts", "ends", "axes"], ["corner"]),
        helper.make_node("Cast", ["corner"], ["levels"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["levels"], ["mean"], axes=[1, 2], keepdims=0),
    ]
    constants = [
        numpy_helper.from_array(np.array([0, 0], np.int64), "starts"),
        numpy_helper.from_array(np.array([4, 4], np.int64), "ends"),
        numpy_helper.from_array(np.array([1, 2], np.int64), "axes"),
    ]
    graph = helper.make_graph(nodes, "trivial", [image], [mean], constants)
    return write_model(folder, name, graph, TRIVIAL_TOML, version=version)


def write_whole(folder: Path, name: str = "whole", *, threads: int = 2) -> Path:
    """uint8 `image` [1,H,W,3] to float32 `mean` [1,3] of all pixels, by so many of its threads."""
    image = helper.make_tensor_value_info("image", TensorProto.UINT8, [1, "height", "width", 3])
    mean = helper.make_tensor_value_info("mean", TensorProto.FLOAT, [1, 3])
    nodes = [
        helper.make_node("Cast", ["image"], ["levels"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["levels"], ["mean"], axes=[1, 2], keepdims=0),
    ]
    graph = helper.make_graph(nodes, "whole", [image], [mean])
    return write_model(folder, name, graph, f"{TRIVIAL_TOML}\n[run]\nthreads = {threads}\n")


def write_tiny_image(folder: Path, name: str = "tiny-image", *, version: int = 1) -> Path:
    """An image model of 8x8 pixels that detects one thing: the whole frame.

    Its three classes, red, green and blue, score the channel's mean level over 255. So a frame of
    pure red gives one detection: label 0, score 1.0, box = the frame. A dark frame gives none.
    """
    images = helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", 3, 8, 8])
    boxes = helper.make_tensor_value_info("boxes", TensorProto.FLOAT, ["batch", 1, 4])
    scores = helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 1, 3])
    nodes = [
        helper.make_node("ReduceMean", ["images"], ["means"], axes=[2, 3], keepdims=0),
        helper.make_node("Unsqueeze", ["means", "axis"], ["levels"]),
        helper.make_node("Div", ["levels", "most"], ["scores"]),
        helper.make_node("ReduceMean", ["levels"], ["level"], axes=[2], keepdims=1),
        helper.make_node("Mul", ["level", "nothing"], ["zero"]),
        helper.make_node("Add", ["zero", "whole"], ["boxes"]),
    ]
    constants = [
        numpy_helper.from_array(np.array([1], np.int64), "axis"),
        numpy_helper.from_array(np.array(255, np.float32), "most"),
        numpy_helper.from_array(np.array(0, np.float32), "nothing"),
        numpy_helper.from_array(np.array([[[0, 0, 1, 1]]], np.float32), "whole"),
    ]
    graph = helper.make_graph(nodes, "tiny_image", [images], [boxes, scores], constants)
    path = write_model(folder, name, graph, TINY_IMAGE_TOML, version=version)
    (folder / name / "labels.txt").write_text("\n".join(TINY_IMAGE_LABELS) + "\n")
    return path


def write_model(folder: Path, name: str, graph: GraphProto, toml: str, *, version: int = 1) -> Path:
    """Writes `folder`/name/{model.toml, version/model.onnx}; returns the version's folder."""
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    checker.check_model(model)
    path = folder / name / str(version)
    path.mkdir(parents=True, exist_ok=True)
    save_model(model, path / "model.onnx")
    (folder / name / "model.toml").write_text(toml)
    return path
