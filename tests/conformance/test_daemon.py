"""The daemon's part of our implementation makes and sweeps the objects that the page draws."""

from __future__ import annotations

import random

import pytest

from mcpd.native import _core
from tests.conformance.objects import (
    DONE,
    RETURNED,
    TAKEN,
    Geometry,
    GroupControl,
    ReaderControl,
    SharedObject,
    WriterControl,
    claim,
    reader_control_nbytes,
)

GEOMETRIES = [
    Geometry(nslots=nslots, first_seq=first, slot_nbytes=slot_nbytes)
    for nslots, first, slot_nbytes in (
        (2, 1, 4096),
        (3, 2, 8192),
        (512, 2**48 - 1, 2**40),
        (513, 77, 4096),
        (4096, 1, 2**30),
    )
]


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_sizes_are_those_of_the_page(geometry: Geometry) -> None:
    g = geometry
    assert _core.writer_control_nbytes(g.nslots) == g.writer_control_nbytes
    assert _core.group_control_nbytes(g.nslots) == g.group_control_nbytes
    assert _core.payload_nbytes(g.nslots, g.slot_nbytes) == g.payload_nbytes
    for max_pins in (1, 256):
        assert _core.reader_control_nbytes(max_pins) == reader_control_nbytes(max_pins)


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_objects_are_formatted_as_the_page_says(geometry: Geometry) -> None:
    g = geometry
    drawn: list[SharedObject] = [
        WriterControl(g),
        ReaderControl(g, 99, 5),
        GroupControl(g, 2**63 + 1),
    ]
    made = [SharedObject("made", len(item.memory)) for item in drawn]
    try:
        _core.WriterControl(made[0].fd, g.nslots).initialise(
            g.stream, g.generation, g.slot_nbytes, g.first_seq
        )
        _core.ReaderControl(made[1].fd, 5).initialise(g.stream, g.generation, 99)
        _core.GroupControl(made[2].fd, g.nslots).initialise(g.stream, g.generation, 2**63 + 1)
        for one, other in zip(drawn, made, strict=True):
            assert one.memory[:] == other.memory[:]
    finally:
        for item in (*drawn, *made):
            item.close()


@pytest.mark.parametrize("others", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_a_sweep_is_that_of_the_page(seed: int, others: bool) -> None:
    chance = random.Random(seed)
    geometry = Geometry(nslots=64)
    drawn, made = GroupControl(geometry, 1), GroupControl(geometry, 1)
    try:
        for slot in range(64):
            states = (0, TAKEN, DONE, RETURNED)
            word = claim(chance.randrange(1, 2**48), chance.randrange(3), chance.choice(states))
            for group in (drawn, made):
                group.set_word(slot, word)
        drawn.sweep(1, others=others)
        _core.GroupControl(made.fd, 64).sweep(1, others)
        assert drawn.memory[:] == made.memory[:]
        assert drawn["returned"] == 1
    finally:
        drawn.close()
        made.close()
