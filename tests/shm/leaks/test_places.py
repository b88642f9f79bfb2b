"""Other mount namespaces, other users: what can be seen is found, what cannot is said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mcpd.shm.leaks import IN_USE, ORPHANED, UNKNOWN, Options, scan
from mcpd.shm.leaks.fix import REMOVED, remove
from mcpd.shm.leaks.places import container_of, find_places, mounted_device
from mcpd.shm.leaks.record import Record
from tests.shm.leaks.plant import Child, dead_pid, find, planted, torch_name

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="makes namespaces, becomes another user")

INSIDE = """
import ctypes, mmap, os, sys
libc = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 1 << 18
assert libc.unshare(CLONE_NEWNS) == 0
assert libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None) == 0
assert libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"size=8m") == 0
for name in sys.argv[1:]:
    open("/dev/shm/" + name, "wb").write(bytes(8192))
fd = os.open("/dev/shm/" + sys.argv[1], os.O_RDWR)
kept = mmap.mmap(fd, 0)
os.close(fd)
reading, writing = os.pipe()
if os.fork() == 0:
    # The same /dev/shm, seen from a namespace of its own.
    libc.prctl(1, 9)
    libc.unshare(CLONE_NEWNS)
    os.write(writing, b".")
    os.read(0, 1)
    os._exit(0)
os.read(reading, 1)
print("ready", flush=True)
sys.stdin.read()
"""
AS_SOMEBODY = """
import json, os, sys
from mcpd.shm.leaks import Options, examine
from mcpd.shm.leaks.record import Record
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
report = examine(None, Options(min_age_s=0, alone=True, record=Record()))
names = {e.name: [e.verdict, e.settle] for e in report.entries}
print(json.dumps([report.unreadable, names.get(sys.argv[1]), report.status]))
"""


@pytest.fixture
def container() -> Iterator[tuple[Child, str, str]]:
    """A process with a /dev/shm of its own that holds one name and has left another."""
    used, left = torch_name(dead_pid()), torch_name(dead_pid())
    started = Child(INSIDE, used, left)
    yield started, used, left
    started.kill()


def test_shm_of_another_mount_namespace_is_looked_into_and_named(
    container: tuple[Child, str, str],
) -> None:
    inside, used, left = container
    options = Options(min_age_s=0, all_namespaces=True, record=Record())
    here = [entry.name for entry in scan(min_age_s=0.0)]
    entries = scan(options=options)
    assert used not in here
    assert left not in here
    assert find(entries, used).verdict == IN_USE
    assert inside.pid in find(entries, used).mapped_by
    orphan = find(entries, left)
    assert orphan.verdict == ORPHANED
    assert os.readlink(f"/proc/{inside.pid}/ns/mnt") in orphan.place
    assert f"pid {inside.pid}" in orphan.place
    (action,) = remove(entries, options, names=[left])
    assert action.outcome == REMOVED
    assert os.listdir(f"/proc/{inside.pid}/root/dev/shm") == [used]


def test_only_what_is_mounted_there_counts_as_a_place(container: tuple[Child, str, str]) -> None:
    inside = container[0]
    places = find_places(all_namespaces=True)
    assert len({place.device for place in places}) == len(places)
    assert mounted_device(inside.pid, "/dev/shm") in {place.device for place in places}
    assert mounted_device(os.getpid(), "/no/such/place") == 0


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/docker/" + "a" * 64, "container aaaaaaaaaaaa (docker)"),
        ("/system.slice/docker-" + "b" * 64 + ".scope", "container bbbbbbbbbbbb (docker)"),
        ("/kubepods/besteffort/pod1/" + "c" * 64, "container cccccccccccc"),
        ("/machine.slice/libpod-" + "d" * 64 + ".scope", "container dddddddddddd (libpod)"),
        ("/user.slice", "cgroup /user.slice"),
    ],
)
def test_container_is_read_from_the_control_group(
    monkeypatch: pytest.MonkeyPatch, path: str, shown: str
) -> None:
    monkeypatch.setattr(Path, "read_text", lambda self, **_: f"0::{path}\n")
    assert container_of(1) == shown


def as_somebody(name: str) -> tuple[int, list[str], int]:
    """What an ordinary user finds: unreadable processes, verdict and settle of a name, status."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", AS_SOMEBODY, name],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    unreadable, verdict, status = json.loads(done.stdout)
    return unreadable, verdict, status


def test_ordinary_user_cannot_tell_of_what_others_may_hold() -> None:
    name = torch_name(dead_pid())
    with planted(name) as path:
        path.chmod(0o600)
        unreadable, (verdict, settle), status = as_somebody(name)
        assert (unreadable > 0, verdict, settle) == (True, UNKNOWN, "run this as root")
        assert status in (1, 2)  # others on this machine may have left something too
        os.chown(path, 65534, 65534)
        # Of its own file the kernel tells that nobody has it, whoever may be hidden.
        assert as_somebody(name)[1][0] == ORPHANED
