"""The shared objects as docs/protocol.md draws them, made and looked into by the tests.

The tests are the daemon here: they make the objects with what is below, which knows nothing but the
page, and look at every word that either implementation leaves in them.
"""

from __future__ import annotations

import itertools
import mmap
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

ABI = 2
WRITER_MAGIC = int.from_bytes(b"MPWCTL1\0", "little")
READER_MAGIC = int.from_bytes(b"MPRCTL1\0", "little")
GROUP_MAGIC = int.from_bytes(b"MPGCTL1\0", "little")

LATEST, FIFO, LOSSLESS = 1, 2, 3
FREE, WRITING, PUBLISHED = 0, 1, 2
TAKEN, DONE, RETURNED = 1, 2, 3
CLOSED, WRITER_DIED, REVOKED, SHUTDOWN, MOVED = 1, 2, 3, 4, 5
UNKNOWN_NS = -(2**63)

Field = tuple[int, str]

WRITER_FIELDS: Mapping[str, Field] = {
    "magic": (0, "Q"),
    "abi": (8, "I"),
    "flags": (12, "I"),
    "stream_id": (16, "Q"),
    "generation": (24, "Q"),
    "nslots": (32, "I"),
    "queue_len": (36, "I"),
    "slot_nbytes": (40, "Q"),
    "first_seq": (48, "Q"),
    "head": (64, "Q"),
    "writer_epoch": (128, "I"),
    "ended": (192, "I"),
    "published": (256, "Q"),
    "abandoned": (264, "Q"),
    "would_block": (272, "Q"),
    "blocked_ns": (280, "Q"),
    "wakes": (288, "Q"),
    "publish_ns": (296, "Q"),
    "nbytes": (304, "Q"),
    "held": (312, "I"),
    "blocked_since_ns": (320, "Q"),
}
READER_FIELDS: Mapping[str, Field] = {
    "magic": (0, "Q"),
    "abi": (8, "I"),
    "max_pins": (12, "I"),
    "stream_id": (16, "Q"),
    "generation": (24, "Q"),
    "reader_id": (32, "Q"),
    "cursor": (64, "Q"),
    "not_before_ns": (72, "q"),
    "epoch": (128, "I"),
    "received": (192, "Q"),
    "skipped": (200, "Q"),
    "wakeups": (208, "Q"),
    "spurious": (216, "Q"),
    "retries": (224, "Q"),
    "longest_pin_ns": (232, "Q"),
    "dropped": (240, "Q"),
    "passed": (248, "Q"),
    "expired": (256, "Q"),
    "pinned": (264, "I"),
    "pinned_since_ns": (272, "Q"),
}
GROUP_FIELDS: Mapping[str, Field] = {
    "magic": (0, "Q"),
    "abi": (8, "I"),
    "nslots": (12, "I"),
    "stream_id": (16, "Q"),
    "generation": (24, "Q"),
    "group_id": (32, "Q"),
    "cursor": (64, "Q"),
    "returned": (128, "I"),
    "finished": (192, "Q"),
    "returns": (200, "Q"),
}
LATENCY = 320
BUCKETS = 24
WORDS = 512
"""Where pins and claims begin."""

META = struct.Struct("<QQQqqqq16sQQqqqIIIi")
META_NAMES = (
    *("generation", "seq", "nbytes", "pts_ns", "capture_ns", "publish_ns", "deadline_ns"),
    *("trace_id", "source_seq", "source_stream", "source_publish_ns", "awake_ns", "finish_ns"),
    *("model_version", "flags", "status", "device_event"),
)


class Meta(NamedTuple):
    """A frame's metadata, in the order of the page's table."""

    generation: int = 0
    seq: int = 0
    nbytes: int = 0
    pts_ns: int = UNKNOWN_NS
    capture_ns: int = UNKNOWN_NS
    publish_ns: int = 0
    deadline_ns: int = UNKNOWN_NS
    trace_id: bytes = bytes(16)
    source_seq: int = 0
    source_stream: int = 0
    source_publish_ns: int = 0
    awake_ns: int = 0
    finish_ns: int = 0
    model_version: int = 0
    flags: int = 0
    status: int = 0
    device_event: int = -1

    def packed(self) -> bytes:
        return META.pack(*self)


class Geometry(NamedTuple):
    stream: int = 7
    generation: int = 3
    nslots: int = 4
    slot_nbytes: int = 4096
    first_seq: int = 1

    @property
    def queue_len(self) -> int:
        return 1 << (self.nslots - 1).bit_length()

    @property
    def headers_offset(self) -> int:
        return _pages(4096 + 8 * self.queue_len)

    @property
    def writer_control_nbytes(self) -> int:
        return self.headers_offset + 4096 * self.nslots

    @property
    def group_control_nbytes(self) -> int:
        return _pages(512 + 8 * self.nslots)

    @property
    def payload_nbytes(self) -> int:
        return self.nslots * self.slot_nbytes


def reader_control_nbytes(max_pins: int) -> int:
    return _pages(512 + 8 * max_pins)


