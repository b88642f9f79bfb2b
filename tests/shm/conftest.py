"""One daemon for all tests of a file that leave it as it was, and a client of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from mcpd.shm import Client, connect
from tests.support.daemon import RunningDaemon
from tests.support.descriptors import no_descriptor_leaked

_numbers = itertools.count()


@pytest.fixture(scope="module")
def shared(
    tmp_path_factory: pytest.TempPathFactory, model_repository: Path
) -> Iterator[RunningDaemon]:
    """A daemon with the small models, which may be used but not killed."""
    folder = tmp_path_factory.mktemp("daemon")
    # Its tests kill more workers than a model may lose.
    never = ["--park-after", "0"]
    with RunningDaemon(folder, model_repository, arguments=never) as running:
        yield running


@pytest.fixture
def client(shared: RunningDaemon) -> Iterator[Client]:
    with no_descriptor_leaked(), connect(shared.socket, name="tester") as made:
        yield made


@pytest.fixture(scope="module")
def mortal(
    tmp_path_factory: pytest.TempPathFactory, model_repository: Path
) -> Iterator[RunningDaemon]:
    """A daemon that may be killed by a test that starts it again."""
    with RunningDaemon(tmp_path_factory.mktemp("daemon"), model_repository) as running:
        yield running


@pytest.fixture
def kept(mortal: RunningDaemon) -> Iterator[Client]:
    with no_descriptor_leaked(), connect(mortal.socket, name="kept", reconnect=True) as made:
        yield made


@pytest.fixture
def name() -> str:
    """Of a stream: another one in each test, for the daemon remembers where numbers go on."""
    return f"cam{next(_numbers)}"
