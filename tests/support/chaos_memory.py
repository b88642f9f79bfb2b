"""The chaos client's attacks on shared memory: what it is given to map, and what it shares."""

from __future__ import annotations

import fcntl
import mmap
import os
import random
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tests.support.attacker import Attacker, HostileSession

PAGE = 4096
_EVENTFD_FULL = (1 << 64) - 2
_SCRIBBLES = 2000
"""Words spoiled in one go."""


def _spec(memory: str = "memfd", slots: int = 16) -> dict[str, object]:
    return {"slots": slots, "slot_nbytes": PAGE, "memory": memory}


def _scribble(memory: mmap.mmap, chance: random.Random, begin: int = 0) -> None:
    """Words become anything: mostly noise, sometimes what is nearly right."""
    words = (len(memory) - begin) // 8
    for _ in range(_SCRIBBLES):
        at = begin + chance.randrange(words) * 8
        near = memory[64:72]
        value = chance.choice([chance.randbytes(8), bytes(8), b"\xff" * 8, near])
        memory[at : at + 8] = value


def _reader(
    session: HostileSession, attacker: Attacker, **fields: object
) -> tuple[dict[str, object], list[int]]:
    return session.grant(type="attach_reader", stream=attacker.target, **fields)


def spoil_its_reader_control(attacker: Attacker) -> None:
    """Garbage all over the control object that the writer of somebody else's stream reads."""
    chance = random.Random(1)
    while attacker.go_on():
        with attacker.session() as session:
            grant, fds = _reader(session, attacker, policy="fifo", depth=1, max_pins=2)
            if not grant:
                attacker.saw("refused")
                attacker.wait(0.1)
                continue
            with mmap.mmap(fds[2], 0) as control:
                for _ in range(20):
                    _scribble(control, chance)
                    attacker.wait(0.01)
            attacker.saw("spoiled its own")


def spoil_the_control_of_its_group(attacker: Attacker) -> None:
    """Garbage over the claims that it shares with the other members of a group."""
    chance = random.Random(2)
    while attacker.go_on():
        with attacker.session() as session:
            grant, fds = _reader(session, attacker, policy="fifo", depth=1, group="crowd")
            if not grant:
                attacker.saw("refused")
                attacker.wait(0.1)
                continue
            with mmap.mmap(fds[5], 0) as control:
                for _ in range(20):
                    _scribble(control, chance)
                    attacker.wait(0.01)
            attacker.saw("spoiled its group's")


def write_what_is_read_only(attacker: Attacker) -> None:
    """Maps the writer's control object and payload of somebody else writable, by every way."""
    with attacker.session() as session:
        while attacker.go_on():
            grant, fds = _reader(session, attacker)
            for fd in fds[:2]:
                for path in (None, f"/proc/self/fd/{fd}"):
                    try:
                        own = os.open(path, os.O_RDWR) if path else os.dup(fd)
                    except OSError as error:
                        attacker.saw(type(error).__name__)
                        continue
                    try:
                        mmap.mmap(own, PAGE).close()
                        attacker.saw("MAPPED WRITABLE")
                    except OSError as error:
                        attacker.saw(type(error).__name__)
                    try:
                        os.pwrite(own, b"x", 0)
                        attacker.saw("WRITTEN")
                    except OSError as error:
                        attacker.saw(type(error).__name__)
                    os.close(own)
            session.ask(type="detach_reader", reader=grant.get("reader", 0))


def spoil_its_writer_control(attacker: Attacker) -> None:
    """Garbage over the control object and the payload of its own stream, which others read."""
    chance = random.Random(3)
    with attacker.session() as session:
        name = f"spoiled-{os.getpid()}"
        grant, fds = session.grant(type="create_stream", name=name, spec=_spec())
        if not grant:
            attacker.saw("refused")
            return
        with mmap.mmap(fds[0], 0) as control:
            session.ask(type="seal_stream", stream=grant["stream"])
            session.sock.settimeout(0.005)
            while attacker.go_on():
                with suppress(TimeoutError):
                    message = session.receive()
                    if message.get("id"):
                        session.send(type="reply", id=message["id"], result={"start_seq": 1})
                _scribble(control, chance, 64)
        attacker.saw("spoiled its own")


def pin_every_slot_and_stop(attacker: Attacker) -> None:
    """Claims every pin it was granted, on any slot, and stops (SIGSTOP)."""
    with attacker.session() as session:
        max_pins = 64
        grant, fds = _reader(session, attacker, max_pins=max_pins)
        while not grant and max_pins > 1:
            max_pins -= 1
            grant, fds = _reader(session, attacker, max_pins=max_pins)
        if not grant:
            attacker.saw("refused")
            return
        with mmap.mmap(fds[2], 0) as control, mmap.mmap(fds[0], 0, prot=mmap.PROT_READ) as writer:
            head = int.from_bytes(writer[64:72], "little")
            for pin in range(max_pins):
                word = (head - pin) << 16 | pin
                control[512 + pin * 8 : 520 + pin * 8] = word.to_bytes(8, "little")
            attacker.saw(f"stopped with {max_pins} pins")
            os.kill(os.getpid(), signal.SIGSTOP)


