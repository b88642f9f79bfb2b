"""Builds the SSDLite-MobileNetV2 COCO detector as ONNX from its TensorFlow.js graph.

The convolutional part is translated node by node from NHWC to NCHW; ONNX Runtime fuses it when it
loads. TensorFlow's loop for resizing before it is dropped, because mcpd prepares the image, and its
box arithmetic behind it is written anew, in the box coding of the Faster R-CNN paper (section
3.1.2): offsets in units of the anchor's size, sizes as logarithms, both scaled by a variance.

    in   images  float32 [batch, 3, 300, 300]  RGB, 0..255, resized by stretching
    out  boxes   float32 [batch, 1917, 4]      ymin, xmin, ymax, xmax; the image is 0..1
         scores  float32 [batch, 1917, 90]     0..1; column i is COCO id i + 1
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mcpd.daemon.models.tfjs import Graph, Node
from mcpd.shm.errors import ModelFailed

SIDE = 300
"""Pixels of the input each way."""

_CLASSES = 91  # column 0 is the background
_HEADS = 6
_IMAGE = "Preprocessor/map/TensorArrayStack/TensorArrayGatherV3"  # the resized image, 0..255
_NORMALISED = "Preprocessor/sub"
_ANCHORS = "Postprocessor/ExpandDims"
_CENTRE_VARIANCE = "ConstantFolding/Postprocessor/Decode/div_recip"
_SIZE_VARIANCE = "ConstantFolding/Postprocessor/Decode/div_2_recip"
_OPSET = 13
_IR_VERSION = 8


def build_ssdlite(graph: Graph) -> Any:
    """The detector as a checked onnx.ModelProto.

    Raises:
        ModelFailed: The graph is not that of this detector.
    """
    from onnx import checker, helper

    needed = [_ANCHORS, _CENTRE_VARIANCE, _SIZE_VARIANCE]
    missing = [name for name in needed if name not in graph.weights]
    if missing:
        raise ModelFailed(f"the graph has no weights {', '.join(missing)}")
    builder = _Builder(graph)
    builder.names[_IMAGE] = "images"
    heads = [_head(graph, f"BoxPredictor_{k}/Reshape") for k in range(_HEADS)]
    class_heads = [_head(graph, f"BoxPredictor_{k}/Reshape_1") for k in range(_HEADS)]
    for node in graph.between([_IMAGE], heads + class_heads):
        builder.translate(node)
    _emit_boxes(builder, builder.flatten(heads, 4, "codes"))
    _emit_scores(builder, builder.flatten(class_heads, _CLASSES, "logits"))
    anchors = graph.weights[_ANCHORS].shape[1]
    model = helper.make_model(
        helper.make_graph(
            builder.nodes,
            "ssdlite_mobilenet_v2_coco",
            [_tensor("images", 3, SIDE, SIDE)],
            [_tensor("boxes", anchors, 4), _tensor("scores", anchors, _CLASSES - 1)],
            builder.constants,
        ),
        opset_imports=[helper.make_opsetid("", _OPSET)],
        ir_version=_IR_VERSION,
        producer_name="mcpd",
    )
    checker.check_model(model, full_check=True)
    return model


class _Builder:
    """An ONNX graph under construction. `names` maps TensorFlow's tensors to ours."""

    def __init__(self, graph: Graph) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.names: dict[str, str] = {}
        self.graph = graph

    def emit(self, op: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        """Adds a node; returns its output."""
        from onnx import helper

        self.nodes.append(helper.make_node(op, inputs, [output], name=output, **attributes))
        return output

    def constant(self, name: str, values: ArrayLike, dtype: type = np.float32) -> str:
        """Adds a constant; returns its name."""
        from onnx import numpy_helper

        array: NDArray[Any] = np.array(values, dtype, order="C")
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def translate(self, node: Node) -> None:
        """Adds what a TensorFlow node does."""
        output = node.name
        match node.op:
            case "Conv2D" | "DepthwiseConv2dNative":
                self._convolve(node)
            case "Relu6":
                bounds = [self.constant(f"{output}/{bound}", bound) for bound in (0, 6)]
                self.emit("Clip", [*self._tensors(node), *bounds], output)
            case "FusedBatchNorm":
                self.emit(
                    "BatchNormalization",
                    self._tensors(node, flat=True),
                    output,
                    epsilon=node.number("epsilon"),
                )
            case "AddN":
                self.emit("Sum", self._tensors(node), output)
            case "Add" | "BiasAdd":
                self.emit("Add", self._tensors(node), output)
            case "Mul" | "Sub":
                self.emit(node.op, self._tensors(node), output)
            case _:
                raise ModelFailed(f"node {node.name!r} is a {node.op}, which this model has not")
        self.names[node.name] = output

    def flatten(self, heads: Sequence[str], columns: int, output: str) -> str:
        """The feature maps of all heads as one [batch, anchors, columns]."""
        shape = self.constant(f"{output}/shape", [0, -1, columns], np.int64)
        rows = []
        for head in heads:
            last = self.emit("Transpose", [self.names[head]], f"{head}/nhwc", perm=[0, 2, 3, 1])
            rows.append(self.emit("Reshape", [last, shape], f"{head}/rows"))
        return self.emit("Concat", rows, output, axis=1)

    def columns(self, tensor: str, first: int, end: int, output: str) -> str:
        """Columns `first` to `end` of a [batch, anchors, columns]."""
        bounds = [
            self.constant(f"{output}/{bound}", [value], np.int64)
            for bound, value in (("first", first), ("end", end), ("axis", 2))
        ]
        return self.emit("Slice", [tensor, *bounds], output)

    def _convolve(self, node: Node) -> None:
        depthwise = node.op == "DepthwiseConv2dNative"
        if node.text("padding") != "SAME" or set(node.integers("dilations")) != {1}:
            raise ModelFailed(f"convolution {node.name!r} is dilated or not padded to SAME")
        weights = self.graph.weights[node.inputs[1]]
        # [h, w, channel, 1] to [channel, 1, h, w], or [h, w, in, out] to [out, in, h, w].
        weights = weights.transpose(2, 3, 0, 1) if depthwise else weights.transpose(3, 2, 0, 1)
        kernel = self.constant(f"{node.name}/kernel", weights)
        self.emit(
            "Conv",
            [self.names[node.inputs[0]], kernel],
            node.name,
            kernel_shape=weights.shape[2:],
            strides=node.integers("strides")[1:3],
            group=weights.shape[0] if depthwise else 1,
            auto_pad="SAME_UPPER",
        )

    def _tensors(self, node: Node, *, flat: bool = False) -> list[str]:
        """A node's inputs. Weights, one for each channel, are shaped for NCHW unless flat."""
        inputs = []
        for index, name in enumerate(node.inputs):
            values = self.graph.weights.get(name)
            if values is None:
                inputs.append(self.names[name])
            else:
                shaped = values if flat or values.ndim == 0 else values.reshape(-1, 1, 1)
                inputs.append(self.constant(f"{node.name}/{index}", shaped))
        return inputs


def _head(graph: Graph, reshape: str) -> str:
    """The feature map that a head's reshape flattens."""
    if reshape not in graph.nodes:
        raise ModelFailed(f"the graph has no node {reshape!r}")
    return graph.nodes[reshape].inputs[0]


def _emit_boxes(builder: _Builder, codes: str) -> None:
    weights = builder.graph.weights
    anchors = weights[_ANCHORS].astype(np.float64)
    low, high = anchors[..., :2], anchors[..., 2:]
    sizes = high - low
    offsets = builder.columns(codes, 0, 2, "offsets")
    logs = builder.columns(codes, 2, 4, "logs")
    unit = builder.constant("boxes/unit", sizes * float(weights[_CENTRE_VARIANCE]))
    centres = builder.constant("boxes/centres", (low + high) / 2)
    variance = builder.constant("boxes/variance", float(weights[_SIZE_VARIANCE]))
    halves = builder.constant("boxes/halves", sizes / 2)
    centre = builder.emit("Add", [builder.emit("Mul", [offsets, unit], "moves"), centres], "centre")
    growth = builder.emit("Exp", [builder.emit("Mul", [logs, variance], "exponents")], "growth")
    half = builder.emit("Mul", [growth, halves], "half")
    corners = [
        builder.emit("Sub", [centre, half], "low"),
        builder.emit("Add", [centre, half], "high"),
    ]
    builder.emit("Concat", corners, "boxes", axis=2)


def _emit_scores(builder: _Builder, logits: str) -> None:
    builder.emit("Sigmoid", [builder.columns(logits, 1, _CLASSES, "foreground")], "scores")


def _tensor(name: str, *shape: int) -> Any:
    from onnx import TensorProto, helper

    return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", *shape])
