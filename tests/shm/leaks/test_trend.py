"""trend: known slopes are found within their intervals, and what has none is not given one."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from mcpd.shm.leaks.trend import Trend, fit

LENGTH = 300


def series(noise: Callable[[random.Random, float, int], float], seed: int, slope: float) -> Trend:
    """`noise` gets the noise before; the slope is per reading."""
    source = random.Random(seed)
    last, values = 0.0, []
    for number in range(LENGTH):
        last = noise(source, last, number)
        values.append(slope * number + last)
    return fit([float(number) for number in range(LENGTH)], values)


def white(source: random.Random, _last: float, _number: int) -> float:
    return source.gauss(0, 1)


def correlated(source: random.Random, last: float, _number: int) -> float:
    return 0.9 * last + source.gauss(0, 1)


def walk(source: random.Random, last: float, _number: int) -> float:
    return last + source.gauss(0, 1)


def sawtooth(source: random.Random, _last: float, number: int) -> float:
    return number % 37 + source.gauss(0, 0.1)


NOISES = (white, correlated, walk, sawtooth)


@pytest.mark.parametrize("noise", NOISES)
def test_what_does_not_grow_is_hardly_ever_said_to(
    noise: Callable[[random.Random, float, int], float],
) -> None:
    wrong = sum(series(noise, seed, 0.0).low > 0 for seed in range(100, 140))
    assert wrong <= 2


@pytest.mark.parametrize(
    ("noise", "slope"), [(white, 0.05), (correlated, 0.2), (walk, 1.0), (sawtooth, 0.3)]
)
def test_a_known_slope_lies_in_the_interval_and_is_seen(
    noise: Callable[[random.Random, float, int], float], slope: float
) -> None:
    trends = [series(noise, seed, slope) for seed in range(40)]
    assert sum(trend.low <= slope <= trend.high for trend in trends) >= 37
    assert sum(trend.low > 0 for trend in trends) >= 36


def test_a_step_is_told_from_a_slope() -> None:
    source = random.Random(5)
    values = [source.gauss(0, 1) + (100 if number >= 150 else 0) for number in range(LENGTH)]
    trend = fit(list(map(float, range(LENGTH))), values)
    assert len(trend.steps) == 1
    assert trend.steps[0].height == pytest.approx(100, abs=5)
    assert trend.steps[0].at_s == pytest.approx(150, abs=10)
    assert trend.low < 0.01


def test_a_staircase_is_a_slope() -> None:
    values = [float(number // 10) for number in range(LENGTH)]
    trend = fit(list(map(float, range(LENGTH))), values, 1.0)
    assert trend.steps == ()
    assert trend.slope == pytest.approx(0.1, rel=0.05)
    assert trend.low > 0.08


def test_spikes_do_not_move_the_slope() -> None:
    values = [number * 1.0 + (10_000 if number == 299 else 0) for number in range(LENGTH)]
    assert fit(list(map(float, range(LENGTH))), values).slope == pytest.approx(1, rel=0.01)


def test_a_constant_is_exactly_flat() -> None:
    trend = fit(list(map(float, range(20))), [7.0] * 20)
    assert (trend.slope, trend.low, trend.high) == (0, 0, 0)


@pytest.mark.parametrize("length", [0, 1, 7])
def test_too_few_readings_are_not_told(length: int) -> None:
    assert not fit(list(map(float, range(length))), [1.0] * length).told
