"""Fuzzing for long runs: prints inputs, rate, failures and seed of each target.

    python -m tests.hostile.fuzz [--inputs 100000] [--seed 1] [--targets decoder transport daemon
                                 msgpack stream]

decoder    mutated messages into shm/wire.py: a message, or one of our errors
transport  the same with descriptors of any number through a socket: nothing stays open
daemon     any messages in any order to a live daemon, with a bystander; a hundredth of the inputs
msgpack    the C client's decoder under ASan and UBSan
stream     the C stream under ASan and UBSan, any shared word being anything; a thousandth
Exit status: 0 nothing found, 1 something was.
"""

from __future__ import annotations

import argparse
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import msgspec

from mcpd.shm.errors import InvalidRequest, ProtocolError
from mcpd.shm.messages import REQUESTS, TO_CLIENT, WORKER_MESSAGES
from mcpd.shm.transport import MessageSocket, close_fds
from mcpd.shm.wire import Decoder
from tests.native import c_programs
from tests.native.c_programs import ASAN, FUZZ, INCLUDE, NATIVE, WARNINGS
from tests.support.bystander import Bystander
from tests.support.daemon import RunningDaemon
from tests.support.raw import RawSession

SPEC = {"slots": 8, "slot_nbytes": 4096}
FIELDS = [
    "id",
    "fds",
    "name",
    "spec",
    "versions",
    "stream",
    "what",
    "reader",
    "generation",
    "policy",
    "depth",
    "max_pins",
    "group",
    "first_seq",
    "result",
    "grant",
    "wait_s",
]
TAGS = [str(kind.__struct_config__.tag) for kind in (*REQUESTS, *WORKER_MESSAGES, *TO_CLIENT)]
_QUIET = {"stop", "hello", "load_models", "open_results"}
"""What would end the daemon, and what takes long by design."""
_decoder = Decoder((*REQUESTS, *WORKER_MESSAGES, *TO_CLIENT))

MSGPACK_MAIN = """
#include <stdio.h>
#include "exercise_msgpack.h"
int main(int argc, char **argv)
{
    uint64_t count = strtoull(argv[1], NULL, 10);
    uint64_t state = strtoull(argv[argc - 1], NULL, 10) * 2 + 1;
    static const char seed[] = "\\x84\\xa4type\\xa5reply\\xa2id\\x03\\xa3" "fds\\x02"
        "\\xa6result\\x82"
        "\\xa6labels\\x92\\xa1" "a\\xa3xyz\\xa5grant\\x81\\xa6stream\\xcf\\0\\0\\0\\0\\0\\0\\1\\2";
    uint8_t data[256];
    for (uint64_t i = 0; i < count; i++) {
        size_t nbytes = sizeof seed - 1;
        memcpy(data, seed, nbytes);
        for (int change = 0; change < 1 + (int)(i % 5); change++) {
            state ^= state << 13, state ^= state >> 7, state ^= state << 17;
            data[(state >> 8) % nbytes] = (uint8_t)(state >> 32);
            if (state % 3 == 0)
                nbytes = 1 + (state >> 16) % nbytes;
        }
        (void)exercise_msgpack(data, nbytes);
    }
    return 0;
}
"""


def any_value(chance: random.Random, depth: int = 0) -> Any:
    """Anything that msgpack can say, mostly what is nearly right or at a limit."""
    kind = chance.randrange(9 if depth < 3 else 7)
    if kind == 0:
        return chance.choice([0, 1, 2, -1, 2**31, 2**63, 2**64 - 1, 2**64 - 4096, 65536])
    if kind == 1:
        return chance.randrange(12)
    if kind == 2:
        return chance.choice(["", "bystander", "a", "latest", "lossless", "streams", "x" * 300])
    if kind == 3:
        return chance.choice([None, True, 0.5, float("nan"), float("inf"), b"\xff" * 16])
    if kind == 4:
        return chance.randbytes(chance.randrange(20))
    if kind == 5:
        return chance.choice([SPEC, {**SPEC, "memory": "posix"}, {"slots": 2**63}])
    if kind == 6:
        return f"fuzz-{chance.randrange(4)}"
    if kind == 7:
        return [any_value(chance, depth + 1) for _ in range(chance.randrange(4))]
    return {chance.choice(FIELDS): any_value(chance, depth + 1) for _ in range(chance.randrange(4))}


def any_message(chance: random.Random, tags: Sequence[str] = TAGS) -> dict[str, Any]:
    """A message of any type with any fields."""
    message = {"type": chance.choice(tags), "id": chance.randrange(4)}
    for _ in range(chance.randrange(5)):
        message[chance.choice(FIELDS)] = any_value(chance)
    return message


def any_body(chance: random.Random) -> bytes:
    """The bytes of a message, some of them changed, cut off or doubled."""
    body = bytearray(msgspec.msgpack.encode(any_message(chance)))
    for _ in range(chance.choice([0, 0, 1, 1, 2, 6])):
        body[chance.randrange(len(body))] = chance.randrange(256)
    if chance.random() < 0.1:
        del body[chance.randrange(len(body)) :]
    return bytes(body)


