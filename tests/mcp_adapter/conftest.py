"""Fixtures of the adapter's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.adapter import MODES


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    """Each era of the protocol."""
    chosen: str = request.param
    return chosen


@pytest.fixture
def no_daemon(tmp_path: Path) -> str:
    """A socket path where nobody listens."""
    return str(tmp_path / "none.sock")
