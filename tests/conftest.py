"""Fixtures that every part of the tests may use."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.daemon import RunningDaemon

WATCH_DEV_SHM = ("tests/shm/leaks/", "tests/cli/test_leaks", "tests/shm/test_segment.py")
"""Files whose tests make names under /dev/shm, or look at all there are: one after the other."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A file's tests stay in one process, for they share daemons and programs (loadgroup)."""
    for item in items:
        file = item.nodeid.partition("::")[0]
        group = "dev-shm" if file.startswith(WATCH_DEV_SHM) else file
        item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(scope="session", autouse=True)
def signals_reach_children() -> None:
    """SIGINT is not ignored, as it is in what a shell starts in the background: tests send it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def model_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the small models of tests/support/models.py; shared, so only to read."""
    from tests.support.models import write_repository

    folder = tmp_path_factory.mktemp("models")
    write_repository(folder)
    return folder


@pytest.fixture
def daemon(tmp_path: Path, model_repository: Path) -> Iterator[RunningDaemon]:
    """A daemon with the small models, each loaded when it is first asked for, never parked."""
    with RunningDaemon(tmp_path, model_repository, arguments=["--park-after", "0"]) as running:
        yield running


@pytest.fixture
def bare_daemon(tmp_path: Path) -> Iterator[RunningDaemon]:
    """A daemon without models: nothing but streams."""
    with RunningDaemon(tmp_path) as running:
        yield running
