"""Plants what the tests of the leak finder look for: names, holders, makers that die."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from mcpd.shm.leaks import Entry

SHM = Path("/dev/shm")

HOLD = """
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
if sys.argv[2] == "mapped":
    kept = mmap.mmap(fd, 0)
    os.close(fd)
print("ready", flush=True)
sys.stdin.read()
"""
"""Has a file mapped or open until its standard input ends."""

MAKE = """
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
os.ftruncate(fd, 8192)
mapped = mmap.mmap(fd, 0)
os.close(fd)
print("ready", flush=True)
for line in sys.stdin:
    if line == "close\\n":
        mapped.close()
    elif line == "open\\n":
        fd = os.open(sys.argv[1], os.O_RDWR)
        mapped = mmap.mmap(fd, 0)
        os.close(fd)
    elif line == "child\\n":
        if os.fork() == 0:
            fd = os.open(sys.argv[1] + ".child", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            os.ftruncate(fd, 4096)
            kept = mmap.mmap(fd, 0)
            sys.stdin.readline()
            os._exit(0)
        continue
    print("done", flush=True)
"""
"""Makes and maps a file, and does as it is told on standard input."""


class Child:
    """A Python process that answers each word with a line."""

    def __init__(self, code: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-c", code, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self.process.pid
        self.expect("ready")

    def tell(self, word: str) -> None:
        """Says a word, and waits until it is done."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        self.expect("done")

    def expect(self, word: str) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == f"{word}\n"

    def kill(self) -> None:
        """SIGKILL, and waits for its end. Idempotent."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


@contextmanager
def child(code: str, *arguments: str) -> Iterator[Child]:
    started = Child(code, *arguments)
    try:
        yield started
    finally:
        started.kill()


def dead_pid() -> int:
    """Of a process that was."""
    ended = subprocess.Popen(["/bin/true"])
    ended.wait()
    return ended.pid


def unique() -> str:
    """A word that no other name on this machine has."""
    return uuid.uuid4().hex[:12]


def torch_name(pid: int) -> str:
    """As PyTorch names a tensor in shared memory that process `pid` made."""
    return f"torch_{pid}_{int(uuid.uuid4()) % 10**9}_0"


@contextmanager
def planted(name: str | bytes, nbytes: int = 4096) -> Iterator[Path]:
    """A file in /dev/shm, taken away at the end."""
    path = SHM / os.fsdecode(name)
    path.write_bytes(bytes(nbytes))
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def find(entries: Sequence[Entry], name: str) -> Entry:
    """The one entry of that name."""
    (entry,) = [entry for entry in entries if entry.name == name]
    return entry
