"""Fixtures of the tests of the C core."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.native.streams import TestStream
from tests.support.libmcpd import LibMcpd, copy_sources, make
from tests.support.prepare import isas


@pytest.fixture
def stream() -> Iterator[TestStream]:
    """A stream of eight slots with a writer."""
    with TestStream() as stream:
        yield stream


@pytest.fixture(scope="session")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prefix with nothing but libmcpd, built from a fresh copy of the sources and installed."""
    work = tmp_path_factory.mktemp("libmcpd")
    native = copy_sources(work)
    into = work / "prefix"
    make(native, f"PREFIX={into}", "CFLAGS=-O1 -g -Werror", "install")
    return into


@pytest.fixture(scope="session")
def libmcpd(prefix: Path) -> LibMcpd:
    """The installed shared library."""
    return LibMcpd(prefix / "lib/libmcpd.so.1")


@pytest.fixture(params=isas())
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The instruction set that preparations made in the test run by."""
    name: str = request.param
    monkeypatch.setenv("MCPD_PREPARE", name)
    return name
