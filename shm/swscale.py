"""Colour conversion straight into a slot, by the libswscale that PyAV has loaded.

PyAV converts into a frame of its own, which then has to be copied: one pass over memory more than
need be. Here the library's own function is called with the slot as its target. It is one of four
functions that have been as they are since 2010, found in the very library that PyAV uses; where it
cannot be found or cannot be used safely, `convert` says so and the caller goes the longer way.

libswscale writes up to 15 pixels beyond a row's end. So only layouts are served whose rows have
room for whole groups of 32 pixels: all of mcpd's own whose width is a multiple of 32, and others.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import weakref
from collections import OrderedDict
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from mcpd.shm.bundle import Description
from mcpd.shm.formats import ALIGN_NBYTES, Plane

if TYPE_CHECKING:
    import av

    from mcpd.shm.views import Planes

_GROUP = 32
"""Pixels; the widest that libswscale's vector code writes at once is 16."""
_BILINEAR = 2
_UNITY = 1 << 16
_CONTEXTS = 8
"""Kept for each thread; a stream needs one."""
_MAJORS = range(5, 10)
"""Versions of libswscale that have the functions as they are called here: FFmpeg 4 to 8."""

_Versions = dict[str, tuple[int, int, int]]

_local = threading.local()


class Conversion(NamedTuple):
    """From what to what; colours as libswscale numbers matrices, ranges 0 limited and 1 full."""

    source: str
    source_width: int
    source_height: int
    source_matrix: int
    source_range: int
    target: str
    target_width: int
    target_height: int
    target_matrix: int
    target_range: int


def convert(
    frame: av.VideoFrame, conversion: Conversion, description: Description, planes: Planes
) -> bool:
    """Converts a frame into a slot's planes; releases the GIL. False: it cannot be done here.

    Args:
        conversion: What the frame is and what the planes hold, by PyAV's names of formats.
        description: Of the slot.
        planes: Of the slot, writable.
    """
    if not all(map(_has_room, description.planes)) or frame.format.has_palette:
        return False
    library = load()
    sources = frame.planes
    if library is None or not sources or not all(plane.line_size for plane in sources):
        return False
    context = _context(library, conversion)
    if context is None:
        return False
    rows = library.swscale.sws_scale(
        context.pointer,
        _pointers([plane.buffer_ptr for plane in sources]),
        _integers([plane.line_size for plane in sources]),
        0,
        conversion.source_height,
        _pointers([plane.__array_interface__["data"][0] for plane in planes]),
        _integers([plane.stride for plane in description.planes]),
    )
    return bool(rows == conversion.target_height)


class Library(NamedTuple):
    """PyAV's libswscale, and the libavutil whose numbers of formats it goes by."""

    swscale: Any
    avutil: Any


@cache
def load() -> Library | None:
    """The libraries that PyAV has loaded; None if they are not found or of another version.

    Other packages bring an FFmpeg of their own, so that there may be several in one process: those
    of the versions that PyAV reports are taken.
    """
    versions: dict[str, tuple[int, int, int]] = getattr(
        sys.modules.get("av"), "library_versions", {}
    )
    if versions.get("libswscale", (0,))[0] not in _MAJORS:
        return None
    swscale = _find("libswscale", "swscale_version", versions)
    avutil = _find("libavutil", "avutil_version", versions)
    if swscale is None or avutil is None:
        return None
    pointer, integer = ctypes.c_void_p, ctypes.c_int
    try:
        avutil.av_get_pix_fmt.argtypes = [ctypes.c_char_p]
        swscale.sws_getContext.argtypes = [*[integer] * 7, *[pointer] * 3]
        swscale.sws_getContext.restype = pointer
        swscale.sws_getCoefficients.argtypes = [integer]
        swscale.sws_getCoefficients.restype = pointer
        swscale.sws_setColorspaceDetails.argtypes = [
            *(pointer, pointer, integer, pointer, integer),
            *[integer] * 3,
        ]
        swscale.sws_scale.argtypes = [*[pointer] * 3, integer, integer, pointer, pointer]
        swscale.sws_freeContext.argtypes = [pointer]
        swscale.sws_freeContext.restype = None
    except AttributeError:
        return None
    return Library(swscale, avutil)


class _Context:
    """A conversion's tables, freed with this object."""

    def __init__(self, library: Library, pointer: int) -> None:
        self.pointer = pointer
        weakref.finalize(self, library.swscale.sws_freeContext, pointer)


def _context(library: Library, conversion: Conversion) -> _Context | None:
    """This thread's context for a conversion; it may be used by one thread at a time."""
    kept: OrderedDict[Conversion, _Context | None] | None = getattr(_local, "contexts", None)
    if kept is None:
        kept = _local.contexts = OrderedDict()
    if conversion in kept:
        kept.move_to_end(conversion)
        return kept[conversion]
    context = kept[conversion] = _make_context(library, conversion)
    if len(kept) > _CONTEXTS:
        kept.popitem(last=False)
    return context


def _make_context(library: Library, conversion: Conversion) -> _Context | None:
    swscale, c = library.swscale, conversion
    formats = [library.avutil.av_get_pix_fmt(name.encode()) for name in (c.source, c.target)]
    pointer = swscale.sws_getContext(
        *(c.source_width, c.source_height, formats[0]),
        *(c.target_width, c.target_height, formats[1]),
        *(_BILINEAR, None, None, None),
    )
    if not pointer:
        return None  # a format that it does not read, such as one in a GPU's memory
    context = _Context(library, pointer)
    swscale.sws_setColorspaceDetails(
        *(pointer, swscale.sws_getCoefficients(c.source_matrix), c.source_range),
        *(swscale.sws_getCoefficients(c.target_matrix), c.target_range),
        *(0, _UNITY, _UNITY),
    )
    return context


def _has_room(plane: Plane) -> bool:
    """Whether whole groups of pixels fit its rows, and its rows are aligned."""
    columns = -(-plane.shape[1] // _GROUP) * _GROUP
    samples = plane.shape[2] if len(plane.shape) > 2 else 1
    aligned = plane.offset % ALIGN_NBYTES == 0 and plane.stride % ALIGN_NBYTES == 0
    return aligned and columns * samples <= plane.stride


def _find(name: str, version: str, versions: _Versions) -> Any:
    """The library of this name and of PyAV's version among those that this process has mapped."""
    major, minor, micro = versions[name]
    with open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[-1].rstrip("\n") for line in maps if name in line}
    for path in sorted(paths):
        if not os.path.basename(path).startswith(name):
            continue
        try:
            library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
            if getattr(library, version)() == major << 16 | minor << 8 | micro:
                return library
        except (OSError, AttributeError):
            continue
    return None


def _pointers(values: list[int]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * 4)(*values[:4])


def _integers(values: list[int]) -> ctypes.Array[ctypes.c_int]:
    return (ctypes.c_int * 4)(*values[:4])
