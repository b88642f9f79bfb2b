"""System V segments: the kernel itself says who made each and how many processes are attached."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

TABLE = Path("/proc/sysvipc/shm")


class SysvSegment(NamedTuple):
    """One row of /proc/sysvipc/shm."""

    key: int
    shmid: int
    creator_pid: int
    attached: int
    uid: int
    created_s: int
    changed_s: int
    nbytes: int
    resident_nbytes: int


def list_sysv(table: Path = TABLE) -> list[SysvSegment]:
    """The segments of this IPC namespace; none where the kernel has no System V memory."""
    try:
        lines = table.read_text().splitlines()
    except OSError:
        return []
    names = lines[0].split()
    found = []
    for line in lines[1:]:
        row = dict(zip(names, map(int, _numbers(line)), strict=False))
        found.append(
            SysvSegment(
                key=row["key"],
                shmid=row["shmid"],
                creator_pid=row["cpid"],
                attached=row["nattch"],
                uid=row["uid"],
                created_s=row["ctime"],
                changed_s=max(row["ctime"], row["atime"], row["dtime"]),
                nbytes=row["size"],
                resident_nbytes=row.get("rss", 0) + row.get("swap", 0),
            )
        )
    return found


def _numbers(line: str) -> list[str]:
    fields = line.split()
    fields[2] = str(int(fields[2], 8))  # perms
    return fields
