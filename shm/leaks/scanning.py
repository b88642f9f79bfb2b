"""One look at everything: what mcpd has, and what any program left in shared memory."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcpd.shm.leaks.census import MAX_PIN_AGE_S, count_leases, count_memfds, count_processes
from mcpd.shm.leaks.creators import Living
from mcpd.shm.leaks.entry import ORPHANED, UNKNOWN, Entry
from mcpd.shm.leaks.gpu import count_gpu_processes
from mcpd.shm.leaks.orphans import MIN_AGE_S, Judge
from mcpd.shm.leaks.places import Name, find_places, list_names
from mcpd.shm.leaks.processes import read_processes
from mcpd.shm.leaks.record import Record, read_record
from mcpd.shm.leaks.sysv import list_sysv
from mcpd.shm.segment import SHM_DIRECTORY

CLEAN, FOUND, COULD_NOT_TELL = 0, 1, 2
"""Exit statuses of `mcpd leaks`."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to look.

    Attributes:
        directory: Where named segments are.
        all_namespaces: Whether to look into every /dev/shm that some process sees.
        min_age_s: What was made or changed since is not called orphaned.
        max_pin_age_s: A frame that is held for longer is asked about.
        alone: Whether nothing outside this container shares its /dev/shm; believed.
        record: Who made what; that of this user and the system if None.
    """

    directory: Path = SHM_DIRECTORY
    all_namespaces: bool = False
    min_age_s: float = MIN_AGE_S
    max_pin_age_s: float = MAX_PIN_AGE_S
    alone: bool = False
    record: Record | None = None


@dataclass
class Look:
    """What one look saw: the names, and what verdicts on them are made from."""

    names: list[Name]
    judge: Judge

    @classmethod
    def take(cls, options: Options) -> Look:
        """Lists the names first: what is made meanwhile is left out, what goes is harmless."""
        places = find_places(options.directory, all_namespaces=options.all_namespaces)
        names = [name for place in places for name in list_names(place)]
        processes = read_processes(
            [place.device for place in places if place.device],
            {name.name for name in names},
            [os.fsencode(place.path) + b"/" for place in places],
        )
        record = options.record if options.record is not None else read_record()
        living = Living(processes, alone=options.alone)
        return cls(names, Judge.of(living, record, options.min_age_s))


@dataclass(frozen=True)
class Report:
    """What one look found.

    Attributes:
        unreadable: Processes that could not be looked into: what they hold is not known.
        took_s: How long it took.
    """

    entries: list[Entry]
    unreadable: int
    took_s: float

    @property
    def status(self) -> int:
        """As `status_of`."""
        return status_of(self.entries)


def scan(
    leases: Sequence[Mapping[str, Any]] | None = None,
    *,
    options: Options | None = None,
    **changes: Any,
) -> list[Entry]:
    """Everything that holds shared memory on this machine, as far as this user may see.

    Args:
        leases: Rows of the daemon's table "leases"; None if no daemon answers.
        options: How to look.
        changes: Fields of Options, instead of `options`.
    """
    return examine(leases, options or Options(**changes)).entries


def examine(leases: Sequence[Mapping[str, Any]] | None, options: Options) -> Report:
    """As `scan`, with how well it could look."""
    began_s = time.monotonic()
    look = Look.take(options)
    judge = look.judge
    entries = [judge.name(name) for name in look.names]
    entries += count_memfds(judge.living.processes, leases)
    entries += judge.nameless(look.names)
    entries += [judge.sysv(segment) for segment in list_sysv()]
    entries += count_processes(judge.living.processes)
    entries += count_gpu_processes(judge.living.processes)
    if leases is not None:
        entries += count_leases(leases, max_pin_age_s=options.max_pin_age_s)
    return Report(entries, judge.unreadable, time.monotonic() - began_s)


def status_of(entries: Sequence[Entry]) -> int:
    """FOUND if anything is orphaned, else COULD_NOT_TELL if anything is unknown, else CLEAN."""
    verdicts = {entry.verdict for entry in entries}
    if ORPHANED in verdicts:
        return FOUND
    return COULD_NOT_TELL if UNKNOWN in verdicts else CLEAN
