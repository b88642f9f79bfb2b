"""Who made what in /dev/shm, written down by `mcpd leaks record` as it happens, for later.

One JSON line for each name made. A maker's number and start mean something only until the machine
starts anew, so each line says of which boot it is. The file is bounded: when it has grown too long,
what no longer exists is left out.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

from mcpd.shm.leaks.entry import escape

SYSTEM_FILE = Path("/var/lib/mcpd/creators.jsonl")
MAX_NBYTES = 8 << 20
"""Size at which the file is written anew with what still exists."""
MAX_LINE_NBYTES = 4096


@dataclass(frozen=True, kw_only=True)
class Made:
    """A name that was made, and by whom.

    Attributes:
        boot: The kernel's boot id.
        name: Escaped, below its folder.
        device, inode: Of the file.
        time_s: When it was seen; seconds since 1970.
        pid, start_ticks, group: The maker: its number, start and process group in `pid_ns`;
            start_ticks 0: it was dead before anybody could look.
        sure: Whether that process made it, and did not only have it open a moment later.
        mapped: Whether it was seen to be mapped: memory, and not only a file.
        how: "fanotify" or "inotify".
    """

    boot: str
    name: str
    device: int
    inode: int
    time_s: float
    pid: int
    start_ticks: int
    group: int = 0
    pid_ns: str = ""
    comm: str = ""
    uid: int = -1
    sure: bool = True
    mapped: bool = False
    how: str = ""

    def line(self) -> str:
        """As it stands in the file."""
        return json.dumps({"v": 1, **asdict(self)}, ensure_ascii=True)

    @classmethod
    def parse(cls, line: str) -> Self | None:
        """None if it is not such a line."""
        try:
            read: dict[str, Any] = json.loads(line)
            known = {field.name: field.type for field in fields(cls)}
            values = {name: value for name, value in read.items() if name in known}
            kinds: dict[str, tuple[type, ...]] = {
                "str": (str,),
                "int": (int,),
                "bool": (bool,),
                "float": (int, float),
            }
            if not all(isinstance(v, kinds[str(known[name])]) for name, v in values.items()):
                return None
            return cls(**values) if read.get("v") == 1 else None
        except (ValueError, TypeError, AttributeError):
            return None


def boot_id() -> str:
    """Which start of the machine this is."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def default_file() -> Path:
    """Where this user's record is: of root /var/lib/mcpd, of others below XDG_STATE_HOME."""
    if os.getuid() == 0:
        return SYSTEM_FILE
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local/state") / "mcpd/creators.jsonl"


class Record:
    """What is on record, by device and inode; of this boot alone."""

    def __init__(self, lines: Iterable[Made] = ()) -> None:
        self._by_key: dict[tuple[int, int], Made] = {(m.device, m.inode): m for m in lines}

    def find(self, key: tuple[int, int], name: bytes) -> Made | None:
        """Who made that file under that name."""
        made = self._by_key.get(key)
        return made if made is not None and made.name == escape(name) else None

    def __len__(self) -> int:
        return len(self._by_key)


def read_record(paths: Iterable[Path] | None = None) -> Record:
    """The record of this user and the system's; other users' files are not believed.

    Args:
        paths: Files to read instead.
    """
    boot = boot_id()
    if paths is None:
        paths = dict.fromkeys((SYSTEM_FILE, default_file()))
    lines = [made for path in paths for made in read_lines(path) if made.boot == boot]
    return Record(sorted(lines, key=lambda made: made.time_s))


def read_lines(path: Path) -> Iterator[Made]:
    """What one file says; nothing if it is not there, or others could have written it."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            status = os.fstat(file.fileno())
            if status.st_uid not in (0, os.getuid()) or status.st_mode & stat.S_IWOTH:
                return
            for line in file:
                made = Made.parse(line) if len(line) <= MAX_LINE_NBYTES else None
                if made is not None:
                    yield made
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
