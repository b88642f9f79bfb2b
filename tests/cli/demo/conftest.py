"""Fixtures of the demo's tests."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder with room for a socket's path below it, of which there may be 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="mcpd-", dir="/tmp") as folder:
        yield Path(folder)
