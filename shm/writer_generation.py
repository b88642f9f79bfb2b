"""One generation of a stream at its writer: its memory, and the readers that it admitted."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from mcpd.native import _core
from mcpd.shm.errors import LimitExceeded, ProtocolError
from mcpd.shm.frame import FLAG_QUANTISED
from mcpd.shm.slot import Slot, check_room
from mcpd.shm.stream_end import END_CODES, POLICY_CODES, raise_closed, raise_lost
from mcpd.shm.transport import close_fds

if TYPE_CHECKING:
    from mcpd.shm.bundle import Description
    from mcpd.shm.connection import Connection
    from mcpd.shm.messages import GroupJoin, ReaderJoin, StreamGrant


class Owner(Protocol):
    """A WriterStream."""

    def on_reader(self) -> None: ...
    def close(self) -> None: ...


class WriterGeneration:
    """What a WriterStream writes until it is resized or ends.

    Args:
        stream: Whose generation it is.
        grant: The daemon's reply to CreateStream or ResizeStream.
        fds: Writer control, payload, wake; closed here, mapped or not.
        description: What every slot holds, None if that varies.

    Attributes:
        core: The C core's writer.
        connection: The session that it belongs to.
        readers: Policy of every reader attached now, by its number; replaced, never changed.
        last_readers: Those of when it ended; None before.
    """

    def __init__(
        self,
        stream: Owner,
        connection: Connection,
        grant: StreamGrant,
        fds: Sequence[int],
        description: Description | None,
        slot_type: type[Slot] = Slot,
    ) -> None:
        try:
            if len(fds) != 3:
                raise ProtocolError(
                    f"stream {grant.name!r} came with {len(fds)} descriptors, not 3"
                )
            self.core = _core.Writer(
                fds[0],
                fds[1],
                fds[2],
                stream_id=grant.stream,
                generation=grant.generation,
                nslots=grant.slots,
                slot_nbytes=grant.slot_nbytes,
                first_seq=grant.first_seq,
                payload_offset=grant.payload_offset,
                history=grant.spec.history,
                holds=grant.spec.holds,
            )
            self._present(grant, description, slot_type)
        except OSError as error:
            raise_lost(grant.name, error)
        finally:
            close_fds(fds)
        self.stream = stream
        self.grant = grant
        self.stream_id = grant.stream
        self.generation = grant.generation
        self.slot_nbytes = grant.slot_nbytes
        self.description = description
        self.connection = connection
        self.readers: Mapping[int, str] = {}
        self.last_readers: Mapping[int, str] | None = None
        self._admitted: set[int] = set()
        self._groups: set[int] = set()
        self._awaited = 0
        self._counters: dict[str, int] = {}

    def _present(
        self, grant: StreamGrant, description: Description | None, slot_type: type[Slot]
    ) -> None:
        """Has the core hand out slots that are described already."""
        if description is None:
            self.core.presents(slot_type, grant, None, None, grant.slot_nbytes, 0)
            return
        check_room(description, grant.slot_nbytes)
        if description.extent:
            import numpy  # noqa: F401  # its import takes 0.1 s: not while the first slot is held
        nbytes = description.extent or grant.slot_nbytes
        flags = FLAG_QUANTISED if description.quantised else 0
        self.core.presents(slot_type, grant, description, description.packed, nbytes, flags)

    def counters(self) -> dict[str, int]:
        """The core's counters, or the last ones when it was closed by `mark_lost`."""
        try:
            return self.core.stats()
        except ValueError:
            if not self._counters:
                raise
            return self._counters

    def await_lossless(self, count: int) -> None:
        """Nothing is acquired before so many lossless readers are here, or `let_go`."""
        self._awaited = count
        self.core.freeze(True)

    @property
    def awaits(self) -> bool:
        """Whether acquiring waits for readers."""
        return self._awaited > 0

    def let_go(self) -> None:
        """Waits for no more readers."""
        self._awaited = 0
        with suppress(ValueError):  # closed meanwhile
            self.core.freeze(False)

    # The connection's I/O thread calls these.

    def join_group(self, message: GroupJoin, fds: Sequence[int]) -> int:
        """Makes a group known: the first sequence number that it is owed.

        Raises:
            ProtocolError: Not one descriptor, or no such policy or depth.
            LimitExceeded: Too few slots for its depth.
        """
        if len(fds) != 1 or message.policy not in POLICY_CODES:
            raise ProtocolError(
                f"group_join with {len(fds)} descriptors and policy {message.policy!r}"
            )
        try:
            owed = self.core.add_group(
                message.group, fds[0], POLICY_CODES[message.policy], message.depth
            )
        except (OSError, ValueError) as error:
            self._refuse(error, f"a group with depth {message.depth}")
        self._groups.add(message.group)
        return owed

    def leave_group(self, group: int) -> None:
        """The group has no members any more."""
        if group in self._groups:
            self._groups.discard(group)
            with suppress(ValueError):  # closed meanwhile
                self.core.remove_group(group)

    def join_reader(self, message: ReaderJoin, fds: Sequence[int]) -> int:
        """Admits a reader: the first sequence number it is owed. The descriptors stay the caller's.

        Raises:
            ProtocolError: Not two descriptors, or no such policy, depth or group.
            LimitExceeded: Too few slots for its pins or depth, or too many readers.
        """
        if len(fds) != 2 or message.policy not in POLICY_CODES:
            raise ProtocolError(
                f"reader_join with {len(fds)} descriptors and policy {message.policy!r}"
            )
        try:
            owed = self.core.add_reader(
                message.reader,
                fds[0],
                fds[1],
                message.max_pins,
                POLICY_CODES[message.policy],
                message.depth,
                message.group,
                message.member,
            )
        except (OSError, ValueError) as error:
            depth = f" and depth {message.depth}" if message.depth else ""
            self._refuse(error, f"another {message.max_pins} pins{depth}")
        self._admitted.add(message.reader)
        self.readers = {**self.readers, message.reader: message.policy}
        if self._awaited and lossless_in(self.readers) >= self._awaited:
            self.let_go()
        self.stream.on_reader()
        return owed

    def leave_reader(self, reader_id: int, pins: str) -> None:
        """A reader is gone: what it was owed is free; its pins too unless they are to be kept."""
        if reader_id not in self._admitted:
            return
        self.readers = {key: value for key, value in self.readers.items() if key != reader_id}
        with suppress(ValueError):  # closed meanwhile
            if pins == "keep":
                self.core.release_reader(reader_id)
            else:
                self._admitted.discard(reader_id)
                self.core.remove_reader(reader_id)

    def mark_ended(self, reason: str) -> None:
        """The stream was taken away: acquire raises from now on, one that waits at once."""
        if self.last_readers is None:
            self.last_readers = self.readers
        with suppress(ValueError):  # closed meanwhile
            self.core.end(END_CODES.get(reason, _core.END_REVOKED))

    def mark_lost(self) -> None:
        """The session is over: ends the stream and unmaps it; slots still held stay valid."""
        self.mark_ended("shutdown")
        with suppress(ValueError):  # closed meanwhile
            self._counters = self.core.stats()
        self.core.close()

    def _refuse(self, error: Exception, what: str) -> NoReturn:
        name = self.grant.name
        if isinstance(error, ValueError):
            raise_closed(name, self.connection)
        number: Any = error.errno if isinstance(error, OSError) else None
        if number == errno.ENOSPC:
            raise LimitExceeded(
                f"stream {name!r} has {self.grant.slots} slots, too few for {what}",
                "Attach with fewer max_pins or less depth, or create the stream with more slots.",
            ) from error
        if number == errno.EUSERS:
            raise LimitExceeded(
                f"stream {name!r} has {_core.MAX_READERS} readers, the most there can be"
            ) from error
        if number in (errno.EINVAL, errno.ENOENT, errno.EEXIST):
            raise ProtocolError(f"stream {name!r} cannot admit {what}: {error}") from error
        raise error


def lossless_in(readers: Mapping[int, str]) -> int:
    """How many of these readers hold the writer back."""
    return sum(policy == "lossless" for policy in readers.values())
