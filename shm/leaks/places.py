"""The folders /dev/shm there are: ours, and those of other mount namespaces; what is in them."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mcpd.shm.leaks.entry import escape
from mcpd.shm.leaks.processes import list_pids
from mcpd.shm.segment import SHM_DIRECTORY

MAX_FOLDER_NAMES = 10_000
"""Names below one folder that are looked at; one with more is not judged."""
_CONTAINER = re.compile(
    r"(?:^|/)(?:(docker|libpod|cri-containerd|crio|containerd|nerdctl)[-/])?([0-9a-f]{12})[0-9a-f]{52}"
    r"(?:\.scope)?(?:/|$)"
)


@dataclass(frozen=True)
class Place:
    """One folder that is, or stands for, /dev/shm.

    Attributes:
        path: By which we reach it: through /proc/PID/root where it is another namespace's.
        device: Of its file system; 0 if it is no file system of its own.
        label: Which namespace and container it belongs to; "" if it is our own.
    """

    path: str
    device: int
    label: str = ""


@dataclass(frozen=True)
class Name:
    """One name in a place.

    Attributes:
        inner: Status of the files below it, if it is a folder.
        whole: Whether all below it could be read.
    """

    place: Place
    name: bytes
    status: os.stat_result
    inner: tuple[os.stat_result, ...] = ()
    whole: bool = True

    @property
    def kind(self) -> str:
        """As of an Entry."""
        if stat.S_ISDIR(self.status.st_mode):
            return "folder"
        return "semaphore" if self.name.startswith(b"sem.") else "shm"

    @property
    def keys(self) -> set[tuple[int, int]]:
        """Device and inode of each file that it stands for."""
        return {(s.st_dev, s.st_ino) for s in (self.status, *self.inner)}

    @property
    def nbytes(self) -> int:
        """Size, with all that is below it."""
        return sum(s.st_size for s in (self.status, *self.inner) if stat.S_ISREG(s.st_mode))

    @property
    def resident_nbytes(self) -> int:
        """What of that takes memory or swap: pages of a tmpfs that were never written take none."""
        return sum(s.st_blocks * 512 for s in (self.status, *self.inner))

    @property
    def changed_s(self) -> float:
        """When it was last written, resized, renamed or given another mode; seconds since 1970."""
        return max(max(s.st_ctime, s.st_mtime) for s in (self.status, *self.inner))

    @property
    def made_before_s(self) -> float:
        """It was made then or earlier: nobody can set this time back."""
        return self.status.st_ctime


def own_place(directory: Path = SHM_DIRECTORY) -> Place:
    """Ours."""
    return Place(str(directory), mounted_device(os.getpid(), str(directory)))


def find_places(directory: Path = SHM_DIRECTORY, *, all_namespaces: bool = False) -> list[Place]:
    """Ours, and with `all_namespaces` one for each further /dev/shm that some process sees."""
    places = [own_place(directory)]
    if not all_namespaces:
        return places
    seen_devices = {os.stat(directory).st_dev} if directory.exists() else set()
    seen_namespaces = {_namespace(os.getpid())}
    for pid in list_pids():
        namespace = _namespace(pid)
        if not namespace or namespace in seen_namespaces:
            continue
        seen_namespaces.add(namespace)
        path = f"/proc/{pid}/root{SHM_DIRECTORY}"
        device = mounted_device(pid, str(SHM_DIRECTORY))
        try:
            if os.stat(path).st_dev in seen_devices or not device:
                continue
        except OSError:
            continue  # it has none, or has ended
        seen_devices.add(device)
        places.append(Place(path, device, _label(pid, namespace)))
    return places


def list_names(place: Place) -> list[Name]:
    """The regular files and folders in a place; what goes meanwhile is left out."""
    found = []
    try:
        names = sorted(os.listdir(os.fsencode(place.path)))
    except OSError:
        return []  # there is none, or its process has ended
    for name in names:
        path = os.path.join(os.fsencode(place.path), name)
        try:
            status = os.lstat(path)
            if stat.S_ISREG(status.st_mode):
                found.append(Name(place, name, status))
            elif stat.S_ISDIR(status.st_mode):
                inner, whole = _below(path)
                found.append(Name(place, name, status, inner, whole))
        except FileNotFoundError:
            continue
    return found


def mounted_device(pid: int, path: str) -> int:
    """The device of the tmpfs mounted at `path` in a process's namespace; 0 if there is none."""
    device = 0
    try:
        lines = Path(f"/proc/{pid}/mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        return 0
    for line in lines:
        before, _, after = line.partition(" - ")
        fields = before.split()
        if len(fields) > 4 and fields[4] == path and after.startswith("tmpfs "):
            major, _, minor = fields[2].partition(":")
            device = os.makedev(int(major), int(minor))
    return device


def container_of(pid: int) -> str:
    """Which container or control group a process is in, as far as its cgroup's path tells."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return ""
    path = lines[-1].split(":", 2)[2] if lines else ""
    matched = _CONTAINER.search(path)
    if matched is not None:
        kind = f" ({matched[1]})" if matched[1] else ""
        return f"container {matched[2]}{kind}"
    return f"cgroup {escape(path)}"


def _below(path: bytes) -> tuple[tuple[os.stat_result, ...], bool]:
    found: list[os.stat_result] = []

    def fail(error: OSError) -> None:
        raise error

    try:
        for folder, folders, files in os.walk(path, onerror=fail):
            for name in (*folders, *files):
                found.append(os.lstat(os.path.join(folder, name)))
                if len(found) > MAX_FOLDER_NAMES:
                    return tuple(found), False
    except OSError:
        return tuple(found), False
    return tuple(found), True


def _namespace(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt")
    except OSError:
        return ""


def _label(pid: int, namespace: str) -> str:
    return f"{namespace} of pid {pid}, {container_of(pid)}"


def walk(places: list[Place]) -> Iterator[Name]:
    """Every name in every place."""
    for place in places:
        yield from list_names(place)
