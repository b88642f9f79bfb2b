"""What a run has left behind, by the kernel's word alone: this script imports nothing of mcpd.

    python tests/faults/leftover.py look MARKER [--watch PID ...] [--folder PATH ...] \\
        [--owner PID ...] > before.json
    python tests/faults/leftover.py compare before.json after.json

Processes of the run are known by their environment: MCPD_SOAK=MARKER, which each inherits; names in
/dev/shm by the daemons that made them, which the run says (--owner). `look` takes down those names,
the run's processes, the memfds `mcpd:*` that they have open or mapped, the sockets in the folders,
and what the watched processes use. `compare` prints each difference on a line, `cannot look` where
the kernel did not let it, and exits with 1 if there is any.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections import Counter
from pathlib import Path

GROWTH_KIB = 24 * 1024
"""A long-lived process may keep so much more: interpreters and allocators warm up."""
POOL = (os.cpu_count() or 1) + 4
"""Threads that an asyncio process keeps for later, once it has needed them: cores + 4."""
POSIX = re.compile(r"mcpd\.\d+\.(\d+)\.\d+\.\d+")


def look(
    marker: str, watched: list[int], folders: list[str], owners: list[int]
) -> dict[str, object]:
    """All that there is now."""
    me = os.getpid()
    marked = [pid for pid in processes() if pid != me and has_marker(pid, marker)]
    blind: list[str] = []
    memfds: Counter[str] = Counter()
    for pid in marked:
        try:
            memfds.update(memfds_of(pid))
        except PermissionError:
            blind.append(f"process {pid}: {command(pid)}")
        except OSError:
            continue  # it has just ended
    return {
        "names": sorted(name for name in os.listdir("/dev/shm") if owner(name) in owners),
        "processes": {str(pid): command(pid) for pid in marked},
        "memfds": dict(memfds),
        "sockets": sorted(
            str(path) for folder in folders for path in Path(folder).rglob("*") if path.is_socket()
        ),
        "usage": {str(pid): usage(pid) for pid in watched},
        "blind": blind,
    }


def compare(before: dict[str, dict[str, object]], after: dict[str, dict[str, object]]) -> list[str]:
    """What is there now and was not before, a line each."""
    found = [f"name in /dev/shm: {name}" for name in added(before["names"], after["names"])]
    found += [f"socket: {path}" for path in added(before["sockets"], after["sockets"])]
    commands_before = Counter(map(str, before["processes"].values()))
    commands_after = Counter(map(str, after["processes"].values()))
    for text, count in (commands_after - commands_before).items():
        found.append(f"process, {count} more of: {text}")
    memfds_before, memfds_after = Counter(before["memfds"]), Counter(after["memfds"])
    for name, count in (memfds_after - memfds_before).items():
        found.append(f"memfd, {count} more of: {name}")
    for pid, used in after["usage"].items():
        was = before["usage"].get(pid)
        if not isinstance(used, dict) or not isinstance(was, dict):
            continue
        for what, spare in (("fds", 0), ("threads", POOL)):
            if used[what] > was[what] + spare:
                found.append(f"{what} of process {pid}: {was[what]} before, {used[what]} now")
        for what in ("rss_kib", "pss_kib"):
            if used[what] > was[what] + GROWTH_KIB:
                found.append(f"{what} of process {pid}: {was[what]} before, {used[what]} now")
    return found + [f"cannot look into {one}" for one in after["blind"]]


def added(before: object, after: object) -> list[str]:
    """Those of the second list that are not in the first."""
    assert isinstance(before, list)
    assert isinstance(after, list)
    return [one for one in after if one not in before]


def processes() -> list[int]:
    """All there are in this pid namespace."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def has_marker(pid: int, marker: str) -> bool:
    """Whether it belongs to the run."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return f"MCPD_SOAK={marker}".encode() in environment.split(b"\0")


def owner(name: str) -> int:
    """The daemon that made a name in /dev/shm; 0: it is not mcpd's."""
    match = POSIX.fullmatch(name)
    return int(match[1]) if match else 0


def memfds_of(pid: int) -> list[str]:
    """mcpd's memfds that a process has open or mapped, once for each descriptor and mapping."""
    found = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{fd}")
        except FileNotFoundError:
            continue
        if "memfd:mcpd:" in target:
            found.append(f"{target} open")
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        if "memfd:mcpd:" in line:
            found.append(f"{line.split(maxsplit=5)[5]} mapped")
    return found


def usage(pid: int) -> dict[str, int]:
    """Memory, descriptors and threads."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        return {
            "rss_kib": int(re.findall(r"^Rss:\s+(\d+)", rollup, re.MULTILINE)[0]),
            "pss_kib": int(re.findall(r"^Pss:\s+(\d+)", rollup, re.MULTILINE)[0]),
            "fds": len(os.listdir(f"/proc/{pid}/fd")),
            "threads": len(os.listdir(f"/proc/{pid}/task")),
        }
    except OSError:
        return {}


def command(pid: int) -> str:
    """Its command line, without what differs from one start to the next."""
    try:
        text = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        return "just ended"
    return re.sub(r"--(fd|parent) \d+|\b\d+$", "", text)


def main() -> int:
    """The script."""
    if sys.argv[1] == "compare":
        before, after = (json.loads(Path(path).read_text()) for path in sys.argv[2:4])
        found = compare(before, after)
        print("\n".join(found))
        return 1 if found else 0
    lists: dict[str, list[str]] = {"--watch": [], "--folder": [], "--owner": []}
    into = lists["--watch"]
    for argument in sys.argv[3:]:
        if argument in lists:
            into = lists[argument]
        else:
            into.append(argument)
    watched, owners = (list(map(int, lists[name])) for name in ("--watch", "--owner"))
    json.dump(look(sys.argv[2], watched, lists["--folder"], owners), sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
