"""A frame's path has no copy between `acquire` and the model: shown by pages, bytes and calls."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from mcpd.shm import Client, connect
from tests.support.daemon import RunningDaemon
from tests.support.models import write_repository

WIDTH, HEIGHT, FRAMES = 1920, 1080, 30
LARGE_COPY_NBYTES = 64 * 1024
SUPPORT = Path(__file__).parents[1] / "support"


@dataclass(frozen=True)
class Mapping:
    start: int
    permissions: str
    device: str
    inode: int


def payload_mapping(pid: int, stream: str) -> Mapping | None:
    """The mapping of a stream's payload in a process, or None."""
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        if re.search(rf"mcpd:payload:{re.escape(stream)}(\s|$)", line):
            span, permissions, _, device, inode = line.split()[:5]
            return Mapping(int(span.split("-")[0], 16), permissions, device, int(inode))
    return None


def page_frames(pid: int, mapping: Mapping, pages: int) -> list[int]:
    """Physical page numbers at the start of a mapping; zeros unless we are root (proc(5))."""
    with open(f"/proc/{pid}/pagemap", "rb") as pagemap:
        pagemap.seek(mapping.start // 4096 * 8)
        entries = struct.unpack(f"<{pages}Q", pagemap.read(8 * pages))
    return [entry & ((1 << 55) - 1) for entry in entries]


def bytes_through_io(pid: int) -> int:
    """Bytes that a process moved by read and write calls since its start."""
    counters = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    return int(counters["rchar"]) + int(counters["wchar"])


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return write_repository(tmp_path / "models")


@pytest.fixture
def running(tmp_path: Path, models: Path) -> Iterator[RunningDaemon]:
    with RunningDaemon(tmp_path, models=models) as daemon:
        yield daemon


def worker_pid(client: Client, model: str) -> int:
    return next(int(w["pid"]) for w in client.list("workers") if w["model"] == model)


def test_writer_and_worker_see_the_same_pages_of_the_same_object(running: RunningDaemon) -> None:
    with (
        connect(running.socket) as client,
        client.create_stream("cam0", width=WIDTH, height=HEIGHT, format="rgb24") as stream,
        client.results("cam0", model="trivial", frames="lossless") as results,
    ):
        with stream.acquire() as slot:
            slot.planes[0][:] = 7
        next(results).close()
        worker = worker_pid(client, "trivial")
        ours, theirs = payload_mapping(os.getpid(), "cam0"), payload_mapping(worker, "cam0")
        assert ours is not None
        assert theirs is not None
        assert (ours.device, ours.inode) == (theirs.device, theirs.inode)
        assert ours.permissions == "rw-s"
        assert theirs.permissions == "r--s"
        pages = stream.slots * stream.slot_nbytes // 4096
        assert page_frames(os.getpid(), ours, pages) == page_frames(worker, theirs, pages)


def test_the_page_check_tells_two_objects_apart(running: RunningDaemon) -> None:
    with (
        connect(running.socket) as client,
        client.create_stream("a", width=64, height=64, format="rgb24"),
        client.create_stream("b", width=64, height=64, format="rgb24"),
    ):
        a, b = payload_mapping(os.getpid(), "a"), payload_mapping(os.getpid(), "b")
        assert a is not None
        assert b is not None
        assert a.inode != b.inode
        if os.geteuid() == 0:
            assert page_frames(os.getpid(), a, 4) != page_frames(os.getpid(), b, 4)


def test_under_4_KiB_a_frame_go_through_reads_and_writes(running: RunningDaemon) -> None:
    with (
        connect(running.socket) as client,
        client.create_stream("cam0", width=WIDTH, height=HEIGHT, format="i420") as stream,
        client.results("cam0", model="tiny-image", frames="lossless") as results,
    ):
        with stream.acquire() as slot:
            slot.planes[0][:] = 1
        next(results).close()
        pids = {
            "client": os.getpid(),
            "worker": worker_pid(client, "tiny-image"),
            "daemon": running.pid,
        }
        before = {who: bytes_through_io(pid) for who, pid in pids.items()}
        for level in range(FRAMES):
            with stream.acquire() as slot:
                for plane in slot.planes:
                    plane[:] = level
            next(results).close()
        after = {who: bytes_through_io(pid) for who, pid in pids.items()}
    per_frame = {who: (after[who] - before[who]) / FRAMES for who in pids}
    assert all(nbytes < 4096 for nbytes in per_frame.values()), per_frame


# Publishes frames, takes results; argv: socket, model, how many frames, whether to copy each frame.
STREAMING = """
import os, sys
from mcpd.shm import connect
socket, model, frames, copies = *sys.argv[1:3], int(sys.argv[3]), sys.argv[4:] == ["copies"]
log = os.environ["MCPD_COPY_LOG"]
with connect(socket) as client, client.create_stream(
    "cam0", width=1920, height=1080, format="rgb24"
) as stream, client.results("cam0", model=model, frames="lossless") as results:
    for level in range(frames + 1):
        with stream.acquire() as slot:
            slot.planes[0][:] = level
            if copies:
                bytes(slot.buffer)
        next(results).close()
        if level == 0:  # start-up may copy what it likes
            open(log, "w").close()
    print(open(log).read(), end="")
"""


def large_copies(tmp_path: Path, models: Path, model: str, *, copies: bool) -> list[str]:
    """The log of memcpy interposed in client, daemon and worker while FRAMES frames go by."""
    library, log = tmp_path / "copies.so", tmp_path / "copies.log"
    build = ["gcc", "-std=c11", "-O2", "-fPIC", "-shared", "-fno-builtin", "-o"]
    subprocess.run([*build, library, SUPPORT / "copies.c", "-ldl"], check=True)
    env = {**os.environ, "LD_PRELOAD": str(library), "MCPD_COPY_LOG": str(log)}
    with RunningDaemon(tmp_path, models=models, env=env) as daemon:
        done = subprocess.run(
            [sys.executable, "-P", "-c", STREAMING, str(daemon.socket), model, str(FRAMES)]
            + (["copies"] if copies else []),
            env=env,
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("model", ["trivial", "tiny-image"])
def test_nobody_copies_64_KiB_between_acquire_and_the_model(
    tmp_path: Path, models: Path, model: str
) -> None:
    assert large_copies(tmp_path, models, model, copies=False) == []


def test_a_copy_of_a_frame_is_seen_by_the_interposer(tmp_path: Path, models: Path) -> None:
    lines = large_copies(tmp_path, models, "trivial", copies=True)
    seen = [line for line in lines if line.endswith("payload")]
    assert len(seen) >= FRAMES
    assert all(int(line.split()[2]) >= LARGE_COPY_NBYTES for line in seen)
