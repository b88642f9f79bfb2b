"""A reader in one generation of its stream: what it maps, and what of its group is unfinished."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mcpd.native import _core
from mcpd.shm.errors import ProtocolError
from mcpd.shm.frame import Frame
from mcpd.shm.stream_end import POLICY_CODES, raise_lost
from mcpd.shm.transport import close_fds

if TYPE_CHECKING:
    from mcpd.shm.connection import Connection
    from mcpd.shm.messages import StreamGrant
    from mcpd.shm.reading import Reading

_CLAIMS_OFFSET = 512
_TAKEN, _RETURNED = 1, 3


class ReaderGeneration:
    """A reader in one generation.

    Args:
        grant: The daemon's.
        fds: Writer control, payload, reader control, wake; for lossless readers and members the
            writer's wake; for members the group's control. Closed here, mapped or not.

    Raises:
        ProtocolError: Grant and descriptors do not agree.
        SegmentLost: Its payload is smaller than it was.
        OSError: It cannot be mapped.

    Attributes:
        core: The C core's reader.
        connection: The session that it belongs to.
    """

    def __init__(
        self, connection: Connection, grant: StreamGrant, fds: Sequence[int], reading: Reading
    ) -> None:
        member = grant.group != 0
        wakes_writer = member or grant.policy == "lossless"
        self._claims: _Claims | None = None
        try:
            if len(fds) != 4 + wakes_writer + member or grant.policy not in POLICY_CODES:
                raise ProtocolError(
                    f"reader of {grant.name!r} came with {len(fds)} descriptors and policy "
                    f"{grant.policy!r}"
                )
            self.core = _core.Reader(
                fds[0],
                fds[1],
                fds[2],
                fds[3],
                fds[4] if wakes_writer else -1,
                fds[5] if member else -1,
                stream_id=grant.stream,
                generation=grant.generation,
                nslots=grant.slots,
                slot_nbytes=grant.slot_nbytes,
                max_pins=grant.max_pins,
                policy=POLICY_CODES[grant.policy],
                start_seq=grant.start_seq,
                first_seq=grant.first_seq,
                payload_offset=grant.payload_offset,
                depth=grant.depth,
                group=grant.group,
                member=grant.member,
                every_n=reading.every_n,
                interval_ns=reading.interval_ns,
                skip_expired=reading.skip_expired,
            )
            self.core.presents(Frame, grant)
            if member:
                self._claims = _Claims(fds[5], grant.slots, grant.member)
        except OSError as error:
            raise_lost(grant.name, error)
        finally:
            close_fds(fds)
        self.connection = connection
        self.grant = grant
        self.reader_id = grant.reader
        self.slot_nbytes = grant.slot_nbytes
        self._counters: dict[str, int] = {}

    @property
    def others_busy(self) -> bool:
        """Whether another member of the group has a frame of this generation in work, which may
        come back to the group if it dies."""
        if self._claims is None or self.connection.lost:  # nobody takes them from the dead now
            return False
        return self._claims.unfinished()

    @property
    def fd(self) -> int:
        """What to wait for; -1 when it is closed."""
        try:
            return self.core.fileno()
        except ValueError:
            return -1

    def ended(self) -> int:
        """How it has ended, as the writer or the daemon says; when it is closed, "shutdown"."""
        try:
            return self.core.ended()
        except ValueError:
            return _core.END_SHUTDOWN

    def counters(self) -> dict[str, int]:
        """The core's counters, or the last ones when it is closed."""
        try:
            return self.core.stats()
        except ValueError:
            return self._counters

    def close(self) -> None:
        """Unmaps, but for frames that are still held. Idempotent."""
        self._counters = self.counters()
        self.core.close()
        if self._claims is not None:
            self._claims.close()


class _Claims:
    """The claims of a group, read-only: only for whether the others are done."""

    def __init__(self, fd: int, slots: int, member: int) -> None:
        self._member = member
        self._words = struct.Struct(f"<{slots}Q")
        self._map = mmap.mmap(fd, _CLAIMS_OFFSET + self._words.size, prot=mmap.PROT_READ)
        self._map.madvise(mmap.MADV_DONTFORK)

    def unfinished(self) -> bool:
        if self._map.closed:
            return False
        for word in self._words.unpack_from(self._map, _CLAIMS_OFFSET):
            member, state = word >> 8 & 0xFF, word & 0xFF
            if state == _RETURNED or (state == _TAKEN and member != self._member):
                return True
        return False

    def close(self) -> None:
        self._map.close()
