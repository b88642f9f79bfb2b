"""How a reader is to read a stream: checked by the client, and by the daemon again."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import cast

from mcpd.native import _core
from mcpd.shm.errors import InvalidRequest, shown
from mcpd.shm.messages import AttachReader

POLICIES = ("latest", "fifo", "lossless")
MAX_EVERY_N = 1 << 31
MAX_STALL_LIMIT_S = 86400.0
MIN_FPS, MAX_FPS = 1e-3, 1e6

GROUP_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Policy, group and thinning of one reader.

    Raises:
        InvalidRequest: A value out of its limits, or two that exclude each other.
    """

    policy: str = "latest"
    max_pins: int = 2
    depth: int = 0
    group: str = ""
    follow: bool = False
    every_n: int = 0
    max_fps: float = 0.0
    skip_expired: bool = False
    stall_limit_s: float = 0.0

    def __post_init__(self) -> None:
        check_reading(self.policy, self.max_pins, self.depth, self.group)
        check_number("every_n", self.every_n, 0, MAX_EVERY_N, "0 or 1 asks for every frame.")
        fps = self.max_fps
        if isinstance(fps, bool) or not isinstance(fps, (int, float)):
            raise InvalidRequest(
                f"max_fps is {shown(fps)}", "Give frames a second; 0 sets no bound."
            )
        if fps and not MIN_FPS <= fps <= MAX_FPS:
            raise InvalidRequest(
                f"max_fps is {shown(fps)}; it must be {MIN_FPS:g} to {MAX_FPS:g}, "
                "or 0 for no bound",
                "Give frames a second, as 5 or 0.2.",
            )
        check_stall_limit(self.policy, self.stall_limit_s)
        for what, value in (("follow", self.follow), ("skip_expired", self.skip_expired)):
            if not isinstance(value, bool):
                raise InvalidRequest(f"{what} is {shown(value)}", "Say True or False.")
        if self.group and (self.every_n > 1 or fps or self.skip_expired):
            raise InvalidRequest(
                f"a member of group {self.group!r} asks for every_n={self.every_n}, max_fps={fps}, "
                f"skip_expired={self.skip_expired}, and members do not thin",
                "Leave them out; a frame that one member passes over is lost to the others.",
            )

    @property
    def interval_ns(self) -> int:
        """Least time between two frames; 0: any."""
        return round(1e9 / self.max_fps) if self.max_fps else 0

    def attach(self, stream: str) -> AttachReader:
        """The request for such a reader."""
        return AttachReader(
            stream=stream,
            policy=self.policy,
            max_pins=self.max_pins,
            depth=self.depth,
            group=self.group,
            follow=self.follow,
            stall_limit_s=self.stall_limit_s,
        )


def check_reading(policy: str, max_pins: int, depth: int, group: str) -> None:
    """InvalidRequest unless a reader may have these, whatever the stream."""
    if policy not in POLICIES:
        raise InvalidRequest(
            f"policy {policy!r} is not one of {', '.join(POLICIES)}",
            "latest jumps to the newest frame, fifo keeps `depth` of them, lossless misses none.",
        )
    check_number("max_pins", max_pins, 1, _core.MAX_PINS, "It is how many frames are held at once.")
    if policy == "fifo":
        hint = "It is how many of the newest frames are kept for a fifo reader."
        check_number("depth", depth, 1, _core.MAX_SLOTS, hint)
    elif policy == "lossless":
        hint = "With so many frames unread the writer waits; 0: it may use all slots."
        check_number("depth", depth, 0, _core.MAX_SLOTS, hint)
    elif depth != 0:
        raise InvalidRequest(
            f"depth is {shown(depth)} with policy {policy!r}; only fifo and lossless have one",
            "Leave depth out, or say policy='fifo'.",
        )
    if not isinstance(group, str) or (group and not GROUP_NAME.fullmatch(group)):
        raise InvalidRequest(
            f"group name {str(group)[:80]!r} is not valid",
            "1 to 63 letters, digits, '.', '_' or '-', the first a letter or digit; '' for none.",
        )


def check_stall_limit(policy: str, limit_s: object) -> None:
    """InvalidRequest unless a reader of that policy may ask for this time."""
    number = isinstance(limit_s, (int, float)) and not isinstance(limit_s, bool)
    if not number or not 0 <= cast(float, limit_s) <= MAX_STALL_LIMIT_S:
        raise InvalidRequest(
            f"stall_limit_s is {shown(limit_s)}; it must be 0 to {MAX_STALL_LIMIT_S:g}",
            "Give seconds; 0 leaves it to the daemon's --stall-limit.",
        )
    if limit_s and policy != "lossless":
        raise InvalidRequest(
            f"stall_limit_s is {shown(limit_s)} with policy {policy!r}",
            "Only lossless readers hold a writer up; leave it out.",
        )


def check_number(what: str, value: object, low: int, high: int, hint: str) -> None:
    """InvalidRequest unless the value is a whole number within its limits."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidRequest(f"{what} is {shown(value)}; it must be {low} to {high}", hint)
