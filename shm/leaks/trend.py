"""How fast a series of readings rises, how sure that is, and how long it would take to be surer.

The slope is the median of the slopes between all pairs of readings (Theil 1950), which spikes do
not move, with the interval that Sen gives (J. Am. Stat. Assoc. 63, 1968, p. 1379) from the variance
of Kendall's S. Readings of memory depend on those before them, which makes that interval too
narrow. So the readings are first joined into at most 60 parts of equal length, each its mean, and
the variance is multiplied by (1 + r) / (1 - r), r the correlation of a residual with the one before
it: the effective sample size of climate trends (Santer et al., J. Geophys. Res. 105, 2000, 7337),
with r corrected for what a short series makes it smaller by, (n r + 2) / (n - 4) (after Kendall,
Biometrika 41, 1954, p. 403).

What is added up and never given back leaves residuals that follow each other closely, however
steady it is. For these the rises from part to part are what is independent: their mean, with
Student's interval of it, is the drift of a random walk. Both intervals hold for what moves
slowly, so the narrower one counts. A random walk without drift comes out as not told.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median, variance

MAX_PARTS = 60
"""All pairs of these are looked at: 1770 slopes."""
MIN_PARTS = 8
"""With fewer the interval says nothing."""
Z = 2.576
"""99 %, two-sided: many series are looked at, and few of them leak."""
JUMP = 8.0
"""A step is that many times what a reading usually differs from the one before."""
MAX_STEPS = 3
"""Of more it is a staircase, which is growth."""


@dataclass(frozen=True)
class Step:
    """A rise at one moment."""

    at_s: float
    height: float


@dataclass(frozen=True)
class Trend:
    """The slope of a series, in units per second.

    Attributes:
        slope: Its estimate.
        low, high: Its 99 % interval; infinite if the series does not tell.
        span_s: What was looked at.
        steps: Rises at single moments, which the slope leaves out.
        records: In how many parts the series rose above all before.
    """

    slope: float
    low: float
    high: float
    span_s: float
    steps: tuple[Step, ...] = ()
    records: int = 0

    @property
    def half_width(self) -> float:
        """Of the interval."""
        return (self.high - self.low) / 2

    @property
    def told(self) -> bool:
        """Whether the interval ends anywhere."""
        return math.isfinite(self.low) and math.isfinite(self.high)


UNTOLD = (-math.inf, math.inf)


def fit(times_s: Sequence[float], values: Sequence[float], unit: float = 0.0) -> Trend:
    """The trend of a series without its steps.

    Args:
        times_s: When it was read, ascending.
        unit: The smallest difference that means anything.
    """
    times, parts = join(times_s, values)
    span_s = times_s[-1] - times_s[0] if len(times_s) > 1 else 0.0
    if len(parts) < MIN_PARTS:
        return Trend(0.0, *UNTOLD, span_s)
    steps = find_steps(times, parts, unit)
    level_parts = list(parts)
    for step in steps:
        level_parts = [
            value - step.height if time >= step.at_s else value
            for time, value in zip(times, level_parts, strict=True)
        ]
    # Means of neighbouring parts are correlated where their last readings are not.
    ends = (times, level_parts) if steps else (_last_of_parts(times_s), _last_of_parts(values))
    intervals = (theil_sen(times, level_parts), drift(*ends))
    slope, low, high = min(intervals, key=lambda found: found[2] - found[1])
    return Trend(slope, low, high, span_s, tuple(steps), count_records(level_parts, unit))


def join(times_s: Sequence[float], values: Sequence[float]) -> tuple[list[float], list[float]]:
    """At most MAX_PARTS means over equally many readings; a rest at the start is left out."""
    width = max(1, math.ceil(len(values) / MAX_PARTS))
    starts = range(len(values) % width, len(values), width)
    return (
        [fmean(times_s[i : i + width]) for i in starts],
        [fmean(values[i : i + width]) for i in starts],
    )


def _last_of_parts(values: Sequence[float]) -> list[float]:
    width = max(1, math.ceil(len(values) / MAX_PARTS))
    return list(values[len(values) % width + width - 1 :: width])


def theil_sen(times: Sequence[float], values: Sequence[float]) -> tuple[float, float, float]:
    """Slope, and the ends of its interval."""
    n = len(values)
    slopes = sorted(
        (values[j] - values[i]) / (times[j] - times[i])
        for i in range(n)
        for j in range(i + 1, n)
        if times[j] > times[i]
    )
    slope = median(slopes)
    residuals = [value - slope * time for time, value in zip(times, values, strict=True)]
    factor = inflation(residuals)
    deviation = math.sqrt(n * (n - 1) * (2 * n + 5) / 18 * factor)
    rank = (len(slopes) - Z * deviation) / 2
    if rank < 1:
        return slope, *UNTOLD
    low, high = slopes[int(rank) - 1], slopes[len(slopes) - int(rank)]
    return slope, low, high


def drift(times: Sequence[float], values: Sequence[float]) -> tuple[float, float, float]:
    """The mean of the rises between neighbours, and the ends of its interval."""
    rises = [
        (after - before) / (later - now)
        for now, later, before, after in zip(times, times[1:], values, values[1:], strict=False)
    ]
    n = len(rises)
    deviation = math.sqrt(variance(rises) / n * inflation(rises))
    # The ends of Student's distribution from those of the normal one (Cornish and Fisher 1938).
    freedom = n - 1
    t = Z + (Z**3 + Z) / (4 * freedom) + (5 * Z**5 + 16 * Z**3 + 3 * Z) / (96 * freedom**2)
    slope = fmean(rises)
    return slope, slope - t * deviation, slope + t * deviation


def inflation(residuals: Sequence[float]) -> float:
    """By how much the variance is larger than that of readings that know nothing of each other."""
    n = len(residuals)
    middle = fmean(residuals)
    apart = [value - middle for value in residuals]
    total = sum(value * value for value in apart)
    if total <= 0:
        return 1.0
    r = sum(a * b for a, b in pairwise(apart)) / total
    r = min((n * r + 2) / (n - 4), 1 - 1 / n)
    return max(1.0, (1 + r) / (1 - r))


def find_steps(times: Sequence[float], values: Sequence[float], unit: float) -> list[Step]:
    """Rises at single moments that stand out from how the series moves otherwise."""
    moves = [b - a for a, b in pairwise(values)]
    usual = median(moves)
    spread = max(1.4826 * median(abs(move - usual) for move in moves), unit)
    steps: list[Step] = []
    at = 0
    while at < len(moves):
        # The mean of a part within which it rose lies between: two moves make one step.
        height = moves[at] - usual
        width = 1
        if at + 1 < len(moves) and moves[at + 1] - usual > JUMP * spread:
            height += moves[at + 1] - usual
            width = 2
        if moves[at] - usual > JUMP * spread:
            steps.append(Step(times[at + 1], height))
            at += width
        else:
            at += 1
    return steps if len(steps) <= MAX_STEPS else []


def count_records(values: Sequence[float], unit: float) -> int:
    """How often the series rose above all that it was before."""
    highest, count = values[0], 0
    for value in values[1:]:
        if value > highest + unit / 4:
            highest = value
            count += 1
    return count
