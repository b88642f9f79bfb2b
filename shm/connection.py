"""A session's client end: requests and their replies, notifications, and one I/O thread.

The thread reads the socket, completes requests, admits readers to this process's writers and, when
the daemon is gone, fails what is pending and ends every stream, so that nobody waits for ever.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, Self

from mcpd.shm.errors import (
    DaemonUnavailable,
    Internal,
    InvalidRequest,
    McpdError,
    NotPermitted,
    ProtocolError,
    TimedOut,
    from_wire,
)
from mcpd.shm.messages import (
    PROTOCOL_VERSION,
    TO_CLIENT,
    DetachReader,
    ErrorReply,
    GroupJoin,
    GroupLeave,
    Hello,
    Message,
    ReaderEvicted,
    ReaderJoin,
    ReaderLeave,
    Reply,
    StreamEndedNote,
    StreamMoved,
)
from mcpd.shm.replies import Answer, PendingReplies, undo_of
from mcpd.shm.session_streams import OPEN, SessionStreams, detach_later
from mcpd.shm.transport import MessageSocket, close_fds
from mcpd.shm.wire import Decoder, encode, read_envelope

REQUEST_TIMEOUT_S = 30.0
"""How long a control request may take unless it says otherwise; reserving 1 GiB takes 0.4 s."""

_log = logging.getLogger("mcpd.shm")
_decoder = Decoder(TO_CLIENT)


class Connection:
    """One session with the daemon over a connected socket. A context manager that closes.

    Safe for threads. Not to be used in a process forked from the one that made it: calls raise
    InvalidRequest there.

    Args:
        sock: Connected Unix stream socket, this object's from the call on, even if it raises.
        name: What this program calls itself, for `mcpd status`.
        timeout_s: How long the daemon may take to greet.
        on_message: Gets requests and notifications of the daemon that are not about this process's
            streams (Serve, Unserve, Run); answers requests with `reply` or `reply_error`. Runs on
            the I/O thread: must not block, nor call `request`.
        on_closed: Called once, on the I/O thread, when the session is over by no call of `close`.

    Attributes:
        streams: Those of this session, whose ends are in this process.
        session: The daemon's number of this session.
        daemon_pid, daemon_version, daemon_instance: Its process; version; which start of it.
        socket_path: Where it listens.

    Raises:
        DaemonUnavailable: The daemon closed the connection.
        TimedOut: It did not greet in time.
        UnsupportedVersion, LimitExceeded, NotPermitted: It refuses this session.
    """

    def __init__(
        self,
        sock: socket.socket,
        *,
        name: str = "",
        timeout_s: float = 5.0,
        on_message: Callable[[Message], None] | None = None,
        on_closed: Callable[[McpdError], None] | None = None,
    ) -> None:
        self._pid = os.getpid()
        self._on_message, self._on_closed = on_message, on_closed
        self._lock = threading.Lock()  # of the socket's outbound side
        self._replies = PendingReplies(self._give_back)
        self.streams = SessionStreams()
        OPEN.add(self)
        self._over: McpdError | None = None
        self._farewell: McpdError | None = None
        self._closing = False
        self._socket = MessageSocket(sock)
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._run, name="mcpd-io", daemon=True)
        self._thread.start()
        try:
            greeting, fds = self.request(
                Hello(versions=[PROTOCOL_VERSION], client=name[:64]), timeout_s=timeout_s
            )
            close_fds(fds)
            self.session = int(greeting["session"])
            self.daemon_pid = int(greeting["daemon_pid"])
            self.daemon_version = str(greeting.get("daemon_version", ""))
            self.daemon_instance = str(greeting.get("instance", ""))
            self.socket_path = str(greeting.get("socket", ""))
        except BaseException as error:
            self.close()
            if self._farewell is not None and isinstance(error, DaemonUnavailable):
                raise self._farewell from None  # it was refused, and never a session
            if isinstance(error, (KeyError, TypeError, ValueError)):
                raise ProtocolError(f"the daemon's greeting is not readable: {error}") from error
            raise

    # ---- requests ------------------------------------------------------------------------------

    def request(
        self, message: Message, fds: Sequence[int] = (), timeout_s: float | None = REQUEST_TIMEOUT_S
    ) -> Answer:
        """Sends a request and waits for its reply; the reply's descriptors are the caller's.

        Args:
            message: Its `id` and `fds` are set here.
            fds: Descriptors to send along; they stay the caller's.
            timeout_s: None waits for ever.

        Raises:
            McpdError: As the daemon answered.
            DaemonUnavailable: The connection is or was lost.
            TimedOut: No reply in time; what it would have granted is given back when it comes.
        """
        if threading.current_thread() is self._thread:
            raise Internal("a request was made on the connection's own I/O thread")
        future = self.submit(message, fds)
        try:
            return future.result(timeout_s)
        except FutureTimeoutError:
            if future.cancel():
                kind = type(message).__struct_config__.tag
                raise TimedOut(f"no reply to {kind} from the daemon in {timeout_s} s") from None
            return future.result()  # it came in the last moment
        except BaseException:
            self.abandon(message, future)
            raise

    def submit(self, message: Message, fds: Sequence[int] = ()) -> Future[Answer]:
        """Sends a request; the future gets its reply, or the error.

        Who no longer wants the reply calls `abandon`, so that nothing granted is left behind.

        Raises:
            DaemonUnavailable: The connection is lost.
            InvalidRequest, LimitExceeded: The message cannot be sent.
        """
        self._check_process()
        message.fds = len(fds)
        self._replies.number(message)
        data = encode(message)
        with self._lock:
            if self._over is not None:
                raise self.lost_error()
            future = self._replies.add(message)
            try:
                self._transmit(data, fds)
            except BaseException:
                self._replies.remove(message)
                raise
        return future

    def abandon(self, message: Message, future: Future[Answer]) -> None:
        """Gives up a request: what its reply grants or granted is given back."""
        self._replies.abandon(message, future)

    def notify(self, message: Message, fds: Sequence[int] = ()) -> None:
        """Sends a notification.

        Raises:
            As submit.
        """
        self._check_process()
        message.id = 0
        message.fds = len(fds)
        self._send(message, fds)

    def reply(self, request: Message, result: dict[str, Any], fds: Sequence[int] = ()) -> None:
        """Answers a request of the daemon. Any thread; does nothing when the session is over."""
        self._answer(Reply(id=request.id, result=result, fds=len(fds)), fds)

    def reply_error(self, request: Message, error: McpdError) -> None:
        """Answers a request of the daemon with an error."""
        code, text, hint = error.code, error.message, error.hint
        self._answer(ErrorReply(id=request.id, code=code, message=text, hint=hint))

    # ---- life ----------------------------------------------------------------------------------

    @property
    def lost(self) -> bool:
        """Whether the session is over, by `close` or by the daemon's end."""
        return self._over is not None

    @property
    def inherited(self) -> bool:
        """Whether this is a forked child: the session is its parent's."""
        return self._pid != os.getpid()

    def close(self) -> None:
        """Ends the session: requests still pending fail, streams still open end. Idempotent."""
        self._closing = True
        if self.inherited:
            return
        if self._thread is not threading.current_thread():
            self._wake()
            self._thread.join()
            with self._lock:
                if self._wake_fd >= 0:
                    os.close(self._wake_fd)
                    self._wake_fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- the I/O thread ------------------------------------------------------------------------

    def _run(self) -> None:
        error: McpdError | None = None
        try:
            self._serve()
        except McpdError as reason:
            error = reason
        except OSError as reason:
            error = DaemonUnavailable(f"connection to the daemon failed: {reason}")
        except Exception as reason:
            _log.exception("connection failed")
            error = Internal(f"connection failed: {reason!r}")
        self._finish(error)

    def _serve(self) -> None:
        poll = select.poll()
        poll.register(self._wake_fd, select.POLLIN)
        sock_fd = self._socket.fileno()
        while not self._closing and not self._socket.eof:
            with self._lock:
                waiting = self._socket.pending_nbytes > 0
            poll.register(sock_fd, select.POLLIN | (select.POLLOUT if waiting else 0))
            ready = dict(poll.poll())
            if self._wake_fd in ready:
                os.eventfd_read(self._wake_fd)
            events = ready.get(sock_fd, 0)
            if events & ~select.POLLOUT:
                self._handle_all(self._socket.receive())
            if events & select.POLLOUT and not self._socket.eof:
                with self._lock:
                    self._flush()

    def _handle_all(self, messages: list[tuple[bytes, list[int]]]) -> None:
        try:
            while messages:
                body, fds = messages.pop(0)
                self._handle(body, fds)
        finally:
            for _, fds in messages:
                close_fds(fds)

    def _handle(self, body: bytes, fds: list[int]) -> None:
        """Owns `fds`."""
        try:
            message = _decoder.decode(body)
        except InvalidRequest as error:
            close_fds(fds)
            envelope = read_envelope(body)
            _log.warning("message=%s id=%d ignored: %s", envelope.type, envelope.id, error)
            if envelope.id and envelope.type not in ("reply", "error"):
                self.reply_error(Message(id=envelope.id), error)
            return
        except BaseException:
            close_fds(fds)
            raise
        if isinstance(message, (Reply, ErrorReply)):
            asked = self._replies.complete(message, fds)
            if not asked and isinstance(message, ErrorReply) and message.id == 0:
                self._farewell = from_wire(message.code, message.message, message.hint)
            return
        try:
            self._dispatch(message, fds)
        except McpdError as error:
            self._refuse(message, error)
        except Exception as error:
            _log.exception("message=%s failed", type(message).__struct_config__.tag)
            self._refuse(message, Internal(f"{type(error).__name__}: {error}"))
        finally:
            close_fds(fds)

    def _dispatch(self, message: Message, fds: list[int]) -> None:
        match message:
            case GroupJoin() | ReaderJoin():
                self.reply(message, {"start_seq": self.streams.join(message, fds)})
            case GroupLeave() | ReaderLeave() | ReaderEvicted() | StreamEndedNote():
                self.streams.tell(message)
            case StreamMoved():
                unwanted = self.streams.move_reader(message, fds)
                fds.clear()  # they are the reader's now
                if unwanted:
                    detach_later(self, message.grant.reader)
            case _ if self._on_message is not None:
                self._on_message(message)
            case _:
                raise NotPermitted(f"{type(message).__struct_config__.tag} is for workers only")

    def _refuse(self, message: Message, error: McpdError) -> None:
        if message.id:
            self.reply_error(message, error)
        else:
            kind = type(message).__struct_config__.tag
            _log.warning("message=%s ignored: %s", kind, error)

    def _finish(self, error: McpdError | None) -> None:
        with self._lock:
            asked = self._closing
            if error is None or isinstance(error, DaemonUnavailable):
                error = self._farewell or error
            if error is None:
                text = "connection was closed" if asked else "the daemon closed the connection"
                hint = "" if asked else "See whether it runs: mcpd status."
                error = DaemonUnavailable(text, hint)
            self._over = error
            self._socket.close()
        self._replies.fail_all(self.lost_error)
        self.streams.end_all()
        if not asked and self._on_closed is not None:
            self._on_closed(error)

    # ---- sending -------------------------------------------------------------------------------

    def _answer(self, message: Message, fds: Sequence[int] = ()) -> None:
        try:
            self._send(message, fds)
        except DaemonUnavailable:
            return  # nobody is left who waits for it

    def _send(self, message: Message, fds: Sequence[int] = ()) -> None:
        data = encode(message)
        with self._lock:
            if self._over is not None:
                raise self.lost_error()
            self._transmit(data, fds)

    def _transmit(self, data: bytes, fds: Sequence[int]) -> None:
        """Under the lock. Sends at once if the socket takes it, else leaves it to the thread."""
        self._socket.queue(data, fds)
        self._flush()
        if self._socket.pending_nbytes and threading.current_thread() is not self._thread:
            self._wake()

    def _flush(self) -> None:
        try:
            self._socket.flush()
        except (BrokenPipeError, ConnectionResetError):
            # The thread reads what the daemon said last, and then the end of file.
            self._socket.drop_outbound()

    def _give_back(self, message: Message, result: dict[str, Any]) -> None:
        undo = undo_of(message, result)
        if undo is None:
            return
        if isinstance(undo, DetachReader):
            detach_later(self, undo.reader)
            return
        try:
            self.submit(undo)
        except DaemonUnavailable:
            return  # the session ended, and the grant with it

    def lost_error(self) -> McpdError:
        """A new error for each who gets one: they are raised in several threads."""
        over = self._over or DaemonUnavailable("connection is lost")
        what = "" if isinstance(over, DaemonUnavailable) else "session ended: "
        return DaemonUnavailable(f"{what}{over.message}", over.hint)

    def _check_process(self) -> None:
        if self.inherited:
            raise InvalidRequest(
                f"connection of process {self._pid} used in its child {os.getpid()}",
                "After a fork connect again; better, start processes with spawn.",
            )

    def _wake(self) -> None:
        if self._wake_fd >= 0:
            os.eventfd_write(self._wake_fd, 1)
