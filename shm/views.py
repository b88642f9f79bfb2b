"""numpy views of what a slot holds, and the attributes that its core carries.

The views are of shared memory itself. One that the caller keeps also keeps its slot: the writer's
from being used again, the reader's pinned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar, overload

from mcpd.shm.bundle import Description

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Planes = tuple[NDArray[np.uint8], ...]
    Tensors = dict[str, NDArray[Any]]

_T = TypeVar("_T")


class _HasCore(Protocol):
    @property
    def core(self) -> Any: ...


class Carried(Generic[_T]):
    """An attribute of the core's slot object, under the same name here."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: _HasCore, owner: type) -> _T: ...
    def __get__(self, instance: _HasCore | None, owner: type) -> Self | _T:
        if instance is None:
            return self
        value: _T = getattr(instance.core, self._name)
        return value

    def __set__(self, instance: _HasCore, value: _T) -> None:
        setattr(instance.core, self._name, value)


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
