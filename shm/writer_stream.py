"""The writer's end of a stream: acquires slots and publishes them."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from mcpd.native import _core
from mcpd.shm.bundle import Description
from mcpd.shm.errors import (
    DaemonUnavailable,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    ProtocolError,
)
from mcpd.shm.frame import FLAG_QUANTISED
from mcpd.shm.messages import CloseStream, StreamGrant
from mcpd.shm.slot import Slot, check_room
from mcpd.shm.stream_end import (
    END_CODES,
    POLICY_CODES,
    check_timeout,
    raise_closed,
    raise_ended,
    raise_none,
    read_grant,
)
from mcpd.shm.transport import close_fds

if TYPE_CHECKING:
    from mcpd.shm.connection import Connection


class WriterStream:
    """The writer's end of a stream. A context manager that closes.

    Args:
        connection: Where the stream was created; it passes on readers that join and leave.
        grant: The daemon's reply to CreateStream.
        fds: Writer control, payload, wake; closed here, mapped or not.
        description: What every slot holds, None if that varies.

    Attributes:
        grant: Numbers of the stream, from the daemon.
        name: Of the stream.
        stream_id: Its number, as in Result.source_stream.
        readers: Policy of every reader attached now, by its number; replaced, never changed.
    """

    def __init__(
        self,
        connection: Connection,
        grant: StreamGrant,
        fds: Sequence[int],
        description: Description | None,
    ) -> None:
        try:
            if len(fds) != 3:
                raise ProtocolError(
                    f"stream {grant.name!r} came with {len(fds)} descriptors, not 3"
                )
            self._core = _core.Writer(
                fds[0],
                fds[1],
                fds[2],
                stream_id=grant.stream,
                generation=grant.generation,
                nslots=grant.slots,
                slot_nbytes=grant.slot_nbytes,
                history=grant.spec.history,
                holds=grant.spec.holds,
            )
            self._present(grant, description)
        finally:
            close_fds(fds)
        self._connection = connection
        self.grant = grant
        self.name = grant.name
        self.stream_id = grant.stream
        self.generation = grant.generation
        self.slots = grant.slots
        self.slot_nbytes = grant.slot_nbytes
        self.description = description
        self.readers: Mapping[int, str] = {}
        self._closed = False
        connection.streams.add_writer(self)

    def acquire(self, timeout_s: float | None = None) -> Slot:
        """A free slot to fill, the most recently freed; waits while lossless readers are behind.

        Args:
            timeout_s: None waits for ever, 0 not at all.

        Raises:
            WouldBlock: No slot is free, with timeout_s 0.
            TimedOut: No slot came free in time.
            LimitExceeded: The writer holds as many slots as it declared (`holds`).
            InvalidRequest: timeout_s is below 0, or not a number.
            StreamClosed: The stream has ended.
        """
        try:
            slot: Slot | None = self._core.acquire(timeout_s)
        except BufferError as error:
            raise LimitExceeded(
                f"stream {self.name!r}: {self.grant.spec.holds} slots are held already",
                "Publish or abandon one, drop views of published ones, or create the stream with "
                "more `holds`.",
            ) from error
        except _core.StreamEnded as error:
            raise_ended(self.name, error.args[0])
        except ValueError:
            check_timeout(timeout_s)
            raise_closed(self.name, self._connection)
        if slot is None:
            raise_none(self.name, timeout_s, "no slot came free", "A lossless reader is behind.")
        return slot

    def _present(self, grant: StreamGrant, description: Description | None) -> None:
        """Has the core hand out slots that are described already."""
        if description is None:
            self._core.presents(Slot, grant, None, None, grant.slot_nbytes, 0)
            return
        check_room(description, grant.slot_nbytes)
        nbytes = description.extent or grant.slot_nbytes
        flags = FLAG_QUANTISED if description.quantised else 0
        self._core.presents(Slot, grant, description, description.packed, nbytes, flags)

    def fileno(self) -> int:
        """Readable when a lossless reader made room after an acquire that would have blocked."""
        try:
            return self._core.fileno()
        except ValueError:
            raise_closed(self.name, self._connection)

    def arm(self) -> bool:
        """For event loops: True if a slot is free now, else fileno() will become readable."""
        try:
            return self._core.arm()
        except ValueError:
            raise_closed(self.name, self._connection)

    def disarm(self) -> None:
        """After fileno() became readable: drains it."""
        try:
            self._core.disarm()
        except ValueError:
            raise_closed(self.name, self._connection)

    def stats(self) -> dict[str, int]:
        """Counters: head, published, abandoned, would_block, blocked_ns, wakes, nbytes, held."""
        try:
            return self._core.stats()
        except ValueError:
            raise_closed(self.name, self._connection)

    def end(self, reason: str = "closed") -> None:
        """Ends the stream: readers get what is left, then its end. Idempotent."""
        if reason not in END_CODES:
            raise InvalidRequest(f"reason {reason!r} is not one of {', '.join(END_CODES)}")
        self.mark_ended(reason)

    def close(self) -> None:
        """Ends and unmaps the stream; its name is free again on return. Idempotent.

        Slots and views still held stay valid, but are published nowhere. Does nothing in a forked
        child: the stream is its parent's.
        """
        if not self._detach():
            return
        try:
            self._connection.request(CloseStream(stream=self.stream_id))
        except (DaemonUnavailable, NotFound):
            return  # it took the stream away by itself

    def _detach(self) -> bool:
        """Closes this side alone; False if that was done before."""
        if self._closed or self._connection.inherited:
            return False
        self._closed = True
        self._connection.streams.remove_writer(self)
        self.mark_ended("closed")
        self._core.close()
        return True

    # The connection's I/O thread calls these.

    def join_reader(self, reader_id: int, fds: Sequence[int], max_pins: int, policy: str) -> int:
        """Admits a reader: the first sequence number it is owed. The descriptors stay the caller's.

        Raises:
            ProtocolError: Not two descriptors, or no such policy.
            LimitExceeded: Too few slots for its pins, or too many readers.
        """
        if len(fds) != 2 or policy not in POLICY_CODES:
            raise ProtocolError(f"reader_join with {len(fds)} descriptors and policy {policy!r}")
        try:
            owed = self._core.add_reader(reader_id, fds[0], fds[1], max_pins, POLICY_CODES[policy])
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise LimitExceeded(
                    f"stream {self.name!r} has {self.slots} slots, too few for another {max_pins} "
                    "pins",
                    "Attach with fewer max_pins, or create the stream with more slots.",
                ) from error
            if error.errno == errno.EUSERS:
                raise LimitExceeded(
                    f"stream {self.name!r} has {_core.MAX_READERS} readers, the most there can be"
                ) from error
            raise
        except ValueError:
            raise_closed(self.name, self._connection)
        self.readers = {**self.readers, reader_id: policy}
        return owed

    def leave_reader(self, reader_id: int, pins: str) -> None:
        """A reader is gone: what it was owed is free; its pins too unless they are to be kept."""
        self.readers = {key: value for key, value in self.readers.items() if key != reader_id}
        with suppress(ValueError):  # closed meanwhile
            if pins == "keep":
                self._core.release_reader(reader_id)
            else:
                self._core.remove_reader(reader_id)

    def mark_ended(self, reason: str) -> None:
        """The stream was taken away: acquire raises from now on, one that waits at once."""
        with suppress(ValueError):  # closed meanwhile
            self._core.end(END_CODES.get(reason, _core.END_REVOKED))

    def mark_lost(self) -> None:
        """The session is over: ends the stream and unmaps it; slots still held stay valid."""
        self.mark_ended("shutdown")
        self._core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def map_writer(
    connection: Connection, result: Any, fds: Sequence[int], description: Description | None
) -> WriterStream:
    """The stream that a reply to CreateStream grants, mapped and every page touched; not sealed.

    Owns `fds`. On failure the stream is given back.

    Raises:
        ProtocolError: The reply is not readable.
        OSError: It cannot be mapped.
    """
    grant = read_grant(result, fds)
    try:
        return WriterStream(connection, grant, fds, description)
    except BaseException:
        connection.submit(CloseStream(stream=grant.stream))
        raise
