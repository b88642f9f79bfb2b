"""SIGINT and SIGTERM in a program whose main thread may be deep in C, such as in a decoder.

Python's handlers run between two steps of Python code: not while FFmpeg waits for a camera. What
they raise may also be lost: PyAV drops it where it turns an error of FFmpeg's into its own. So the
number is kept, and a thread ends the process when the main thread does not. For programs, not for
libraries: signals are the whole process's.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

GRACE_S = 2.0
"""How long unwinding may take; what a process leaves to the daemon when it ends is freed by it."""
_ENDING = (signal.SIGINT, signal.SIGTERM)
_received: list[int] = []


def unwind_on_signals() -> None:
    """Has SIGINT raise KeyboardInterrupt and SIGTERM SystemExit, so that every `with` is left.

    A signal that this process was started to ignore stays ignored.
    """
    for number in _ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _unwind)


def status_of_signal() -> int:
    """The exit status for the signal that came first, as a shell has it; 0 if none came."""
    return 128 + _received[0] if _received else 0


@contextmanager
def end_if_stuck(grace_s: float = GRACE_S) -> Iterator[None]:
    """Ends the process when a signal comes and this block is not left within `grace_s` of it.

    Used by the main thread, after unwind_on_signals.
    """
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    os.set_blocking(reading, True)
    left = threading.Event()

    def watch() -> None:
        while numbers := os.read(reading, 64):
            for number in numbers:
                if number in _ENDING and not left.wait(grace_s):
                    os._exit(128 + number)

    thread = threading.Thread(target=watch, name="mcpd-signals", daemon=True)
    thread.start()
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        yield
    finally:
        left.set()
        signal.set_wakeup_fd(before)
        os.close(writing)  # which ends the thread
        thread.join()
        os.close(reading)


def _unwind(number: int, _frame: FrameType | None) -> None:
    _received.append(number)
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + number)
