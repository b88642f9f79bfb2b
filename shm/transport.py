"""A Unix stream socket that carries messages and file descriptors, with no policy of its own.

The client's I/O thread and the daemon's event loop both drive it: they wait for the socket, call
`receive` when it is readable and `flush` when it is writable, and close it on any error.
"""

from __future__ import annotations

import array
import errno
import fcntl
import os
import socket
import stat
from collections import deque
from collections.abc import Iterable, Sequence

from mcpd.shm.errors import LimitExceeded, ProtocolError
from mcpd.shm.messages import MAX_FDS
from mcpd.shm.wire import HEADER_NBYTES, body_length, read_envelope

RECEIVE_NBYTES = 64 * 1024
RECEIVES_PER_CALL = 4
"""Most reads of the socket in one `receive`, so that one peer cannot keep the caller busy; a caller
that asks for smaller ones gets one."""
OUTBOUND_NBYTES = 1024 * 1024
"""Default bound of what waits for a peer that does not read."""
OUTBOUND_FDS = 4096
"""Of descriptors, the same."""

_CLOSED = -1
_FD_NBYTES = array.array("i").itemsize
_ANCILLARY_NBYTES = socket.CMSG_SPACE(MAX_FDS * _FD_NBYTES)


def _may_hold_a_socket(fd: int) -> bool:
    """Sockets, and what has no file type: an io_uring, for one, keeps the files given to it."""
    kind = stat.S_IFMT(os.fstat(fd).st_mode)
    return kind in (0, stat.S_IFSOCK)


def close_fds(fds: Iterable[int]) -> None:
    """Closes each descriptor; one that is closed already is passed over."""
    for fd in fds:
        if fd == _CLOSED:
            continue
        try:
            os.close(fd)
        except OSError:
            continue


