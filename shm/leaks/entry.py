"""One thing found by a scan, with its verdict; what `mcpd leaks --json` prints of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

IN_USE = "in use"
ORPHANED = "orphaned"
UNKNOWN = "unknown"

KINDS = {
    "lease": "what the daemon has handed out",
    "pin": "frames that a reader holds",
    "segment": "a name of mcpd in /dev/shm",
    "memfd": "an object without a name that processes map or have open",
    "process": "a process of mcpd, or one that holds GPU memory",
    "shm": "a name of another program in /dev/shm",
    "semaphore": "a POSIX semaphore: /dev/shm/sem.*",
    "folder": "a folder in /dev/shm",
    "deleted": "an object of /dev/shm whose name is gone, held by processes",
    "sysv": "a System V segment",
}
"""What `kind` may be."""


@dataclass(kw_only=True)
class Entry:
    """One thing that holds memory, or is held by somebody.

    Texts are escaped: a name may hold any byte, see `mcpd.shm.leaks.escape`.

    Attributes:
        kind: One of KINDS.
        name: Of it; of a process, its part and pid.
        verdict: IN_USE, ORPHANED (nobody who lives owns it) or UNKNOWN.
        reason: Why, in a few words.
        settle: Of what is unknown: what would tell.
        program: Which program makes such names, "" if that is not known.
        owner_pid: The process that it belongs to or that made it, 0 if that is not known.
        owner_alive: Whether that very process lives.
        owner: Its name, as far as it is known.
        uid, user: Whose it is by the file system's word; -1 and "" if that is not known.
        nbytes: Its size; of a process, what is resident.
        resident_nbytes: Bytes of it that take memory or swap now; None if that is not known.
        age_s: Seconds since it was made or last changed in size or mode, or None.
        held_by: Processes that have it mapped or open.
        mapped_by: Those of them that have it mapped.
        place: Where else than here it was seen: a container or mount namespace.
        site: Where in its owner's program it was asked for, if that program traces.
        fixable: Whether `--fix` would remove it.
        details: What else is known, as the row of the daemon's table.
    """

    kind: str
    name: str
    verdict: str
    reason: str
    settle: str = ""
    program: str = ""
    owner_pid: int = 0
    owner_alive: bool = False
    owner: str = ""
    uid: int = -1
    user: str = ""
    nbytes: int = 0
    resident_nbytes: int | None = None
    age_s: float | None = None
    held_by: list[int] = field(default_factory=list)
    mapped_by: list[int] = field(default_factory=list)
    place: str = ""
    site: str = ""
    fixable: bool = False
    details: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def escape(raw: bytes | str) -> str:
    r"""A name as it may be shown: what does not print, and the backslash, as \xNN or \uNNNN.

    No two names look the same, and none can speak to a terminal.
    """
    text = raw.decode("utf-8", "surrogateescape") if isinstance(raw, bytes) else raw
    return "".join(_shown(c) for c in text)


def _shown(c: str) -> str:
    if c == "\\":
        return "\\\\"
    if c.isprintable():
        return c
    number = ord(c)
    if 0xDC80 <= number <= 0xDCFF:  # a byte that is no UTF-8
        return f"\\x{number - 0xDC00:02x}"
    if number < 0x80:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
