"""Numbers and tables as people read them. rich is loaded only when a table is drawn."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
PLAIN_WIDTH = 100
"""Columns of a table that goes to a file or pipe, where there is no terminal to ask."""
NAME_WIDTH = 32
"""A first column up to this is never folded: others make room for it."""


def print_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str = "none"
) -> None:
    """Prints a table to standard output, or `title: empty` when it has no rows; then a gap.

    A column whose heading begins with ">" is set to the right; cells are plain text, not markup.
    """
    from rich import box
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    cells = [[str(cell) for cell in row] for row in rows]
    target = console()
    if not cells:
        target.print(Text(f"{title}: {empty}\n"))
        return
    target.print(Text(title, style="bold"))
    table = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        collapse_padding=True,
        header_style="",
    )
    heads = [column.removeprefix(">") for column in columns]
    widths = [max(map(cell_len, texts)) for texts in zip(heads, *cells, strict=True)]
    for head, column in zip(heads, columns, strict=True):
        table.add_column(
            head,
            justify="right" if column.startswith(">") else "left",
            overflow="fold",
        )
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))
    if sum(widths) + 2 * (len(widths) - 1) > target.width:
        # Not min_width: rich would crop the other columns, not fold them.
        table.columns[0].width = min(NAME_WIDTH, widths[0])
    target.print(table)
    target.print()


def console() -> Console:
    """A rich console on standard output: as wide as the terminal or $COLUMNS, else PLAIN_WIDTH."""
    from rich.console import Console

    return Console(
        file=sys.stdout,
        width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else PLAIN_WIDTH,
        highlight=False,
        emoji=False,
    )


def format_bytes(nbytes: float) -> str:
    """1536 -> "1.5 KiB"."""
    for unit in _BYTE_UNITS[:-1]:
        if abs(nbytes) < 1024:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.0f} {_BYTE_UNITS[-1]}"


def format_duration(seconds: float) -> str:
    """Two units at most: 0.0042 -> "4.2 ms", 75 -> "1m 15s", 90061 -> "1d 1h"."""
    if seconds < 0:
        return "-" + format_duration(-seconds)
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}d {hour}h"
    return f"{hours}h {minute}m" if hours else f"{minutes}m {second}s"


def format_clock(seconds: float) -> str:
    """A time in a video: 75.5 -> "01:15.500", from an hour on "1:01:15.500"."""
    milliseconds = round(seconds * 1000)
    minutes, rest = divmod(abs(milliseconds), 60_000)
    sign = "-" if milliseconds < 0 else ""
    if minutes < 60:
        return f"{sign}{minutes:02d}:{rest / 1000:06.3f}"
    return f"{sign}{minutes // 60}:{minutes % 60:02d}:{rest / 1000:06.3f}"


def format_size(width: int, height: int, pixel_format: str) -> str:
    """The words "1920x1080 i420", or "-" for a stream whose frames have no fixed image."""
    return f"{width}x{height} {pixel_format}".strip() if width and height else "-"
