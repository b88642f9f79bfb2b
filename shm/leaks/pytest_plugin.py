"""pytest plugin: tests that leave nothing behind. Does nothing unless it is asked for.

    pytest --mcpd-leaks            every test
    @pytest.mark.no_leaks          one test; options as of assert_no_leaks
    def test_x(no_leaks): ...      one test, and the fixtures that it names after this one

What is checked is imported only when a test is.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

import pytest

MARKER = (
    "no_leaks(ignore=(), tolerance={}, kinds=None, ...): fails if the test leaves anything behind"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds --mcpd-leaks."""
    group = parser.getgroup("mcpd")
    group.addoption(
        "--mcpd-leaks",
        action="store_true",
        help="fail each test that leaves descriptors, mappings, threads, processes, names in "
        "/dev/shm or leases of mcpd behind",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Makes the marker known."""
    config.addinivalue_line("markers", MARKER)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Checks the test itself: what its fixtures keep is theirs until they end."""
    marker = item.get_closest_marker("no_leaks")
    if marker is None and not item.config.getoption("--mcpd-leaks"):
        return (yield)
    options: dict[str, Any] = dict(marker.kwargs) if marker is not None else {}
    from mcpd.shm.leaks.checks import assert_no_leaks

    with assert_no_leaks(**options):
        return (yield)


@pytest.fixture
def no_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails the test, as it ends, if it left anything behind."""
    from mcpd.shm.leaks.checks import assert_no_leaks

    with assert_no_leaks():
        yield
