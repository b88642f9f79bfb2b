"""The writer's end of a stream: acquires slots and publishes them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Self

from mcpd.native import _core
from mcpd.shm.errors import (
    DaemonUnavailable,
    InvalidRequest,
    LimitExceeded,
    McpdError,
    NotFound,
    TimedOut,
)
from mcpd.shm.messages import CloseStream, ResizeStream, SealStream, StreamGrant, StreamSpec
from mcpd.shm.slot import Slot
from mcpd.shm.spec import resized_spec
from mcpd.shm.stream_end import (
    END_CODES,
    add_counters,
    check_timeout,
    raise_closed,
    raise_ended,
    raise_lost,
    raise_none,
    read_grant,
)
from mcpd.shm.writer_generation import WriterGeneration

if TYPE_CHECKING:
    from mcpd.shm.bundle import Description, TensorSpec
    from mcpd.shm.connection import Connection


class WriterStream:
    """The writer's end of a stream. A context manager that closes.

    Args:
        connection: Where the stream was created; it passes on readers that join and leave.
        grant: The daemon's reply to CreateStream.
        fds: Writer control, payload, wake; closed here, mapped or not.
        description: What every slot holds, None if that varies.

    Attributes:
        name: Of the stream.
        stream_id: Its number, as in Result.source_stream.
        slot_type: What `acquire` gives.
    """

    slot_type: ClassVar[type[Slot]] = Slot

    def __init__(
        self,
        connection: Connection,
        grant: StreamGrant,
        fds: Sequence[int],
        description: Description | None,
    ) -> None:
        self._now = WriterGeneration(self, connection, grant, fds, description, self.slot_type)
        self._connection = connection
        self.name = grant.name
        self.stream_id = grant.stream
        self._past: dict[str, int] = {}  # counters of earlier generations
        self._resizing = threading.Lock()
        self._closed = False
        connection.streams.add_writer(self._now)

    @property
    def grant(self) -> StreamGrant:
        """Numbers of the generation that is written now, from the daemon."""
        return self._now.grant

    @property
    def generation(self) -> int:
        """The generation that is written now."""
        return self._now.generation

    @property
    def slots(self) -> int:
        """How many slots it has."""
        return self._now.grant.slots

    @property
    def slot_nbytes(self) -> int:
        """Bytes of a slot."""
        return self._now.slot_nbytes

    @property
    def description(self) -> Description | None:
        """What every slot holds, None if that varies."""
        return self._now.description

    @property
    def readers(self) -> Mapping[int, str]:
        """Policy of every reader attached now, by its number; replaced, never changed."""
        return self._now.readers

    @property
    def lost(self) -> bool:
        """Whether the session is over that it was made in."""
        return self._now.connection.lost

    def wait_lost(self, timeout_s: float) -> None:
        """Returns when it is, or the time is over: after the daemon said that it stops."""
        deadline = time.monotonic() + timeout_s
        while not self.lost and time.monotonic() < deadline:
            time.sleep(0.01)

    def on_reader(self) -> None:
        """Called on the I/O thread when a reader was admitted; does nothing here."""

    @property
    def look_again_s(self) -> None:
        """Nothing comes that fileno() does not tell; see ReaderStream."""
        return None

    def acquire(self, timeout_s: float | None = None) -> Slot:
        """A free slot to fill, the most recently freed; waits while lossless readers are behind.

        Args:
            timeout_s: None waits for ever, 0 not at all.

        Raises:
            WouldBlock: No slot is free, or the stream is being resized, with timeout_s 0.
            TimedOut: No slot came free in time, or a resize was not over.
            LimitExceeded: The writer holds as many slots as it declared (`holds`).
            InvalidRequest: timeout_s is below 0, or not a number.
            StreamClosed: The stream has ended.
            SegmentLost: A peer took away memory of it.
        """
        while True:
            now = self._now
            try:
                slot: Slot | None = now.core.acquire(timeout_s)
            except BufferError as error:
                raise LimitExceeded(
                    f"stream {self.name!r}: {now.grant.spec.holds} slots are held already",
                    "Publish or abandon one, drop views of published ones, or create the stream "
                    "with more `holds`.",
                ) from error
            except _core.StreamEnded as error:
                if now is not self._now:
                    continue  # it was resized meanwhile
                raise_ended(self.name, error.args[0])
            except ValueError:
                if now is not self._now:
                    continue
                check_timeout(timeout_s)
                raise_closed(self.name, self._connection)
            except (TypeError, OverflowError):
                check_timeout(timeout_s)
                raise
            except OSError as error:
                raise_lost(self.name, error)
            if slot is None:
                hint = "A lossless reader is behind; `mcpd status` names it."
                raise_none(self.name, timeout_s, "no slot came free", hint)
            return slot

    def fileno(self) -> int:
        """Readable when a lossless reader made room after an acquire that would have blocked.

        Another descriptor after `resize`.
        """
        try:
            return self._now.core.fileno()
        except ValueError:
            raise_closed(self.name, self._connection)

    def watch(self) -> tuple[int, ...]:
        """A duplicate of `fileno`, which an end of the stream does not close; the caller's."""
        return (os.dup(self.fileno()),)

    def arm(self) -> bool:
        """For event loops: True if a slot is free now, else fileno() will become readable."""
        try:
            return self._now.core.arm()
        except ValueError:
            raise_closed(self.name, self._connection)

    def disarm(self) -> None:
        """After fileno() became readable: drains it."""
        try:
            self._now.core.disarm()
        except ValueError:
            raise_closed(self.name, self._connection)

    def stats(self) -> dict[str, int]:
        """Counters: head, published, abandoned, would_block, blocked_ns, wakes, nbytes; and held,
        blocked_since_ns, publish_ns of now. Of all generations together."""
        try:
            return add_counters(self._past, self._now.core.stats())
        except ValueError:
            raise_closed(self.name, self._connection)

    def resize(
        self,
        *,
        width: int | None = None,
        height: int | None = None,
        format: str | None = None,
        tensors: Mapping[str, TensorSpec] | None = None,
        slots: int | None = None,
        holds: int | None = None,
        history: int | None = None,
        memory: str | None = None,
        matrix: str | None = None,
        range: str | None = None,
        rotation: int | None = None,
        strides: Sequence[int] | None = None,
        offsets: Sequence[int] | None = None,
        slot_nbytes: int | None = None,
    ) -> None:
        """Goes on in other memory, under the next generation; sequence numbers go on, too.

        What is None stays as it is. Readers are brought over without losing a frame: each finishes
        the old memory first, which is freed when the last has. Blocks while the daemon reserves
        the memory and the readers are admitted. Meanwhile `acquire` waits in other threads, and
        `publish` of a slot acquired before is InvalidRequest, also afterwards unless this fails;
        views of published ones stay valid.

        Raises:
            InvalidRequest: A value out of its limits.
            LimitExceeded: Too few slots for the readers there are, more memory than allowed, or a
                lossless reader is several generations behind.
            OutOfMemory: The machine has not the memory.
            StreamClosed: The stream has ended.
            TimedOut: The daemon does not answer; then the stream is closed.

            But for the last two, the stream is as it was.
        """
        with self._resizing:
            old = self._now
            spec, description = resized_spec(
                old.grant.spec,
                old.description,
                width=width,
                height=height,
                format=format,
                tensors=tensors,
                slots=slots,
                holds=holds,
                history=history,
                memory=memory,
                matrix=matrix,
                range=range,
                rotation=rotation,
                strides=strides,
                offsets=offsets,
                slot_nbytes=slot_nbytes,
            )
            try:
                old.core.freeze(True)
            except ValueError:
                raise_closed(self.name, self._connection)
            try:
                self._go_on(old, spec, description)
            finally:
                if self._now is old:
                    with suppress(ValueError):  # closed meanwhile
                        old.core.freeze(False)

    def _go_on(
        self, old: WriterGeneration, spec: StreamSpec, description: Description | None
    ) -> None:
        """Replaces a generation in which nothing can be published."""
        try:
            counters = old.core.stats()
        except ValueError:
            raise_closed(self.name, self._connection)
        if counters["ended"] != _core.END_LIVE:
            raise_ended(self.name, counters["ended"])
        request = ResizeStream(stream=self.stream_id, spec=spec, first_seq=counters["head"] + 1)
        connection = self._connection
        new = self._map_next(connection, *connection.request(request), description)
        try:
            self._seal(new)
        except BaseException as error:
            if not isinstance(error, McpdError) or isinstance(error, TimedOut):
                self.close()  # nobody knows where its readers are
            raise
        self._past = add_counters(self._past, old.core.stats())
        self._now = new
        old.mark_ended("moved")
        self._give_back(old)

    def _map_next(
        self,
        connection: Connection,
        result: Any,
        fds: Sequence[int],
        description: Description | None,
    ) -> WriterGeneration:
        """The generation that a reply grants, to be sealed."""
        grant = read_grant(result, fds)
        try:
            return WriterGeneration(self, connection, grant, fds, description, self.slot_type)
        except BaseException:
            connection.submit(CloseStream(stream=grant.stream, generation=grant.generation))
            raise

    def _seal(self, new: WriterGeneration) -> None:
        """Has the daemon bring the readers over to a generation; given back if that fails."""
        new.connection.streams.add_writer(new)
        try:
            new.connection.request(SealStream(stream=new.stream_id, generation=new.generation))
        except BaseException:
            self._give_back(new)
            raise

    def _give_back(self, generation: WriterGeneration) -> None:
        generation.connection.streams.remove_writer(generation)
        generation.core.close()
        try:
            generation.connection.submit(
                CloseStream(stream=generation.stream_id, generation=generation.generation)
            )
        except DaemonUnavailable:
            return  # the session ended, and the stream with it

    def end(self, reason: str = "closed") -> None:
        """Ends the stream: readers get what is left, then its end. Idempotent."""
        if reason not in END_CODES or reason == "moved":
            known = ", ".join(one for one in END_CODES if one != "moved")
            raise InvalidRequest(f"reason {reason!r} is not one of {known}")
        self._now.mark_ended(reason)

    def close(self) -> None:
        """Ends and unmaps the stream; its name is free again on return. Idempotent.

        Slots and views still held stay valid, but are published nowhere. Does nothing in a forked
        child: the stream is its parent's.
        """
        if not self._detach():
            return
        now = self._now
        try:
            self._connection.request(CloseStream(stream=now.stream_id, generation=now.generation))
        except (DaemonUnavailable, NotFound):
            return  # it took the stream away by itself

    def _detach(self) -> bool:
        """Closes this side alone; False if that was done before."""
        if self._closed or self._connection.inherited:
            return False
        self._closed = True
        self._connection.streams.remove_writer(self._now)
        self._now.mark_ended("closed")
        self._now.core.close()
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
