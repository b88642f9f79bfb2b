"""The C connection under sanitizers: threads side by side, daemons that lie, babble or vanish."""

from __future__ import annotations

import os
import random
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mcpd.native import _core
from mcpd.shm.messages import (
    AttachReader,
    CloseStream,
    CreateStream,
    DetachReader,
    ErrorReply,
    Message,
    OpenResults,
    ReaderJoin,
    ReaderLeave,
    Reply,
    SealStream,
    StreamEndedNote,
    StreamGrant,
    StreamMoved,
)
from mcpd.shm.segment import create_memfd
from tests.native.c_programs import ASAN, INCLUDE, NATIVE, TSAN, WARNINGS, Flavour, can_build
from tests.support.daemon import RunningDaemon
from tests.support.scripted import Answer, ScriptedDaemon, greet

TIMEOUT_S = 60
FUZZ_SESSIONS = 60
THREADS = replace(TSAN, name="tsan-live", extra=(), wrap=())
"""With a daemon that seals its objects, which the mappings of TSAN do not allow."""
SANITIZERS = {
    **os.environ,
    "ASAN_OPTIONS": "detect_leaks=1:abort_on_error=0",
    "TSAN_OPTIONS": "halt_on_error=1:exitcode=66",
}


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Flavour], Path]:
    """native/tests/session.c with the whole library, built once for each flavour."""
    folder = tmp_path_factory.mktemp("session")

    def build(flavour: Flavour) -> Path:
        if not can_build(flavour, folder):
            pytest.skip(f"the compiler cannot build for {flavour.name} here")
        binary = folder / flavour.name
        if not binary.exists():
            sources = [NATIVE / "tests/session.c", *sorted((NATIVE / "client").glob("*.c"))]
            sources += sorted((NATIVE / "src").glob("*.c"))
            sources += [NATIVE / "tests" / f"{name}.c" for name in flavour.extra]
            wraps = [f"-Wl,--wrap={name}" for name in flavour.wrap]
            command = ["gcc", *WARNINGS, *INCLUDE, f"-I{NATIVE / 'client'}", *flavour.flags]
            done = subprocess.run(
                [*command, *map(str, sources), *wraps, "-o", str(binary)],
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr
        return binary

    return build


class Probe:
    """A probing client of a scripted daemon, under the address sanitizer."""

    def __init__(self, binary: Path, daemon: ScriptedDaemon) -> None:
        fd = daemon.client.fileno()
        self.process = subprocess.Popen(
            [binary, "probe", str(fd)],
            pass_fds=(fd,),
            env=SANITIZERS,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        daemon.client.close()
        self.lines: list[str] = []

    def wait(self) -> None:
        """Until it has asked for everything, or ended."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if line == "waits\n":
                return

    def end(self) -> str:
        """Lets it end, which it must without a finding; all that it printed."""
        out, _ = self.process.communicate("", timeout=TIMEOUT_S)
        printed = "".join(self.lines) + out
        assert self.process.returncode == 0, printed
        return printed

    def __enter__(self) -> Probe:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


@contextmanager
def probing(binary: Path, answer: Answer = greet) -> Iterator[tuple[ScriptedDaemon, Probe]]:
    with ScriptedDaemon(answer) as daemon, Probe(binary, daemon) as probe:
        yield daemon, probe


@pytest.mark.parametrize("flavour", [ASAN, THREADS], ids=lambda flavour: flavour.name)
@pytest.mark.parametrize("program", ["work", "follow"])
def test_threads_share_a_connection(
    programs: Callable[[Flavour], Path], flavour: Flavour, bare_daemon: RunningDaemon, program: str
) -> None:
    done = subprocess.run(
        [programs(flavour), program, bare_daemon.socket],
        env=SANITIZERS,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S * 2,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def grant(**changes: Any) -> dict[str, Any]:
    """A grant of a stream of 8 slots of a page."""
    spec = {"slots": 8, "slot_nbytes": 4096, "kind": "tensors"}
    fields = {"stream": 5, "name": "cam", "generation": 1, "slots": 8, "slot_nbytes": 4096}
    return {**fields, "spec": spec, **changes}


class Objects:
    """The objects of a stream, as a daemon would make them; sent with replies by hand."""

    def __init__(self) -> None:
        self.control = create_memfd("wctl", _core.writer_control_nbytes(8))
        self.payload = create_memfd("payload", 8 * 4096)
        self.reader = create_memfd("rctl", _core.reader_control_nbytes(2))
        self.wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._controls = (
            _core.WriterControl(self.control.fd, 8),
            _core.ReaderControl(self.reader.fd, 2),
        )
        self._controls[0].initialise(5, 1, 4096)
        self._controls[1].initialise(5, 1, 9)

    @property
    def writing(self) -> list[int]:
        return [self.control.fd, self.payload.fd, self.wake]

    @property
    def reading(self) -> list[int]:
        return [self.control.fd, self.payload.fd, self.reader.fd, self.wake]

    def close(self) -> None:
        for segment in (self.control, self.payload, self.reader):
            segment.close()
        os.close(self.wake)


@pytest.fixture
def objects() -> Iterator[Objects]:
    made = Objects()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        (b"\0\0\0\0", "what is no message"),
        (b"\1\0\1\0", "what is no message"),
        (b"\3\0\0\0\x93\1\2", "what is no message"),
        (b"\7\0\0\0\x81\xa4type\1", "what is no message"),
        (b"GET / HTTP/1.1\r\n\r\n", "what is no message"),
    ],
)
def test_a_daemon_that_babbles_ends_the_session(
    programs: Callable[[Flavour], Path], said: bytes, wanted: str
) -> None:
    with probing(programs(ASAN), lambda message: None) as (daemon, probe):
        daemon.send_raw(said)
        assert f"connect -107 unavailable: session ended: the daemon sent {wanted}" in probe.end()


def test_a_daemon_that_refuses_is_quoted(programs: Callable[[Flavour], Path]) -> None:
    error = ErrorReply(code="version", message="versions 1 to 1 are not spoken", hint="Update.")
    with probing(programs(ASAN), lambda message: error) as (_, probe):
        assert "connect -93 version: versions 1 to 1 are not spoken" in probe.end()


def test_an_unknown_code_is_a_fault_of_the_daemon(programs: Callable[[Flavour], Path]) -> None:
    error = ErrorReply(code="novel", message="x" * 2000)
    with probing(programs(ASAN), lambda message: error) as (_, probe):
        assert re.search(r"connect -5 novel: x{479}\n", probe.end())


def test_the_last_words_are_why_the_session_ended(programs: Callable[[Flavour], Path]) -> None:
    with probing(programs(ASAN)) as (daemon, probe):
        daemon.wait_for(CreateStream)
        daemon.send(ErrorReply(code="limit", message="too much waits for you", hint=""))
        daemon.close()
        probe.wait()
        printed = probe.end()
    assert "create_stream -107 unavailable: session ended: too much waits for you" in printed
    assert "lost 1: session ended: too much waits for you" in printed


@pytest.mark.parametrize("count", [3, 9, 20])
def test_descriptors_that_nobody_announced_end_the_session(
    programs: Callable[[Flavour], Path], count: int
) -> None:
    with probing(programs(ASAN)) as (daemon, probe):
        daemon.wait_for(CreateStream)
        body = msgspec.msgpack.encode({"type": "reader_leave", "stream": 1, "reader": 1})
        daemon.send_raw_fds(len(body).to_bytes(4, "little") + body, [0] * count)
        probe.wait()
        assert "create_stream -107 unavailable: session ended" in probe.end()


def test_requests_of_the_daemon_are_answered(
    programs: Callable[[Flavour], Path], objects: Objects
) -> None:
    def answer(message: Message) -> Message | None:
        if isinstance(message, (CreateStream, AttachReader, OpenResults)):
            return ErrorReply(code="not_found", message="none of that")
        return greet(message)

    with probing(programs(ASAN), answer) as (daemon, probe):
        probe.wait()
        fds = [objects.reader.fd, objects.reader.fd]
        join = ReaderJoin(id=3, stream=5, reader=9, max_pins=2, policy="latest")
        daemon.send(join, fds)
        daemon.send(ReaderJoin(id=4, stream=5, reader=9, max_pins=2, policy="newest"), fds)
        daemon.send(ReaderLeave(stream=5, reader=9, pins="drop"))
        daemon.send(StreamEndedNote(stream=5, reason="closed"))
        daemon.send(AttachReader(id=5, stream="cam"))
        codes = {error.id: error.code for error in daemon.wait_for(ErrorReply, 3)}  # type: ignore[attr-defined]
        assert codes == {3: "not_found", 4: "protocol", 5: "invalid"}
        assert "lost 0" in probe.end()


@pytest.mark.parametrize(
    ("changes", "nfds", "words"),
    [
        ({}, 2, "came with 2 descriptors"),
        ({"stream": 0}, 3, "not readable"),
        ({"stream": -1}, 3, "not readable"),
        ({"slots": "8"}, 3, "not readable"),
        ({"name": 8}, 3, "not readable"),
        ({"slots": 1}, 3, "cannot be mapped"),
        ({"slots": 9}, 3, "cannot be mapped"),
        ({"slot_nbytes": 8192}, 3, "cannot be mapped"),
        ({"slot_nbytes": 1 << 63}, 3, "cannot be mapped"),
    ],
)
def test_a_grant_that_makes_no_sense_is_given_back(
    programs: Callable[[Flavour], Path],
    objects: Objects,
    changes: dict[str, Any],
    nfds: int,
    words: str,
) -> None:
    def answer(message: Message) -> Message | None:
        if isinstance(message, (AttachReader, OpenResults)):
            return ErrorReply(code="not_found", message="none of that")
        return greet(message)

    with probing(programs(ASAN), answer) as (daemon, probe):
        request = daemon.wait_for(CreateStream)[0]
        daemon.send(Reply(id=request.id, result=grant(**changes)), objects.writing[:nfds])
        if changes.get("stream", 5) == 5:
            daemon.wait_for(CloseStream)
        probe.wait()
        assert re.search(f"create_stream -[0-9]+ .*{words}", probe.end())


def mutated(rng: random.Random, message: Message) -> bytes:
    body = bytearray(msgspec.msgpack.encode(message))
    for _ in range(rng.randrange(1, 4)):
        body[rng.randrange(len(body))] = rng.randrange(256)
    return len(body).to_bytes(4, "little") + bytes(body)


@pytest.mark.parametrize("seed", range(4))
def test_a_daemon_of_mutated_messages_does_no_harm(
    programs: Callable[[Flavour], Path], objects: Objects, seed: int
) -> None:
    """Each answer comes mutated first and then as it should, so that nobody waits for one."""
    rng = random.Random(seed)
    reader = grant(reader=9, max_pins=2, policy="latest")
    replies: dict[type[Message], tuple[dict[str, Any], list[int]]] = {
        CreateStream: (grant(), objects.writing),
        SealStream: ({}, []),
        AttachReader: (reader, objects.reading),
        OpenResults: (
            {"grant": reader, "model": "m", "version": 1, "labels": ["a", "b"]},
            objects.reading,
        ),
        CloseStream: ({}, []),
        DetachReader: ({}, []),
    }
    notes = (
        ReaderJoin(id=3, fds=2, stream=5, reader=9, max_pins=2, policy="latest"),
        ReaderLeave(stream=5, reader=9, pins="keep"),
        StreamMoved(reader=9, fds=3, grant=msgspec.convert(grant(reader=10), StreamGrant)),
        StreamMoved(reader=77, fds=3, grant=msgspec.convert(grant(reader=78), StreamGrant)),
        StreamEndedNote(stream=5, reason="revoked"),
    )
    reached = 0
    for _ in range(FUZZ_SESSIONS // 4):

        def answer(message: Message) -> Message | None:
            result, fds = replies.get(type(message), ({}, []))
            reply = Reply(id=message.id, fds=len(fds), result=result)
            if type(message) not in replies:
                return greet(message)
            with suppress(OSError):  # the client has ended the session
                daemon.send_raw_fds(mutated(rng, reply), fds)
                for note in notes[: rng.randrange(len(notes) + 1)]:
                    daemon.send_raw_fds(mutated(rng, note), objects.writing[: note.fds])
                daemon.send(reply, fds)
            return None

        with ScriptedDaemon(answer) as daemon, Probe(programs(ASAN), daemon) as probe:
            probe.wait()
            reached += "attach" in probe.end()
    assert reached > 0
