"""The two ends of a stream.

Both are made by a Client. Per frame only shared memory is touched; the connection is used when they
are made and closed. They may be used from several threads; every blocking call releases the GIL.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mcpd.shm.kept_reader import KeptReaderStream
from mcpd.shm.kept_writer import KeptWriterStream
from mcpd.shm.messages import CloseStream
from mcpd.shm.reader_stream import ReaderStream
from mcpd.shm.session_streams import detach_later
from mcpd.shm.stream_end import END_CODES, END_REASONS, POLICY_CODES, raise_unmapped, read_grant
from mcpd.shm.writer_stream import WriterStream

if TYPE_CHECKING:
    from mcpd.shm.bundle import Description
    from mcpd.shm.connection import Connection
    from mcpd.shm.reading import Reading
    from mcpd.shm.reconnection import Reconnection

__all__ = [
    "END_CODES",
    "END_REASONS",
    "POLICY_CODES",
    "ReaderStream",
    "WriterStream",
    "map_reader",
    "map_writer",
]


def map_writer(
    connection: Connection,
    result: Any,
    fds: Sequence[int],
    description: Description | None,
    keeper: Reconnection | None = None,
) -> WriterStream:
    """The stream that a reply to CreateStream grants, mapped and every page touched; not sealed.

    Owns `fds`. On failure the stream is given back.

    Args:
        keeper: Of a stream that is to be made again in each session.

    Raises:
        ProtocolError: The reply is not readable.
        OutOfMemory: There is no room for it in this process.
        OSError: It cannot be mapped.
    """
    grant = read_grant(result, fds)
    try:
        if keeper is not None:
            return KeptWriterStream(keeper, connection, grant, fds, description)
        return WriterStream(connection, grant, fds, description)
    except BaseException as error:
        connection.submit(CloseStream(stream=grant.stream, generation=grant.generation))
        raise_unmapped(grant.name, error)
        raise


def map_reader(
    connection: Connection,
    result: Any,
    fds: Sequence[int],
    reading: Reading | None = None,
    keeper: Reconnection | None = None,
) -> ReaderStream:
    """The reader that a reply grants, mapped. Owns `fds`. On failure the reader is given back.

    Args:
        keeper: Of one that is to attach again in each session, as `reading` says.

    Raises:
        ProtocolError: The reply is not readable.
        OutOfMemory: There is no room for it in this process.
        OSError: It cannot be mapped.
    """
    grant = read_grant(result, fds)
    try:
        if keeper is not None and reading is not None:
            return KeptReaderStream(keeper, connection, grant, fds, reading)
        return ReaderStream(connection, grant, fds, reading)
    except BaseException as error:
        detach_later(connection, grant.reader)
        raise_unmapped(grant.name, error)
        raise
