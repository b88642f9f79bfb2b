"""Chains of OpenCV calls that prepare a 1080p frame as we do: letterbox of 640, planar.

    whole      cvtColor, resize, and each channel scaled into its plane of the output
    planes     Y, U and V are resized first, and the small frame is converted
    thirds     as planes, but of luma every third pixel of every third row is taken
               (INTER_NEAREST_EXACT), which is what INTER_LINEAR gives for this one ratio
    canvas     as planes, into a padded picture, of which blobFromImage makes the output

Buffers are made once. Channels are scaled to float32 by addWeighted, the fastest of multiply,
addWeighted, divide and LUT, and to float16 by LUT. OpenCV runs on one thread.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

WIDTH: Final = 1920
HEIGHT: Final = 1080
SIZE: Final = 640
TOP: Final = 140
SHOWN: Final = 360
PAD: Final = 114.0

Bytes = NDArray[np.uint8]
Chain = Callable[[Bytes], object]
"""Prepares one frame into the tensor that it was made for."""


def chains(format: str, out: NDArray[Any], *, fill: bool) -> dict[str, Chain]:
    """The chains for a format by name, whole first; none where OpenCV is not installed.

    Args:
        format: i420, nv12 or rgb24.
        out: One image, [3, 640, 640] float32 or float16, its padding in place.
        fill: The padding is written anew with each frame.
    """
    try:
        cv2: Any = importlib.import_module("cv2")
    except ImportError:
        return {}
    cv2.setNumThreads(1)
    made = _Chains(cv2, format, out)
    found: dict[str, Chain] = {"whole": made.whole}
    if format != "rgb24":
        found |= {"planes": made.planes, "thirds": made.thirds}
        if out.dtype == np.float32:
            found["canvas"] = made.canvas
    return {name: _filled(chain, out) if fill else chain for name, chain in found.items()}


def _filled(chain: Chain, out: NDArray[Any]) -> Chain:
    def run(frame: Bytes) -> None:
        out[:, :TOP] = PAD / 255
        out[:, TOP + SHOWN :] = PAD / 255
        chain(frame)

    return run


class _Chains:
    def __init__(self, cv2: Any, format: str, out: NDArray[Any]) -> None:
        self._cv2 = cv2
        self._format = format
        self._out = out[:, TOP : TOP + SHOWN]
        self._all = out
        self._small = np.empty((SHOWN * 3 // 2, SIZE), np.uint8)
        self._large = np.empty((HEIGHT, WIDTH, 3), np.uint8)
        self._rgb = np.empty((SHOWN, SIZE, 3), np.uint8)
        self._canvas = np.full((SIZE, SIZE, 3), int(PAD), np.uint8)
        self._channels = [np.empty((SHOWN, SIZE), np.uint8) for _ in range(3)]
        levels = (np.arange(256) / 255).astype(out.dtype)
        self._levels = levels.view(np.uint16) if out.dtype == np.float16 else levels
        self._codes: Mapping[str, int] = {
            "i420": cv2.COLOR_YUV2RGB_I420,
            "nv12": cv2.COLOR_YUV2RGB_NV12,
        }

    def whole(self, frame: Bytes) -> None:
        if self._format == "rgb24":
            rgb = frame.reshape(HEIGHT, WIDTH, 3)
        else:
            yuv = frame.reshape(HEIGHT * 3 // 2, WIDTH)
            rgb = self._cv2.cvtColor(yuv, self._codes[self._format], dst=self._large)
        self._cv2.resize(rgb, (SIZE, SHOWN), dst=self._rgb)
        self._normalise()

    def planes(self, frame: Bytes) -> None:
        self._shrink(frame, self._cv2.INTER_LINEAR)
        self._cv2.cvtColor(self._small, self._codes[self._format], dst=self._rgb)
        self._normalise()

    def thirds(self, frame: Bytes) -> None:
        self._shrink(frame, self._cv2.INTER_NEAREST_EXACT)
        self._cv2.cvtColor(self._small, self._codes[self._format], dst=self._rgb)
        self._normalise()

    def canvas(self, frame: Bytes) -> None:
        self._shrink(frame, self._cv2.INTER_LINEAR)
        shown = self._canvas[TOP : TOP + SHOWN]
        self._cv2.cvtColor(self._small, self._codes[self._format], dst=shown)
        np.copyto(self._all, self._cv2.dnn.blobFromImage(self._canvas, 1 / 255)[0])

    def _shrink(self, frame: Bytes, of_luma: int) -> None:
        cv2, small = self._cv2, self._small
        luma = frame[: WIDTH * HEIGHT].reshape(HEIGHT, WIDTH)
        chroma = frame[WIDTH * HEIGHT :]
        cv2.resize(luma, (SIZE, SHOWN), dst=small[:SHOWN], interpolation=of_luma)
        if self._format == "i420":
            halves = chroma.reshape(2, HEIGHT // 2, WIDTH // 2)
            for half, to in zip(halves, small[SHOWN:].reshape(2, 180, 320), strict=True):
                cv2.resize(half, (320, 180), dst=to)
        else:
            pairs = chroma.reshape(HEIGHT // 2, WIDTH // 2, 2)
            cv2.resize(pairs, (320, 180), dst=small[SHOWN:].reshape(180, 320, 2))

    def _normalise(self) -> None:
        cv2 = self._cv2
        cv2.split(self._rgb, self._channels)
        for channel, to in zip(self._channels, self._out, strict=True):
            if to.dtype == np.float16:
                cv2.LUT(channel, self._levels, to.view(np.uint16))
            else:
                cv2.addWeighted(channel, 1 / 255, channel, 0.0, 0.0, to, cv2.CV_32F)
