"""Segments of host memory: reserved before use, sealed against resizing, named after their owner.

A `memfd` has no name to leak. A `posix` segment has one under /dev/shm, which says whose it is, so
that anybody can tell a leftover: `mcpd.<uid>.<pid>.<start ticks>.<stream id>`. Neither is known to
Python's resource tracker.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import stat
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Self

from mcpd.shm.errors import AlreadyExists, InvalidRequest, OutOfMemory

SHM_DIRECTORY = Path("/dev/shm")
_F_SEAL_FUTURE_WRITE = 0x10  # include/uapi/linux/fcntl.h; in Python's fcntl from 3.13
_SIZE_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_MAX_NBYTES = 1 << 62
_RESERVE_STEP_NBYTES = 256 << 20
_HEADROOM_NBYTES = 64 << 20
_CLAIM_WITHIN_S = 10.0
"""An empty file that is younger may be about to be claimed by the process that makes it."""


class Owner(NamedTuple):
    """A process, told apart from a later one with the same number."""

    uid: int
    pid: int
    start_ticks: int
    """Start time in clock ticks since boot: field 22 of /proc/PID/stat."""


class Segment:
    """One memory object with one owner: a descriptor, its size and, if posix, a name.

    A context manager that closes. `close` leaves a posix name in place; `unlink` takes it away.

    Attributes:
        fd: Read-write descriptor, -1 once closed; the segment's.
        nbytes: Size in bytes.
        name: Without a leading slash for posix, as in /proc/PID/maps for memfd.
        memory: "memfd", "posix", or "foreign": a client's own, which it may resize or punch.
        offset: Of a foreign one: where in it the payload begins; nbytes counts from there.
        seals: Of a foreign one: the names of those that it had when it came.
    """

    def __init__(
        self,
        fd: int,
        nbytes: int,
        name: str,
        memory: str,
        *,
        offset: int = 0,
        seals: Sequence[str] = (),
    ) -> None:
        self.offset = offset
        self.seals = seals
        self.fd = fd
        self.nbytes = nbytes
        self.name = name
        self.memory = memory
        self._linked = memory == "posix"
        self._claim_fd = -1

    @property
    def shm_name(self) -> str:
        """The name to open it by with shm_open, "" for a memfd."""
        return f"/{self.name}" if self.memory == "posix" else ""

    def seal_future_write(self) -> None:
        """Nobody can map it writable from now on; mappings that stand stay writable. memfd only."""
        seals = _F_SEAL_FUTURE_WRITE | fcntl.F_SEAL_SEAL
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, seals)

    def open_read_only(self) -> int:
        """A new read-only descriptor of the same object; the caller's to close.

        It keeps honest code honest. What keeps a dishonest peer of the same uid from opening it
        for writing again is seal_future_write.
        """
        return os.open(f"/proc/self/fd/{self.fd}", os.O_RDONLY | os.O_CLOEXEC)

    def unlink(self) -> None:
        """Takes the name and the claim on it away, if there is one; mappings stand. Idempotent."""
        if self._linked:
            self._linked = False
            (SHM_DIRECTORY / self.name).unlink(missing_ok=True)
            if self._claim_fd >= 0:
                os.close(self._claim_fd)

    def close(self) -> None:
        """Closes the descriptor; mappings stand. Idempotent."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def create_memfd(name: str, nbytes: int) -> Segment:
    """A memfd of `nbytes`, all of it reserved and zero, that nobody can resize.

    Reserving takes about 0.4 s a GiB: call it off an event loop.

    Args:
        name: As it will read in /proc/PID/maps, after "memfd:"; at most 240 bytes.

    Raises:
        InvalidRequest: nbytes or name is out of its limits.
        OutOfMemory: The machine or the cgroup has not that much.
    """
    _check_nbytes(nbytes)
    if len(os.fsencode(name)) > 240:
        raise InvalidRequest(f"memfd name has {len(os.fsencode(name))} bytes, the limit is 240")
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        _reserve(fd, nbytes, f"memfd {name}")
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SIZE_SEALS)
    except BaseException:
        os.close(fd)
        raise
    return Segment(fd, nbytes, name, "memfd")


def create_posix(owner: Owner, stream_id: int, nbytes: int) -> Segment:
    """A named segment under /dev/shm, mode 0600, all of it reserved and zero.

    It cannot be sealed: whoever opens it by name must not trust its size.

    Raises:
        InvalidRequest: nbytes is out of its limits.
        AlreadyExists: The name is taken.
        OutOfMemory: /dev/shm or the machine has not that much.
    """
    import posix_ipc

    _check_nbytes(nbytes)
    name = posix_name(owner, stream_id)
    try:
        fd = posix_ipc.SharedMemory(f"/{name}", posix_ipc.O_CREX, mode=0o600).fd
    except posix_ipc.ExistentialError as error:
        raise AlreadyExists(f"segment /{name} exists", "See `mcpd leaks`.") from error
    segment = Segment(fd, nbytes, name, "posix")
    try:
        os.set_inheritable(fd, False)
        segment._claim_fd = _claim(fd)
        _reserve(fd, nbytes, f"segment /{name}")
    except BaseException:
        segment.unlink()
        segment.close()
        raise
    return segment


