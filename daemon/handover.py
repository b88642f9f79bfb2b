"""Brings readers over to another generation of their stream: after a resize, or to the next writer.

A reader has one lease for each generation that it has not let go of. It finishes the old one, goes
on in the new one and then detaches from the old one, all without asking; see docs/control.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from mcpd.daemon.leases import MAX_SEQ, Reader, Stream
from mcpd.daemon.readers import Readers
from mcpd.daemon.registry import Registry
from mcpd.shm.errors import InvalidRequest, LimitExceeded, McpdError
from mcpd.shm.messages import StreamEndedNote, StreamMoved

log = logging.getLogger("mcpd.daemon")

MAX_BEHIND = 4
"""Generations that a reader may have before it and not have come to. What it has is memory."""


class Handover:
    """Moves readers. Belongs to the event loop's thread."""

    def __init__(self, registry: Registry, readers: Readers) -> None:
        self._registry = registry
        self._readers = readers
        self._moving: set[asyncio.Task[None]] = set()
        registry.on_reader_removed = self._caught_up

    def open(self, new: Stream) -> None:
        """Lets readers in."""
        new.state = "live"
        self._registry.names.add(new)

    async def resize(self, old: Stream, new: Stream) -> None:
        """Has the readers of `old` go on in `new`, and puts it in its place.

        Raises:
            McpdError: One of them cannot; then none does, and nothing has changed.
        """
        carried: list[tuple[Reader, Reader]] = []
        try:
            check_next(old, new.first_seq)
            await self._carry_all(lambda: self._to_carry(old), new, carried)
            check_next(old, new.first_seq)
        except BaseException:
            self._take_back(carried)
            raise
        old.state, old.successor, old.pending = "moved", new, None
        self.open(new)
        self._registry.on_stream_moved(old, new)
        for before, after in carried:
            self._tell(before, after)

    async def succeed(self, new: Stream) -> None:
        """Has those who follow the stream of the writer before go on in `new`, and opens it.

        A follower that does not fit into `new` is told that its stream was taken away.
        """
        carried: list[tuple[Reader, Reader]] = []
        refused: list[Reader] = []

        def waiting() -> list[Reader]:
            return [r for r in self._registry.followers(new.id) if r not in refused]

        try:
            await self._carry_all(waiting, new, carried, refused)
        except BaseException:
            self._take_back(carried)
            raise
        if new.state == "sealed":
            self.open(new)
        for before, after in carried:
            self._tell(before, after)
        for reader in refused:
            self._give_up(reader)

    def _to_carry(self, old: Stream) -> list[Reader]:
        """Those of a resized stream who are not brought over yet and are not too far behind."""
        found = []
        for reader in old.readers.values():
            if reader.state != "live" or reader.successor is not None:
                continue
            behind = _behind(reader)
            if behind < MAX_BEHIND:
                found.append(reader)
            elif reader.policy == "lossless":
                peer = reader.session
                raise LimitExceeded(
                    f"stream {old.name!r}: a lossless reader (pid {peer.peer.pid}, client "
                    f"{peer.client!r}) has {behind} earlier generations to read, the most allowed "
                    f"is {MAX_BEHIND}",
                    "Wait until it has caught up, or end it.",
                )
        return found

    async def _carry_all(
        self,
        waiting: Callable[[], Iterable[Reader]],
        new: Stream,
        carried: list[tuple[Reader, Reader]],
        refused: list[Reader] | None = None,
    ) -> None:
        """Until nobody waits: who comes meanwhile is brought over as well."""
        while reader := next(iter(waiting()), None):
            try:
                after = await self._carry(reader, new)
            except McpdError:
                if reader.state != "live" or reader.id not in self._registry.readers:
                    continue  # it is gone itself
                if refused is None or new.state != "sealed":
                    raise
                refused.append(reader)
            else:
                if after is not None:
                    carried.append((reader, after))

    async def _carry(self, before: Reader, new: Stream) -> Reader | None:
        """The reader in `new`, not told yet; None if it went away meanwhile."""
        after = await self._readers.introduce(before.session, new, before.wanted)
        if before.state != "live" or before.id not in self._registry.readers:
            self._registry.remove_reader(after)
            return None
        before.successor, after.predecessor = after, before
        return after

    def _take_back(self, carried: list[tuple[Reader, Reader]]) -> None:
        for before, after in carried:
            before.successor = None
            self._registry.remove_reader(after)

    def _tell(self, before: Reader, after: Reader) -> None:
        if before.id not in self._registry.readers or before.state != "live":
            # It left, or was evicted, while others were introduced.
            self._registry.remove_reader(after)
            return
        grant = after.stream.grant(after)
        after.told = True
        before.session.send(StreamMoved(reader=before.id, grant=grant), after.fds)
        log.info(
            "stream=%d generation=%d reader=%d goes on as reader=%d",
            *(*after.stream.key, before.id, after.id),
        )

    def _give_up(self, reader: Reader) -> None:
        reader.follow = False
        number, generation = reader.stream.key
        note = StreamEndedNote(stream=number, generation=generation, reason="revoked")
        reader.session.send(note)
        log.warning("stream=%d reader=%d does not fit into the next generation", number, reader.id)

    def _caught_up(self, gone: Reader) -> None:
        """A reader that was too far behind has left an old generation: it goes to the newest."""
        reader = gone.successor
        if reader is None or reader.successor is not None or reader.state != "live":
            return
        newest = reader.stream.newest
        if newest is not reader.stream and newest.state == "live":
            task = asyncio.get_running_loop().create_task(self._carry_late(reader))
            self._moving.add(task)
            task.add_done_callback(self._moving.discard)
        elif newest is not reader.stream and not reader.follow:
            self._give_up(reader)

    async def _carry_late(self, before: Reader) -> None:
        after: Reader | None = None
        try:
            while after is None or after.stream.successor is not None:
                if after is not None:
                    self._registry.remove_reader(after)
                after = await self._carry(before, before.stream.newest)
                if after is None:
                    return
        except McpdError as error:
            log.info("reader=%d cannot go on: %s", before.id, error)
            self._give_up(before)
            return
        self._tell(before, after)


def _behind(reader: Reader) -> int:
    """Generations that it has not let go of before this one."""
    count = 0
    while reader.predecessor is not None:
        reader = reader.predecessor
        count += 1
    return count


def check_next(old: Stream, first_seq: int) -> None:
    """InvalidRequest unless a new generation from first_seq on continues what was published."""
    expected = old.head() + 1
    if first_seq != expected or first_seq >= MAX_SEQ:
        raise InvalidRequest(
            f"stream {old.name!r}: first_seq is {first_seq}; its next frame is {expected}",
            "Publish nothing while the stream is resized.",
        )
