"""Counts this process's descriptors, so that a test can say that none was leaked."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager


def open_descriptors() -> dict[int, str]:
    """What each descriptor of this process stands for, by its number."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue  # the one that listed the folder
    return found


@contextmanager
def no_descriptor_leaked() -> Iterator[None]:
    """AssertionError when more descriptors are open at the end than at the beginning."""
    before = open_descriptors()
    yield
    gc.collect()
    after = open_descriptors()
    new = {fd: what for fd, what in after.items() if before.get(fd) != what}
    assert len(after) <= len(before), f"descriptors leaked: {new}"
