"""`infer`: arrays in, result out, over request streams that are kept for the next time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from mcpd.shm.errors import DaemonUnavailable, WorkerDied
from mcpd.shm.requests import Requests
from mcpd.shm.sessions import Sessions
from mcpd.shm.spec import RequestShape, request_shape

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mcpd.shm.bundle import TensorSpec
    from mcpd.shm.result import Result

RETRY_S = 0.01
KEPT_STREAMS = 8
"""Most request streams that are kept: one for each model and geometry used lately."""


class RequestMaker(Protocol):
    """Client.requests."""

    def __call__(
        self,
        model: str,
        *,
        width: int = 0,
        height: int = 0,
        format: str = "",
        tensors: Mapping[str, TensorSpec] | None = None,
        version: int = 0,
        timeout_s: float = 0.0,
    ) -> Requests: ...


class Inference:
    """Runs models on arrays. Safe for threads: each call gets its own result.

    Args:
        make: Makes the request stream for a model and a geometry.
        sessions: If they reconnect, what was lost with the daemon is asked again.
    """

    def __init__(self, make: RequestMaker, sessions: Sessions) -> None:
        self._make = make
        self._sessions = sessions
        self._lock = threading.Lock()
        self._kept: dict[tuple[str, int, RequestShape], _Shared] = {}
        self._closed = False

    def infer(
        self,
        model: str,
        inputs: Mapping[str, NDArray[Any]] | NDArray[Any],
        format: str | None,
        timeout_s: float,
        version: int,
    ) -> Result:
        """As Client.infer."""
        deadline = time.monotonic() + timeout_s
        shape, arrays = request_shape(inputs, format)
        died = False
        while True:
            left_s = max(0.001, deadline - time.monotonic())
            keeper = self._sessions.keeper
            if keeper is not None:
                keeper.run(lambda _session: None, left_s)
            try:
                result = self._infer(model, shape, arrays, left_s, version)
                break
            except WorkerDied:
                # It may have died of another's request. Once more, and only once: if it is this one
                # that kills workers, they are not to die of it for as long as the time lasts.
                if died or time.monotonic() >= deadline:
                    raise
                died = True
            except DaemonUnavailable:
                if keeper is None or keeper.over or time.monotonic() >= deadline:
                    raise
                time.sleep(RETRY_S)
        result.raise_for_status()
        return result

    def _infer(
        self,
        model: str,
        shape: RequestShape,
        arrays: Mapping[str, NDArray[Any]],
        timeout_s: float,
        version: int,
    ) -> Result:
        """As infer, once; a failed result is one, too."""
        deadline = time.monotonic() + timeout_s
        with self._shared(model, version, shape, timeout_s) as shared:
            with shared.fill, shared.requests.acquire(timeout_s) as slot:
                shape.write(slot, arrays)
                pending = shared.requests.submit(slot)
            return pending.collect(max(0.0, deadline - time.monotonic()))

    def close(self) -> None:
        """Closes the streams that are kept. Idempotent."""
        with self._lock:
            self._closed = True
            kept, self._kept = list(self._kept.values()), {}
        for entry in kept:
            entry.requests.close()

    @contextmanager
    def _shared(
        self, model: str, version: int, shape: RequestShape, timeout_s: float
    ) -> Iterator[_Shared]:
        """The request stream for such inputs."""
        key = (model, version, shape)
        with self._lock:
            shared = self._kept.pop(key, None)
            if shared is not None:
                self._kept[key] = shared  # the most recently used is the last
                shared.users += 1
        if shared is None:
            shared = self._add(key, timeout_s)
        try:
            yield shared
        finally:
            with self._lock:
                shared.users -= 1
                drop = shared.users == 0 and self._kept.get(key) is not shared
            if drop:
                shared.requests.close()

    def _add(self, key: tuple[str, int, RequestShape], timeout_s: float) -> _Shared:
        model, version, shape = key
        made = _Shared(
            self._make(
                model,
                width=shape.width,
                height=shape.height,
                format=shape.format,
                tensors=dict(shape.tensors) or None,
                version=version,
                timeout_s=timeout_s,
            )
        )
        with self._lock:
            if self._closed or key in self._kept:
                return made  # closed by its only user
            self._kept[key] = made
            idle = [old for old, entry in self._kept.items() if entry.users == 0]
            drop = idle[: max(0, len(self._kept) - KEPT_STREAMS)]
            dropped = [self._kept.pop(old) for old in drop]
        for entry in dropped:
            entry.requests.close()
        return made


class _Shared:
    """A request stream, with how many calls use it now."""

    def __init__(self, requests: Requests) -> None:
        self.requests = requests
        self.users = 1
        self.fill = threading.Lock()  # one slot is held at a time, however many threads come