def posix_name(owner: Owner, stream_id: int) -> str:
    """The file name under /dev/shm of the payload that `owner` made for a stream."""
    return f"mcpd.{owner.uid}.{owner.pid}.{owner.start_ticks}.{stream_id}"


def parse_posix_name(name: str) -> tuple[Owner, int] | None:
    """Owner and stream id in a segment's name (with or without slash); None if it is not ours."""
    prefix, *numbers = name.removeprefix("/").split(".")
    if prefix != "mcpd" or len(numbers) != 4:
        return None
    if not all(number.isascii() and number.isdigit() for number in numbers):
        return None
    uid, pid, start_ticks, stream_id = map(int, numbers)
    return Owner(uid, pid, start_ticks), stream_id


def process_start_ticks(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; None if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command name, in parentheses, may hold anything: fields are counted from its end.
    fields = stat[stat.rindex(b")") + 2 :].split()
    if fields[0] in (b"Z", b"X"):
        return None  # dead, its parent has not looked yet: it holds nothing any more
    return int(fields[19])


def current_owner() -> Owner:
    """This process."""
    return Owner(os.getuid(), os.getpid(), process_start_ticks(os.getpid()) or 0)


def owner_alive(owner: Owner) -> bool:
    """Whether that very process lives, and not a later one with its number."""
    return process_start_ticks(owner.pid) == owner.start_ticks


def list_segments(directory: Path = SHM_DIRECTORY) -> list[tuple[Path, Owner, int]]:
    """Every posix segment of mcpd in `directory`, of any user: path, owner, stream id."""
    found = []
    for path in sorted(directory.iterdir()):
        parsed = parse_posix_name(path.name)
        if parsed is not None:
            found.append((path, *parsed))
    return found


def sweep(directory: Path = SHM_DIRECTORY) -> list[str]:
    """Unlinks this user's segments whose owner is dead; returns their names.

    Dead is an owner that /proc does not show and whose claim on the file is gone: a daemon in
    another pid namespace that shares this /dev/shm is not seen, but keeps its claim.
    """
    swept = []
    for path, owner, _ in list_segments(directory):
        if owner.uid != os.getuid() or owner_alive(owner):
            continue
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            continue  # another sweep was faster, or it is no file
        try:
            status = os.fstat(fd)
            unclaimed_yet = status.st_size == 0 and time.time() - status.st_ctime < _CLAIM_WITHIN_S
            if not stat.S_ISREG(status.st_mode) or status.st_uid != owner.uid or unclaimed_yet:
                continue
            if not _take_claim(fd):
                continue
            path.unlink(missing_ok=True)
        finally:
            os.close(fd)
        swept.append(path.name)
    return swept


def _claim(fd: int) -> int:
    """Marks the file behind `fd` as its maker's for as long as the returned descriptor is open.

    The descriptor is opened anew, since a lock (flock) belongs to what is opened and `fd` goes to
    other processes; it ends with its process, and the kernel tells it across pid namespaces.
    """
    claim_fd = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(claim_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(claim_fd)
        raise
    return claim_fd


def _take_claim(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def available_nbytes() -> int:
    """Bytes the machine can give without swapping: MemAvailable of /proc/meminfo."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise OSError(errno.ENOENT, "/proc/meminfo has no MemAvailable")


def _check_nbytes(nbytes: int) -> None:
    if not 0 < nbytes <= _MAX_NBYTES:
        raise InvalidRequest(f"segment of {nbytes} bytes", f"The size must be in 1..{_MAX_NBYTES}.")


def _reserve(fd: int, nbytes: int, what: str) -> None:
    """Reserves in steps, so that a size the machine has not is an error and not an OOM kill.

    fallocate on a memfd fails only when the kernel has begun to kill processes for it.
    """
    for offset in range(0, nbytes, _RESERVE_STEP_NBYTES):
        available = available_nbytes()
        # The whole is asked for at first, so that what cannot succeed takes nothing on the way.
        if available < nbytes - offset + _HEADROOM_NBYTES:
            reason = f"the machine has {available}, of which {_HEADROOM_NBYTES} stay free"
            raise _out_of_memory(fd, nbytes, what, reason)
        try:
            os.posix_fallocate(fd, offset, min(_RESERVE_STEP_NBYTES, nbytes - offset))
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG):
                raise
            raise _out_of_memory(fd, nbytes, what, _reason(error.errno)) from error


def _reason(number: int) -> str:
    if number != errno.EFBIG:
        return os.strerror(number)
    bound = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    return f"the limit of a file's size (RLIMIT_FSIZE, ulimit -f) is {bound} bytes"


def _out_of_memory(fd: int, nbytes: int, what: str, reason: str) -> OutOfMemory:
    file_system = os.fstatvfs(fd)
    if file_system.f_blocks:  # a memfd's is not bounded and says 0
        reason += f"; /dev/shm has {file_system.f_bavail * file_system.f_frsize} bytes free"
    return OutOfMemory(
        f"{what} of {nbytes} bytes cannot be reserved: {reason}",
        "Use fewer or smaller slots, or close other streams (`mcpd status`).",
    )
