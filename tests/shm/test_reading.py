"""What a reader may ask for; what is out of its limits is refused with the value and the limit."""

from __future__ import annotations

from typing import Any

import pytest

from mcpd.native import _core
from mcpd.shm.errors import InvalidRequest
from mcpd.shm.reading import Reading, check_reading

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"policy": "newest"}, "policy 'newest' is not one of latest, fifo, lossless"),
    ({"max_pins": 0}, "max_pins is 0; it must be 1 to 256"),
    ({"max_pins": 257}, "max_pins is 257; it must be 1 to 256"),
    ({"max_pins": "2"}, "max_pins is '2'"),
    ({"max_pins": True}, "max_pins is True"),
    ({"policy": "fifo"}, "depth is 0; it must be 1 to 4096"),
    ({"policy": "fifo", "depth": -1}, "depth is -1; it must be 1 to 4096"),
    ({"policy": "fifo", "depth": 4097}, "depth is 4097; it must be 1 to 4096"),
    ({"policy": "fifo", "depth": 1.5}, "depth is 1.5"),
    ({"depth": 3}, "depth is 3 with policy 'latest'; only fifo and lossless have one"),
    ({"policy": "lossless", "depth": -1}, "depth is -1; it must be 0 to 4096"),
    ({"policy": "lossless", "depth": 4097}, "depth is 4097; it must be 0 to 4096"),
    ({"group": "-bad"}, "group name '-bad' is not valid"),
    ({"group": "x" * 64}, "group name 'x{64}' is not valid"),
    ({"group": 5}, "group name '5' is not valid"),
    ({"every_n": -1}, "every_n is -1; it must be 0 to 2147483648"),
    ({"every_n": 2.0}, "every_n is 2.0"),
    ({"every_n": 1 << 32}, "every_n is 4294967296"),
    ({"max_fps": -5}, "max_fps is -5; it must be 0.001 to 1e.06, or 0"),
    ({"max_fps": float("nan")}, "max_fps is nan"),
    ({"max_fps": float("inf")}, "max_fps is inf"),
    ({"max_fps": 1e9}, "max_fps is 1000000000.0"),
    ({"max_fps": "5"}, "max_fps is '5'"),
    ({"group": "g", "every_n": 2}, "members do not thin"),
    ({"group": "g", "max_fps": 2}, "members do not thin"),
    ({"group": "g", "skip_expired": True}, "members do not thin"),
]


@pytest.mark.parametrize(("values", "text"), REFUSED)
def test_value_out_of_its_limits_is_refused_with_a_next_step(
    values: dict[str, Any], text: str
) -> None:
    with pytest.raises(InvalidRequest, match=text) as caught:
        Reading(**values)
    assert caught.value.hint


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"policy": "fifo", "depth": 1},
        {"policy": "fifo", "depth": _core.MAX_SLOTS, "max_pins": _core.MAX_PINS},
        {"policy": "lossless", "group": "workers.1", "follow": True},
        {"policy": "lossless", "depth": 1},
        {"every_n": 1, "max_fps": 0.5, "skip_expired": True},
        {"group": "g", "every_n": 1},
    ],
)
def test_value_within_its_limits_is_taken(values: dict[str, Any]) -> None:
    reading = Reading(**values)
    message = reading.attach("cam0")
    check_reading(message.policy, message.max_pins, message.depth, message.group)


def test_frames_a_second_become_the_time_between_two() -> None:
    assert Reading(max_fps=25).interval_ns == 40_000_000
    assert Reading().interval_ns == 0
