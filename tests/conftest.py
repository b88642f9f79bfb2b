"""Fixtures that every part of the tests may use."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemon import RunningDaemon

WATCH_DEV_SHM = (
    *("tests/shm/leaks/", "tests/cli/test_leaks", "tests/shm/test_segment.py"),
    *("tests/bench/test_stream.py", "tests/bench/test_leaks.py"),
)
"""Files whose tests make names under /dev/shm, or look at all there are: one after the other."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Files side by side, but for those that watch /dev/shm: each sees what the others plant."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return "dev-shm" if file.startswith(WATCH_DEV_SHM) else file

    return Scheduling(config, log)


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
