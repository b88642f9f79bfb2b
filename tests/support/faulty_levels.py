"""What the first byte of a frame has a worker under tests/support/faulty_worker do with it."""

from __future__ import annotations

from enum import IntEnum


class Fault(IntEnum):
    """Levels of the first pixel; others are frames like any."""

    CRASH = 201
    """SIGSEGV while the model runs."""
    HANG = 202
    """Sleeps in Python, for ever."""
    HANG_IN_C = 203
    """Waits in C with the interpreter's lock held, for ever."""
    DIE_BEFORE_PUBLISH = 204
    """SIGKILL when the model is done, before its result is published."""
    DIE_AFTER_PUBLISH = 205
    """SIGKILL when the result is published, before the frame is closed."""
    STOP = 206
    """SIGSTOP while the model runs."""
    STUCK_AFTERWARDS = 208
    """Sleeps for ever when the frame is closed, before the next."""
    SLOW = 207
    """Takes 0.3 s."""
