"""Series as plain characters: one line, or a small chart, in at most 80 columns."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

_LEVELS = "_.-=+*#"


def thin(values: Sequence[float], width: int) -> list[float]:
    """At most `width` of them, the largest of each part: a rise is not lost between."""
    if len(values) <= width:
        return list(values)
    edges = [round(i * len(values) / width) for i in range(width + 1)]
    return [max(values[a:b]) for a, b in pairwise(edges)]


def sparkline(values: Sequence[float], width: int = 30) -> str:
    """One line: `__..--==`, from the lowest to the highest value; flat is all `_`."""
    shown = thin(values, width)
    if not shown:
        return ""
    low, high = min(shown), max(shown)
    scale = (len(_LEVELS) - 1) / (high - low) if high > low else 0.0
    return "".join(_LEVELS[round((value - low) * scale)] for value in shown)


def chart(values: Sequence[float], labels: tuple[str, str], height: int = 6) -> list[str]:
    """Rows with an axis at the left; `labels` name the highest and the lowest value.

    What changes by less than a thousandth is drawn as flat: noise is not stretched to a mountain.
    """
    margin = max(map(len, labels))
    shown = thin(values, 80 - margin - 2)
    if not shown:
        return []
    low, high = min(shown), max(shown)
    scale = (height - 1) / (high - low) if high - low > abs(high) / 1000 else 0.0
    levels = [round((value - low) * scale) for value in shown]
    rows = []
    for row in range(height - 1, -1, -1):
        label = labels[0] if row == height - 1 else labels[1] if row == 0 else ""
        marks = "".join("*" if level == row else " " for level in levels)
        rows.append(f"{label:>{margin}} |{marks}".rstrip())
    return rows
