"""The look for leftovers: each kind planted, and found."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mcpd.cli.demo import leftover
from mcpd.cli.demo.leftover import Census

PARENT = """
import subprocess, sys
child = subprocess.Popen(
    [sys.executable, "-c", "import sys; sys.stdin.read()"],
    stdin=subprocess.PIPE,
    stdout=subprocess.DEVNULL,
)
print(child.pid, flush=True)
input()
if sys.argv[1:] == ["well"]:
    child.communicate()
"""


class Family:
    """A process that plays the daemon, with one child; `end` leaves the child, if so wanted."""

    def __init__(self, manner: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PARENT, manner],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.child = int(self.process.stdout.readline())

    def end(self) -> None:
        """Has it end as its manner is. Idempotent."""
        if self.process.poll() is None:
            self.process.communicate("\n")


@pytest.fixture
def well() -> Iterator[Family]:
    family = Family("well")
    yield family
    family.end()


def test_nothing_is_left_of_a_daemon_that_ends_with_its_children(well: Family) -> None:
    census = Census(well.process.pid)
    assert list(census.note()) == [well.child]
    well.end()
    assert census.left() == []


def test_a_child_that_lives_on_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftover, "_GONE_S", 0.2)
    family = Family("badly")
    # The orphan ends when its input does; held open here, it lives on.
    held = os.open(f"/proc/{family.child}/fd/0", os.O_WRONLY)
    census = Census(family.process.pid)
    census.note()
    family.end()
    try:
        assert any(f"process {family.child} " in line for line in census.left())
    finally:
        os.close(held)
    monkeypatch.setattr(leftover, "_GONE_S", 20.0)
    assert census.left() == []


def test_a_name_in_dev_shm_is_found(well: Family) -> None:
    census = Census(well.process.pid)
    well.end()
    name = Path(f"/dev/shm/mcpd.{os.getuid()}.{well.process.pid}.1.7")
    name.touch()
    try:
        assert census.left() == [str(name)]
    finally:
        name.unlink()


def test_a_name_of_another_daemon_is_none_of_its(well: Family) -> None:
    census = Census(well.process.pid)
    well.end()
    name = Path(f"/dev/shm/mcpd.{os.getuid()}.{well.process.pid}9.1.7")
    name.touch()
    try:
        assert census.left() == []
    finally:
        name.unlink()


def test_a_segment_still_open_here_is_found(well: Family) -> None:
    census = Census(well.process.pid)
    well.end()
    segment = os.memfd_create("mcpd:payload:planted")
    try:
        assert census.left() == [f"memfd:mcpd:payload:planted in process {os.getpid()}"]
    finally:
        os.close(segment)


def test_a_segment_still_mapped_here_is_found(well: Family) -> None:
    census = Census(well.process.pid)
    well.end()
    segment = os.memfd_create("mcpd:rctl:planted")
    os.ftruncate(segment, 4096)
    mapping = mmap.mmap(segment, 4096)
    os.close(segment)
    try:
        assert census.left() == [f"memfd:mcpd:rctl:planted in process {os.getpid()}"]
    finally:
        mapping.close()
