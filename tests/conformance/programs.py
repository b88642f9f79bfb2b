"""The conformance program: built with sanitizers, started, driven by commands."""

from __future__ import annotations

import hashlib
import os
import select
import signal
import socket
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "tests/conformance"
BUILD = ROOT / "native/tests/build/conformance"
LIMIT_S = 20
"""How long an answer may take that will come; no test waits so long for one that will not."""

INCLUDE = ("tests/conformance/second", "tests/conformance/program", "native/include", "native/src")
WARNINGS = ("-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-O1", "-g")
ADDRESS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
THREAD = ("-fsanitize=thread", "-fno-builtin")  # an inlined memset is not seen by it


def sources(main: str) -> list[Path]:
    """One main file, both implementations and what adapts them."""
    ours = sorted((ROOT / "native/src").glob("*.c"))
    second = sorted((HERE / "second").glob("*.c"))
    return [*ours, *second, *sorted((HERE / "program").glob("*_ends.c")), HERE / "program" / main]


def build(
    main: str, flags: Sequence[str], *, link: Sequence[str] = (), planted: Sequence[str] = ()
) -> Path:
    """The program of one main file. What was compiled from the same sources is used again.

    `planted` are flags for the second implementation alone: a fault that a test wants found.
    """
    BUILD.mkdir(parents=True, exist_ok=True)
    compiler = [os.environ.get("CC", "gcc"), *WARNINGS, *flags]
    compiler += [f"-I{ROOT / name}" for name in INCLUDE]
    headers = [file for folder in INCLUDE for file in sorted((ROOT / folder).glob("*.h"))]
    seen = b"".join(file.read_bytes() for file in headers)

    def made(name: str, command: Sequence[str], inputs: bytes) -> Path:
        digest = hashlib.sha256(repr(command).encode() + inputs).hexdigest()[:16]
        out = BUILD / f"{name}-{digest}"
        if not out.exists():
            part = out.with_suffix(f".{os.getpid()}")
            run([*command, "-o", str(part)])
            part.rename(out)
        return out

    def compiled(file: Path) -> Path:
        more = planted if file.parent.name == "second" else ()
        command = [*compiler, *more, "-xc", "-c", str(file)]
        return made(f"{file.parent.name}-{file.stem}.o", command, seen + file.read_bytes())

    with ThreadPoolExecutor(2) as pool:
        parts = [str(part) for part in pool.map(compiled, sources(main))]
    return made(main.removesuffix(".c"), [*compiler, *parts, *link, "-pthread", "-lm"], b"")


def run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr


class Refused(Exception):
    """An answer that was an error; its text is the errno's name."""


def too_small(implementation: str, which: str) -> str:
    """The errno that tells it: `ours` says of a payload that may shrink that it lost memory."""
    return "EFAULT" if (implementation, which) == ("ours", "payload") else "EINVAL"


class Program:
    """One process that can be one end of a stream, of the implementation `which`."""

    def __init__(self, path: Path, which: str) -> None:
        self.which = which
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                [str(path), which], stdin=theirs.fileno(), stderr=subprocess.PIPE
            )

    def send(self, *words: object, fds: Sequence[int] = ()) -> None:
        text = " ".join(str(word) for word in words).encode()
        if fds:
            socket.send_fds(self.socket, [text], list(fds))
        else:
            self.socket.send(text)

    def hear(self) -> list[str]:
        """The words of the next message, after "ok"; an error is raised."""
        ready, _, _ = select.select([self.socket], [], [], LIMIT_S)
        assert ready, f"{self.which} says nothing"
        text = self.socket.recv(65536).decode()
        if not text:
            raise AssertionError(f"{self.which} has ended: {self.errors()}")
        kind, *words = text.split(" ")
        if kind == "error":
            raise Refused(*words)
        return words if kind == "ok" else [kind, *words]

    def call(self, *words: object, fds: Sequence[int] = ()) -> list[str]:
        self.send(*words, fds=fds)
        return self.hear()

    def number(self, *words: object, fds: Sequence[int] = ()) -> int:
        return int(self.call(*words, fds=fds)[0])

    def silent(self) -> bool:
        """Whether nothing has been said so far."""
        return not select.select([self.socket], [], [], 0)[0]

    def stop_at(self, step: str) -> None:
        """Halts at the next passage of that step of the page; `second` alone can."""
        self.call("stop", step)

    def at(self, step: str) -> None:
        assert " ".join(self.hear()) == f"at {step}"

    def go(self, until: str = "") -> None:
        """Goes on, if need be to another step."""
        self.send("go", until)
        if until:
            self.at(until)

    def closes(self) -> bool:
        """Closes the ends that it has open; False if it is busy with something else."""
        if not self.silent():
            return False
        try:
            return self.call("close") == ["0"]
        except (Refused, AssertionError, OSError):
            return False

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(LIMIT_S)
        self.close()

    def errors(self) -> str:
        assert self.process.stderr is not None
        self.process.wait(LIMIT_S)
        text: bytes = self.process.stderr.read()
        return text.decode()

    def end(self) -> None:
        """End-of-file: it closes what it has open and exits, and the sanitizers say their word."""
        self.socket.shutdown(socket.SHUT_RDWR)
        errors = self.errors()
        code = self.process.returncode
        self.close()
        assert code == 0, errors

    def close(self) -> None:
        self.socket.close()
        if self.process.stderr:
            self.process.stderr.close()


class Programs:
    """Processes that are used again by test after test, as long as none kills them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.idle: dict[str, list[Program]] = {}
        self.busy: list[Program] = []

    def take(self, which: str) -> Program:
        waiting = self.idle.setdefault(which, [])
        program = waiting.pop() if waiting else Program(self.path, which)
        self.busy.append(program)
        return program

    def give_back_all(self) -> None:
        """Closes the ends of all that are in use; those that were killed or hang are let go."""
        busy, self.busy = self.busy, []
        for program in busy:
            if program.process.poll() is not None:
                program.close()
                continue
            if program.closes():
                self.idle[program.which].append(program)
            else:
                program.kill()

    def end(self) -> None:
        for waiting in self.idle.values():
            for program in waiting:
                program.end()
