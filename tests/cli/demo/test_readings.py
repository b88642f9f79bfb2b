"""Readings of processes: what counts, and what is subtracted."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mcpd.cli.demo.readings import ProcessReader, Reading, Stretch

CHILD = """
import sys
video = open(sys.argv[1], "rb", buffering=0)
for line in sys.stdin:
    what, count = line.split()
    if what == "video":
        video.read(int(count))
    elif what == "spin":
        for _ in range(int(count)):
            pass
    print("x" * (int(count) - 1) if what == "write" else "done", flush=True)
"""


class Child:
    """A process that reads, writes and computes as told."""

    def __init__(self, file: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self.process.pid
        self.do("spin", 1)

    def do(self, what: str, count: int) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{what} {count}\n")
        self.process.stdin.flush()
        self.process.stdout.readline()

    def close(self) -> None:
        self.process.communicate()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "video"
    path.write_bytes(bytes(100_000))
    return path


@pytest.fixture
def child(file: Path) -> Iterator[Child]:
    child = Child(file)
    yield child
    child.close()


def test_bytes_written_to_a_pipe_are_counted(child: Child) -> None:
    reader = ProcessReader()
    before = reader.read(child.pid)
    child.do("write", 5000)
    assert 5000 <= reader.read(child.pid).nbytes - before.nbytes < 5100


def test_bytes_of_the_video_file_are_kept_apart(child: Child, file: Path) -> None:
    reader = ProcessReader()
    before = reader.read(child.pid, file)
    child.do("video", 60_000)
    after = reader.read(child.pid, file)
    assert after.file_nbytes - before.file_nbytes == 60_000
    assert 0 < after.nbytes - before.nbytes < 100


def test_cpu_time_is_counted(child: Child) -> None:
    reader = ProcessReader()
    before = reader.read(child.pid)
    child.do("spin", 3_000_000)
    assert reader.read(child.pid).cpu_s > before.cpu_s


def test_measuring_is_not_counted_for_oneself() -> None:
    reader = ProcessReader()
    before = reader.read_self(0)
    for _ in range(50):
        reader.read(os.getpid())
    assert reader.read_self(0).nbytes == before.nbytes


def test_what_went_to_the_terminal_is_not_counted_for_oneself() -> None:
    reader = ProcessReader()
    read_end, write_end = os.pipe()
    before = reader.read_self(0)
    os.write(write_end, bytes(700))
    os.close(read_end)
    os.close(write_end)
    assert reader.read_self(0).nbytes - before.nbytes == 700
    assert reader.read_self(700).nbytes == before.nbytes


def test_use_is_per_frame_between_first_and_last_reading() -> None:
    readings = iter([Reading(1.0, 1000, 0), Reading(1.1, 1500, 50), Reading(1.5, 2000, 100)])
    stretch = Stretch(lambda: next(readings))
    for frames in (1, 6, 11):
        stretch.take(frames)
    use = stretch.use()
    assert use is not None
    assert use.cpu_ms == pytest.approx(50)
    assert (use.nbytes, use.file_nbytes) == (100, 10)


def test_a_process_that_ended_keeps_its_last_reading(child: Child) -> None:
    reader = ProcessReader()
    stretch = Stretch(lambda: reader.read(child.pid))
    stretch.take(0)
    child.do("write", 1000)
    stretch.take(1)
    child.close()
    stretch.take(2)
    use = stretch.use()
    assert use is not None
    assert use.nbytes >= 1000


def test_one_reading_gives_no_use() -> None:
    stretch = Stretch(lambda: Reading(1.0, 1))
    stretch.take(1)
    assert stretch.use() is None
