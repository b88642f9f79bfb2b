"""Where in a program something of mcpd was asked for: `camera.py:12 in main`."""

from __future__ import annotations

import os
import sys
from types import FrameType

from mcpd.shm.messages import AttachReader, CreateStream, Message, OpenResults

MAX_SITE_LENGTH = 200
"""Characters of a call site that are sent and kept: of a longer one the end, which tells more."""

_TRACE = "MCPD_TRACE"


def tracing(asked: bool | None = None) -> bool:
    """Whether call sites are sent: as asked for, else as MCPD_TRACE says (1, true, yes or on)."""
    if asked is not None:
        return asked
    return os.environ.get(_TRACE, "").lower() in ("1", "true", "yes", "on")


def call_site() -> str:
    """The innermost frame of this thread that is neither mcpd's nor the standard library's.

    "" if there is none, as on a thread of mcpd's own.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package != "mcpd" and package not in sys.stdlib_module_names:
            code = frame.f_code
            return f"{code.co_filename}:{frame.f_lineno} in {code.co_qualname}"[-MAX_SITE_LENGTH:]
        frame = frame.f_back
    return ""


def add_site(message: Message) -> None:
    """Notes this call site in a request for a stream; leaves other messages alone."""
    if isinstance(message, (CreateStream, AttachReader, OpenResults)):
        message.site = call_site()


def clean_site(text: str) -> str:
    """What is kept of a call site that a peer sent."""
    return "".join(c for c in text[-MAX_SITE_LENGTH:] if c.isprintable())
