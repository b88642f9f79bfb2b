"""Real programs, killed: what they leave is found and named, and nothing else is touched."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mcpd.shm.leaks import IN_USE, ORPHANED, UNKNOWN, Entry, Options, scan
from mcpd.shm.leaks.fix import REMOVED, remove
from mcpd.shm.leaks.record import Record, read_record
from mcpd.shm.leaks.recorder import Recorder
from tests.shm.leaks.plant import SHM, Child, find
from tests.support.daemon import wait_until

_PR_SET_CHILD_SUBREAPER = 36  # include/uapi/linux/prctl.h
SHARED_MEMORY = """
import os
os.setpgid(0, 0)
import sys
from multiprocessing import resource_tracker, shared_memory
made = shared_memory.SharedMemory(create=True, size=8192)
print("ready", flush=True)
print(made.name, resource_tracker._resource_tracker._pid, flush=True)
sys.stdin.read()
"""
ICEORYX2 = """
import ctypes, os, sys
import iceoryx2
iceoryx2.set_log_level(iceoryx2.LogLevel.Error)
node = iceoryx2.NodeBuilder.new().create(iceoryx2.ServiceType.Ipc)
name = iceoryx2.ServiceName.new(f"mcpd/leaks/{os.getpid()}")
service = node.service_builder(name).publish_subscribe(ctypes.c_uint64).open_or_create()
kept = [service.publisher_builder().create(), service.subscriber_builder().create()]
print("ready", flush=True)
sys.stdin.read()
"""
TORCH = """
import os, sys
import torch.multiprocessing
from torch.utils.data import DataLoader
torch.multiprocessing.set_sharing_strategy("file_system")
class Numbers:
    def __len__(self): return 1000
    def __getitem__(self, index): return torch.full((256,), index)
if __name__ == "__main__":
    batches = iter(DataLoader(Numbers(), batch_size=4, num_workers=2))
    kept = next(batches)
    print("ready", flush=True)
    sys.stdin.read()
"""


def look(record: Record | None = None) -> tuple[list[Entry], Options]:
    options = Options(min_age_s=0, alone=True, record=record or Record())
    return scan(options=options), options


def removed(entries: list[Entry], options: Options, names: list[str]) -> list[str]:
    actions = remove(entries, options, names=names)
    return [action.entry.name for action in actions if action.outcome == REMOVED]


def test_shared_memory_of_a_killed_program_and_tracker_is_orphaned(tmp_path: Path) -> None:
    file = tmp_path / "creators.jsonl"
    with Recorder(file) as recorder:
        program = Child(SHARED_MEMORY)
        name, tracker = told(program)
        recorder.step(1)
    os.kill(tracker, signal.SIGKILL)
    program.kill()
    wait_until(lambda: not Path(f"/proc/{tracker}").exists(), 10, "its resource tracker is gone")
    blind, _ = look()
    assert find(blind, name).verdict == UNKNOWN
    entries, options = look(read_record([file]))
    entry = find(entries, name)
    assert (entry.verdict, entry.program, entry.owner_pid) == (
        *(ORPHANED, "Python shared_memory", program.pid),
    )
    assert removed(entries, options, [name]) == [name]
    assert not (SHM / name).exists()


@pytest.fixture
def subreaper() -> Iterator[None]:
    """Orphans become children of this process. The kernel lets a group that was stopped go on, with
    a SIGHUP, when nobody of its session is left to be the parent of one of it."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    assert prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    yield
    assert prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) == 0


@pytest.mark.usefixtures("subreaper")
def test_shared_memory_of_a_killed_program_is_left_to_its_tracker(tmp_path: Path) -> None:
    file = tmp_path / "creators.jsonl"
    with Recorder(file) as recorder:
        program = Child(SHARED_MEMORY)
        name, tracker = told(program)
        recorder.step(1)
    os.kill(tracker, signal.SIGSTOP)
    try:
        program.kill()
        entries, options = look(read_record([file]))
        # The tracker is of its group, and will remove it.
        assert find(entries, name).verdict == UNKNOWN
        assert str(tracker) in find(entries, name).settle
        assert removed(entries, options, [name]) == []
    finally:
        os.kill(tracker, signal.SIGCONT)
    wait_until(lambda: not (SHM / name).exists(), 10, "its tracker has removed it")
    os.waitpid(tracker, 0)


def told(program: Child) -> tuple[str, int]:
    assert program.process.stdout is not None
    name, tracker = program.process.stdout.readline().split()
    return name, int(tracker)


def test_ports_of_a_killed_iceoryx2_node_are_orphaned() -> None:
    pytest.importorskip("iceoryx2")
    program = Child(ICEORYX2)
    used = [e for e in look()[0] if program.pid in e.held_by and e.kind == "shm"]
    program.kill()
    assert {(e.program, e.verdict) for e in used} == {("iceoryx2", IN_USE)}
    mine = {entry.name for entry in used}
    entries, options = look()
    left = {e.name: e for e in entries if e.name in mine}
    data = [e for e in left.values() if e.name.endswith((".data", ".connection"))]
    assert {(e.verdict, e.owner_pid) for e in data} == {(ORPHANED, program.pid)}
    names = sorted(entry.name for entry in data)
    assert sorted(removed(entries, options, names)) == names
    for name in mine - set(names):
        # Whose the service's own object is, its name does not tell.
        assert left[name].verdict == UNKNOWN
        (SHM / name).unlink()


def test_tensors_of_killed_data_loader_workers_are_left_to_the_manager_then_orphaned() -> None:
    pytest.importorskip("torch")
    with subprocess.Popen(
        [sys.executable, "-c", TORCH], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        entries, _ = look()
        used = [e for e in entries if program.pid in e.held_by and e.program == "PyTorch"]
        workers = {entry.owner_pid for entry in used}
        (manager,) = {p for e in used for p in e.held_by if comm(p).startswith("torch_shm")} or {0}
        for pid in (*workers, manager, program.pid):
            if pid:
                os.kill(pid, signal.SIGKILL)
    assert {entry.verdict for entry in used} == {IN_USE}
    entries, options = look()
    names = [e.name for e in entries if e.program == "PyTorch" and e.owner_pid in workers]
    assert {find(entries, name).verdict for name in names} <= {ORPHANED, UNKNOWN}
    removed(entries, options, names)


def comm(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text()
