"""Cycles of everything a client does leave descriptors and mappings as they were."""

from __future__ import annotations

import os

import pytest

from tests.hostile import cycles
from tests.support.daemon import RunningDaemon


def test_300_cycles_grow_neither_descriptors_nor_mappings(bare_daemon: RunningDaemon) -> None:
    slopes = cycles.run(bare_daemon, 300)
    # Memory settles only after some thousand cycles: `python -m tests.hostile.cycles` looks at it.
    counted = {
        name: {thing: things[thing] for thing in ("fds", "mappings")}
        for name, things in slopes.items()
    }
    assert cycles.growing(counted) == []


def test_a_descriptor_kept_in_every_tenth_cycle_is_found(
    bare_daemon: RunningDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[int] = []
    honest = cycles.cycle

    def leaking(socket: str, number: int) -> None:
        honest(socket, number)
        if number % 10 == 0:
            kept.append(os.open(os.devnull, os.O_RDONLY))

    monkeypatch.setattr(cycles, "cycle", leaking)
    try:
        found = cycles.growing(cycles.run(bare_daemon, 100))
    finally:
        for fd in kept:
            os.close(fd)
    assert any(text.startswith("fds of the client grow") for text in found), found