def shrink_its_sealed_segment(attacker: Attacker) -> None:
    """Truncates, grows and punches holes into the memory of a stream that it writes."""
    with attacker.session() as session:
        name = f"shrunk-{os.getpid()}"
        _, fds = session.grant(type="create_stream", name=name, spec=_spec())
        while attacker.go_on():
            for fd in fds[:2]:
                for nbytes in (0, 1 << 40):
                    try:
                        os.ftruncate(fd, nbytes)
                        attacker.saw("RESIZED")
                    except OSError as error:
                        attacker.saw(type(error).__name__)


def shrink_its_posix_segment(attacker: Attacker) -> None:
    """Truncates and unlinks the payload of its own stream under /dev/shm, which nobody can seal."""
    while attacker.go_on():
        with attacker.session() as session:
            name = f"posix-{os.getpid()}"
            grant, fds = session.grant(type="create_stream", name=name, spec=_spec("posix"))
            if not grant:
                attacker.saw("refused")
                attacker.wait(0.1)
                continue
            os.ftruncate(fds[1], 0)
            session.ask(type="seal_stream", stream=grant["stream"])
            with suppress(FileNotFoundError):
                Path("/dev/shm", str(grant["shm_name"]).lstrip("/")).unlink()
            attacker.saw(session.ask(type="close_stream", stream=grant["stream"]))


def fork_while_mapped(attacker: Attacker) -> None:
    """Its child keeps the socket, the descriptors and the mappings, and goes on in its place."""
    while attacker.go_on():
        child = os.fork()
        if child == 0:
            session = attacker.session()
            name = f"forked-{os.getpid()}"
            _, fds = session.grant(type="create_stream", name=name, spec=_spec())
            memory = mmap.mmap(fds[1], 0) if fds else None
            reading, writing = os.pipe()
            grandchild = os.fork()
            if grandchild == 0:
                os.close(writing)
                os.read(reading, 1)  # until its parent is dead
                with suppress(OSError):
                    session.sock.settimeout(1.0)
                    session.ask(type="status")
                if memory is not None:
                    memory[0] = 1
            os._exit(0)
        os.waitpid(child, 0)
        attacker.saw("the child's session ended")
        attacker.wait(0.05)


def block_the_eventfds(attacker: Attacker) -> None:
    """Makes its eventfd blocking and full, so that the writer that signals it waits for ever."""
    while attacker.go_on():
        with attacker.session() as session:
            grant, fds = _reader(session, attacker)
            if not grant:
                attacker.saw("refused")
                attacker.wait(0.1)
                continue
            with mmap.mmap(fds[2], 0) as control:
                with suppress(BlockingIOError):
                    os.eventfd_read(fds[3])
                os.eventfd_write(fds[3], _EVENTFD_FULL)
                _set_blocking(fds[3])
                for _ in range(50):
                    _sleep(control)
                    time.sleep(0.01)
            attacker.saw("nobody waited")


def steal_signals_for_the_writer(attacker: Attacker) -> None:
    """Empties the eventfd that wakes the writer, which lossless readers share, and makes it
    blocking, so that the writer waits for signals that are gone. It owes itself nothing."""
    with attacker.session() as session:
        grant, fds = _reader(session, attacker, policy="lossless")
        if not grant:
            attacker.saw("refused")
            return
        with mmap.mmap(fds[2], 0) as control:
            control[64:72] = (1 << 47).to_bytes(8, "little")
            _set_blocking(fds[4])
            while attacker.go_on():
                if select.select([fds[4]], [], [], 0.05)[0]:
                    os.eventfd_read(fds[4])
                    attacker.saw("stole one")
        attacker.saw("was given the writer's eventfd")


def _set_blocking(fd: int) -> None:
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_NONBLOCK)


def _sleep(control: mmap.mmap) -> None:
    """The next odd epoch: who publishes signals it."""
    epoch = int.from_bytes(control[128:132], "little") + 2 | 1
    control[128:132] = (epoch & 0xFFFFFFFF).to_bytes(4, "little")


ATTACKS: tuple[Callable[[Attacker], None], ...] = (
    spoil_its_reader_control, spoil_the_control_of_its_group, write_what_is_read_only,
    spoil_its_writer_control, pin_every_slot_and_stop, shrink_its_sealed_segment,
    shrink_its_posix_segment, fork_while_mapped, block_the_eventfds,
    steal_signals_for_the_writer,
)  # fmt: skip
