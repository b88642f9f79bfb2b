"""Whether what a process uses grows, how fast, and what kind of memory it is that grows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from mcpd.shm.leaks.sampling import FIGURES, Figure, Series
from mcpd.shm.leaks.smaps import KINDS, SHARED
from mcpd.shm.leaks.trend import MIN_PARTS, Trend, fit

GROWING = "growing"
FLAT = "flat"
UNTOLD = "could not tell"
STATUS = {FLAT: 0, GROWING: 1, UNTOLD: 2}
"""Exit statuses."""

MIN_RECORDS = 3
"""What rose at fewer moments may have been set up once."""
WARM_UP_SHARE = 0.2
MAX_WARM_UP_S = 300.0
MOSTLY = 0.6
"""A kind with this share of the growth is named alone."""
PRIVATE_KINDS = tuple(kind for kind in KINDS if kind != SHARED)
_HOUR = 3600.0


@dataclass(frozen=True)
class Finding:
    """What one figure of one process does.

    Attributes:
        figure: Its name in FIGURES.
        verdict: GROWING, FLAT or UNTOLD.
        trend: Per second.
        first, last: What it was after warm-up, and at the end.
        reason: Why it could not be told, or what else there is to say.
        needed_s: How long to watch so that it could be told; 0 if it was.
        kinds: Of private memory that grows: shares by kind, the largest first.
    """

    figure: str
    verdict: str
    trend: Trend
    first: float
    last: float
    reason: str = ""
    needed_s: float = 0.0
    kinds: tuple[tuple[str, float], ...] = ()

    @property
    def rate(self) -> str:
        """`3.1 MB/h (±0.2)`."""
        return format_rate(self.trend, FIGURES[self.figure])

    def sentence(self) -> str:
        """`growing 3.1 MB/h (±0.2), mostly heap`, `flat`, or why it could not be told."""
        text = FIGURES[self.figure].text
        if self.verdict == GROWING:
            words = f"{text} growing {self.rate}"
            kinds = kinds_in_words(self.kinds)
            return ", ".join(part for part in (words, kinds, self.reason) if part)
        if self.verdict == FLAT:
            return f"{text} flat" + (f" ({self.reason})" if self.reason else "")
        needed = f"; watch for {format_span(self.needed_s)}" if self.needed_s else ""
        return f"{text}: could not tell: {self.reason}{needed}"

    def to_dict(self) -> dict[str, Any]:
        """For JSON; rates per hour, null where the series does not tell."""
        trend = self.trend
        return {
            "figure": self.figure,
            "verdict": self.verdict,
            "per_hour": trend.slope * _HOUR if trend.told else None,
            "low_per_hour": trend.low * _HOUR if trend.told else None,
            "high_per_hour": trend.high * _HOUR if trend.told else None,
            "first": self.first,
            "last": self.last,
            "steps": [{"at_s": step.at_s, "height": step.height} for step in trend.steps],
            "reason": self.reason,
            "needed_s": round(self.needed_s, 3),
            "kinds": dict(self.kinds),
        }


@dataclass(frozen=True)
class Judged:
    """One process with all that was found about it."""

    series: Series
    findings: list[Finding] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """GROWING if any figure grows, else UNTOLD if any could not be told, else FLAT."""
        return verdict_of([finding.verdict for finding in self.findings])

    def sentences(self) -> list[str]:
        """One for each figure that grows or could not be told; `flat` if there is none."""
        told = [f.sentence() for f in self.findings if f.verdict != FLAT or f.reason]
        return told or ["flat" if self.findings else "nothing was read"]


def verdict_of(verdicts: Sequence[str]) -> str:
    """The gravest; UNTOLD if there is none."""
    for verdict in (GROWING, UNTOLD, FLAT):
        if verdict in verdicts:
            return verdict
    return UNTOLD


def judge(series: Series, *, warm_up_s: float | None = None, limit: float | None = None) -> Judged:
    """Every judged figure of one process.

    Args:
        warm_up_s: What is left out at its beginning; None: a fifth, and at most 5 minutes.
        limit: Of memory, bytes per hour: what surely grows less is flat; None: as in FIGURES.
    """
    if not series.times_s:
        return Judged(series)
    if warm_up_s is None:
        warm_up_s = min(WARM_UP_SHARE * (series.times_s[-1] - series.times_s[0]), MAX_WARM_UP_S)
    since_s = series.times_s[0] + warm_up_s
    findings = []
    for name, figure in FIGURES.items():
        if figure.judged and name in series.values:
            if limit is not None and figure.is_bytes:
                figure = figure._replace(limit_per_h=limit)
            finding = judge_figure(name, figure, *series.known(name, since_s))
            if finding.verdict == GROWING and name == "private":
                kinds = shares([kind for kind in series.kinds if kind[0] >= since_s])
                finding = Finding(**{**vars(finding), "kinds": kinds})
            findings.append(finding)
    return Judged(series, findings)


def judge_figure(
    name: str, figure: Figure, times_s: Sequence[float], values: Sequence[float]
) -> Finding:
    """One series: the trend, and what follows from it."""
    trend = fit(times_s, values, figure.unit)
    first, last = (values[0], values[-1]) if values else (0.0, 0.0)

    def found(verdict: str, reason: str = "", needed_s: float = 0.0) -> Finding:
        return Finding(name, verdict, trend, first, last, reason, needed_s)

    span_s = trend.span_s
    if len(values) < MIN_PARTS:
        pause_s = span_s / (len(values) - 1) if len(values) > 1 else 1.0
        return found(UNTOLD, f"too short: {len(values)} readings", 4 * MIN_PARTS * pause_s)
    if not trend.told:
        return found(UNTOLD, "it moves too slowly for the time it was watched", 3 * span_s)
    steps = [step for step in trend.steps if step.height >= figure.unit]
    stepped = ", ".join(
        f"+{format_amount(s.height, figure)} at {format_span(s.at_s)}" for s in steps
    )
    half = len(values) // 2
    later = fit(times_s[half:], values[half:], figure.unit)
    if trend.low * span_s >= figure.unit and trend.records >= MIN_RECORDS:
        if later.told and later.high < trend.slope / 2:
            return found(UNTOLD, f"it grew {format_rate(trend, figure)} and slows down", 3 * span_s)
        return found(GROWING, f"and in steps: {stepped}" if steps else "")
    if len(steps) > 1:
        return found(UNTOLD, f"it rose in {len(steps)} steps: {stepped}", 4 * span_s)
    high_per_h = trend.high * _HOUR
    if high_per_h <= figure.limit_per_h:
        return found(FLAT, f"but for one step: {stepped}" if steps else "")
    if later.told and later.high * _HOUR <= figure.limit_per_h and not later.steps:
        grew = format_amount(values[half] - first, figure)
        until = format_span(times_s[half] - times_s[0])
        return found(UNTOLD, f"it grew by {grew} until {until} and not since", 2 * span_s)
    # The interval shrinks with the time to the power 3/2, at the same pace of readings.
    longer = (high_per_h / figure.limit_per_h) ** (2 / 3)
    shown = format_rate(trend, figure)
    return found(UNTOLD, f"{shown}, which may be none", max(1.5, longer) * span_s)


def shares(kinds: Sequence[tuple[float, dict[str, int]]]) -> tuple[tuple[str, float], ...]:
    """Which kinds of private memory rose, each with its share of what rose, the largest first."""
    if len(kinds) < 2:
        return ()
    rises: dict[str, float] = {}
    third = max(1, len(kinds) // 3)
    for kind in PRIVATE_KINDS:
        before = median(amounts[kind] for _, amounts in kinds[:third])
        after = median(amounts[kind] for _, amounts in kinds[-third:])
        rises[kind] = max(0.0, after - before)
    total = sum(rises.values())
    if total <= 0:
        return ()
    ordered = sorted(rises.items(), key=lambda item: -item[1])
    return tuple((kind, rise / total) for kind, rise in ordered if rise >= total / 20)


def kinds_in_words(kinds: Sequence[tuple[str, float]]) -> str:
    """`mostly heap`, or the two largest."""
    if not kinds:
        return ""
    if kinds[0][1] >= MOSTLY:
        return f"mostly {kinds[0][0]}"
    return " and ".join(f"{kind} ({share:.0%})" for kind, share in kinds[:2])


def format_rate(trend: Trend, figure: Figure) -> str:
    """`3.1 MB/h (±0.2)`; MB are 10^6 bytes."""
    rate, half = trend.slope * _HOUR, trend.half_width * _HOUR
    if not math.isfinite(half):
        half = 0.0
    if not figure.is_bytes:
        scale, name = (1.0, "h") if abs(rate) < _HOUR else (_HOUR, "s")
        return f"{rate / scale:.3g}/{name} (±{half / scale:.2g})"
    unit, name = next(
        (size, word)
        for size, word in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (0.0, "B"))
        if abs(rate) >= size
    )
    unit = unit or 1.0
    digits = 1 if half / unit < 10 else 0
    return f"{rate / unit:.{digits}f} {name}/h (±{half / unit:.{digits}f})"


def format_amount(amount: float, figure: Figure) -> str:
    """Bytes in MB of 10^6, counts as they are."""
    return f"{amount / 1e6:.1f} MB" if figure.is_bytes else f"{amount:g}"


def format_span(seconds: float) -> str:
    """`35 s`, `12 min`, `3.5 h`."""
    if seconds < 90:
        return f"{math.ceil(seconds)} s"
    if seconds < 5400:
        return f"{math.ceil(seconds / 60)} min"
    return f"{seconds / _HOUR:.1f} h"
