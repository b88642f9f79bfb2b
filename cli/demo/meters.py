"""Readings of everybody who takes part in a stream: source, daemon, its children, this client."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from mcpd.cli.demo.readings import ProcessReader, Reading, Stretch, Use

if TYPE_CHECKING:
    from mcpd.shm.client import Client


class Meters:
    """One stretch for each part; all are read at the same moments.

    Args:
        client: Asked for what only the daemon knows.
        pids: The processes by part; "daemon" and "source" are read in their own way.
        video: The file that the source decodes.
        terminal_nbytes: Tells how much this process has written to the terminal.
    """

    def __init__(
        self,
        client: Client,
        pids: Mapping[str, int],
        video: Path,
        terminal_nbytes: Callable[[], int],
    ) -> None:
        self._client = client
        self._pids = dict(pids)
        self._video = video
        self._terminal_nbytes = terminal_nbytes
        self._reader = ProcessReader()
        self._sockets: Counter[int] = Counter()
        self._stretches = {part: Stretch(self._reading_of(part)) for part in (*pids, "client")}

    def take(self, frames: int) -> None:
        """Reads everybody when `frames` are done; those that have ended keep what they had."""
        self._sockets = Counter()
        for session in self._client.list("sessions"):
            self._sockets[session["pid"]] += session["bytes_in"] + session["bytes_out"]
        self._sockets[self._pids["daemon"]] = self._sockets.total()
        for stretch in self._stretches.values():
            stretch.take(frames)

    def uses(self) -> dict[str, Use]:
        """What each part used per frame, for those with two readings."""
        uses = {part: stretch.use() for part, stretch in self._stretches.items()}
        return {part: use for part, use in uses.items() if use is not None}

    def _reading_of(self, part: str) -> Callable[[], Reading]:
        return lambda: self._read(part)

    def _read(self, part: str) -> Reading:
        if part == "client":
            reading = self._reader.read_self(self._terminal_nbytes())
            return self._with_sockets(reading, os.getpid())
        pid = self._pids[part]
        if part == "daemon":
            # It is not dumpable, which hides its /proc files: it tells its own figures.
            daemon = self._client.status()["daemon"]
            io = daemon["io"]
            reading = Reading(daemon["cpu_s"], io["rchar"] + io["wchar"])
        else:
            reading = self._reader.read(pid, self._video if part == "source" else None)
        return self._with_sockets(reading, pid)

    def _with_sockets(self, reading: Reading, pid: int) -> Reading:
        return Reading(reading.cpu_s, reading.nbytes, reading.file_nbytes, self._sockets[pid])
