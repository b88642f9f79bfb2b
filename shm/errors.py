"""The one tree of errors; each has a code that is the same on the wire, in Python, C and MCP."""

from __future__ import annotations

from typing import ClassVar


class McpdError(Exception):
    """What went wrong, with the value seen and the limit; `hint` says what to do next.

    Attributes:
        code: Stable identifier, as on the wire.
        hint: The next step, in one sentence; may be empty.
        retryable: Whether the same call may succeed later without anybody changing anything.
    """

    code: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}. {self.hint}" if self.hint else self.message


class DaemonUnavailable(McpdError):
    """No daemon answers on the socket, or the connection to it was lost."""

    code = "unavailable"
    retryable = True


class ProtocolError(McpdError):
    """A message that cannot be read: length, bytes or descriptors are wrong. Ends the session."""

    code = "protocol"


class InvalidRequest(McpdError):
    """A request with a value that is out of its limits."""

    code = "invalid"


class UnsupportedVersion(McpdError):
    """No protocol version in common."""

    code = "version"


class NotFound(McpdError):
    """No such stream, model, reader or file."""

    code = "not_found"


class AlreadyExists(McpdError):
    """The name is taken."""

    code = "exists"


class NotPermitted(McpdError):
    """This peer may not do that."""

    code = "not_permitted"


class LimitExceeded(McpdError):
    """More memory, slots, pins, readers or requests than the limit allows."""

    code = "limit"


class OutOfMemory(McpdError):
    """The machine has not the memory, or a file system or cgroup not the space."""

    code = "no_memory"
    retryable = True


class WouldBlock(McpdError):
    """Nothing to be had without waiting."""

    code = "would_block"
    retryable = True


class TimedOut(McpdError):
    """It did not happen in the time given."""

    code = "timeout"
    retryable = True


class StreamClosed(McpdError):
    """The stream has ended. `reason`: "closed", "writer_died", "revoked", "shutdown"
    or, of a reader that held its writer up for too long, "evicted"."""

    code = "ended"

    def __init__(self, message: str, hint: str = "", reason: str = "closed") -> None:
        super().__init__(message, hint)
        self.reason = reason


class ModelFailed(McpdError):
    """The model could not be loaded, or raised on this input."""

    code = "model"


class WorkerDied(McpdError):
    """The worker that had the request died; a new one is started."""

    code = "worker_died"
    retryable = True


class SegmentLost(McpdError):
    """Memory under a stream's payload was taken away while it was used; what was read is void."""

    code = "segment_lost"


class Internal(McpdError):
    """A fault of mcpd itself."""

    code = "internal"


def _tree(base: type[McpdError]) -> dict[str, type[McpdError]]:
    found = {base.code: base}
    for child in base.__subclasses__():
        found |= _tree(child)
    return found


def from_wire(code: str, message: str, hint: str = "") -> McpdError:
    """The error that a `code` on the wire stands for; McpdError itself for one this side lacks."""
    return _tree(McpdError).get(code, McpdError)(message, hint)


STATUS_CODES: tuple[str, ...] = (
    "ok",
    "invalid",
    "model",
    "timeout",
    "worker_died",
    "internal",
    "limit",
    "segment_lost",
)
"""Codes that a result's `status` field stands for, by index; docs/control.md."""


def shown(value: object) -> str:
    """A value as a message has it: its repr, cut where it is long."""
    try:
        text = repr(value)
    except ValueError:  # an int of thousands of digits
        text = f"of type {type(value).__name__} and too long to print"
    return text if len(text) <= 80 else f"{text[:80]}..."
