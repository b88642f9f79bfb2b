"""Groups of readers: made when the first member comes, known to the writer, the same for all."""

from __future__ import annotations

import asyncio
import os

from mcpd.daemon import limits, quotas
from mcpd.daemon.introduction import ask_writer
from mcpd.daemon.leases import Group, Stream, Wanted
from mcpd.daemon.registry import Registry
from mcpd.daemon.session import Session
from mcpd.native import _core
from mcpd.shm import segment
from mcpd.shm.errors import InvalidRequest
from mcpd.shm.messages import GroupJoin


class Groups:
    """Finds the group that a reader asks for. Belongs to the event loop's thread."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def find(self, session: Session, stream: Stream, wanted: Wanted) -> Group:
        """The group of that name, known to the writer; made if this is its first member.

        It counts for the session of its first member for as long as it stands.
        Who gets it and then has no member for it calls Registry.check_group.

        Raises:
            InvalidRequest: Its policy or depth is another.
            LimitExceeded: The stream has too few slots for its depth.
        """
        while (group := stream.find_group(wanted.group)) is not None:
            _check_same(group, wanted)
            await asyncio.shield(group.ready)
            if not group.left:
                return group
        limits.check_room(stream.name, stream.spec, stream.pins, max(stream.depth, wanted.kept))
        group = self._make(session, stream, wanted)
        try:
            await self._introduce(group)
        except BaseException as error:
            group.ready.set_exception(error)
            group.ready.exception()  # nobody else may have waited for it
            self._registry.check_group(group)
            raise
        group.ready.set_result(None)
        return group

    def _make(self, session: Session, stream: Stream, wanted: Wanted) -> Group:
        number = self._registry.next_id()
        nbytes = _core.group_control_nbytes(stream.spec.slots)
        share = self._registry.quotas.take(
            session,
            f"group {wanted.group!r} of {stream.name!r}",
            fds=quotas.GROUP_FDS,
            memory=nbytes,
        )
        try:
            # At most nine pages: not worth a thread.
            control = segment.create_memfd(f"mcpd:gctl:{stream.name}", nbytes)
            try:
                counters = _core.GroupControl(control.fd, stream.spec.slots)
                counters.initialise(*stream.key, number)
            except BaseException:
                control.close()
                raise
        except BaseException:
            share.give_back()
            raise
        share.settle()
        group = stream.groups[number] = Group(
            id=number,
            name=wanted.group,
            stream=stream,
            policy=wanted.policy,
            depth=wanted.depth,
            share=share,
            control=control,
            counters=counters,
            ready=asyncio.get_running_loop().create_future(),
        )
        return group

    async def _introduce(self, group: Group) -> None:
        """Makes it known to the writer, and sets where its members begin."""
        stream = group.stream
        join = GroupJoin(
            stream=stream.id,
            generation=stream.generation,
            group=group.id,
            policy=group.policy,
            depth=group.depth,
        )
        read_only = group.control.open_read_only()
        try:
            owed = await ask_writer(stream, join, (read_only,), "group")
        finally:
            os.close(read_only)
        if group.policy == "latest":
            owed = max(stream.head(), stream.first_seq)
        group.counters.start(max(owed, stream.first_seq))


def _check_same(group: Group, wanted: Wanted) -> None:
    if (group.policy, group.depth) != (wanted.policy, wanted.depth):
        raise InvalidRequest(
            f"group {group.name!r} of stream {group.stream.name!r} reads with policy "
            f"{group.policy!r} and depth {group.depth}; this reader asks for {wanted.policy!r} "
            f"and {wanted.depth}",
            "Ask for the same, or join a group of another name.",
        )
