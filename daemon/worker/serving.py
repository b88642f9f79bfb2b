"""The worker's loop: one thread that goes round its bindings, and sleeps when none has a frame."""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict

from mcpd.daemon.worker.binding import Binding, Counters, open_binding
from mcpd.daemon.worker.pipeline import ModelRunner
from mcpd.shm.connection import Connection
from mcpd.shm.errors import Internal, McpdError, StreamClosed
from mcpd.shm.messages import Message, Run, Serve, Unserve, WorkerStats

log = logging.getLogger("mcpd.daemon.worker")

STATS_INTERVAL_S = 1.0


class Serving:
    """Serves the daemon's bindings with one model.

    `run` belongs to one thread. `on_message` is called by the connection's I/O thread, `stop` by a
    signal handler; both only leave a note and wake the loop.
    """

    def __init__(self, version: int) -> None:
        self._version = version
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll = select.epoll()
        self._epoll.register(self._wake_fd, select.EPOLLIN)
        self._work: deque[Callable[[], None]] = deque()
        self._stopping = False
        self._bindings: dict[int, Binding] = {}
        self._unwanted: set[int] = set()
        self._counters = Counters()
        self._stats_due_s = 0.0
        self._stats_sent = 0
        self._connection: Connection | None = None
        self._result_nbytes = 0
        self._loaded = threading.Event()

    def stop(self) -> None:
        """Has `run` return after the frame that it is at."""
        self._stopping = True
        os.eventfd_write(self._wake_fd, 1)

    def on_message(self, message: Message) -> None:
        """What the daemon wants of this worker."""
        match message:
            case Serve():
                # It waits for the daemon and for the frames' writer: neither the I/O thread nor
                # other bindings may wait with it.
                threading.Thread(target=self._open, args=(message,), daemon=True).start()
            case Unserve():
                number = message.binding
                self._post(lambda: self._unserve(number))
                if message.id and self._connection is not None:
                    self._connection.reply(message, {})
            case Run():
                number, trace_id = message.binding, message.trace_id
                self._post(lambda: self._run_once(number, trace_id))
            case _:
                log.warning("message=%s ignored", type(message).__struct_config__.tag)

    def run(self, connection: Connection, runner: ModelRunner) -> None:
        """Serves until `stop`. Makes one result of each binding in turn."""
        self._connection = connection
        self._result_nbytes = runner.result_nbytes
        self._loaded.set()
        try:
            while not self._stopping:
                self._go_round(connection, runner)
        finally:
            self._work.clear()
            for binding in list(self._bindings.values()):
                # The frames go on: whoever reads the results is to ask for the next worker's.
                binding.results.end("writer_died")
                self._close(binding)

    def _go_round(self, connection: Connection, runner: ModelRunner) -> None:
        while self._work:
            self._work.popleft()()
        worked = False
        for binding in list(self._bindings.values()):
            worked |= self._step(binding, runner)
        if worked:
            self._report(connection)
        else:
            self._sleep(connection)

    def _step(self, binding: Binding, runner: ModelRunner) -> bool:
        try:
            worked = binding.step(runner, self._counters)
        except McpdError as error:
            if not isinstance(error, StreamClosed):
                log.warning("binding=%d closed: %s", binding.number, error)
                binding.results.end("revoked")
            self._close(binding)
            return True
        if binding.done:
            self._close(binding)
        return worked

    def _sleep(self, connection: Connection) -> None:
        """Waits for a frame, for room or for a note; with nothing to do, for ever."""
        unsent = self._counters.frames - self._stats_sent
        timeout_s = max(0.0, self._stats_due_s - time.monotonic()) if unsent else -1
        bindings = list(self._bindings.values())
        if any(binding.arm() for binding in bindings):
            timeout_s = 0
        for fd, _ in self._epoll.poll(timeout_s):
            if fd == self._wake_fd:
                os.eventfd_read(fd)
        for binding in bindings:
            binding.disarm()
        self._report(connection)

    def _report(self, connection: Connection) -> None:
        now_s = time.monotonic()
        if self._counters.frames == self._stats_sent or now_s < self._stats_due_s:
            return
        self._stats_due_s = now_s + STATS_INTERVAL_S
        self._stats_sent = self._counters.frames
        connection.notify(WorkerStats(**asdict(self._counters)))

    # ---- bindings: _open on a thread of its own, the others on the serving thread ---------------

    def _open(self, request: Serve) -> None:
        self._loaded.wait()
        connection = self._connection
        assert connection is not None
        try:
            binding = open_binding(connection, request, self._result_nbytes, self._version)
        except McpdError as error:
            connection.reply_error(request, error)
        except Exception as error:
            log.exception("binding=%d cannot be opened", request.binding)
            connection.reply_error(request, Internal(f"binding cannot be opened: {error!r}"))
        else:
            binding.results.notify = self._wake
            self._post(lambda: self._add(binding))
            answer = {"stream": binding.results.stream_id, "start_seq": binding.start_seq}
            connection.reply(request, answer)

    def _add(self, binding: Binding) -> None:
        if binding.number in self._unwanted:
            self._unwanted.discard(binding.number)
            binding.close()
            return
        self._bindings[binding.number] = binding
        for fd in binding.descriptors:
            self._epoll.register(fd, select.EPOLLIN)
        log.debug("binding=%d stream=%s", binding.number, binding.frames.name)

    def _unserve(self, number: int) -> None:
        binding = self._bindings.get(number)
        if binding is not None:
            self._close(binding)
        else:
            self._unwanted.add(number)

    def _run_once(self, number: int, trace_id: bytes) -> None:
        binding = self._bindings.get(number)
        if binding is not None:
            binding.run_once(trace_id)

    def _close(self, binding: Binding) -> None:
        del self._bindings[binding.number]
        for fd in binding.descriptors:
            self._epoll.unregister(fd)
        try:
            binding.close()
        except McpdError as error:
            log.warning("binding=%d closed without the daemon: %s", binding.number, error)

    def _post(self, work: Callable[[], None]) -> None:
        self._work.append(work)
        self._wake()

    def _wake(self) -> None:
        os.eventfd_write(self._wake_fd, 1)
