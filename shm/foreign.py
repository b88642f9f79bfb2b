"""Segments that a client brings: which descriptors may carry a stream; opening one by its name.

Looking at a descriptor must not wait: a file of FUSE or NFS could make even fstat wait for ever.
The kernel tells seals (F_GET_SEALS) of shared memory alone, which is a memfd, a file of /dev/shm or
another tmpfs, or one of huge pages, and asks no file system for that; so it is asked first.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from mcpd.shm.errors import InvalidRequest, NotFound, NotPermitted, SegmentLost, shown
from mcpd.shm.segment import SHM_DIRECTORY, Segment

_F_SEAL_FUTURE_WRITE = 0x10  # include/uapi/linux/fcntl.h; in Python's fcntl from 3.13
_SEALS = {
    fcntl.F_SEAL_SEAL: "seal",
    fcntl.F_SEAL_SHRINK: "shrink",
    fcntl.F_SEAL_GROW: "grow",
    fcntl.F_SEAL_WRITE: "write",
    _F_SEAL_FUTURE_WRITE: "future_write",
}
_UNWRITABLE = fcntl.F_SEAL_WRITE | _F_SEAL_FUTURE_WRITE
_MAX_NAME_NBYTES = 255
_HINT = "Bring a memfd or a file under /dev/shm, opened for reading and writing."


class Facts(NamedTuple):
    """What was seen of a segment; its owner may change the size at any time."""

    nbytes: int
    page_nbytes: int
    seals: int

    @property
    def seal_names(self) -> list[str]:
        """Its seals in words, for listings."""
        return [name for seal, name in _SEALS.items() if self.seals & seal]


def open_segment(segment: int | str) -> int:
    """A descriptor of its own for what a caller brings: a descriptor, or a name under /dev/shm.

    Raises:
        InvalidRequest: Neither, or a name that is none.
        NotFound, NotPermitted: No such name, or not for this user.
    """
    if isinstance(segment, bool) or not isinstance(segment, (int, str)):
        raise InvalidRequest(
            f"segment is {shown(segment)}", "Give a descriptor, or a name under /dev/shm."
        )
    if isinstance(segment, int):
        try:
            return fcntl.fcntl(segment, fcntl.F_DUPFD_CLOEXEC, 3)
        except (OSError, OverflowError, ValueError) as error:
            raise InvalidRequest(f"segment {segment} is no open descriptor", _HINT) from error
    name = segment.removeprefix("/")
    if not name or "/" in name or "\0" in name or len(os.fsencode(name)) > _MAX_NAME_NBYTES:
        raise InvalidRequest(f"segment {shown(segment)} is no name of shared memory")
    # Whoever put a symbolic link there, it is not followed; a FIFO would make open wait.
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        return os.open(SHM_DIRECTORY / name, flags)
    except FileNotFoundError as error:
        raise NotFound(
            f"there is no segment {shown(segment)}", "`ls /dev/shm` has them."
        ) from error
    except PermissionError as error:
        raise NotPermitted(f"segment {shown(segment)} is not yours to read and write") from error
    except OSError as error:
        raise InvalidRequest(
            f"segment {shown(segment)} is no shared memory: {error.strerror}", _HINT
        ) from error


@contextmanager
def brought(memory: str, segment: int | str | None, offset: int) -> Iterator[list[int]]:
    """What a request for a stream of such memory is to bring; open within the block.

    Raises:
        InvalidRequest: A segment and a memory that do not go together, or an offset that cannot be.
    """
    if (memory == "foreign") != (segment is not None):
        raise InvalidRequest(
            f"memory {shown(memory)} with segment {shown(segment)}",
            "A segment goes with memory='foreign', and no other memory has one.",
        )
    if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset < 1 << 63:
        raise InvalidRequest(
            f"segment_offset is {shown(offset)}", "Give bytes: 0, or a multiple of a page."
        )
    if segment is None:
        if offset:
            raise InvalidRequest(f"segment_offset is {offset} and there is no segment")
        yield []
        return
    fd = open_segment(segment)
    try:
        yield [fd]
    finally:
        os.close(fd)


def inspect(fd: int) -> Facts:
    """What a descriptor is of. Never waits.

    Raises:
        InvalidRequest: Not of shared memory that can be mapped for reading and writing.
    """
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except (OSError, ValueError) as error:  # -1: a socket, which the daemon closed as it came
        raise InvalidRequest("the segment is no shared memory", _HINT) from error
    status = os.fstat(fd)
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    if not stat.S_ISREG(status.st_mode):
        raise InvalidRequest("the segment is no file of shared memory", _HINT)
    if flags & os.O_PATH or flags & os.O_ACCMODE != os.O_RDWR:
        raise InvalidRequest("the segment's descriptor is not open for reading and writing", _HINT)
    if seals & _UNWRITABLE:
        raise InvalidRequest(
            "the segment is sealed against writing, so nobody could write the stream",
            "Add F_SEAL_WRITE or F_SEAL_FUTURE_WRITE after the stream is made, if at all.",
        )
    return Facts(status.st_size, os.fstatvfs(fd).f_bsize, seals)


def check_place(facts: Facts, offset: int, nbytes: int) -> None:
    """InvalidRequest unless so many bytes from `offset` on are in the segment, in whole pages.

    Numbers of any size and sign: they come from a peer.
    """
    page = facts.page_nbytes
    if offset < 0 or offset % page:
        raise InvalidRequest(
            f"segment_offset is {offset}; it must be 0 or a multiple of the segment's pages, of "
            f"{page} bytes"
        )
    needed = offset + (nbytes + page - 1) // page * page
    if needed > facts.nbytes:
        raise InvalidRequest(
            f"the segment has {facts.nbytes} bytes; slots of {nbytes} bytes together at offset "
            f"{offset} need {needed}",
            "Bring a larger segment, or use fewer or smaller slots.",
        )


def adopt(fd: int, offset: int, nbytes: int) -> Segment:
    """The payload that a client brought, on a descriptor of its own; `fd` stays the caller's.

    Raises:
        InvalidRequest: It is no shared memory, or there is no room for `nbytes` at `offset`.
        NotPermitted: This process may not open it for reading, as readers will.
        SegmentLost: It shrank meanwhile.
    """
    facts = inspect(fd)
    check_place(facts, offset, nbytes)
    own = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    segment = Segment(own, nbytes, "", "foreign", offset=offset, seals=facts.seal_names)
    try:
        os.close(segment.open_read_only())
    except OSError as error:
        segment.close()
        if error.errno not in (errno.EACCES, errno.EPERM):
            raise SegmentLost("the segment cannot be opened again") from None
        raise NotPermitted(
            "the daemon may not read the segment",
            "Make it readable for the daemon's user, or start a daemon of your own.",
        ) from None
    return segment