def fuzz_decoder(inputs: int, seed: int) -> int:
    """Failures: anything but a message or one of our two errors."""
    failures = 0
    chance = random.Random(seed)
    body = b""
    for number in range(inputs):
        if number % 8 == 0 or not body:
            body = any_body(chance)
        else:  # another change of the same one costs less than another message
            at = chance.randrange(len(body))
            body = body[:at] + chance.randbytes(1) + body[at + 1 :]
        try:
            _decoder.decode(body)
        except (ProtocolError, InvalidRequest):
            continue
        except Exception as error:
            failures += 1
            print(f"decoder: {body.hex()}: {error!r}", file=sys.stderr)
    return failures


def fuzz_transport(inputs: int, seed: int) -> int:
    """Failures: another error, or a descriptor that stays open."""
    failures = 0
    chance = random.Random(seed)
    before = len(os.listdir("/proc/self/fd"))
    with open(os.devnull) as null:
        for _ in range(inputs):
            ours, theirs = socket.socketpair()
            with theirs, closing(MessageSocket(ours)) as messages:
                body = any_body(chance)
                length = len(body) if chance.random() < 0.9 else chance.getrandbits(32)
                data = length.to_bytes(4, "little") + body
                cut = chance.randrange(1, len(data) + 1)
                counts = chance.choice([(0, 0), (1, 0), (0, 2), (8, 1), (9, 0), (250, 0)])
                try:
                    for piece, count in zip((data[:cut], data[cut:]), counts, strict=True):
                        if piece:
                            socket.send_fds(theirs, [piece], [null.fileno()] * count)
                        for _, fds in messages.receive():
                            close_fds(fds)
                except ProtocolError:
                    continue
                except Exception as error:
                    failures += 1
                    print(f"transport: {data.hex()} {counts}: {error!r}", file=sys.stderr)
    left = len(os.listdir("/proc/self/fd")) - before
    if left > 0:
        print(f"transport: {left} descriptors stay open", file=sys.stderr)
    return failures + max(left, 0)


def fuzz_daemon(inputs: int, seed: int) -> int:
    """Failures: a session that is not answered, a bystander that notices, a fault in the log."""
    chance = random.Random(seed)
    tags = [tag for tag in TAGS if tag not in _QUIET]
    with (
        tempfile.TemporaryDirectory() as folder,
        RunningDaemon(Path(folder), arguments=["--session-rate", "0", "--user-rate", "0",
                                               "--max-rate", "0"]) as daemon,
        Bystander(daemon.socket) as bystander,
    ):  # fmt: skip
        done = 0
        while done < inputs:
            with RawSession(daemon.socket) as session, suppress(BrokenPipeError):
                for _ in range(min(chance.randrange(1, 60), inputs - done)):
                    done += 1
                    if chance.random() < 0.02:
                        session.send_body(any_body(chance) or b"x")
                    else:
                        session.send(**any_message(chance, tags))
                session.send(type="status", id=999)
                while (answer := session.receive()) and answer.get("id") != 999:
                    continue
        bystander.check()
        return daemon.stderr.count("Traceback")


def _run(command: Sequence[str | Path]) -> int:
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stdout[-2000:] + done.stderr[-2000:], file=sys.stderr)
    return int(done.returncode != 0)


def fuzz_msgpack(inputs: int, seed: int) -> int:
    """Failures: a sanitizer's finding."""
    with tempfile.TemporaryDirectory() as folder:
        main, binary = Path(folder, "main.c"), Path(folder, "main")
        main.write_text(MSGPACK_MAIN)
        sources = [str(main), str(NATIVE / "client/msgpack.c")]
        include = [*INCLUDE, f"-I{NATIVE / 'client'}"]
        command = ["gcc", *WARNINGS, *include, *ASAN.flags, *sources, "-o", str(binary)]
        subprocess.run(command, check=True)
        return _run([binary, str(inputs), str(seed)])


def fuzz_stream(inputs: int, seed: int) -> int:
    """Failures: a sanitizer's finding, or an input that takes too long."""
    with tempfile.TemporaryDirectory() as folder:
        binary = c_programs.build(FUZZ, "fuzz_stream", Path(folder))
        return _run([binary, str(inputs), str(seed)])


TARGETS: dict[str, tuple[Callable[[int, int], int], int]] = {
    "decoder": (fuzz_decoder, 1),
    "transport": (fuzz_transport, 10),
    "daemon": (fuzz_daemon, 100),
    "msgpack": (fuzz_msgpack, 1),
    "stream": (fuzz_stream, 1000),
}
"""Each with the part of the inputs that it gets."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The program."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.fuzz", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--targets", nargs="+", choices=list(TARGETS), default=list(TARGETS))
    options = parser.parse_args(arguments)
    failed = 0
    for name in options.targets:
        fuzz, part = TARGETS[name]
        inputs = max(1, options.inputs // part)
        began_s = time.monotonic()
        failures = fuzz(inputs, options.seed)
        elapsed_s = time.monotonic() - began_s
        failed += failures
        print(
            f"{name:9} {inputs:>10} inputs {inputs / elapsed_s:>10.0f}/s "
            f"{failures} failures, seed {options.seed}",
            flush=True,
        )
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
