"""Streams, readers and groups as rows of the daemon's tables; docs/control.md names every field."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from mcpd.daemon.leases import REASONS, Group, Reader, Stream
from mcpd.daemon.session import Session

Row = dict[str, Any]

_WRITER_COUNTERS = (
    *("head", "published", "abandoned", "would_block", "blocked_ns", "blocked_since_ns"),
    *("wakes", "publish_ns"),
)
_READER_COUNTERS = (
    *("received", "skipped", "dropped", "passed", "expired", "wakeups", "spurious", "retries"),
    *("pinned", "pinned_since_ns", "longest_pin_ns"),
)


_TAKEN = 1  # of a claim's states, see docs/protocol.md


def owner(session: Session) -> Row:
    """Whose it is."""
    return {"session": session.number, "pid": session.peer.pid, "client": session.client}


def stream_row(stream: Stream) -> Row:
    """A stream as its writer writes it now."""
    counters = stream.counters.stats()
    return {
        "id": stream.id,
        "name": stream.name,
        "kind": stream.spec.kind,
        "state": stream.state,
        "format": stream.spec.format,
        "width": stream.spec.width,
        "height": stream.spec.height,
        "slots": stream.spec.slots,
        "slot_nbytes": stream.slot_nbytes,
        "memory": stream.spec.memory,
        "memory_bytes": stream.nbytes,
        "writer_pid": stream.session.peer.pid,
        "writer": stream.session.client,
        "readers": sum(r.state != "quarantined" for r in stream.readers.values()),
        "generation": stream.generation,
        "first_seq": stream.first_seq,
        **{name: counters[name] for name in _WRITER_COUNTERS},
        "published_nbytes": counters["nbytes"],
        "fps": round(stream.read_fps(counters["head"]), 2),
        "since": stream.since_s,
    }


def reader_row(reader: Reader) -> Row:
    """A reader of a generation, with what its own control object counts."""
    stats = reader.counters.stats()
    return {
        "id": reader.id,
        "stream": reader.stream.id,
        "name": reader.stream.name,
        "generation": reader.stream.generation,
        **owner(reader.session),
        "policy": reader.policy,
        "depth": reader.depth,
        "group": reader.group.name if reader.group is not None else "",
        "max_pins": reader.max_pins,
        "follow": reader.follow,
        "state": reader.state,
        "evicted": reader.evicted,
        "stall_limit_s": reader.stall_limit_s,
        "stalled_s": _stalled_s(reader),
        "cursor": stats["cursor"],
        "lag": lag(reader),
        **{name: stats[name] for name in _READER_COUNTERS},
        "latency": reader.counters.latency(),
        "since": reader.since_s,
    }


def stream_leases(stream: Stream) -> Iterator[Row]:
    """A generation and its segments."""
    if stream.state == "ended":
        # Nobody writes it any more; it stands while its writer's process or a reader has it mapped.
        state = "quarantined" if stream.mapped else "draining"
    else:
        state = stream.state
    common = {
        "name": stream.name,
        "generation": stream.generation,
        **owner(stream.session),
        "since": stream.since_s,
    }
    reason = REASONS.get(stream.reason, "")
    yield {
        "kind": "stream",
        "id": stream.id,
        **common,
        "bytes": 0,
        "state": state,
        "reason": reason,
        "site": stream.site,
    }
    for segment in (stream.payload, stream.control):
        yield {
            "kind": "segment",
            "id": stream.id,
            **common,
            "name": segment.name,
            "bytes": segment.nbytes,
            "state": state,
            "memory": segment.memory,
            "offset": segment.offset,
            "seals": segment.seals,
        }


def group_lease(group: Group) -> Row:
    """The object of a group's claims, listed as its stream's writer's."""
    return {
        "kind": "group",
        "id": group.id,
        "name": f"{group.stream.name}/{group.name}",
        "generation": group.stream.generation,
        **owner(group.stream.session),
        "since": group.since_s,
        "bytes": group.control.nbytes,
        "state": "left" if group.left else "live",
        "policy": group.policy,
        "members": sorted(reader.id for reader in group.members.values()),
        "claims": [list(claim) for claim in group.counters.claims()],
    }


def reader_lease(reader: Reader) -> Row:
    """A reader and what it has pinned."""
    stats = reader.counters.stats()
    return {
        "kind": "reader",
        "id": reader.id,
        "name": reader.stream.name,
        "generation": reader.stream.generation,
        **owner(reader.session),
        "since": reader.since_s,
        "bytes": reader.control.nbytes,
        "state": reader.state,
        "policy": reader.policy,
        "pins": [list(pin) for pin in _pins(reader)],
        "site": reader.site,
        **{key: stats[key] for key in ("cursor", "received", "skipped", "pinned_since_ns")},
    }


def _stalled_s(reader: Reader) -> float:
    """How long it has held its writer up by now."""
    if reader.stalled_since_s is None:
        return 0.0
    return round(max(0.0, asyncio.get_running_loop().time() - reader.stalled_since_s), 3)


def _pins(reader: Reader) -> list[tuple[int, int]]:
    if reader.group is None:
        return reader.counters.pins()
    claims = reader.group.counters.claims()
    return [
        (seq, slot) for slot, seq, member, state in claims if (member, state) == (reader.member, 1)
    ]


def lag(reader: Reader) -> int:
    """Frames published that a reader, or its group, has not come to."""
    cursor = reader.counters.stats()["cursor"]
    if reader.group is not None:
        cursor = reader.group.counters.stats()["cursor"]
    cursor = max(cursor, reader.start_seq, reader.stream.first_seq)
    return max(0, reader.stream.head() + 1 - cursor)
