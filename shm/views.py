"""numpy views of what a slot holds.

The views are of shared memory itself. One that the caller keeps also keeps its slot: the writer's
from being used again, the reader's pinned.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from mcpd.shm.bundle import Description

    Planes = tuple[NDArray[np.uint8], ...]
    Tensors = dict[str, NDArray[Any]]


def plane_viewer(description: Description) -> Callable[[memoryview], Planes]:
    """What makes the views of each slot that is so described.

    All that is the same for every frame is done here, once: when a frame's views are made, the
    pixels of the one before have driven everything else out of the caches, and what is looked up
    then takes several times as long.
    """
    import numpy as np

    ndarray, frombuffer, uint8 = np.ndarray, np.frombuffer, np.dtype(np.uint8)
    if not description.planes:
        return lambda buffer: ()
    # Columns and samples are packed: only rows are apart.
    places = [(p.shape, p.offset, (p.stride, *p.shape[2:], 1)) for p in description.planes]

    def views_of(buffer: memoryview) -> Planes:
        # An ndarray made of a buffer keeps its owner but gives the export back, and with it the
        # pin; one from frombuffer holds the export. So all views are made of such a one.
        whole = frombuffer(buffer, uint8)
        return tuple([ndarray(shape, uint8, whole, at, strides) for shape, at, strides in places])

    return views_of


def tensor_views(buffer: memoryview, description: Description | None) -> Tensors:
    import numpy as np

    if description is None:
        return {}
    views: Tensors = {}
    whole = np.frombuffer(buffer, np.uint8) if description.extent else None  # see plane_viewer
    for tensor in description.tensors:
        if 0 in tensor.shape:
            # Nothing of the slot is looked at, and its offset may be the slot's end.
            views[tensor.name] = np.empty(tensor.shape, tensor.numpy_dtype)
            continue
        views[tensor.name] = np.ndarray(
            tensor.shape, tensor.numpy_dtype, whole, tensor.offset, tensor.strides
        )
    return views
