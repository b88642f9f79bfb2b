"""One connection to the daemon: messages in and out, requests answered, and nothing that blocks."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Coroutine, Sequence
from typing import Any, NamedTuple, Protocol

from mcpd.daemon.failures import translated
from mcpd.daemon.inbox import Inbox
from mcpd.daemon.pace import Pace
from mcpd.daemon.peer import Peer
from mcpd.daemon.quotas import Quotas, Share
from mcpd.shm import wire
from mcpd.shm.errors import Internal, LimitExceeded, McpdError, ProtocolError, TimedOut, from_wire
from mcpd.shm.messages import (
    REQUESTS,
    WORKER_MESSAGES,
    CreateStream,
    ErrorReply,
    Message,
    Reply,
)
from mcpd.shm.transport import MessageSocket, close_fds

log = logging.getLogger("mcpd.daemon")

FLUSH_TIMEOUT_S = 2.0
"""How long a session that ends may take to read the reason."""
RECEIVE_NBYTES = 16 * 1024
"""Most bytes of a session in one read: taking the smallest messages apart takes a millisecond."""
OUTBOUND_FDS = 256
"""Most descriptors that wait for a session that does not read; they are the daemon's meanwhile."""

_CLIENT = wire.Decoder((*REQUESTS, Reply, ErrorReply))
_WORKER = wire.Decoder((*REQUESTS, *WORKER_MESSAGES, Reply, ErrorReply))


class Answer(NamedTuple):
    """What a request is answered with; the descriptors stay the answerer's and are duplicated."""

    result: dict[str, Any] = {}  # noqa: RUF012  (never written to)
    fds: tuple[int, ...] = ()


def brings_segment(message: Message) -> bool:
    """Whether a descriptor may come with it: a stream's payload."""
    return isinstance(message, CreateStream) and message.spec.memory == "foreign"


class SessionEnded(Exception):
    """The peer went away before it answered."""


class EndOfSession(Exception):
    """Raised by a handler: the request is refused, and the session with it."""

    def __init__(self, error: McpdError) -> None:
        super().__init__(error)
        self.error = error


class Handler(Protocol):
    """What a session needs of the server."""

    def handle(
        self, session: Session, message: Message
    ) -> Answer | Coroutine[Any, Any, Answer]: ...

    def ended(self, session: Session) -> None:
        """Called once, when the connection is no more; the process may live on."""


