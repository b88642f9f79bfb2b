"""What the demo shows while it runs: one progress bar after the other, and live detections."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TextIO, cast

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.progress import TimeElapsedColumn as ElapsedColumn
from rich.table import Column

_LINE_WIDTH = 120


class Screen:
    """Writes to a terminal or a file, and counts the bytes, which are no frame's.

    Args:
        stream: Usually standard error, so that standard output holds the result alone.
    """

    def __init__(self, stream: TextIO) -> None:
        self._counting = _Counting(stream)
        self._console = Console(
            file=cast(IO[str], self._counting),
            force_terminal=stream.isatty(),
            width=None if stream.isatty() else _LINE_WIDTH,
            highlight=False,
        )

    @property
    def nbytes(self) -> int:
        """Bytes written so far."""
        return self._counting.nbytes

    def say(self, text: str) -> None:
        """A line of plain text."""
        self._console.print(text, markup=False)

    @contextmanager
    def bar(self, text: str, total: int | None = None) -> Iterator[Bar]:
        """A progress bar for one piece of work; a total of None moves to and fro.

        Where there is no terminal, a line tells that it begins and one that it ended.
        """
        if not self._console.is_terminal:
            self.say(f"{text}…")
        progress = Progress(
            TextColumn("{task.description}", table_column=Column(no_wrap=True)),
            BarColumn(bar_width=24),
            MofNCompleteColumn(table_column=Column(no_wrap=True)) if total else TextColumn(""),
            ElapsedColumn(table_column=Column(no_wrap=True)),
            # What is too much for the line is cut here, and nowhere else.
            TextColumn(
                "{task.fields[detail]}",
                markup=False,
                table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1),
            ),
            console=self._console,
            expand=True,
        )
        with progress:
            yield Bar(progress, progress.add_task(text, total=total, detail=""))


class Bar:
    """One running progress bar."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task

    def advance(self, done: int, total: int, detail: str = "") -> None:
        """Shows how far the work is, with a word on what it is at."""
        self._progress.update(self._task, completed=done, total=total, detail=detail)

    def detail(self, text: str) -> None:
        """Shows what the work is at, where nobody knows how far it is."""
        self._progress.update(self._task, detail=text)

    def line(self, text: str) -> None:
        """A line above the bar, which stays."""
        self._progress.console.print(text, markup=False, soft_wrap=True)


class _Counting:
    """A text stream that counts what goes through it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.nbytes = 0

    def write(self, text: str) -> int:
        self.nbytes += len(text.encode(errors="replace"))
        return self._stream.write(text)

    def flush(self) -> None:
        self._stream.flush()

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    @property
    def encoding(self) -> str:
        return self._stream.encoding
