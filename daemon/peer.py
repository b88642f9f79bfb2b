"""Who is at the other end of a connection: pid and uid from the kernel, and a pidfd."""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
import time
from dataclasses import dataclass

from mcpd.shm.segment import process_start_ticks

_SO_PEERPIDFD = 77  # include/uapi/asm-generic/socket.h, from Linux 6.5
_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid


@dataclass
class Peer:
    """A process at the other end. Owns its pidfd.

    Attributes:
        pid: 0 if it is in another pid namespace.
        pidfd: Readable once the process is gone; -1: only the connection tells.
    """

    pid: int
    uid: int
    pidfd: int

    def alive(self) -> bool:
        """Whether the process still runs; without a pidfd nobody knows, and it counts as gone."""
        if self.pidfd < 0:
            return False
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return not poll.poll(0)

    def close(self) -> None:
        """Closes the pidfd. Idempotent."""
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


def identify(sock: socket.socket) -> Peer:
    """The process that connected `sock`, a connected Unix socket.

    Raises:
        ProcessLookupError: It is gone already.
        OSError: No descriptor is left for its pidfd.
    """
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    try:
        return Peer(pid, uid, sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD))
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        if error.errno in (errno.ESRCH, errno.EINVAL):
            # Whoever holds its socket: its number may be another's by now.
            raise ProcessLookupError(errno.ESRCH, f"process {pid} is gone") from error
        if error.errno != errno.ENOPROTOOPT:
            return Peer(pid, uid, -1)
    return Peer(pid, uid, _pidfd_by_number(pid))


def identify_child(pid: int) -> Peer:
    """A child of this process that nobody has waited for, so that its number is still its own."""
    return Peer(pid, os.geteuid(), os.pidfd_open(pid))


def _pidfd_by_number(pid: int) -> int:
    """A pidfd from a number that may have been given to another process meanwhile; else -1."""
    if pid <= 0:
        return -1
    now_ticks = time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK")
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return -1
    started = process_start_ticks(pid)
    if started is None or started > now_ticks:
        os.close(pidfd)  # born after the connection was made: not the one that made it
        return -1
    return pidfd