class MessageSocket:
    """Messages with descriptors over one connected Unix stream socket, which it owns.

    Not safe for several threads at once. Never blocks. Counters are of bytes on the socket.

    Args:
        sock: Connected AF_UNIX stream socket; made nonblocking, closed by `close`.
        outbound_nbytes: Most bytes that may wait to be sent.
        outbound_fds: Most descriptors that may wait with them.
        receive_nbytes: Most bytes of one read.
        takes_fds: False: descriptors are closed as they arrive, so that a peer cannot have one
            held for it; not even its own end of this socket, which would never come to its end.
        most_fds: Most that may have come and are not claimed yet.
        takes_sockets: False: one that may be, or hold, an end of this very socket is closed as it
            arrives, and handed on as -1.
    """

    def __init__(
        self,
        sock: socket.socket,
        *,
        outbound_nbytes: int = OUTBOUND_NBYTES,
        outbound_fds: int = OUTBOUND_FDS,
        receive_nbytes: int = RECEIVE_NBYTES,
        takes_fds: bool = True,
        most_fds: int = 2 * MAX_FDS,
        takes_sockets: bool = True,
    ) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._takes_fds = takes_fds
        self._most_fds = most_fds
        self._takes_sockets = takes_sockets
        self._outbound_limit = outbound_nbytes
        self._outbound_fds_limit = outbound_fds
        self._outbound_fds = 0
        self._receive_nbytes = receive_nbytes
        self._receives = RECEIVES_PER_CALL if receive_nbytes == RECEIVE_NBYTES else 1
        self._outbound: deque[tuple[memoryview, list[int]]] = deque()
        self._outbound_nbytes = 0
        self._inbound = bytearray()
        self._inbound_fds: list[int] = []
        self._eof = False
        self._closed = False
        self.bytes_in = 0
        self.bytes_out = 0

    def fileno(self) -> int:
        """The socket's descriptor, for the caller's poll; -1 after `close`."""
        return self._sock.fileno()

    @property
    def eof(self) -> bool:
        """Whether the peer has closed its end: `receive` will return nothing more."""
        return self._eof

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    @property
    def pending_nbytes(self) -> int:
        """Bytes that wait to be sent; above 0 the caller should wait for writability."""
        return self._outbound_nbytes

    def receive(self) -> list[tuple[bytes, list[int]]]:
        """The messages that have arrived whole: (body without length, descriptors) each.

        Returns an empty list when nothing whole is there yet, or at the end (see `eof`). The
        descriptors are the caller's to close; they are close-on-exec. Where they are not taken, -1
        stands for each.

        Raises:
            ProtocolError: A length out of bounds, bytes that are no message, descriptors that were
                lost, missing or not announced. The session must end; no descriptor stays open.
        """
        messages: list[tuple[bytes, list[int]]] = []
        try:
            for _ in range(self._receives):
                if not self._fill():
                    break
                self._split(messages)
        except BaseException:
            for _, fds in messages:
                close_fds(fds)
            self._drop_inbound()
            raise
        return messages

    def queue(self, data: bytes, fds: Sequence[int] = ()) -> None:
        """Appends an encoded message to what `flush` sends; `data` as from `wire.encode`.

        The message must announce the descriptors in its `fds` field. They stay the caller's:
        duplicates wait here.

        Raises:
            ProtocolError: More than the bound would be waiting: the peer does not read.
        """
        if self._closed:
            return
        waiting = self._outbound_nbytes + len(data)
        if waiting > self._outbound_limit:
            raise ProtocolError(
                f"peer does not read: {waiting} bytes would wait for it, "
                f"the limit is {self._outbound_limit}"
            )
        if fds and self._outbound_fds + len(fds) > self._outbound_fds_limit:
            raise ProtocolError(
                f"peer does not read: {self._outbound_fds + len(fds)} descriptors would wait for "
                f"it, the limit is {self._outbound_fds_limit}"
            )
        duplicates: list[int] = []
        try:
            for fd in fds:
                duplicates.append(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3))
        except BaseException:
            close_fds(duplicates)
            raise
        self._outbound.append((memoryview(data), duplicates))
        self._outbound_fds += len(duplicates)
        self._outbound_nbytes = waiting

    def flush(self) -> bool:
        """Sends what the socket takes now; True when nothing is left to send.

        Raises:
            LimitExceeded: Too many descriptors of this user are in flight.
            OSError: The peer is gone (BrokenPipeError, ConnectionResetError).
        """
        while self._outbound:
            view, fds = self._outbound[0]
            try:
                sent = self._send(view, fds)
            except (BlockingIOError, InterruptedError):
                return False
            self.bytes_out += sent
            self._outbound_nbytes -= sent
            close_fds(fds)  # they went with the first byte
            self._outbound_fds -= len(fds)
            if sent == len(view):
                self._outbound.popleft()
            else:
                self._outbound[0] = (view[sent:], [])
        return True

    def drop_outbound(self) -> None:
        """Forgets what waits to be sent, for when the peer reads no more but may have spoken."""
        for _, fds in self._outbound:
            close_fds(fds)
        self._outbound.clear()
        self._outbound_nbytes = 0
        self._outbound_fds = 0

    def close(self) -> None:
        """Closes the socket and every descriptor still waiting in either direction. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._drop_inbound()
        self.drop_outbound()
        self._sock.close()

    def _send(self, view: memoryview, fds: list[int]) -> int:
        if not fds:
            return self._sock.send(view, socket.MSG_NOSIGNAL)
        try:
            rights = array.array("i", fds)
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)]
            return self._sock.sendmsg([view], ancillary, socket.MSG_NOSIGNAL)
        except OSError as error:
            if error.errno != errno.ETOOMANYREFS:
                raise
            raise LimitExceeded(
                "too many descriptors are in flight between this user's processes",
                "Raise the limit of open files (ulimit -n), or see which peer does not read.",
            ) from error

    def _fill(self) -> bool:
        """One read of the socket; False when there is nothing more to be had now."""
        if self._eof or self._closed:
            return False
        try:
            data, ancillary, flags, _ = self._sock.recvmsg(
                self._receive_nbytes, _ANCILLARY_NBYTES, socket.MSG_CMSG_CLOEXEC
            )
        except (BlockingIOError, InterruptedError):
            return False
        except ConnectionResetError:
            self._end_of_file()
            return False
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                whole = len(content) - len(content) % _FD_NBYTES
                self._arrived(array.array("i", content[:whole]).tolist())
        if flags & socket.MSG_CTRUNC:
            raise ProtocolError(
                "descriptors were lost on the way (MSG_CTRUNC)",
                f"At most {MAX_FDS} ride on a message; see also the limit of open files.",
            )
        if not data:
            self._end_of_file()
            return False
        self.bytes_in += len(data)
        self._inbound += data
        return True

    def _arrived(self, fds: list[int]) -> None:
        count = len(self._inbound_fds) + len(fds)
        if self._takes_fds and count > self._most_fds:
            close_fds(fds)
            raise ProtocolError(f"{count} descriptors came at once, the limit is {self._most_fds}")
        if not self._takes_fds:
            close_fds(fds)
            fds = [_CLOSED] * len(fds)
        elif not self._takes_sockets:
            sockets = [fd for fd in fds if _may_hold_a_socket(fd)]
            close_fds(sockets)
            fds = [_CLOSED if fd in sockets else fd for fd in fds]
        self._inbound_fds.extend(fds)

    def _end_of_file(self) -> None:
        self._eof = True
        self._drop_inbound()

    def _split(self, messages: list[tuple[bytes, list[int]]]) -> None:
        """Moves whole messages from the inbound bytes to `messages`."""
        start = 0
        inbound = self._inbound
        while len(inbound) - start >= HEADER_NBYTES:
            length = body_length(inbound[start : start + HEADER_NBYTES])
            end = start + HEADER_NBYTES + length
            if len(inbound) < end:
                break
            body = bytes(inbound[start + HEADER_NBYTES : end])
            messages.append((body, self._claim_fds(body)))
            start = end
        del inbound[:start]
        # Descriptors arrive no later than their message's first byte, and a read never goes past
        # bytes that carry some: what is left over here can only belong to the message begun.
        spare = len(self._inbound_fds)
        if spare > MAX_FDS or (spare and not inbound):
            raise ProtocolError(
                f"{spare} descriptors came that no message announces",
                "A message says in `fds` how many ride on its first byte.",
            )

    def _claim_fds(self, body: bytes) -> list[int]:
        announced = read_envelope(body).fds
        if announced > len(self._inbound_fds):
            raise ProtocolError(
                f"message announces {announced} descriptors, {len(self._inbound_fds)} came with it"
            )
        claimed = self._inbound_fds[:announced]
        del self._inbound_fds[:announced]
        return claimed

    def _drop_inbound(self) -> None:
        close_fds(self._inbound_fds)
        self._inbound_fds.clear()
        self._inbound.clear()
