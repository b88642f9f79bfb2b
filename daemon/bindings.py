"""Puts models to work on streams: one binding for everybody who wants the same results."""

from __future__ import annotations

import asyncio
import logging

from mcpd.daemon.catalogue import Model
from mcpd.daemon.leases import Binding, Stream, Wanted
from mcpd.daemon.readers import Readers
from mcpd.daemon.registry import Registry
from mcpd.daemon.session import Answer, Session, SessionEnded
from mcpd.daemon.supervisor import Supervisor
from mcpd.daemon.watchdog import Watchdog
from mcpd.shm.call_site import clean_site
from mcpd.shm.errors import (
    InvalidRequest,
    McpdError,
    ModelFailed,
    NotFound,
    StreamClosed,
    TimedOut,
    WorkerDied,
)
from mcpd.shm.messages import OpenResults, Run, RunOnce, Serve, Unserve

log = logging.getLogger("mcpd.daemon")

SERVE_TIMEOUT_S = 30.0
"""How long a worker may take to open a binding: it waits for the writer of the frames as well."""
MAX_WAIT_S = 3600.0
TRACE_ID_NBYTES = 16


class Bindings:
    """The requests that have models run. Belongs to the event loop's thread."""

    def __init__(self, registry: Registry, readers: Readers, supervisor: Supervisor) -> None:
        self.table: dict[int, Binding] = {}
        self._registry = registry
        self._readers = readers
        self._supervisor = supervisor
        self._watchdog = Watchdog(registry, self.table, supervisor)
        self._shared: dict[tuple[int, str, int, str], Binding] = {}
        self._serving: set[asyncio.Task[None]] = set()
        registry.on_readers_gone = self._readers_gone
        registry.on_stream_ended = self._stream_ended
        registry.on_stream_moved = self._stream_moved

    async def open(self, session: Session, message: OpenResults) -> Answer:
        """Finds or makes the binding and attaches the caller to its results.

        Raises:
            NotFound: No such stream or model.
            ModelFailed: The model could not be loaded, or cannot work on this stream.
            TimedOut: The model was not loaded in time.
        """
        if message.frames not in ("latest", "lossless"):
            raise InvalidRequest(f"frames is {message.frames!r}; it must be latest or lossless")
        if not 0 <= message.wait_s <= MAX_WAIT_S:
            raise InvalidRequest(f"wait_s is {message.wait_s}; it must be 0 to {MAX_WAIT_S:g}")
        stream = self._find_stream(session, message.stream)
        model = await self._supervisor.catalogue.find(message.model, message.version)
        deadline = asyncio.get_running_loop().time() + message.wait_s
        while True:
            left_s = max(0.0, deadline - asyncio.get_running_loop().time())
            worker = await self._supervisor.ready(model, left_s, session)
            stream = stream.newest
            if stream.state != "live":
                raise StreamClosed(f"stream {stream.name!r} has ended", reason="closed")
            try:
                return await self._attach(session, stream, model, worker, message)
            except (WorkerDied, StreamClosed):
                # Only a worker that died in the middle of it is worth another try, with the next.
                if worker.open or not session.open:
                    raise

    def run_once(self, session: Session, message: RunOnce) -> Answer:
        """Runs a `once` binding on the newest frame of its stream."""
        if len(message.trace_id) not in (0, TRACE_ID_NBYTES):
            raise InvalidRequest(
                f"trace_id has {len(message.trace_id)} bytes",
                f"A W3C trace id has {TRACE_ID_NBYTES}; leave it out if there is none.",
            )
        binding = self._registry.reader_of(session, message.reader).stream.binding
        if binding is None or not binding.once:
            raise InvalidRequest(
                f"reader {message.reader} does not read results that were opened with once",
                "Open them with once=True.",
            )
        binding.asked += 1
        binding.session.send(Run(binding=binding.id, trace_id=message.trace_id))
        return Answer()

    async def _attach(
        self,
        session: Session,
        stream: Stream,
        model: Model,
        worker: Session,
        message: OpenResults,
    ) -> Answer:
        binding, made = self._binding(stream, model, worker, message)
        binding.callers += 1
        try:
            results = await asyncio.shield(binding.results)
            wanted = Wanted(
                message.results,
                message.max_pins,
                message.depth,
                message.group,
                site=clean_site(message.site),
            )
            reader = await self._readers.join(session, results, wanted)
        finally:
            binding.callers -= 1
            self._check_use(binding)
        answer = self._readers.answer(reader)
        result = {
            "grant": answer.result,
            "model": model.name,
            "version": model.version,
            "labels": list(model.labels),
            # Who shares a binding comes when some of its results have been given.
            "start_seq": binding.start_seq if made else 0,
        }
        return Answer(result, answer.fds)

    def _find_stream(self, session: Session, name: str) -> Stream:
        stream = self._registry.find_stream(name)
        if stream.hidden and stream.session is not session:
            raise NotFound(f"no stream {name[:80]!r}")
        if stream.spec.kind == "results":
            raise InvalidRequest(
                f"stream {name!r} carries results; a model works on frames, tensors or requests"
            )
        return stream

    def _binding(
        self, stream: Stream, model: Model, worker: Session, message: OpenResults
    ) -> tuple[Binding, bool]:
        """The binding, and whether it was made for this."""
        key = (stream.id, model.name, model.version, message.frames)
        shared = self._shared.get(key)
        if shared is not None and shared.session is worker and not message.once:
            return shared, False
        number = self._registry.next_id()
        name = f"{stream.name}@{model.name}"
        if message.once:
            name = f"~{number}-{name.lstrip('~')}"
        elif name in self._registry.names.live or any(
            b.results_name == name for b in self.table.values()
        ):
            name = f"{name}~{number}"
        binding = Binding(
            id=number,
            key=None if message.once else key,
            stream=stream,
            session=worker,
            model=model.name,
            version=model.version,
            frames=message.frames,
            once=message.once,
            results=asyncio.get_running_loop().create_future(),
            results_name=name,
        )
        self.table[number] = binding
        self._watchdog.look_on()
        if binding.key is not None:
            self._shared[binding.key] = binding
        task = asyncio.get_running_loop().create_task(self._serve(binding))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        return binding, True

    async def _serve(self, binding: Binding) -> None:
        """Has the worker open the binding; resolves binding.results, one way or the other."""
        request = Serve(
            binding=binding.id,
            stream=binding.stream.name,
            results_name=binding.results_name,
            frames=binding.frames,
            once=binding.once,
        )
        asked_s = asyncio.get_running_loop().time()
        try:
            result = await binding.session.request(request, timeout_s=SERVE_TIMEOUT_S)
            stream = self._registry.names.live.get(binding.results_name)
            if stream is None or stream.session is not binding.session:
                raise ModelFailed(f"the worker of {binding.model!r} answered {result!r}")
        except SessionEnded:
            self._fail(binding, self._died(binding))
        except TimedOut as error:
            # Its own attempts to attach may have timed out as well: that is an answer.
            if asyncio.get_running_loop().time() - asked_s < SERVE_TIMEOUT_S:
                self._fail(binding, error)
                binding.session.send(Unserve(binding=binding.id))
            elif self._watchdog.is_at_a_frame(binding.session.number):
                self._fail(binding, error)  # with a model that lets nothing else run meanwhile
                binding.session.send(Unserve(binding=binding.id))
            else:
                why = f"did not begin on a stream within {SERVE_TIMEOUT_S:g} s"
                await self._supervisor.replace_worker(binding.session, why)
                self._fail(binding, self._died(binding))
        except McpdError as error:
            self._fail(binding, error)
            binding.session.send(Unserve(binding=binding.id))
        else:
            stream.binding = binding
            start_seq = result.get("start_seq")
            binding.start_seq = start_seq if isinstance(start_seq, int) else 0
            log.info(
                "binding=%d stream=%s model=%s results=%s frames=%s",
                *(binding.id, binding.stream.name, binding.model, stream.name, binding.frames),
            )
            binding.results.set_result(stream)

    def _died(self, binding: Binding) -> WorkerDied:
        cause = binding.session.cause
        return WorkerDied(
            f"the worker of model {binding.model!r} died" + (f": {cause}" if cause else "")
        )

    def _fail(self, binding: Binding, error: McpdError) -> None:
        self._forget(binding)
        binding.results.set_exception(error)
        binding.results.exception()  # nobody may be left to take it

    def _forget(self, binding: Binding) -> None:
        self.table.pop(binding.id, None)
        if binding.key is not None and self._shared.get(binding.key) is binding:
            del self._shared[binding.key]

    def _readers_gone(self, stream: Stream) -> None:
        if stream.binding is not None:
            self._check_use(stream.binding)

    def _check_use(self, binding: Binding) -> None:
        """Lets the worker stop when nobody reads these results any more, nor is about to."""
        if binding.callers or binding.id not in self.table or not binding.results.done():
            return
        stream = binding.results.result()
        if any(reader.state != "quarantined" for reader in stream.readers.values()):
            return
        self._forget(binding)
        self._registry.names.forget(stream)
        binding.session.send(Unserve(binding=binding.id))
        log.info("binding=%d model=%s has no readers left", binding.id, binding.model)

    def _stream_moved(self, old: Stream, new: Stream) -> None:
        for binding in self.table.values():
            if binding.stream is old:
                binding.stream = new  # its worker goes on there as any reader does

    def _stream_ended(self, stream: Stream) -> None:
        if stream.binding is not None:
            self._forget(stream.binding)
        for binding in self.table.values():
            # The worker sees its end and ends the results; nobody may join this binding now.
            key = binding.key
            if binding.stream is stream and key and self._shared.get(key) is binding:
                del self._shared[key]
