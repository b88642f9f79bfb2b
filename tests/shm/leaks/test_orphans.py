"""What other programs leave in shared memory: planted, found, named; what is used is left alone."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from mcpd.shm.leaks import IN_USE, ORPHANED, UNKNOWN, Entry, Options, escape, scan
from mcpd.shm.leaks.creators import DEAD, UNSURE, Living
from mcpd.shm.leaks.gpu import count_gpu_processes
from mcpd.shm.leaks.orphans import Judge
from mcpd.shm.leaks.places import list_names, own_place
from mcpd.shm.leaks.processes import Process, read_processes
from mcpd.shm.leaks.programs import recognise
from mcpd.shm.leaks.record import Record
from tests.shm.leaks.plant import HOLD, child, dead_pid, find, planted, torch_name, unique
from tests.support.daemon import wait_until

SEMAPHORE = """
import posix_ipc, sys
kept = posix_ipc.Semaphore(sys.argv[1], posix_ipc.O_CREX)
print("ready", flush=True)
sys.stdin.read()
"""
LEADERLESS = """
import ctypes, mmap, os, sys, threading
def hold():
    fd = os.open(sys.argv[1], os.O_RDWR)
    kept = mmap.mmap(fd, 0)
    os.close(fd)
    while os.readlink("/proc/self") and open(f"/proc/{os.getpid()}/stat").read().split()[2] != "Z":
        pass
    print("ready", flush=True)
    sys.stdin.read()
    os._exit(0)
