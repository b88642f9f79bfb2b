"""Every test here runs on each segment kind, with each implementation at each end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.programs import ADDRESS, Programs, build
from tests.conformance.streams import IMPLEMENTATIONS, Pairing, Stream, pairings


@pytest.fixture(scope="session")
def programs() -> Iterator[Programs]:
    programs = Programs(build("commands.c", ADDRESS))
    yield programs
    programs.end()


def name_of(param: Pairing) -> str:
    return "-".join(param)


def made(programs: Programs, param: Pairing) -> Iterator[Stream]:
    stream = Stream(programs, *param)
    yield stream
    programs.give_back_all()
    stream.close()


@pytest.fixture(params=pairings(IMPLEMENTATIONS, IMPLEMENTATIONS), ids=name_of)
def stream(request: pytest.FixtureRequest, programs: Programs) -> Iterator[Stream]:
    """A stream that is still to be opened: writer's implementation, reader's, segment kind."""
    yield from made(programs, request.param)


@pytest.fixture(params=pairings(("second",), IMPLEMENTATIONS), ids=name_of)
def halting_writer(request: pytest.FixtureRequest, programs: Programs) -> Iterator[Stream]:
    """A stream whose writer can be halted, or killed, at a step; its readers are of either kind."""
    yield from made(programs, request.param)


@pytest.fixture(params=pairings(IMPLEMENTATIONS, IMPLEMENTATIONS), ids=name_of)
def halting_reader(request: pytest.FixtureRequest, programs: Programs) -> Iterator[Stream]:
    """A stream with a writer and readers of either kind; those made with `halts=True` can be
    halted, or killed, at a step."""
    yield from made(programs, request.param)
