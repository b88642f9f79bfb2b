"""The same frames handed over both ways, for real."""

from __future__ import annotations

import base64

import numpy as np
import pytest
from numpy.typing import NDArray

from mcpd.cli.demo.comparison import hand_over_as_json, hand_over_in_slots
from mcpd.shm import connect
from mcpd.shm.errors import McpdError
from tests.support.daemon import RunningDaemon

Picture = NDArray[np.uint8]


@pytest.fixture
def frames() -> list[Picture]:
    random = np.random.default_rng(3)
    return [random.integers(0, 256, (120, 160, 3), np.uint8) for _ in range(6)]


def test_base64_carries_four_thirds_of_the_frame(frames: list[Picture]) -> None:
    handover = hand_over_as_json(frames)
    assert handover.frames == 3
    assert handover.nbytes > frames[0].nbytes * 4 / 3


def test_a_slot_carries_none_of_the_frame(
    frames: list[Picture], bare_daemon: RunningDaemon
) -> None:
    with connect(bare_daemon.socket) as client:
        handover = hand_over_in_slots(frames, client)
        assert client.list("streams") == []
    assert handover.frames == 3
    assert handover.nbytes < 200


def test_a_frame_that_arrives_changed_is_noticed(
    frames: list[Picture], monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = base64.b64encode

    def spoil(data: memoryview) -> bytes:
        changed = np.array(data)
        changed[0, 0, 0] ^= 1
        return encode(changed.tobytes())

    monkeypatch.setattr(base64, "b64encode", spoil)
    with pytest.raises(McpdError, match="frame 0 arrived with mean"):
        hand_over_as_json(frames)
