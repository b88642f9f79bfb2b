"""Answers to `status` and `list`: the daemon's tables as plain maps, in pages that fit a message.

docs/control.md names every field.
"""

from __future__ import annotations

import itertools
import os
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from mcpd.daemon import rows
from mcpd.daemon.bindings import Bindings
from mcpd.daemon.catalogue import Model
from mcpd.daemon.registry import Registry
from mcpd.daemon.supervisor import Supervisor
from mcpd.shm.errors import InvalidRequest
from mcpd.shm.messages import PAGE_LENGTH

PAGE_NBYTES = 48 * 1024
"""Of one page's items, encoded: leaves room in a message of 64 KiB for the rest."""

LISTED_LABELS = 100
"""Most class names of a model in a listing: opening its results gives them all."""

Row = dict[str, Any]


class ProcessFigures:
    """What the daemon's own process uses.

    It opens /proc/self/io while it is still dumpable: later the file is root's.
    """

    def __init__(self) -> None:
        try:
            self._io_fd = os.open("/proc/self/io", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._io_fd = -1  # a kernel or container that does not tell
        self._started = time.monotonic()

    def read(self) -> Row:
        """uptime_s, rss_bytes, cpu_s, fds and io (counters of /proc/PID/io)."""
        lines: list[str] = []
        if self._io_fd >= 0:
            lines = os.pread(self._io_fd, 4096, 0).decode().splitlines()
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "uptime_s": round(time.monotonic() - self._started, 3),
            "rss_bytes": rss_nbytes(os.getpid()),
            "cpu_s": round(usage.ru_utime + usage.ru_stime, 6),
            "fds": len(os.listdir("/proc/self/fd")) - 1,
            "io": {key: int(value) for key, value in (line.split(": ") for line in lines)},
        }


class Tables:
    """Reads the other parts' tables; changes nothing but the streams' frame rates."""

    def __init__(self, registry: Registry, bindings: Bindings, supervisor: Supervisor) -> None:
        self._registry = registry
        self._bindings = bindings
        self._supervisor = supervisor
        self._tables: dict[str, Callable[[], Iterator[Row]]] = {
            "streams": self._streams,
            "models": self._models,
            "sessions": self._sessions,
            "readers": self._readers,
            "leases": self._leases,
            "workers": self._workers,
            "limits": self._registry.quotas.rows,
        }

    def counts(self) -> Row:
        """How long each table is."""
        models = list(self._supervisor.catalogue.models.values())
        return {
            "models": len(models),
            "models_ready": sum(model.state == "ready" for model in models),
            "streams": sum(1 for _ in self._streams()),
            "workers": sum(1 for _ in self._workers()),
        }

    def page(self, what: str, cursor: str) -> Row:
        """One page of a table: items, and the cursor of the next page, "" on the last.

        Raises:
            InvalidRequest: No such table, or a cursor that this daemon has not given.
        """
        table = self._tables.get(what)
        if table is None:
            raise InvalidRequest(f"no table {what[:80]!r}", f"Tables: {', '.join(self._tables)}.")
        if cursor and not (cursor.isascii() and cursor.isdecimal() and len(cursor) < 10):
            raise InvalidRequest(f"cursor {cursor[:80]!r} is not one of a page's")
        start = int(cursor or "0")
        items: list[Row] = []
        nbytes = 0
        for index, row in enumerate(itertools.islice(table(), start, None), start):
            nbytes += len(msgspec.msgpack.encode(row))
            if items and (nbytes > PAGE_NBYTES or len(items) == PAGE_LENGTH):
                return {"items": items, "cursor": str(index)}
            items.append(row)
        return {"items": items, "cursor": ""}

    def _streams(self) -> Iterator[Row]:
        every = self._registry.streams.values()
        pending = {stream.pending for stream in every}
        for stream in every:
            if not (stream.hidden or stream.state in ("moved", "ended") or stream in pending):
                yield rows.stream_row(stream)

    def _readers(self) -> Iterator[Row]:
        for reader in self._registry.readers.values():
            if not reader.stream.hidden:
                yield rows.reader_row(reader)

    def _models(self) -> Iterator[Row]:
        for model in self._supervisor.catalogue.models.values():
            details = model.details
            yield {
                "name": model.name,
                "version": model.version,
                "state": model.state,
                "error": model.error[:2000],
                "next_step": model.next_step,
                "engine": details.get("engine") or (model.config.engine if model.config else ""),
                "provider": details.get("provider", ""),
                "load_s": details.get("load_s", 0.0),
                "warm_s": details.get("warm_s", 0.0),
                "pid": model.process.pid if model.process is not None else 0,
                "rss_bytes": rss_nbytes(model.process.pid) if model.process is not None else 0,
                "labels": len(model.labels),
                "label_names": [name[:60] for name in model.labels[:LISTED_LABELS]],
                "decode": model.config.decode.kind if model.config else "",
                "inputs": _inputs(model),
                "outputs": details.get("outputs", {}),
                "restarts": model.restarts,
                "failures": len(model.failures.of_late),
            }

    def _workers(self) -> Iterator[Row]:
        for model in self._supervisor.catalogue.models.values():
            if model.process is None:
                continue
            bindings = [b for b in self._bindings.table.values() if b.session is model.session]
            yield {
                "pid": model.process.pid,
                "model": model.name,
                "version": model.version,
                "state": model.state,
                "uptime_s": round(time.monotonic() - model.process.started_s, 3),
                "rss_bytes": rss_nbytes(model.process.pid),
                "bindings": len(bindings),
                "streams": sorted({b.stream.name for b in bindings if not b.stream.hidden})[:20],
                "restarts": model.restarts,
                **(_stats(model)),
            }

    def _sessions(self) -> Iterator[Row]:
        for session in self._registry.sessions.values():
            yield {
                **rows.owner(session),
                "uid": session.peer.uid,
                "worker": session.is_worker,
                "state": "open" if session.open else "quarantined",
                "since": session.since_s,
                "bytes_in": session.bytes_in,
                "bytes_out": session.bytes_out,
                "pending_bytes": session.pending_nbytes,
                "paused": session.paused,
                **self._registry.quotas.of_session(session.number),
            }

    def _leases(self) -> Iterator[Row]:
        for stream in self._registry.streams.values():
            yield from rows.stream_leases(stream)
            for group in stream.groups.values():
                yield rows.group_lease(group)
            for reader in stream.readers.values():
                yield rows.reader_lease(reader)
        for binding in self._bindings.table.values():
            yield {
                "kind": "binding",
                "id": binding.id,
                "name": binding.results_name,
                **rows.owner(binding.session),
                "since": binding.since_s,
                "bytes": 0,
                "state": "live" if binding.results.done() else "opening",
                "stream": binding.stream.name,
                "model": binding.model,
            }


def rss_nbytes(pid: int) -> int:
    """Resident bytes of a process; 0 if it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return 0


def _inputs(model: Model) -> Row:
    """What model.toml says, and what the file says once a worker has read it."""
    read: Row = model.details.get("inputs", {})
    if model.config is None:
        return read
    return {one.name: {"kind": one.kind, **read.get(one.name, {})} for one in model.config.inputs}


def _stats(model: Model) -> Row:
    stats = model.stats
    names = ("frames", "errors", "busy_ns", "prepare_ns", "infer_ns", "decode_ns")
    return {name: getattr(stats, name) if stats is not None else 0 for name in names}
