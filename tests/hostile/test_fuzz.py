"""A fixed number of inputs for each fuzz target; `python -m tests.hostile.fuzz` runs long."""

from __future__ import annotations

import pytest

from mcpd.shm import wire
from tests.hostile import fuzz


@pytest.mark.parametrize(
    ("target", "inputs"), [("decoder", 20_000), ("transport", 1000), ("daemon", 1500)]
)
def test_target_finds_nothing(target: str, inputs: int) -> None:
    assert fuzz.TARGETS[target][0](inputs, 7) == 0


def test_an_error_that_is_not_ours_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "_UNREADABLE", (RecursionError,))
    assert fuzz.fuzz_decoder(100, 7) > 0
