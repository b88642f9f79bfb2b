"""The same commands to each pairing of the implementations have the same outcome, word for word."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.conformance.objects import FIFO, LATEST, LOSSLESS
from tests.conformance.programs import Programs, Refused
from tests.conformance.streams import IMPLEMENTATIONS, KINDS, Pairing, Reader, Stream, pairings

WRITER_WORDS = ("head", "ended", "published", "abandoned", "would_block", "wakes", "nbytes", "held")
READER_WORDS = (
    *("cursor", "received", "skipped", "dropped", "passed", "expired", "pinned", "wakeups"),
    "retries",
)
GROUP_WORDS = ("cursor", "returned", "finished", "returns")

OPERATIONS = (
    *("acquire", "publish", "publish", "publish", "hold", "abandon", "release"),
    *("next", "next", "next", "unpin", "unpin", "give_back", "recent"),
    *("arm", "disarm", "arm_writer", "disarm_writer", "leave", "join"),
)


class Command(NamedTuple):
    name: str
    which: int
    """Of the slots, readers or pins that there are, modulo their number."""
    value: int


commands = st.builds(
    Command, st.sampled_from(OPERATIONS), st.integers(0, 2**16), st.integers(0, 2**16)
)


def full(reader: Reader) -> bool:
    """A member without a free pin cannot look whether what was returned is still there."""
    return reader.group is not None and reader.control["pinned"] == reader.max_pins


class Run:
    """One pairing under the commands; slots are told by the order in which they came up."""

    def __init__(self, stream: Stream, nslots: int, history: int) -> None:
        self.stream = stream
        self.steps: list[Step] = []
        self.slots: dict[int, int] = {}
        self.acquired: list[int] = []
        self.held: list[int] = []
        self.pins: list[tuple[Reader, int]] = []
        stream.open(nslots=nslots, history=history, holds=3, first_seq=5)
        self.group = stream.add_group(LOSSLESS)
        self.here = [
            stream.reader(LATEST, max_pins=2),
            stream.reader(LATEST, every_n=3),
            stream.reader(FIFO, depth=3),
            stream.reader(FIFO, depth=4, every_n=2),
            stream.reader(LOSSLESS, max_pins=2),
            stream.reader(LOSSLESS, skip_expired=True),
            stream.reader(LATEST, interval_ns=10**15),
            stream.reader(group=self.group, max_pins=2),
            stream.reader(group=self.group),
        ]

    def told(self, slot: int) -> int:
        return self.slots.setdefault(slot, len(self.slots))

    def run(self, command: Command) -> None:
        act: Callable[[Command], object] = getattr(self, command.name)
        try:
            result = act(command)
        except Refused as error:
            result = str(error)
        self.steps.append(
            Step(f"{command.name} {command.which} {command.value}", result, self.words())
        )

    def words(self) -> dict[str, object]:
        """Every word that the page says something about, by name."""
        stream, control = self.stream, self.stream.control
        words: dict[str, object] = {name: control[name] for name in WRITER_WORDS}
        words["asleep"] = control["writer_epoch"] % 2
        words["signalled"] = stream.wake.pending()
        words["states"] = sorted(control.state(slot) & 0xFFFF for slot in self.slots)
        words |= {f"group {name}": self.group.control[name] for name in GROUP_WORDS}
        words["claims"] = sorted(self.group.control.claims())
        for reader in stream.readers:
            values = {name: reader.control[name] for name in READER_WORDS}
            values["asleep"] = reader.control["epoch"] % 2
            values["signalled"] = reader.wake.pending()
            if reader.group:
                del values["cursor"]  # a counter
            words |= {f"{reader.number} {name}": value for name, value in values.items()}
            words[f"{reader.number} pins"] = sorted(word >> 16 for word in reader.control.pins())
        return words

    def reader(self, command: Command) -> Reader:
        return self.here[command.which % len(self.here)]

    def end_of(self, reader: Reader) -> None:
        """What the reader still gets after the end."""
        result: object = None
        try:
            if not full(reader):
                result = reader.seqs()
        except Refused as error:
            result = str(error)
        self.steps.append(Step(f"end of {reader.number}", result, {}))

    # ---- commands ----

    def acquire(self, command: Command) -> object:
        slot = self.stream.acquire()
        self.acquired.append(slot)
        return self.told(slot)

    def publish(self, command: Command, *, hold: bool = False) -> object:
        if not self.acquired:
            self.acquire(command)
        slot = self.acquired[command.which % len(self.acquired)]
        seq = self.stream.publish_slot(
            slot, hold, nbytes=command.value % 4097, deadline_ns=command.value % 2 or 2**62
        )
        self.acquired.remove(slot)
        if hold:
            self.held.append(slot)
        return seq

    def hold(self, command: Command) -> object:
        return self.publish(command, hold=True)

    def abandon(self, command: Command) -> object:
        if not self.acquired:
            return None
        slot = self.acquired.pop(command.which % len(self.acquired))
        return self.stream.program.number("abandon", slot)

    def release(self, command: Command) -> object:
        if not self.held:
            return None
        slot = self.held.pop(command.which % len(self.held))
        return self.stream.program.number("release", slot)

    def next(self, command: Command) -> object:
        reader = self.reader(command)
        if full(reader):
            return None
        frame = reader.next()
        self.pins.append((reader, frame.pin))
        return frame.seq, frame.meta.nbytes, self.told_of(frame.seq)

    def told_of(self, seq: int) -> int | None:
        entry = self.stream.control.entry(seq)
        return self.told(entry & 0xFFFF) if entry >> 16 == seq else None

    def unpin(self, command: Command) -> object:
        if not self.pins:
            return None
        reader, pin = self.pins.pop(command.which % len(self.pins))
        return reader.program.number("unpin", pin)

    def give_back(self, command: Command) -> object:
        if not self.pins:
            return None
        reader, pin = self.pins.pop(command.which % len(self.pins))
        return reader.program.number("give_back", pin)

    def recent(self, command: Command) -> object:
        reader = self.reader(command)
        got = reader.recent(1 + command.value % 2)
        self.pins += [(reader, pin) for pin, _ in got]
        return [seq for _, seq in got]

    def arm(self, command: Command) -> object:
        return self.reader(command).arm()

    def disarm(self, command: Command) -> object:
        return self.reader(command).program.number("disarm")

    def arm_writer(self, command: Command) -> object:
        return self.stream.program.number("arm_writer")

    def disarm_writer(self, command: Command) -> object:
        return self.stream.program.number("disarm_writer")

    def leave(self, command: Command) -> object:
        """A reader of its own is released, and removed if the value is odd."""
        reader = self.here[command.which % 7 % len(self.here)]
        if reader.group:
            return None
        self.stream.release(reader)
        if command.value % 2:
            reader.program.call("close")
            self.pins = [item for item in self.pins if item[0] is not reader]
            self.here.remove(reader)
            self.stream.remove(reader)
        return None

    def join(self, command: Command) -> object:
        policy = (LATEST, FIFO, LOSSLESS)[command.which % 3]
        depth = {LATEST: 0, FIFO: 1 + command.value % 6, LOSSLESS: command.value % 8}[policy]
        if len(self.here) < 12:
            self.here.append(self.stream.reader(policy, depth=depth))
            return self.here[-1].start
        return None


class Step(NamedTuple):
    command: str
    result: object
    words: dict[str, object]


def run(programs: Programs, pairing: Pairing, script: list[Command]) -> list[Step]:
    stream = Stream(programs, *pairing)
    try:
        run = Run(stream, nslots=24, history=2)
        for command in script:
            run.run(command)
        stream.end(1)
        for reader in run.here:
            run.end_of(reader)
        return run.steps
    finally:
        programs.give_back_all()
        stream.close()


def differences(one: list[Step], other: list[Step]) -> list[str]:
    """Where two runs first part."""
    for number, (a, b) in enumerate(zip(one, other, strict=True)):
        found = [f"{k}: {a.words[k]} {b.words[k]}" for k in a.words if a.words[k] != b.words[k]]
        if a.result != b.result:
            found.append(f"result: {a.result} {b.result}")
        if found:
            return [f"step {number}, {a.command}", *found]
    return []


@settings(
    max_examples=10,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(script=st.lists(commands, min_size=60, max_size=120))
def test_every_pairing_has_the_same_outcome(programs: Programs, script: list[Command]) -> None:
    runs = {
        pairing: run(programs, pairing, script)
        for pairing in pairings(IMPLEMENTATIONS, IMPLEMENTATIONS)
        if pairing[2] == KINDS[0]
    }
    first = next(iter(runs))
    for pairing, steps in runs.items():
        assert differences(runs[first], steps) == [], (first, pairing, script)
