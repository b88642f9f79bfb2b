"""What a watch found, as JSON and as one HTML page: plots in it, nothing fetched from anywhere."""

from __future__ import annotations

import html
import json
import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mcpd.shm.leaks.growth import GROWING, Finding, Judged, format_amount, verdict_of
from mcpd.shm.leaks.sampling import FIGURES, Series

SCHEMA = 1
"""Of the JSON document; higher when a field goes or changes its meaning."""
MAX_POINTS = 400
"""Of one line in a plot."""
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 640, 180, 76, 22

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #ffffff; --faint: #d5d9de;
  --line: #1661b0; --trend: #b3261e; --band: #b3261e26; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e7eb; --paper: #14171b; --faint: #3a4048;
  --line: #6cb0f5; --trend: #ff8a80; --band: #ff8a8033; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; } td, th { text-align: left; padding: .2rem .8rem .2rem 0;
  border-bottom: 1px solid var(--faint); vertical-align: top; }
figure { margin: 1rem 0; } figcaption { font-weight: 600; } svg { width: 100%; height: auto; }
svg text { fill: var(--ink); font-size: 11px; } .axis { stroke: var(--faint); }
.line { fill: none; stroke: var(--line); stroke-width: 1.5; }
.trend { stroke: var(--trend); stroke-width: 1.5; stroke-dasharray: 6 4; }
.band { fill: var(--band); } .growing { color: var(--trend); font-weight: 600; }
"""


def document(judged: Sequence[Judged], *, span_s: float, interval_s: float) -> dict[str, Any]:
    """For JSON: the verdicts, and all readings."""
    return {
        "schema": SCHEMA,
        "verdict": verdict_of([one.verdict for one in judged]),
        "watched_s": round(span_s, 3),
        "interval_s": interval_s,
        "processes": [_process(one) for one in judged],
    }


def _process(one: Judged) -> dict[str, Any]:
    series = one.series
    return {
        "label": series.label,
        "pid": series.pid,
        "verdict": one.verdict,
        "sentences": one.sentences(),
        "ended_s": series.ended_s,
        "notes": series.notes,
        "findings": [finding.to_dict() for finding in one.findings],
        "times_s": [round(time_s, 3) for time_s in series.times_s],
        "values": series.values,
        "kinds": [{"at_s": round(at_s, 3), **amounts} for at_s, amounts in series.kinds],
    }


def write_html(path: Path, judged: Sequence[Judged], *, span_s: float, interval_s: float) -> None:
    """Writes the page in one step: a reader sees the old one or the new.

    Raises:
        OSError: It cannot be written.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(render(judged, span_s=span_s, interval_s=interval_s), encoding="utf-8")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def render(judged: Sequence[Judged], *, span_s: float, interval_s: float) -> str:
    """The page."""
    verdict = verdict_of([one.verdict for one in judged])
    when = time.strftime("%Y-%m-%d %H:%M:%S %Z")
    rows = "".join(
        f"<tr><td>{_text(one.series.label)}</td>"
        f'<td class="{one.verdict.replace(" ", "-")}">{one.verdict}</td>'
        f"<td>{'<br>'.join(_text(line) for line in one.sentences())}</td></tr>"
        for one in judged
    )
    plots = "".join(_plots(one) for one in judged)
    data = json.dumps(document(judged, span_s=span_s, interval_s=interval_s)).replace(
        "<", "\\u003c"
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>mcpd leaks: {verdict}</title><style>{_STYLE}</style></head><body>
<h1>Memory over time: <span class="{verdict.replace(" ", "-")}">{verdict}</span></h1>
<p>Watched for {span_s:.0f} s, a reading every {interval_s:g} s, until {_text(when)}.
Dashed: the trend after warm-up; shaded: its 99 % interval. MB are 10<sup>6</sup> bytes.</p>
<table><tr><th>process</th><th>verdict</th><th>what</th></tr>{rows}</table>
{plots}
<script type="application/json" id="readings">{data}</script>
</body></html>
"""


def _plots(one: Judged) -> str:
    found = {finding.figure: finding for finding in one.findings}
    parts = [f"<h2>{_text(one.series.label)}</h2>"]
    parts += [f"<p>{_text(note)}</p>" for note in one.series.notes]
    for name in FIGURES:
        if name in one.series.values:
            parts.append(_plot(one.series, name, found.get(name)))
    return "".join(parts)


def _plot(series: Series, name: str, finding: Finding | None) -> str:
    times, values = series.known(name)
    if len(values) < 2:
        return ""
    step = max(1, math.ceil(len(values) / MAX_POINTS))
    # The last reading is always shown.
    picked = sorted({*range(0, len(values), step), len(values) - 1})
    first_s, last_s = times[0], max(times[-1], times[0] + 1e-9)
    low, high = min(values), max(values)
    room = (high - low) or max(abs(high) * 0.1, 1.0)
    low, high = low - room * 0.05, high + room * 0.05

    def x(time_s: float) -> float:
        return _LEFT + (time_s - first_s) / (last_s - first_s) * (_WIDTH - _LEFT - 8)

    def y(value: float) -> float:
        value = min(max(value, low), high)
        return 8 + (high - value) / (high - low) * (_HEIGHT - _BOTTOM - 8)

    points = " ".join(f"{x(times[i]):.1f},{y(values[i]):.1f}" for i in picked)
    figure = FIGURES[name]
    most, least = format_amount(max(values), figure), format_amount(min(values), figure)
    base = _HEIGHT - _BOTTOM
    caption = figure.text if finding is None else finding.sentence()
    mark = ' class="growing"' if finding is not None and finding.verdict == GROWING else ""
    return (
        f"<figure><figcaption{mark}>{_text(caption)}</figcaption>"
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{_text(caption)}">'
        f'<line class="axis" x1="{_LEFT}" y1="{base}" x2="{_WIDTH - 8}" y2="{base}"/>'
        f'<line class="axis" x1="{_LEFT}" y1="8" x2="{_LEFT}" y2="{base}"/>'
        f'<text x="{_LEFT - 6}" y="16" text-anchor="end">{most}</text>'
        f'<text x="{_LEFT - 6}" y="{base}" text-anchor="end">{least}</text>'
        f'<text x="{_LEFT}" y="{_HEIGHT - 6}">{first_s:.0f} s</text>'
        f'<text x="{_WIDTH - 8}" y="{_HEIGHT - 6}" text-anchor="end">{last_s:.0f} s</text>'
        f"{_trend(finding, last_s, x, y)}"
        f'<polyline class="line" points="{points}"/></svg></figure>'
    )


def _trend(finding: Finding | None, last_s: float, x: Any, y: Any) -> str:
    """The line through the middle of what was looked at, and the fan of its interval."""
    if finding is None or not finding.trend.told or not finding.trend.span_s:
        return ""
    trend = finding.trend
    half_s = trend.span_s / 2
    begin_s, middle = last_s - trend.span_s, (finding.first + finding.last) / 2

    def ends(slope: float) -> tuple[float, float]:
        return y(middle - slope * half_s), y(middle + slope * half_s)

    (a, b), (c, d), (e, f) = ends(trend.slope), ends(trend.low), ends(trend.high)
    left, right, centre = x(begin_s), x(last_s), x(last_s - half_s)
    return (
        f'<path class="band" d="M{left:.1f} {c:.1f} L{centre:.1f} {y(middle):.1f} '
        f"L{right:.1f} {d:.1f} L{right:.1f} {f:.1f} L{centre:.1f} {y(middle):.1f} "
        f'L{left:.1f} {e:.1f} Z"/>'
        f'<line class="trend" x1="{left:.1f}" y1="{a:.1f}" x2="{right:.1f}" y2="{b:.1f}"/>'
    )


def _text(text: str) -> str:
    return html.escape(text, quote=True)
