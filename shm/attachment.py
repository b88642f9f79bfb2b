"""A reader as one session knows it: what the daemon says there is for this session's numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from mcpd.shm.connection import Connection
    from mcpd.shm.messages import StreamGrant


class Owner(Protocol):
    """A ReaderStream."""

    def move(self, grant: StreamGrant, fds: Sequence[int], connection: Connection) -> bool: ...
    def mark_ended(
        self, reason: str, generation: int, detail: str, connection: Connection
    ) -> None: ...
    def mark_evicted(self, why: str) -> None: ...
    def mark_lost(self, connection: Connection) -> None: ...
    def close(self) -> None: ...


class Attachment:
    """Passes on what SessionStreams is told about a reader; it may have been in other sessions.

    Args:
        stream_id: The stream's number in this session.
    """

    def __init__(self, reader: Owner, connection: Connection, stream_id: int) -> None:
        self.reader = reader
        self.stream_id = stream_id
        self._connection = connection

    def move(self, grant: StreamGrant, fds: Sequence[int]) -> bool:
        """As ReaderStream.move."""
        return self.reader.move(grant, fds, self._connection)

    def mark_ended(self, reason: str, generation: int = 0, detail: str = "") -> None:
        """As ReaderStream.mark_ended."""
        self.reader.mark_ended(reason, generation, detail, self._connection)

    def mark_evicted(self, why: str) -> None:
        """As ReaderStream.mark_evicted."""
        self.reader.mark_evicted(why)

    def mark_lost(self) -> None:
        """As ReaderStream.mark_lost."""
        self.reader.mark_lost(self._connection)

    def close(self) -> None:
        """As ReaderStream.close."""
        self.reader.close()
