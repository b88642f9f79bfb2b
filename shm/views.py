"""numpy views of what a slot holds.

The views are of shared memory itself. One that the caller keeps also keeps its slot: the writer's
from being used again, the reader's pinned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcpd.shm.bundle import Description

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Planes = tuple[NDArray[np.uint8], ...]
    Tensors = dict[str, NDArray[Any]]


def plane_views(buffer: memoryview, description: Description | None) -> Planes:
    import numpy as np

    if description is None:
        return ()
    if not description.planes:
        return ()
    # An ndarray made of a buffer keeps its owner but gives the export back, and with it the pin;
    # one from frombuffer holds the export. So all views are made of such a one.
    whole = np.frombuffer(buffer, np.uint8)
    views = []
    for plane in description.planes:
        # Columns and samples are packed: only rows are apart.
        strides = (plane.stride, *plane.shape[2:], 1)
        views.append(np.ndarray(plane.shape, np.uint8, whole, plane.offset, strides))
    return tuple(views)


def tensor_views(buffer: memoryview, description: Description | None) -> Tensors:
    import numpy as np

    if description is None:
        return {}
    views: Tensors = {}
    whole = np.frombuffer(buffer, np.uint8) if description.extent else None  # see plane_views
    for tensor in description.tensors:
        if 0 in tensor.shape:
            # Nothing of the slot is looked at, and its offset may be the slot's end.
            views[tensor.name] = np.empty(tensor.shape, tensor.numpy_dtype)
            continue
        views[tensor.name] = np.ndarray(
            tensor.shape, tensor.numpy_dtype, whole, tensor.offset, tensor.strides
        )
    return views
