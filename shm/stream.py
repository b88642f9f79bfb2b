"""The two ends of a stream.

Both are made by a Client. Per frame only shared memory is touched; the connection is used when they
are made and closed. They may be used from several threads; every blocking call releases the GIL.
"""

from __future__ import annotations

from mcpd.shm.reader_stream import ReaderStream, map_reader
from mcpd.shm.stream_end import END_CODES, END_REASONS, POLICY_CODES
from mcpd.shm.writer_stream import WriterStream, map_writer

__all__ = [
    "END_CODES",
    "END_REASONS",
    "POLICY_CODES",
    "ReaderStream",
    "WriterStream",
    "map_reader",
    "map_writer",
]
