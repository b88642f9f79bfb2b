"""Ways to lose a session with the daemon, and what a process has open."""

from __future__ import annotations

import gc
import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import ThreadPoolExecutor as Pool
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from mcpd.shm import Client
from mcpd.shm.connection import Connection
from mcpd.shm.kept_writer import KeptWriterStream
from tests.support.daemon import RunningDaemon, wait_until

T = TypeVar("T")


def break_off(connection: Connection) -> None:
    """Ends a session as a network would: both sides read end-of-file. The daemon lives on."""
    with socket.socket(fileno=os.dup(connection._socket.fileno())) as sock:
        sock.shutdown(socket.SHUT_RDWR)


def wait_for_session(client: Client, after: Connection, timeout_s: float = 30.0) -> None:
    """Returns when the client has another session than `after`."""
    wait_until(
        lambda: client.connection is not after and not client.connection.lost,
        timeout_s,
        "another session",
    )


class Held(NamedTuple):
    """What this process has open."""

    descriptors: int
    mappings: int
    threads: int


def held() -> Held:
    """Counts it, of mappings only those of streams."""
    gc.collect()
    with open("/proc/self/maps") as maps:
        mappings = sum("mcpd:" in line for line in maps)
    return Held(len(os.listdir("/proc/self/fd")) - 1, mappings, threading.active_count())


@contextmanager
def away(daemon: RunningDaemon) -> Iterator[None]:
    """While the daemon is killed."""
    daemon.kill()
    try:
        yield
    finally:
        daemon.start()


@contextmanager
def in_thread(work: Callable[[], T]) -> Iterator[Future[T]]:
    """While something is done beside; waits for its end."""
    with Pool(1) as pool:
        yield pool.submit(work)


def make_kept(client: Client, name: str) -> KeptWriterStream:
    """A stream of small frames that is made again in each session."""
    stream = client.create_stream(name, width=64, height=16, format="gray8", slots=24)
    assert isinstance(stream, KeptWriterStream)
    return stream