def _pages(nbytes: int) -> int:
    return -(-nbytes // 4096) * 4096


def tag(seq: int, low: int) -> int:
    return seq << 16 | low


def claim(seq: int, member: int, what: int) -> int:
    return tag(seq, member << 8 | what)


_numbers = itertools.count()


class SharedObject:
    """One shared object: its descriptor, mapped here, with its words by the names of a table."""

    def __init__(
        self, name: str, nbytes: int, fields: Mapping[str, Field] | None = None, kind: str = "memfd"
    ) -> None:
        self.fields = fields or {}
        self.posix: Path | None = None
        if kind == "posix":
            self.posix = Path(f"/dev/shm/mcpd-conformance-{os.getpid()}-{next(_numbers)}")
            self.fd = os.open(self.posix, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        else:
            self.fd = os.memfd_create(f"conformance:{name}")
        os.truncate(self.fd, nbytes)
        self.memory = mmap.mmap(self.fd, nbytes)
        self.u64 = memoryview(self.memory).cast("Q")
        self.u32 = memoryview(self.memory).cast("I")

    def close(self) -> None:
        self.u64.release()
        self.u32.release()
        self.memory.close()
        os.close(self.fd)
        if self.posix:
            self.posix.unlink(missing_ok=True)

    def __getitem__(self, name: str) -> int:
        """A word by its name in the table: one aligned load."""
        offset, kind = self.fields[name]
        if kind == "I":
            return self.u32[offset // 4]
        value = self.u64[offset // 8]
        return value - 2**64 if kind == "q" and value >= 2**63 else value

    def __setitem__(self, name: str, value: int) -> None:
        offset, kind = self.fields[name]
        if kind == "I":
            self.u32[offset // 4] = value
        else:
            self.u64[offset // 8] = value % 2**64

    def word(self, index: int) -> int:
        """A pin or claim."""
        return self.u64[WORDS // 8 + index]

    def set_word(self, index: int, value: int) -> None:
        self.u64[WORDS // 8 + index] = value


class WriterControl(SharedObject):
    def __init__(self, geometry: Geometry) -> None:
        super().__init__("wctl", geometry.writer_control_nbytes, WRITER_FIELDS)
        self.geometry = g = geometry
        values = {
            "magic": WRITER_MAGIC,
            "abi": ABI,
            "stream_id": g.stream,
            "generation": g.generation,
            "nslots": g.nslots,
            "queue_len": g.queue_len,
            "slot_nbytes": g.slot_nbytes,
            "first_seq": g.first_seq,
            "head": g.first_seq - 1,
        }
        for name, value in values.items():
            self[name] = value

    def queue_at(self, seq: int) -> int:
        """Index of the word of a frame's queue entry in u64."""
        return 512 + (seq & (self.geometry.queue_len - 1))

    def entry(self, seq: int) -> int:
        return self.u64[self.queue_at(seq)]

    def header(self, slot: int) -> int:
        """Offset of a slot's header."""
        return self.geometry.headers_offset + 4096 * slot

    def state(self, slot: int) -> int:
        return self.u64[self.header(slot) // 8]

    def set_state(self, slot: int, value: int) -> None:
        self.u64[self.header(slot) // 8] = value

    def meta(self, slot: int) -> Meta:
        return Meta(*META.unpack_from(self.memory, self.header(slot) + 64))

    def set_meta(self, slot: int, meta: Meta) -> None:
        META.pack_into(self.memory, self.header(slot) + 64, *meta)

    def set_description(self, slot: int, offset: int, value: int) -> None:
        """One u32 of a slot's description."""
        self.u32[(self.header(slot) + 256 + offset) // 4] = value


class ReaderControl(SharedObject):
    def __init__(self, geometry: Geometry, reader: int, max_pins: int) -> None:
        super().__init__("rctl", reader_control_nbytes(max_pins), READER_FIELDS)
        self.max_pins = max_pins
        values = {
            "magic": READER_MAGIC,
            "abi": ABI,
            "max_pins": max_pins,
            "stream_id": geometry.stream,
            "generation": geometry.generation,
            "reader_id": reader,
        }
        for name, value in values.items():
            self[name] = value

    def pins(self) -> list[int]:
        return [self.word(k) for k in range(self.max_pins)]

    def latency(self) -> list[int]:
        return list(self.u64[LATENCY // 8 : LATENCY // 8 + BUCKETS])


class GroupControl(SharedObject):
    def __init__(self, geometry: Geometry, group: int) -> None:
        super().__init__("gctl", geometry.group_control_nbytes, GROUP_FIELDS)
        self.geometry = geometry
        values = {
            "magic": GROUP_MAGIC,
            "abi": ABI,
            "nslots": geometry.nslots,
            "stream_id": geometry.stream,
            "generation": geometry.generation,
            "group_id": group,
        }
        for name, value in values.items():
            self[name] = value

    def claims(self) -> list[int]:
        return [self.word(k) for k in range(self.geometry.nslots)]

    def sweep(self, member: int, *, others: bool) -> None:
        """The daemon's part when a member is gone, in the page's words."""
        for slot, word in enumerate(self.claims()):
            its_own = word & 0xFFFF == member << 8 | TAKEN
            if others and its_own:
                self.set_word(slot, word - TAKEN + RETURNED)
                self["returns"] += 1
            elif not others and (its_own or word & 0xFF == RETURNED):
                self.set_word(slot, (word & ~0xFF) + DONE)
                self["finished"] += 1
        self["returned"] = (self["returned"] + 1) % 2**32
