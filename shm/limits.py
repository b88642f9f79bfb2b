"""Limits that a daemon keeps, one line each: `mcpd start` shows them as options, the daemon reads
them, errors and `mcpd status` name them. docs/limits.md explains each."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct


class Limits(Struct, frozen=True, kw_only=True):
    """What one session, one user and all together may have; 0: no limit of its own."""

    session_memory: int = 0
    user_memory: int = 0
    session_streams: int = 512
    user_streams: int = 2048
    max_streams: int = 4096
    session_readers: int = 2048
    user_readers: int = 8192
    max_readers: int = 16384
    session_fds: int = 0
    user_fds: int = 0
    user_sessions: int = 1024
    max_sessions: int = 4096
    session_requests: int = 64
    user_requests: int = 1024
    max_requests: int = 4096
    session_rate: int = 1000
    user_rate: int = 2000
    max_rate: int = 3000
    outbound: int = 1 << 20
    stall_limit: float = 30.0


class Option(NamedTuple):
    """How a limit is given: `--name` or MCPD_NAME.

    Attributes:
        kind: "bytes" (500M, 2G), "count" or "seconds".
    """

    field: str
    kind: str
    help: str

    @property
    def flag(self) -> str:
        """On the command line."""
        return "--" + self.field.replace("_", "-")

    @property
    def variable(self) -> str:
        """In the environment."""
        return "MCPD_" + self.field.upper()

    @property
    def default(self) -> int | float:
        """If nothing is said."""
        value: int | float = getattr(DEFAULTS, self.field)
        return value


DEFAULTS = Limits()

OPTIONS: tuple[Option, ...] = (
    Option("session_memory", "bytes", "Most memory of one session's streams; 0: no limit."),
    Option("user_memory", "bytes", "Most memory of one user's streams; 0: no limit."),
    Option("session_streams", "count", "Most streams of one session."),
    Option("user_streams", "count", "Most streams of one user."),
    Option("max_streams", "count", "Most streams in all."),
    Option("session_readers", "count", "Most readers of one session."),
    Option("user_readers", "count", "Most readers of one user."),
    Option("max_readers", "count", "Most readers in all."),
    Option("session_fds", "count", "Most daemon descriptors for one session; 0: a quarter."),
    Option("user_fds", "count", "Most daemon descriptors for one user; 0: seven eighths."),
    Option("user_sessions", "count", "Most sessions of one user."),
    Option("max_sessions", "count", "Most sessions in all."),
    Option("session_requests", "count", "Most requests of one session that wait at a time."),
    Option("user_requests", "count", "Most requests of one user that wait at a time."),
    Option("max_requests", "count", "Most requests in all that wait at a time."),
    Option("session_rate", "count", "Messages a second that a busy session is read; 0: no limit."),
    Option("user_rate", "count", "Of all of a user's busy sessions together; 0: no limit."),
    Option("max_rate", "count", "Of all busy sessions together; 0: no limit."),
    Option("outbound", "bytes", "Most bytes that wait for a session that does not read."),
    Option("stall_limit", "seconds", "After that a stalled lossless reader is evicted; 0: never."),
)
"""In the order in which `mcpd start --help` lists them."""

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
MAX_VALUE = 1 << 50
MIN_OUTBOUND_NBYTES = 64 * 1024 + 4


def parse_nbytes(text: str) -> int:
    """A size such as 500M or 2G; ValueError if it is none."""
    digits = text.rstrip("kKmMgGtT")
    unit = text[len(digits) :].lower()
    if not (digits.isascii() and digits.isdecimal()) or unit not in _UNITS:
        raise ValueError(f"{text!r} is not a size such as 500M or 2G")
    return min(int(digits[:20]) * _UNITS[unit], MAX_VALUE)


def parse(option: Option, text: str) -> int | float:
    """The value of a limit; ValueError says what is wrong with it."""
    if option.kind == "bytes":
        value: int | float = parse_nbytes(text)
    elif option.kind == "count":
        if not (text.isascii() and text.isdecimal()):
            raise ValueError(f"{text!r} is not a whole number of 0 or more")
        value = min(int(text[:20]), MAX_VALUE)
    else:
        value = _seconds(text)
    if option.field == "outbound" and value < MIN_OUTBOUND_NBYTES:
        raise ValueError(f"{text!r} is less than one message, {MIN_OUTBOUND_NBYTES} bytes")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 86400:
        raise ValueError(f"{text!r} is not a time of 0 to 86400 seconds")
    return value


def size(nbytes: int) -> str:
    """Bytes as a message has them."""
    value, unit = float(nbytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if value < 1024 or unit == "PiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
