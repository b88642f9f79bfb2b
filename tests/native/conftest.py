"""Fixtures of the tests of the C core."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.native.streams import TestStream


@pytest.fixture
def stream() -> Iterator[TestStream]:
    """A stream of eight slots with a writer."""
    with TestStream() as stream:
        yield stream
