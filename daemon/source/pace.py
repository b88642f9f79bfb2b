"""When a frame is due: continuous time stamps out of a file's own, and a clock to play them by."""

from __future__ import annotations

GAP_LIMIT_NS = 5_000_000_000
"""A step between two frames above this is a broken or restarted clock, not a still picture."""
LATE_LIMIT_NS = 500_000_000
"""Behind by more than this, a source gives the lost time up instead of running to catch up."""


class Timeline:
    """Turns the time stamps of decoded frames into ones that always rise, over gaps and loops.

    The first frame keeps its stamp, and so does every following one as long as the stamps are
    plausible. A missing stamp, a step back or one above GAP_LIMIT_NS is replaced by the previous
    frame's plus one frame; after a step, later stamps are shifted likewise. A stamp that is out of
    order by less than a frame is put just behind the previous one, and shifts nothing.

    Args:
        frame_ns: Nominal time of one frame, above 0.
    """

    def __init__(self, frame_ns: int) -> None:
        self._frame_ns = frame_ns
        self._last_ns: int | None = None
        self._shift_ns: int | None = 0

    def stamp(self, pts_ns: int | None) -> int:
        """The continuous time stamp of the next frame, whose own is `pts_ns`, in nanoseconds."""
        if self._last_ns is None:
            self._last_ns = 0 if pts_ns is None else pts_ns
            return self._last_ns
        following_ns = self._last_ns + self._frame_ns
        if pts_ns is None:
            self._last_ns = following_ns
            return following_ns
        if self._shift_ns is None:
            self._shift_ns = following_ns - pts_ns
        shifted_ns = pts_ns + self._shift_ns
        step_ns = shifted_ns - self._last_ns
        if -self._frame_ns < step_ns <= 0:
            shifted_ns = self._last_ns + 1
        elif not 0 < step_ns <= GAP_LIMIT_NS:
            self._shift_ns = following_ns - pts_ns
            shifted_ns = following_ns
        self._last_ns = shifted_ns
        return shifted_ns

    def restart(self) -> None:
        """The next frame is the first of another loop: it follows the last one by one frame."""
        self._shift_ns = None


class Pace:
    """Says when frames are due on the monotonic clock, without drift.

    Every due time is counted from one anchor, so errors of single waits do not add up. A source
    that falls behind catches up, unless by more than LATE_LIMIT_NS: then it starts anew from there.
    """

    def __init__(self) -> None:
        self._anchor_ns: int | None = None
        """Monotonic time at which a frame with time stamp 0 is due."""

    def due_ns(self, pts_ns: int, now_ns: int) -> int:
        """Monotonic time at which the frame of time stamp `pts_ns` is due, given the time now."""
        if self._anchor_ns is None or now_ns - (self._anchor_ns + pts_ns) > LATE_LIMIT_NS:
            self._anchor_ns = now_ns - pts_ns
        return self._anchor_ns + pts_ns
