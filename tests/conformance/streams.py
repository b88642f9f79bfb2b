"""A stream for the tests, who are its daemon: objects, a writer, readers, groups, by commands.

Where the writer is ours, the daemon's part is ours as well; else it is that of objects.py.
"""

from __future__ import annotations

import itertools
import os
import select
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from mcpd.native import _core
from tests.conformance.objects import (
    LATEST,
    LOSSLESS,
    META,
    Geometry,
    GroupControl,
    Meta,
    ReaderControl,
    SharedObject,
    WriterControl,
)
from tests.conformance.programs import LIMIT_S, Program, Programs, Refused

IMPLEMENTATIONS = ("ours", "second")
KINDS = ("memfd", "posix")
Pairing = tuple[str, str, str]
"""The writer's implementation, the readers', the kind of segment."""


def pairings(writers: tuple[str, ...], readers: tuple[str, ...]) -> list[Pairing]:
    return list(itertools.product(writers, readers, KINDS))


class Frame(NamedTuple):
    """What `next` gives: the pin's index and the metadata."""

    pin: int
    meta: Meta

    @property
    def seq(self) -> int:
        return self.meta.seq


class WakeCounter:
    """An eventfd as the page wants it."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def count(self) -> int:
        """Signals that nobody has drained; drains them."""
        try:
            return os.eventfd_read(self.fd)
        except BlockingIOError:
            return 0

    def pending(self) -> bool:
        return bool(select.select([self.fd], [], [], 0)[0])

    def signal(self) -> None:
        os.eventfd_write(self.fd, 1)

    def fill(self) -> None:
        """As many signals as the counter holds."""
        os.eventfd_write(self.fd, 2**64 - 2)


def wait_until(true: Callable[[], bool], what: str) -> None:
    """Looks again until it is so, bounded."""
    until = time.monotonic() + LIMIT_S
    while not true():
        assert time.monotonic() < until, what
        time.sleep(0.0005)


class Group:
    def __init__(self, stream: Stream, number: int, policy: int, depth: int) -> None:
        self.number, self.policy, self.depth = number, policy, depth
        self.control = GroupControl(stream.geometry, number)
        self.members: list[Reader] = []


class Reader:
    """A reader's end and its objects. It is admitted with `Stream.reader`."""

    def __init__(
        self,
        stream: Stream,
        program: Program,
        number: int,
        policy: int,
        *,
        depth: int,
        max_pins: int,
        group: Group | None,
        member: int,
    ) -> None:
        self.stream, self.program, self.number = stream, program, number
        self.policy, self.depth, self.max_pins = policy, depth, max_pins
        self.group, self.member = group, member
        self.control = ReaderControl(stream.geometry, number, max_pins)
        self.wake = WakeCounter()
        self.start = 0

    def terms(self) -> tuple[int, ...]:
        group = self.group.number if self.group else 0
        return (group, self.member, self.max_pins, self.policy, self.depth)

    def open(
        self,
        *,
        every_n: int = 0,
        skip_expired: bool = False,
        interval_ns: int = 0,
        geometry: Geometry | None = None,
        swapped: Mapping[str, int] | None = None,
    ) -> None:
        """Opens it; geometry and swapped descriptors are what a test has it told wrongly."""
        given = {
            "writer": self.stream.control.fd,
            "payload": self.stream.payload.fd,
            "reader": self.control.fd,
            "group": self.group.control.fd if self.group else -1,
        }
        given.update(swapped or {})
        fds = [given["writer"], given["payload"], given["reader"], self.wake.fd]
        names = ["@0", "@1", "@2", "@3", "-", "-"]
        if self.policy == LOSSLESS or self.group:
            names[4] = f"@{len(fds)}"
            fds.append(self.stream.wake.fd)
        if self.group:
            names[5] = f"@{len(fds)}"
            fds.append(given["group"])
        thinning = (every_n, int(skip_expired), interval_ns)
        where = geometry or self.stream.geometry
        words = ("open_reader", *where, *names, *self.terms(), self.start, *thinning)
        self.program.call(*words, fds=fds)

    def next(self, timeout_ns: int = 0) -> Frame:
        pin, meta = self.program.call("next", timeout_ns)
        return Frame(int(pin), Meta(*META.unpack(bytes.fromhex(meta))))

    def halt_in_next(self, step: str) -> None:
        """Calls next, which halts at the step; it goes on with `program.go()`."""
        self.program.stop_at(step)
        self.program.send("next", 0)
        self.program.at(step)

    def begin_next(self, timeout_ns: int = -1) -> None:
        """Begins to wait; the answer is heard with `finish_next`."""
        self.program.send("next", timeout_ns)

    def finish_next(self) -> Frame:
        pin, meta = self.program.hear()
        return Frame(int(pin), Meta(*META.unpack(bytes.fromhex(meta))))

    def sleeping(self) -> None:
        """Returns when the reader sleeps."""
        wait_until(lambda: self.control["epoch"] % 2 == 1, "the reader does not sleep")

    def wake_taken(self) -> None:
        """Returns when the signal has been drained."""
        wait_until(lambda: not self.wake.pending(), "the reader takes no signal")

    def seqs(self, *, unpin: bool = True) -> list[int]:
        """The numbers of all frames that it gets without waiting; its pins must be enough."""
        got: list[int] = []
        while True:
            try:
                frame = self.next()
            except Refused as error:
                if str(error) in ("EAGAIN", "EPIPE"):
                    return got
                raise
            got.append(frame.seq)
            if unpin:
                self.unpin(frame.pin)

    def recent(self, count: int) -> list[tuple[int, int]]:
        """(pin, seq) of each."""
        n, *words = (int(word) for word in self.program.call("recent", count))
        assert len(words) == 2 * n
        return list(zip(words[::2], words[1::2], strict=True))

    def unpin(self, pin: int) -> None:
        self.program.call("unpin", pin)

    def give_back(self, pin: int) -> None:
        self.program.call("give_back", pin)

    def look(self, pin: int) -> int:
        """The byte that fills the slot."""
        return self.program.number("look", pin)

    def arm(self) -> bool:
        return bool(self.program.number("arm"))

    def disarm(self) -> None:
        self.program.call("disarm")

    def ended(self) -> int:
        return self.program.number("ended")

    def kill(self) -> None:
        self.program.kill()


