"""The limits that the daemon's own process was started under, and what it can do for clients."""

from __future__ import annotations

import logging
import os
import resource
import threading

from mcpd.daemon.failures import no_memory
from mcpd.shm.errors import LimitExceeded

log = logging.getLogger("mcpd.daemon")

MIN_FILES = 64
"""With fewer the daemon does not start: it could hardly serve one client."""
FEW_FILES = 512
"""With fewer it says so."""
MIN_THREADS = 4
MIN_RESERVE = 24
"""For the daemon itself: log, epoll, listener, reaper, workers that start, an accept, /proc."""


def raise_file_limit() -> None:
    """As many descriptors as this user may have: each stream and reader takes a few.

    Raises:
        LimitExceeded: Too few to serve anybody.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard < MIN_FILES:
        raise LimitExceeded(
            f"the limit of open files is {hard}; the daemon needs {MIN_FILES} or more",
            "Raise it: ulimit -Hn, or LimitNOFILE= of the service.",
        )
    if hard < FEW_FILES:
        log.warning(
            "limit of open files is %d: room for about %d streams with a reader each; raise it "
            "with ulimit -Hn or LimitNOFILE=",
            *(hard, budget(hard) // 8),
        )


def file_limit() -> int:
    """Most descriptors that this process may have."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def check_threads() -> None:
    """OutOfMemory unless some threads can be started: memory is reserved in threads."""
    over = threading.Event()
    threads = [threading.Thread(target=over.wait) for _ in range(MIN_THREADS)]
    started: list[threading.Thread] = []
    try:
        for thread in threads:
            thread.start()
            started.append(thread)
    except RuntimeError as error:
        raise no_memory("cannot start a thread") from error
    finally:
        over.set()
        for thread in started:
            thread.join()


def budget(limit: int, opened: int | None = None) -> int:
    """How many of `limit` descriptors sessions may have the daemon hold, all together.

    Args:
        opened: Those that are open already; counted if None.
    """
    if opened is None:
        opened = len(os.listdir("/proc/self/fd")) - 1
    return max(0, limit - opened - max(MIN_RESERVE, limit // 16))
