"""One stream being worked on: frames in, results out, in shared memory on both sides."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from mcpd.daemon.worker.pipeline import ModelRunner
from mcpd.shm.bundle import Description, TensorSpec, describe_tensors
from mcpd.shm.connection import Connection
from mcpd.shm.errors import (
    STATUS_CODES,
    LimitExceeded,
    McpdError,
    SegmentLost,
    StreamClosed,
    WouldBlock,
)
from mcpd.shm.frame import Frame
from mcpd.shm.messages import (
    AttachReader,
    CreateStream,
    SealStream,
    Serve,
    StreamGrant,
    StreamSpec,
)
from mcpd.shm.slot import Slot
from mcpd.shm.stream import ReaderStream, WriterStream, map_reader
from mcpd.shm.transport import close_fds

log = logging.getLogger("mcpd.daemon.worker")

MIN_SLOTS = 16
MAX_SLOTS = 160
"""Room for 64 readers with two pins each, as long as the slots are small."""
SLOTS_NBYTES = 8 << 20
"""What the slots of a results stream take together, but for MIN_SLOTS large ones."""
OPEN_RESULT_NBYTES = 1 << 20
"""A result slot of a model that only shows how large its outputs are when it runs."""
MAX_ERROR_NBYTES = 2048


class ResultsWriter(WriterStream):
    """A writer that says when a reader joins: `notify` is called on the I/O thread."""

    notify: Callable[[], None] | None = None

    def on_reader(self) -> None:
        """As WriterStream.on_reader."""
        if self.notify is not None:
            self.notify()


@dataclass
class Counters:
    """What a worker has done since its start."""

    frames: int = 0
    errors: int = 0
    busy_ns: int = 0
    prepare_ns: int = 0
    infer_ns: int = 0
    decode_ns: int = 0


class Binding:
    """Reads frames and writes one result for each. Used by the serving thread alone.

    Frames of a stream that is resized go on, each with its own geometry; a stream whose writer died
    ends the binding, and who wants results of the next writer's opens them again.

    Nothing is read before the first reader of the results is there, so none of them is missed. A
    frame is taken only when there is a slot for its result: a slow reader of results holds back
    this binding and nothing else.

    Attributes:
        number: The daemon's number of it.
        descriptors: Of which one becomes readable after `arm`. Duplicates, its own until `close`:
            an end's own goes when its stream is taken away.
        start_seq: The first frame that it is owed.
        done: Whether the frames have ended; `close` follows.
    """

    def __init__(
        self,
        request: Serve,
        frames: ReaderStream,
        results: ResultsWriter,
        version: int,
    ) -> None:
        self.number = request.binding
        self.frames = frames
        self.results = results
        self.descriptors = _watch(frames, results)
        self.start_seq = frames.grant.start_seq
        self.done = False
        self._once = request.once
        self._version = version
        self._runs: deque[bytes] = deque()
        self._slot: Slot | None = None

    def run_once(self, trace_id: bytes) -> None:
        """Has the newest frame run, or the first one if none is there yet."""
        self._runs.append(trace_id)

    def step(self, runner: ModelRunner, counters: Counters) -> bool:
        """Makes one result if there is a frame, and room for it; whether it did.

        Raises:
            StreamClosed: The results stream was taken away.
        """
        if not self._wanted():
            self.done = self._once and bool(self.frames.ended)
            return False
        if not self._take_slot():
            return False
        frame = self._take_frame()
        if frame is None:
            return False
        try:
            self._make_result(frame, runner, counters)
        finally:
            _close(frame)
        return True

    def arm(self) -> bool:
        """True if `step` may do something now; else one of the descriptors becomes readable."""
        if not self._wanted():
            return False  # whatever changes that wakes the loop: a reader, a run, or the end
        try:
            return self.results.arm() if self._slot is None else self.frames.arm()
        except StreamClosed:
            return True  # `step` finds out

    def disarm(self) -> None:
        """Awake again; drains both descriptors."""
        for end in (self.frames, self.results):
            with suppress(StreamClosed):
                end.disarm()

    def close(self) -> None:
        """Detaches from the frames and ends the results."""
        if self._slot is not None:
            self._slot.abandon()
        close_fds(self.descriptors)
        self.descriptors = ()
        try:
            self.frames.close()
        finally:
            self.results.close()

    def _wanted(self) -> bool:
        return bool(self._runs) if self._once else bool(self.results.readers)

    def _take_slot(self) -> bool:
        if self._slot is None:
            try:
                self._slot = self.results.acquire(0)
            except WouldBlock:
                return False
        return True

    def _take_frame(self) -> Frame | None:
        try:
            return self.frames.next(0)
        except WouldBlock:
            if not self._once:
                return None
            # It runs again on the same frame. Not kept pinned meanwhile: a frame that a worker has
            # pinned is one that it is at, for the daemon's watchdog.
            return next(iter(self.frames.recent(1)), None)
        except StreamClosed as error:
            self.results.end(error.reason)
            self.done = True
            return None

    def _make_result(self, frame: Frame, runner: ModelRunner, counters: Counters) -> None:
        slot, self._slot = self._slot, None
        assert slot is not None
        awake_ns = time.monotonic_ns()
        slot.set_source(frame)
        slot.awake_ns = awake_ns
        slot.model_version = self._version
        if self._once:
            slot.trace_id = self._runs.popleft() or frame.trace_id
        try:
            tensors = runner.run(frame)
            slot.finish_ns = time.monotonic_ns()
            _fill(slot, tensors)
            frame.check()  # the last look at its memory was before this
        except Exception as error:
            # The outermost loop for whatever a model does to a frame: only that frame fails.
            counters.errors += 1
            slot.finish_ns = time.monotonic_ns()
            _describe_failure(slot, frame, _reason(frame, error))
        else:
            counters.prepare_ns += runner.prepare_ns
            counters.infer_ns += runner.infer_ns
            counters.decode_ns += runner.decode_ns
        slot.publish()
        counters.frames += 1
        counters.busy_ns += time.monotonic_ns() - awake_ns


def open_binding(
    connection: Connection, request: Serve, result_nbytes: int, version: int
) -> Binding:
    """Attaches to the frames and creates the results stream, sealed. Blocks on the daemon.

    Raises:
        McpdError: Either is refused; nothing is left of the other.
    """
    frames = _attach(connection, request)
    try:
        results = _create(connection, request.results_name, result_nbytes)
        try:
            return Binding(request, frames, results, version)
        except BaseException:
            results.close()
            raise
    except BaseException:
        frames.close()
        raise


def _watch(frames: ReaderStream, results: ResultsWriter) -> tuple[int, ...]:
    fds = frames.watch()
    try:
        return (*fds, *results.watch())
    except BaseException:
        close_fds(fds)
        raise


def _attach(connection: Connection, request: Serve) -> ReaderStream:
    policy = "latest" if request.once else request.frames
    answer, fds = connection.request(AttachReader(stream=request.stream, policy=policy, max_pins=1))
    return map_reader(connection, answer, fds)


def _create(connection: Connection, name: str, result_nbytes: int) -> ResultsWriter:
    slot_nbytes = max(4096, result_nbytes or OPEN_RESULT_NBYTES)
    slots = min(MAX_SLOTS, max(MIN_SLOTS, SLOTS_NBYTES // (slot_nbytes + 4096)))
    spec = StreamSpec(slots=slots, slot_nbytes=slot_nbytes, kind="results")
    answer, fds = connection.request(CreateStream(name=name, spec=spec))
    results = ResultsWriter(connection, msgspec.convert(answer, StreamGrant), fds, None)
    try:
        connection.request(SealStream(stream=results.stream_id, generation=results.generation))
    except BaseException:
        results.close()
        raise
    return results


def _fill(slot: Slot, tensors: dict[str, NDArray[Any]]) -> None:
    """As Slot.set_tensors, with what it works out kept for the next result of the same shapes."""
    key = tuple((name, array.dtype, array.shape) for name, array in tensors.items())
    description = _description(key)
    slot.describe(description)
    if not description.extent:
        slot.nbytes = 0
    views = slot.tensors
    for name, array in tensors.items():
        views[name][...] = array


@lru_cache(maxsize=1024)
def _description(tensors: tuple[tuple[str, np.dtype[Any], tuple[int, ...]], ...]) -> Description:
    return describe_tensors({name: TensorSpec(dtype.name, shape) for name, dtype, shape in tensors})


def _reason(frame: Frame, error: Exception) -> Exception:
    """Why a frame failed: whatever came of zeros in place of its memory, the zeros are why."""
    try:
        frame.check()
    except SegmentLost as lost:
        return lost
    return error


def _close(frame: Frame) -> None:
    """Its result says already if its memory was lost."""
    with suppress(SegmentLost):
        frame.close()


def _describe_failure(slot: Slot, frame: Frame, error: Exception) -> None:
    """Makes the result say what failed: a status, and one tensor `error` of UTF-8 text."""
    code = error.code if isinstance(error, McpdError) else "internal"
    slot.status = STATUS_CODES.index(code if code in STATUS_CODES else "internal")
    if isinstance(error, LimitExceeded):
        log.warning("result of stream=%d seq=%d: %s", frame.stream_id, frame.seq, error)
    elif not isinstance(error, McpdError):
        log.error("stream=%d seq=%d failed", frame.stream_id, frame.seq, exc_info=error)
    text = str(error) if isinstance(error, McpdError) else f"{type(error).__name__}: {error}"
    encoded = text.encode(errors="replace")[:MAX_ERROR_NBYTES]
    slot.set_tensors({"error": np.frombuffer(encoded, np.uint8)})
