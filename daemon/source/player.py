"""Plays a video into a stream: decoded frame to slot, when it is due, until its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcpd.daemon.source.pace import Pace, Timeline
from mcpd.daemon.source.progress import Progress

if TYPE_CHECKING:
    from mcpd.shm.stream import WriterStream
    from mcpd.shm.video import Picture, Video

FORMATS = ("i420", "nv12", "rgb24", "bgr24")
DRAIN_TIMEOUT_S = 10.0
"""How long a source that is done waits for lossless readers to take their last frames."""
POLL_S = 0.02
"""How often readers that come and go are counted, before the first frame and after the last."""
NOMINAL_FPS = 25.0
"""Of a source that does not tell its frame rate, and gives frames no time stamps."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What to play, where to, and how.

    Attributes:
        source: File or URL.
        stream: Name of the stream to make.
        socket: Of the daemon, "" for the default.
        max_speed: Not at the pace of its time stamps. A live source has its own pace anyway.
        plays: How many times; 0: again and again.
        format: "auto" for the decoder's own, or one of FORMATS.
        wait_readers: How many must be attached before the first frame.
    """

    source: str
    stream: str
    socket: str = ""
    max_speed: bool = False
    plays: int = 1
    format: str = "auto"
    slots: int = 8
    wait_readers: int = 0