class Session:
    """A connection and the process behind it. Belongs to the event loop's thread.

    Attributes:
        number: Its id, never used again.
        client: What the peer calls itself.
        greeted: Whether its hello was accepted.
        open: Whether messages still go through.
        is_worker: Whether it is a worker's, which the supervisor made the socket of.
        share: What it was admitted with; the server gives it back.
        brought: Descriptors that came with the message handled now; the session's.
        cause: Why the daemon ended it, for those who had to do with it; "" if it did not.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        peer: Peer,
        number: int,
        handler: Handler,
        quotas: Quotas,
        pace: Pace,
        *,
        is_worker: bool = False,
    ) -> None:
        self.number = number
        self.peer = peer
        self.client = ""
        self.since_s = time.time()
        self.greeted = False
        self.open = True
        self.is_worker = is_worker
        self.cause = ""
        self.brought: list[int] = []
        self._loop = loop
        self.share: Share | None = None
        self._quotas = quotas
        self._socket = MessageSocket(
            sock,
            outbound_nbytes=quotas.limits.outbound,
            outbound_fds=OUTBOUND_FDS,
            most_fds=1,  # of create_stream alone
            takes_sockets=False,
            receive_nbytes=RECEIVE_NBYTES,
        )
        self._fd = self._socket.fileno()
        self._decoder = _WORKER if is_worker else _CLIENT
        self._handler = handler
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._patience: set[asyncio.Future[None]] = set()
        self._last_id = 0
        self._ending = False
        self._lost = False  # what is sent reaches nobody; about to be closed
        self._inbox = Inbox(loop, self._socket, pace.pacer(peer.uid, is_worker=is_worker), self)

    @property
    def uid(self) -> int:
        """The user behind it."""
        return self.peer.uid

    @property
    def waiting(self) -> int:
        """Its requests that are being answered."""
        return len(self._tasks)

    @property
    def paused(self) -> int:
        """How often it was read no more for a moment, because it sent too much."""
        return self._inbox.paused

    @property
    def pending_nbytes(self) -> int:
        """Bytes that wait for it to read."""
        return self._socket.pending_nbytes

    @property
    def bytes_in(self) -> int:
        """Bytes received from the peer."""
        return self._socket.bytes_in

    @property
    def bytes_out(self) -> int:
        """Bytes sent to the peer."""
        return self._socket.bytes_out

    def __str__(self) -> str:
        return f"session={self.number} pid={self.peer.pid} client={self.client or '-'}"

    def send(self, message: Message, fds: Sequence[int] = ()) -> None:
        """Queues a message; a peer that does not read loses its session: nobody waits for it."""
        if not self.open or self._lost:
            return
        message.fds = len(fds)
        try:
            self._socket.queue(wire.encode(message), fds)
        except ProtocolError as error:
            log.warning("%s ended: %s", self, error)
            self._close_soon()
            return
        self._flush()

    async def request(
        self, message: Message, fds: Sequence[int] = (), *, timeout_s: float
    ) -> dict[str, Any]:
        """Asks the peer and returns its reply's result.

        Raises:
            SessionEnded: The connection is, or went, away.
            TimedOut: No reply in time.
            McpdError: What the peer replied.
        """
        if not self.open:
            raise SessionEnded
        self._last_id += 1
        message.id = number = self._last_id
        future = self._waiting[number] = self._loop.create_future()
        try:
            self.send(message, fds)
            return await asyncio.wait_for(future, timeout_s)
        except TimeoutError:
            raise TimedOut(f"{self} did not answer within {timeout_s:g} s") from None
        finally:
            del self._waiting[number]

    async def wait_for(self, event: asyncio.Future[None], timeout_s: float) -> None:
        """Waits for something on this peer's behalf, and no longer than the peer is there.

        Raises:
            SessionEnded: The connection is, or went, away.
            TimeoutError: The event did not happen in time.
        """
        if not self.open:
            raise SessionEnded
        self._patience.add(event)
        try:
            await asyncio.wait_for(event, timeout_s)
        finally:
            self._patience.discard(event)

    def fail(self, error: McpdError, message_id: int = 0) -> None:
        """Tells the peer why, and ends the session when it has read that, or after a moment."""
        log.warning("%s ended: %s", self, error)
        self.send(
            ErrorReply(id=message_id, code=error.code, message=error.message, hint=error.hint)
        )
        self.finish()

    def finish(self) -> None:
        """Reads nothing more, and closes when everything queued is sent, or after a moment."""
        if not self.open or self._ending:
            return
        self._ending = True
        self._inbox.stop()
        if self._socket.pending_nbytes:
            self._loop.call_later(FLUSH_TIMEOUT_S, self.close)
        else:
            self.close()

    def close(self) -> None:
        """Ends the connection now. Idempotent."""
        if not self.open:
            return
        self.open = False
        self._inbox.stop()
        self._loop.remove_writer(self._fd)
        self._socket.close()
        futures: list[asyncio.Future[Any]] = [*self._waiting.values(), *self._patience]
        for future in futures:
            if not future.done():
                future.set_exception(SessionEnded())
        self._handler.ended(self)

    def receive(self, body: bytes, fds: list[int]) -> None:
        """One message, from its inbox, with descriptors that are closed when it is answered."""
        self.brought = fds
        try:
            self._receive(body)
        finally:
            close_fds(self.brought)
            self.brought = []

    def _receive(self, body: bytes) -> None:
        try:
            message = self._decoder.decode(body)
        except McpdError as error:
            number = wire.read_envelope(body).id
            if isinstance(error, ProtocolError):
                self.fail(error)
            else:
                self._reply_error(number, error)
            return
        if self.brought and not brings_segment(message):
            what = type(message).__struct_config__.tag
            hint = "Only create_stream of memory 'foreign' brings one."
            self.fail(ProtocolError(f"a descriptor came with {what}", hint))
        elif isinstance(message, (Reply, ErrorReply)):
            self._resolve(message)
        elif message.id == 0 and not isinstance(message, WORKER_MESSAGES):
            self.fail(ProtocolError("request without an id", "Number requests from 1."))
        else:
            self._answer(message)

    def _resolve(self, message: Reply | ErrorReply) -> None:
        future = self._waiting.get(message.id)
        if future is None or future.done():
            log.debug("%s late reply id=%d", self, message.id)
        elif isinstance(message, Reply):
            future.set_result(message.result)
        else:
            future.set_exception(from_wire(message.code, message.message, message.hint))

    def _answer(self, message: Message) -> None:
        try:
            outcome = self._handler.handle(self, message)
        except EndOfSession as end:
            self.fail(end.error, message.id)
            return
        except Exception as error:
            self._reply_failure(message, error)
            return
        if isinstance(outcome, Answer):
            self._reply(message.id, outcome)
            return
        share: Share | None = None
        # A worker has as many as its clients together: each binding asks for a reader and a stream.
        if not self.is_worker:
            name = type(message).__struct_config__.tag
            try:
                share = self._quotas.take(self, f"request {name}", requests=1)
            except LimitExceeded as error:
                outcome.close()
                self._reply_error(message.id, error)
                return
        task = self._loop.create_task(self._answer_later(message, outcome))
        fds, self.brought = self.brought, []
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._answered(done, share, fds))

    def _answered(self, task: asyncio.Task[None], share: Share | None, fds: Sequence[int]) -> None:
        close_fds(fds)
        self._tasks.discard(task)
        if share is not None:
            share.give_back()

    async def _answer_later(self, message: Message, work: Coroutine[Any, Any, Answer]) -> None:
        try:
            answer = await work
        except Exception as error:
            if self.open or not isinstance(error, SessionEnded):
                self._reply_failure(message, error)
        else:
            self._reply(message.id, answer)

    def _reply(self, number: int, answer: Answer) -> None:
        if number == 0:
            return
        try:
            self.send(Reply(id=number, result=answer.result), answer.fds)
        except McpdError as error:
            self._reply_error(number, error)

    def _reply_failure(self, message: Message, error: Exception) -> None:
        """This is the outermost loop for whatever a request sets off: the daemon lives on."""
        told = translated(error)
        if told is None:
            name = type(message).__struct_config__.tag
            log.error("%s request=%s failed", self, name, exc_info=error)
            told = Internal(f"{name} failed: {error!r}", "See the daemon's log.")
        self._reply_error(message.id, told)

    def _reply_error(self, number: int, error: McpdError) -> None:
        log.info("%s id=%d refused: %s", self, number, error)
        self.send(ErrorReply(id=number, code=error.code, message=error.message, hint=error.hint))

    def _flush(self) -> None:
        try:
            done = self._socket.flush()
        except (OSError, LimitExceeded) as error:
            log.info("%s ended: %s", self, error)
            self._close_soon()
            return
        if not done:
            self._loop.add_writer(self._fd, self._flush)
            return
        self._loop.remove_writer(self._fd)
        if self._ending:
            self._close_soon()

    def _close_soon(self) -> None:
        """Whoever sends may be in the middle of the tables that the end of a session changes."""
        self._lost = True
        self._socket.drop_outbound()
        self._loop.remove_writer(self._fd)
        self._loop.call_soon(self.close)
