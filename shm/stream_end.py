"""What both ends of a stream share: codes, the daemon's grant, and errors for an end of it."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from mcpd.native import _core
from mcpd.shm.errors import (
    InvalidRequest,
    McpdError,
    OutOfMemory,
    ProtocolError,
    SegmentLost,
    StreamClosed,
    TimedOut,
    WouldBlock,
    shown,
)
from mcpd.shm.messages import StreamGrant
from mcpd.shm.transport import close_fds

if TYPE_CHECKING:
    from mcpd.shm.connection import Connection

POLICY_CODES: dict[str, int] = {
    "latest": _core.POLICY_LATEST,
    "fifo": _core.POLICY_FIFO,
    "lossless": _core.POLICY_LOSSLESS,
}
END_CODES: dict[str, int] = {
    "closed": _core.END_CLOSED,
    "writer_died": _core.END_WRITER_DIED,
    "revoked": _core.END_REVOKED,
    "shutdown": _core.END_SHUTDOWN,
    "moved": _core.END_MOVED,
}
END_REASONS = {code: reason for reason, code in END_CODES.items()}

_END_TEXTS = {
    "closed": "its writer closed it",
    "writer_died": "its writer died",
    "revoked": "the daemon took it away",
    "shutdown": "the daemon stopped or was lost",
    "moved": "it goes on in other memory, and not for this end",
}


def read_grant(result: Any, fds: Sequence[int]) -> StreamGrant:
    """The grant in a reply's result; closes `fds` if it is none.

    Raises:
        ProtocolError: It is none.
    """
    try:
        return msgspec.convert(result, StreamGrant)
    except msgspec.ValidationError as error:
        close_fds(fds)
        raise ProtocolError(f"the daemon's grant is not readable: {error}") from error


def raise_unmapped(name: str, error: BaseException) -> None:
    """OutOfMemory if that is why an end could not be mapped: this process has no room for it."""
    if isinstance(error, MemoryError) or (
        isinstance(error, OSError) and error.errno == errno.ENOMEM
    ):
        raise OutOfMemory(
            f"stream {name!r} cannot be mapped: this process has no room for it",
            "Raise its limits (ulimit -v), or vm.max_map_count if it has very many mappings.",
        ) from error


def raise_ended(name: str, code: int) -> NoReturn:
    """Raises StreamClosed for one of END_*."""
    reason = END_REASONS.get(code, "closed")
    raise StreamClosed(f"stream {name!r} has ended: {_END_TEXTS[reason]}", reason=reason) from None


def raise_closed(
    name: str, connection: Connection, reason: str = "", evicted: str = ""
) -> NoReturn:
    """Raises StreamClosed for an end that was unmapped: by the caller, the session's end, or the
    daemon, which evicted it and said why."""
    if evicted:
        raise StreamClosed(
            f"this reader of stream {name!r} was evicted: {evicted}",
            "Take frames more quickly, read with policy 'latest' or 'fifo', or open it again.",
            reason="evicted",
        ) from None
    if reason or connection.lost:
        raise_ended(name, END_CODES[reason or "shutdown"])
    raise StreamClosed(f"this end of stream {name!r} was closed") from None


def raise_lost(name: str, error: OSError) -> NoReturn:
    """Raises SegmentLost for a writer's EFAULT, any other error as it is."""
    if error.errno != errno.EFAULT:
        raise error
    raise SegmentLost(
        f"stream {name!r}: a peer took away memory that its slots are in",
        "Resize the stream, which gives it other memory, or create it again.",
    ) from None


_OF_NOW = frozenset(
    {"cursor", "asleep", "pinned", "pinned_since_ns", "head", "ended", "held", "publish_ns"}
    | {"blocked_since_ns"}
)
"""Counters that tell what is, not what was counted."""


def add_counters(past: dict[str, int], now: dict[str, int]) -> dict[str, int]:
    """An end's counters over generations: the sum, the longest, or what is now."""
    if not past:
        return now
    both = {}
    for name, value in now.items():
        if name in _OF_NOW:
            both[name] = value
        elif name.startswith("longest"):
            both[name] = max(value, past.get(name, 0))
        else:
            both[name] = value + past.get(name, 0)
    return both


def check_timeout(timeout_s: float | None) -> None:
    """InvalidRequest unless it is a time to wait, or None."""
    try:
        sound = timeout_s is None or float(timeout_s + 0) >= 0  # + 0: text is no number
    except (TypeError, ValueError, OverflowError):
        sound = False
    if not sound:
        raise InvalidRequest(
            f"timeout_s is {shown(timeout_s)}", "It must be 0 or more, or None to wait for ever."
        )


def raise_none(name: str, timeout_s: float | None, what: str, hint: str) -> NoReturn:
    """Raises WouldBlock or TimedOut, as the time given says."""
    kind: type[McpdError] = WouldBlock if timeout_s == 0 else TimedOut
    when = "without waiting" if timeout_s == 0 else f"in {timeout_s} s"
    raise kind(f"stream {name!r}: {what} {when}", hint)
