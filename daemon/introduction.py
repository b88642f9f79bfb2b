"""What the daemon asks of a stream's writer when somebody comes to read it."""

from __future__ import annotations

from collections.abc import Sequence

from mcpd.daemon.leases import MAX_SEQ, Stream
from mcpd.daemon.session import SessionEnded
from mcpd.shm.errors import InvalidRequest, StreamClosed, TimedOut
from mcpd.shm.messages import Message

JOIN_TIMEOUT_S = 5.0
"""How long a writer may take to admit a reader: its I/O thread has nothing else to do."""


async def ask_writer(stream: Stream, message: Message, fds: Sequence[int], what: str) -> int:
    """Has the writer admit a reader or group: the first sequence number that it is owed.

    Raises:
        TimedOut: It does not answer.
        StreamClosed: It is gone.
        InvalidRequest: Its answer makes no sense.
        McpdError: As it answered.
    """
    try:
        result = await stream.session.request(message, fds, timeout_s=JOIN_TIMEOUT_S)
    except SessionEnded:
        raise closed(stream) from None
    except TimedOut as error:
        raise TimedOut(
            f"the writer of stream {stream.name!r} (pid {stream.session.peer.pid}) did not "
            f"admit the {what} within {JOIN_TIMEOUT_S:g} s",
            "It may be stopped; try again, or restart it.",
        ) from error
    start_seq = result.get("start_seq")
    if not isinstance(start_seq, int) or not 0 <= start_seq <= MAX_SEQ:
        raise InvalidRequest(f"the writer of {stream.name!r} answered start_seq={start_seq!r}")
    return start_seq


def closed(stream: Stream) -> StreamClosed:
    """What a reader is told that comes too late."""
    return StreamClosed(
        f"stream {stream.name!r} has ended", "Open it again when its writer is back.", "writer_died"
    )