class Stream:
    """The objects of a stream, and its writer."""

    def __init__(self, programs: Programs, writer: str, reader: str, kind: str) -> None:
        self.programs, self.which, self.reader_which, self.kind = programs, writer, reader, kind
        self.geometry = Geometry()
        self.wake = WakeCounter()
        self.readers: list[Reader] = []
        self.groups: list[Group] = []

    def make(self, **geometry: int) -> None:
        """Makes the objects."""
        self.geometry = Geometry()._replace(**geometry)
        self.control = WriterControl(self.geometry)
        self.payload = SharedObject("payload", self.geometry.payload_nbytes, kind=self.kind)

    def open(
        self, *, history: int = 1, holds: int = 1, said: Geometry | None = None, **geometry: int
    ) -> None:
        """Makes the objects if that is still to be done, and opens the writer.

        `said` is the geometry that it is told, if not the right one.
        """
        if not hasattr(self, "control"):
            self.make(**geometry)
        if not hasattr(self, "program"):
            self.program = self.programs.take(self.which)
        fds = (self.control.fd, self.payload.fd, self.wake.fd)
        words = ("open_writer", *(said or self.geometry), "@0", "@1", "@2", history, holds)
        self.program.call(*words, fds=fds)

    # ---- readers ----

    def add_group(self, policy: int = LOSSLESS, *, depth: int = 0) -> Group:
        group = Group(self, 500 + len(self.groups), policy, depth)
        self.groups.append(group)
        terms = (group.number, 0, 0, policy, depth)
        start = self.program.number("add_group", "@0", *terms, fds=[group.control.fd])
        newest = max(self.control["head"], self.geometry.first_seq)
        group.control["cursor"] = newest if policy == LATEST else start
        return group

    def admit(
        self,
        policy: int = LATEST,
        *,
        depth: int = 0,
        max_pins: int = 1,
        group: Group | None = None,
        halts: bool = False,
    ) -> Reader:
        """Admits a reader, or member, that is still to be opened.

        One that `halts` is of the second implementation, whatever the others are.
        """
        if group:
            policy, depth = group.policy, group.depth
        number = 900 + len(self.readers)
        program = self.programs.take("second" if halts else self.reader_which)
        reader = Reader(
            self,
            program,
            number,
            policy,
            depth=depth,
            max_pins=max_pins,
            group=group,
            member=len(group.members) if group else 0,
        )
        self.readers.append(reader)
        words = ("add_reader", number, "@0", "@1", *reader.terms())
        reader.start = self.program.number(*words, fds=[reader.control.fd, reader.wake.fd])
        if group:
            group.members.append(reader)
        return reader

    def reader(
        self,
        policy: int = LATEST,
        *,
        depth: int = 0,
        max_pins: int = 1,
        group: Group | None = None,
        halts: bool = False,
        every_n: int = 0,
        skip_expired: bool = False,
        interval_ns: int = 0,
    ) -> Reader:
        """Admits a reader, or member, and opens it."""
        reader = self.admit(policy, depth=depth, max_pins=max_pins, group=group, halts=halts)
        reader.open(every_n=every_n, skip_expired=skip_expired, interval_ns=interval_ns)
        return reader

    def release(self, reader: Reader) -> None:
        self.program.call("release_reader", reader.number)

    def remove(self, reader: Reader) -> None:
        self.program.call("remove_reader", reader.number)

    def sweep(self, member: Reader) -> None:
        """What the daemon does when a member's process is gone."""
        group = member.group
        assert group
        group.members.remove(member)
        others = bool(group.members)
        if self.which == "ours":
            _core.GroupControl(group.control.fd, self.geometry.nslots).sweep(member.member, others)
        else:
            group.control.sweep(member.member, others=others)
        for other in group.members:
            other.wake.signal()

    # ---- frames ----

    def acquire(self, timeout_ns: int = 0) -> int:
        return self.program.number("acquire", timeout_ns)

    def publish_slot(self, slot: int, hold: bool = False, /, **meta: int | bytes) -> int:
        return self.program.number(*self.publish_words(slot, hold, **meta))

    def publish_words(
        self, slot: int, hold: bool = False, /, **meta: int | bytes
    ) -> tuple[object, ...]:
        packed = Meta()._replace(**meta).packed()  # type: ignore[arg-type]
        return ("publish", slot, packed.hex(), int(hold))

    def halt_in_publish(self, step: str) -> int:
        """Publishes, and halts at the step; the slot's index."""
        slot = self.acquire()
        self.program.call("fill", slot, (self.control["head"] + 1) % 256)
        self.program.stop_at(step)
        self.program.send(*self.publish_words(slot))
        self.program.at(step)
        return slot

    def halt_in_acquire(self, step: str) -> None:
        self.program.stop_at(step)
        self.program.send("acquire", 0)
        self.program.at(step)

    def publish(self, count: int = 1, *, fill: int | None = None, **meta: int | bytes) -> int:
        """Acquires, fills with `fill` or the low byte of the number to be, publishes."""
        seq = 0
        for _ in range(count):
            slot = self.acquire()
            byte = (self.control["head"] + 1) % 256 if fill is None else fill
            self.program.call("fill", slot, byte)
            seq = self.program.number(*self.publish_words(slot, False, **meta))
        return seq

    def claimed(self, group: Group, slot: int, word: int) -> None:
        """Returns when that claim has been made."""
        wait_until(lambda: group.control.claims()[slot] == word, "nobody claims it")

    def writer_sleeping(self) -> None:
        wait_until(lambda: self.control["writer_epoch"] % 2 == 1, "the writer does not sleep")

    def end(self, reason: int) -> None:
        self.program.call("end", reason)

    def end_by_daemon(self, reason: int) -> None:
        """The compare-and-swap and the signals of the daemon, of a stream whose writer is still."""
        if self.which == "ours":
            _core.WriterControl(self.control.fd, self.geometry.nslots).end(reason)
        elif self.control["ended"] == 0:
            self.control["ended"] = reason
        self.wake.signal()
        for reader in self.readers:
            reader.wake.signal()

    def kill_writer(self) -> None:
        """The writer dies, and the daemon sees it."""
        self.program.kill()
        self.end_by_daemon(2)

    def slot_of(self, seq: int) -> int:
        return self.control.entry(seq) & 0xFFFF

    def close(self) -> None:
        objects = [reader.control for reader in self.readers]
        objects += [group.control for group in self.groups]  # type: ignore[misc]
        if hasattr(self, "control"):
            objects += [self.control, self.payload]  # type: ignore[list-item]
        for item in objects:
            item.close()
        for wake in (self.wake, *(reader.wake for reader in self.readers)):
            os.close(wake.fd)
