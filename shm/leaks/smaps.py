"""What kinds of memory a process has: its mappings, each told by what the kernel says of it.

The fields are those of proc_pid_smaps(5); all are bytes here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeGuard

HEAP = "heap"
ANONYMOUS = "anonymous memory"
FILES = "mapped files"
SHARED = "shared memory"
STACKS = "stacks"
KINDS = {
    HEAP: "what brk() and the arenas of malloc() hand out",
    ANONYMOUS: "large pieces of malloc(), Python's own arenas, mmap() without a file",
    FILES: "files and libraries",
    SHARED: "memfds, /dev/shm, System V segments",
    STACKS: "of the main thread and, as far as they can be told, of the others",
}

_HEAD = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ \d+ *(.*)$")
_SHARED = (b"/memfd:", b"/dev/shm/", b"/SYSV", b"/dev/zero")
_ARENA = 64 << 20
"""glibc's arenas begin at multiples of this, and end in what is not yet used (PROT_NONE)."""
_GUARD_NBYTES = 64 << 10
"""Below a thread's stack lies a guard of a page, or of some."""


@dataclass
class Mapping:
    """One line of /proc/PID/smaps, and what follows it."""

    start: int
    end: int
    access: bytes
    name: bytes
    fields: dict[bytes, int] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Of address space."""
        return self.end - self.start

    @property
    def private_nbytes(self) -> int:
        """What goes with this process: written by it alone, in memory or swapped out."""
        return self.fields.get(b"Private_Dirty", 0) + self.fields.get(b"Swap", 0)


def sum_kinds(smaps: bytes) -> dict[str, int]:
    """Bytes of each kind, from /proc/PID/smaps: private ones, of shared memory what is resident."""
    totals = dict.fromkeys(KINDS, 0)
    mappings = list(parse(smaps))
    for index, mapping in enumerate(mappings):
        before = mappings[index - 1] if index else None
        after = mappings[index + 1] if index + 1 < len(mappings) else None
        kind = kind_of(mapping, before, after)
        totals[kind] += mapping.fields.get(b"Rss", 0) if kind == SHARED else mapping.private_nbytes
    return totals


def parse(smaps: bytes) -> Iterator[Mapping]:
    """Its mappings, in order of address."""
    mapping: Mapping | None = None
    for line in smaps.splitlines():
        key, colon, rest = line.partition(b":")
        if colon and rest.endswith(b" kB") and b" " not in key:
            if mapping is not None:
                mapping.fields[key] = int(rest[:-3]) * 1024
            continue
        head = _HEAD.match(line)
        if head is not None:
            if mapping is not None:
                yield mapping
            start, end, access, name = head.groups()
            mapping = Mapping(int(start, 16), int(end, 16), access, name)
    if mapping is not None:
        yield mapping


def kind_of(mapping: Mapping, before: Mapping | None, after: Mapping | None) -> str:
    """One of KINDS; the neighbours tell arenas and stacks from other memory without a name."""
    name = mapping.name
    if name == b"[heap]":
        return HEAP
    if name.startswith(b"[stack"):
        return STACKS
    if name.startswith(_SHARED):
        return SHARED
    if name and not name.startswith(b"["):
        return FILES
    if _closed(after) and after.start == mapping.end and mapping.start % _ARENA == 0:
        return HEAP
    if _closed(before) and before.end == mapping.start and before.nbytes <= _GUARD_NBYTES:
        return STACKS
    return ANONYMOUS


def _closed(mapping: Mapping | None) -> TypeGuard[Mapping]:
    """Address space that is set aside, without a name."""
    return mapping is not None and mapping.access == b"---p" and not mapping.name
