"""How far a source has come: a bar on a terminal, JSON lines, or nothing; and its summary."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass
from typing import Any, Literal

BAR_INTERVAL_NS = 100_000_000
JSON_INTERVAL_NS = 500_000_000
BAR_WIDTH = 24

ProgressKind = Literal["bar", "json", "none"]


@dataclass
class Counts:
    """What a source has done so far."""

    source: str
    stream: str
    total_frames: int = 0
    """Frames that the whole run will have, as the file claims; 0 when nobody knows."""
    frames: int = 0
    nbytes: int = 0
    """Bytes of pixels written into slots."""
    loops: int = 0
    """How many times the source was played to its end."""
    readers: int = 0
    pts_ns: int = 0
    blocked_ns: int = 0
    """Time for which lossless readers held the source back."""


class Progress:
    """Reports Counts as a run goes: `tick` after every frame costs a clock read, mostly.

    The bar goes to standard error, JSON lines to standard output. Used from one thread.

    Attributes:
        counts: What it reports, kept up to date by whoever plays.
    """

    def __init__(self, counts: Counts, kind: ProgressKind) -> None:
        self.counts = counts
        self._kind = kind
        self._begun_ns = time.monotonic_ns()
        self._begun_cpu_s = 0.0
        self._shown_ns = 0
        self._shown_frames = 0
        self._line_open = False
        self._waiting_shown = -1
        self._interval_ns = BAR_INTERVAL_NS if kind == "bar" else JSON_INTERVAL_NS

    def begin(self) -> None:
        """The first frame is about to go out: seconds, fps and cpu_s count from here."""
        self._begun_ns = self._shown_ns = time.monotonic_ns()
        self._begun_cpu_s = time.process_time()

    def waiting(self, wanted: int) -> None:
        """Tells that the source waits for readers, of which `wanted` must attach; once a change."""
        if self.counts.readers == self._waiting_shown:
            return
        self._waiting_shown = self.counts.readers
        if self._kind == "bar":
            self._draw(f"{self.counts.stream}: waiting for readers, {self.counts.readers}/{wanted}")
        elif self._kind == "json":
            self._print({"event": "waiting", "readers": self.counts.readers, "wanted": wanted})

    def tick(self) -> None:
        """Shows the counts, if the last time is long enough ago."""
        if self._kind == "none":
            return
        now_ns = time.monotonic_ns()
        since_ns = now_ns - self._shown_ns
        if since_ns < self._interval_ns:
            return
        counts = self.counts
        fps = (counts.frames - self._shown_frames) / (since_ns / 1e9)
        self._shown_ns, self._shown_frames = now_ns, counts.frames
        if self._kind == "bar":
            self._draw(_bar_line(counts, fps))
        else:
            self._print(
                {
                    "event": "progress",
                    "frames": counts.frames,
                    "total_frames": counts.total_frames,
                    "fps": round(fps, 2),
                    "readers": counts.readers,
                    "pts_s": round(counts.pts_ns / 1e9, 6),
                }
            )

    def close(self) -> None:
        """Ends the bar's line. Idempotent."""
        if self._line_open:
            self._line_open = False
            sys.stderr.write("\n")
            sys.stderr.flush()

    def summary(self) -> dict[str, Any]:
        """The whole run: counts, seconds, fps, CPU seconds, and bytes through read and write calls.

        `cpu_s` is user and system time since `begin`, all threads; `startup_cpu_s` what was before.
        `io` are rchar, wchar, read_bytes and write_bytes of /proc/self/io: frames that travel in
        shared memory do not show up there, the compressed input does.
        """
        counts = self.counts
        seconds = (time.monotonic_ns() - self._begun_ns) / 1e9
        return {
            "event": "summary",
            "source": counts.source,
            "stream": counts.stream,
            "frames": counts.frames,
            "seconds": round(seconds, 6),
            "fps": round(counts.frames / seconds, 3) if seconds > 0 else 0.0,
            "nbytes": counts.nbytes,
            "loops": counts.loops,
            "blocked_s": round(counts.blocked_ns / 1e9, 6),
            "cpu_s": round(time.process_time() - self._begun_cpu_s, 6),
            "startup_cpu_s": round(self._begun_cpu_s, 6),
            "io": read_io(),
        }

    def _draw(self, line: str) -> None:
        if not _in_foreground():
            return  # the terminal is another command's, as after `mcpd push ... &`
        width = _terminal_width()
        sys.stderr.write("\r\x1b[K" + line[: width - 1])
        sys.stderr.flush()
        self._line_open = True

    def _print(self, document: dict[str, Any]) -> None:
        print(json.dumps(document), flush=True)


def read_io() -> dict[str, int]:
    """This process's /proc/self/io: rchar, wchar, syscr, syscw, read_bytes, write_bytes."""
    with open("/proc/self/io", encoding="ascii") as lines:
        pairs = (line.split(":") for line in lines)
        return {key.strip(): int(value) for key, value in pairs if key != "cancelled_write_bytes"}


def _bar_line(counts: Counts, fps: float) -> str:
    readers = "1 reader" if counts.readers == 1 else f"{counts.readers} readers"
    tail = f"{fps:6.1f} fps  {readers}"
    if not counts.total_frames:
        return f"{counts.stream}  {counts.frames} frames  {tail}"
    part = min(counts.frames / counts.total_frames, 1.0)
    full = round(part * BAR_WIDTH)
    bar = "█" * full + "░" * (BAR_WIDTH - full)
    return f"{counts.stream}  {bar} {part:4.0%}  {counts.frames}/{counts.total_frames}  {tail}"


def _in_foreground() -> bool:
    """False if standard error is our terminal and a shell runs this process in the background."""
    try:
        return os.tcgetpgrp(sys.stderr.fileno()) == os.getpgrp()
    except OSError:
        return True  # not a terminal, or not ours


def _terminal_width() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except OSError:
        return 80
