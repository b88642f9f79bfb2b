"""Reads a TensorFlow.js graph model: its nodes and its weights.

The format is that of tensorflowjs 1.x: model.json holds the graph as TensorFlow's GraphDef in JSON,
and a manifest of weights that lie one after the other in binary shards.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable
from graphlib import TopologicalSorter
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from mcpd.shm.errors import ModelFailed

_DTYPES = {"float32": np.dtype("<f4"), "int32": np.dtype("<i4")}


class Node(Struct, frozen=True):
    """One operation of the graph; its output has its name."""

    name: str
    op: str
    inputs: tuple[str, ...]
    attributes: dict[str, Any]

    def integers(self, attribute: str) -> list[int]:
        """An attribute that is a list of integers."""
        return [int(value) for value in self.attributes[attribute]["list"]["i"]]

    def number(self, attribute: str) -> float:
        """An attribute that is a number."""
        return float(self.attributes[attribute]["f"])

    def text(self, attribute: str) -> str:
        """An attribute that is a string; the file has its bytes as a list of codes."""
        return bytes(self.attributes[attribute]["s"]).decode()


class Graph(Struct, frozen=True):
    """A graph: nodes, and weights by the name of the node that stands for them."""

    nodes: dict[str, Node]
    weights: dict[str, NDArray[Any]]

    def between(self, given: Collection[str], wanted: Iterable[str]) -> list[Node]:
        """The nodes that make `wanted` out of `given` and weights, inputs before their users.

        Raises:
            ModelFailed: The graph lacks a node.
        """
        sorter: TopologicalSorter[str] = TopologicalSorter()
        seen: set[str] = set()
        names = list(wanted)
        while names:
            name = names.pop()
            if name in seen or name in given or name in self.weights:
                continue
            seen.add(name)
            if name not in self.nodes:
                raise ModelFailed(f"the graph has no node {name!r}")
            inputs = self.nodes[name].inputs
            sorter.add(name, *inputs)
            names.extend(inputs)
        return [self.nodes[name] for name in sorter.static_order() if name in seen]


def read_graph(read: Callable[[str], bytes]) -> Graph:
    """Reads a model.

    Args:
        read: Gives the bytes of a file of the model's folder by its name.

    Raises:
        ModelFailed: It is not such a model, or has weights in a form that is not read here.
    """
    try:
        model = json.loads(read("model.json"))
        nodes = {item["name"]: _node(item) for item in model["modelTopology"]["node"]}
        groups = model["weightsManifest"]
        weights: dict[str, NDArray[Any]] = {}
        for group in groups:
            data = b"".join(read(path) for path in group["paths"])
            weights |= _weights(group["weights"], data)
    except (ValueError, KeyError, TypeError) as error:
        raise ModelFailed(f"not a TensorFlow.js graph model: {error!r}") from error
    return Graph(nodes, weights)


def _node(item: dict[str, Any]) -> Node:
    # "^name" is an order of execution, not a value.
    inputs = tuple(name for name in item.get("input", ()) if not name.startswith("^"))
    return Node(item["name"], item["op"], inputs, item.get("attr", {}))


def _weights(entries: Iterable[dict[str, Any]], data: bytes) -> dict[str, NDArray[Any]]:
    weights: dict[str, NDArray[Any]] = {}
    offset = 0
    for entry in entries:
        if entry["dtype"] not in _DTYPES or "quantization" in entry:
            raise ModelFailed(f"weight {entry['name']!r} is quantised or not float32 or int32")
        count = math.prod(entry["shape"])
        dtype = _DTYPES[entry["dtype"]]
        array = np.frombuffer(data, dtype, count, offset).reshape(entry["shape"])
        weights[entry["name"]] = array
        offset += array.nbytes
    if offset != len(data):
        raise ModelFailed(f"the shards hold {len(data)} bytes, the manifest says {offset}")
    return weights