threading.Thread(target=hold).start()
ctypes.CDLL(None).pthread_exit(None)
"""
NAMELESS = """
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, 1 << 20)
kept = mmap.mmap(fd, 0)
kept[:8192] = bytes(8192)
os.unlink(sys.argv[1])
os.close(fd)
print("ready", flush=True)
sys.stdin.read()
"""


def look(**changes: Any) -> list[Entry]:
    return scan(options=Options(**{"min_age_s": 0, "alone": True, "record": Record(), **changes}))


def judge_of(processes: list[Process], **changes: bool) -> Judge:
    return Judge.of(Living(processes, **{"alone": True, **changes}), Record(), 0)


def test_name_of_a_dead_maker_is_orphaned_and_says_what_it_holds() -> None:
    name = torch_name(dead_pid())
    with planted(name, 12288):
        entry = find(look(), name)
    assert (entry.kind, entry.verdict, entry.program) == ("shm", ORPHANED, "PyTorch")
    assert (entry.nbytes, entry.resident_nbytes, entry.held_by) == (12288, 12288, [])
    assert entry.owner_alive is False
    assert entry.fixable
    assert "is dead, nothing has it mapped or open" in entry.reason


def test_what_was_just_made_is_not_called_orphaned_yet() -> None:
    name = torch_name(dead_pid())
    with planted(name):
        entry = find(look(min_age_s=3600.0), name)
    assert entry.verdict == UNKNOWN
    assert "3600 s" in entry.settle


@pytest.mark.parametrize("how", ["mapped", "open"])
def test_what_somebody_has_is_in_use_and_names_who(how: str) -> None:
    name = torch_name(dead_pid())
    with planted(name) as path, child(HOLD, str(path), how) as holder:
        entry = find(look(), name)
        assert (entry.verdict, entry.held_by) == (IN_USE, [holder.pid])
        assert entry.mapped_by == ([holder.pid] if how == "mapped" else [])
        assert str(holder.pid) in entry.reason


def test_what_a_living_maker_has_closed_is_in_use() -> None:
    name = torch_name(os.getpid())
    with planted(name):
        entry = find(look(), name)
    assert (entry.verdict, entry.owner_pid, entry.owner_alive) == (IN_USE, os.getpid(), True)


def test_no_mapper_and_no_known_maker_is_unknown_and_says_what_would_tell() -> None:
    name = f"made-by-nobody-{unique()}"
    with planted(name):
        entry = find(look(), name)
    assert (entry.verdict, entry.program, entry.fixable) == (UNKNOWN, "", False)
    assert "mcpd leaks record" in entry.settle


def test_holder_that_proc_does_not_show_is_told_by_the_kernel() -> None:
    name = torch_name(dead_pid())
    with planted(name) as path, child(HOLD, str(path), "mapped"):
        (seen,) = [n for n in list_names(own_place()) if n.name == name.encode()]
        entry = judge_of([]).name(seen)
    assert entry.verdict == IN_USE
    assert "somebody whom we cannot see" in entry.reason


def test_semaphore_is_known_by_its_file_and_not_by_its_path() -> None:
    # glibc makes it under another name: /proc calls the mapping deleted.
    name = f"mcpd-test-{unique()}"
    with child(SEMAPHORE, f"/{name}") as holder:
        entry = find(look(), f"sem.{name}")
        assert (entry.kind, entry.verdict, entry.held_by) == ("semaphore", IN_USE, [holder.pid])
        assert not [e for e in look() if e.kind == "deleted" and holder.pid in e.held_by]
    assert find(look(), f"sem.{name}").verdict == UNKNOWN
    os.unlink(f"/dev/shm/sem.{name}")


def test_holder_whose_main_thread_has_ended_still_holds() -> None:
    name = torch_name(dead_pid())
    with planted(name) as path, child(LEADERLESS, str(path)) as holder:
        assert find(look(), name).held_by == [holder.pid]


def test_object_whose_name_is_gone_is_listed_with_who_keeps_it() -> None:
    name = f"gone-{unique()}"
    with child(NAMELESS, f"/dev/shm/{name}") as holder:
        entry = find(look(), name)
    assert (entry.kind, entry.verdict, entry.mapped_by) == ("deleted", IN_USE, [holder.pid])
    assert entry.nbytes == 1 << 20
    assert os.getuid() != 0 or entry.resident_nbytes == 8192


def test_folder_is_judged_with_all_that_is_in_it() -> None:
    name = f"joblib_memmapping_folder_{dead_pid()}_{unique()}"
    os.mkdir(f"/dev/shm/{name}")
    try:
        with planted(f"{name}/array.pkl", 8192) as path:
            # Who else looks at it in that moment has it open.
            wait_until(lambda: find(look(), name).verdict != IN_USE, 10, "nobody holds it")
            left = find(look(), name)
            with child(HOLD, str(path), "mapped") as holder:
                held = find(look(), name)
    finally:
        os.rmdir(f"/dev/shm/{name}")
    assert (left.kind, left.verdict, left.nbytes) == ("folder", ORPHANED, 8192)
    assert (held.verdict, held.held_by) == (IN_USE, [holder.pid])


@pytest.fixture
def sysv() -> Iterator[int]:
    """A System V segment that a dead process made."""
    code = "import ctypes; print(ctypes.CDLL(None).shmget(0, 8192, 0o1600))"
    made = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, check=True)
    shmid = int(made.stdout)
    yield shmid
    ctypes.CDLL(None).shmctl(shmid, 0, None)


def test_system_v_segment_of_a_dead_maker_is_orphaned_until_somebody_attaches(sysv: int) -> None:
    name = f"shmid {sysv} key 0x00000000"
    left = find(look(), name)
    assert (left.kind, left.verdict, left.nbytes) == ("sysv", ORPHANED, 8192)
    libc = ctypes.CDLL(None)
    libc.shmat.restype = ctypes.c_void_p
    address = libc.shmat(sysv, None, 0)
    used = find(look(), name)
    libc.shmdt(ctypes.c_void_p(address))
    assert (used.verdict, used.mapped_by) == (IN_USE, [os.getpid()])


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"line\nbreak", "line\\x0abreak"),
        (b"\x1b[31mred", "\\x1b[31mred"),
        (b"\xff\xfe", "\\xff\\xfe"),
        ("bücher".encode(), "bücher"),
        (b"back\\slash", "back\\\\slash"),
        ("\u202egnp".encode(), "\\u202egnp"),
    ],
)
def test_names_are_shown_so_that_they_cannot_lie(raw: bytes, shown: str) -> None:
    assert escape(raw) == shown
    tail = unique()
    with planted(raw + tail.encode()) as path, child(HOLD, str(path), "mapped") as holder:
        assert find(look(), shown + tail).held_by == [holder.pid]


def test_a_number_that_was_given_again_is_not_its_maker() -> None:
    name = torch_name(os.getpid())
    ours = read_processes()
    later = [p for p in ours if p.pid == os.getpid()]
    later[0].start_ticks += 1000 * os.sysconf("SC_CLK_TCK")
    with planted(name):
        (seen,) = [n for n in list_names(own_place()) if n.name == name.encode()]
        assert judge_of(later).living.by_name(
            os.getpid(), seen.made_before_s, "/no/such"
        ).state == (DEAD)
        # Without a sign that it is another program, the clock alone is not believed.
        assert judge_of(later).living.by_name(os.getpid(), seen.made_before_s).state == UNSURE


def test_number_of_a_process_in_a_container_may_be_the_maker() -> None:
    inside = Process(pid=400_001, comm="python", ns_pids=(400_001, 7))
    found = Living([inside], alone=True).by_name(7, 0.0)
    assert (found.state, "process 400001" in found.reason) == (UNSURE, True)


def test_in_a_container_a_maker_that_is_not_seen_may_be_outside() -> None:
    living = Living([])
    living.first = False
    creator = living.by_name(dead_pid(), 0.0)
    assert (creator.state, "--alone" in creator.settle) == (UNSURE, True)


def test_where_proc_hides_processes_no_maker_is_called_dead() -> None:
    creator = Living([], alone=True, all_seen=False).by_name(dead_pid(), 0.0)
    assert (creator.state, creator.settle) == (UNSURE, "run this as root")


def test_names_that_a_living_keeper_will_remove_are_left_to_it() -> None:
    name = torch_name(dead_pid())
    keeper = Process(pid=400_001, comm="torch_shm_manag", uid=os.getuid())
    with planted(name):
        (seen,) = [n for n in list_names(own_place()) if n.name == name.encode()]
        entry = judge_of([keeper]).name(seen)
    assert (entry.verdict, entry.settle) == (UNKNOWN, "the end of process 400001")


@pytest.mark.parametrize(
    ("name", "program", "pid"),
    [
        (b"torch_123_456_0", "PyTorch", 123),
        (b"psm_0123abcd", "Python shared_memory", 0),
        (b"sem.loky-42-a_b1", "loky", 42),
        (b"joblib_memmapping_folder_7_ab_cd", "joblib", 7),
        (b"iox2_" + b"a" * 40 + b"_158456587193711133284536182053.data", "iceoryx2", 14212),
        (b"iox2_" + b"a" * 40 + b"_79228424679432676093380814117.dynamic", "iceoryx2", 0),
        (b"nccl-vzIpS6", "NCCL", 0),
        (b"plasmanixdm4", "Ray", 0),
        (b"org.mozilla.ipc.11840.101", "Firefox", 11840),
        (b"PostgreSQL.3456", "PostgreSQL", 0),
    ],
)
def test_names_tell_their_program_and_some_their_maker(name: bytes, program: str, pid: int) -> None:
    found = recognise(name)
    assert found is not None
    assert (found.program.name, found.pid) == (program, pid)


def test_name_of_no_known_program_is_not_guessed_at() -> None:
    assert recognise(b"torch") is None
    assert recognise(b"my_psm_0123abcd") is None


def test_gpu_process_that_lost_its_parent_and_its_leader_is_orphaned() -> None:
    lost = Process(pid=10, comm="python", parent=1, group=9, gpus={"/dev/nvidia0"})
    service = Process(pid=11, comm="serve", parent=1, group=11, gpus={"/dev/nvidia0"})
    half = Process(pid=12, comm="train", parent=1, group=11, gpus={"/dev/nvidia0"})
    other = Process(pid=13, comm="cat", parent=1, group=9)
    entries = count_gpu_processes([lost, service, half, other], {10: 5 << 20})
    assert [(e.name, e.verdict) for e in entries] == [
        ("python 10", ORPHANED),
        ("serve 11", IN_USE),
        ("train 12", UNKNOWN),
    ]
    assert entries[0].nbytes == 5 << 20


def test_processes_that_end_while_they_are_read_do_no_harm() -> None:
    running: list[subprocess.Popen[bytes]] = []
    for _ in range(10):
        running += [subprocess.Popen(["/bin/true"]) for _ in range(5)]
        assert os.getpid() in [process.pid for process in read_processes()]
    for process in running:
        process.wait()


def test_clean_folder_has_nothing_to_find(tmp_path: os.PathLike[str]) -> None:
    found = [e for e in look(directory=tmp_path) if e.kind in ("shm", "semaphore", "folder")]
    assert found == []
