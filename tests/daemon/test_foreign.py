"""Streams in memory that their writer brings, and what the daemon takes for that."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from mcpd.shm import (
    Client,
    InvalidRequest,
    McpdError,
    NotFound,
    SegmentLost,
    connect,
)
from mcpd.shm.messages import CreateStream, Status, StreamSpec
from tests.support.daemon import RunningDaemon
from tests.support.descriptors import no_descriptor_leaked

PAGE = 4096
SLOTS = 6
SLOT = 2 * PAGE
NBYTES = SLOTS * SLOT
F_SEAL_FUTURE_WRITE = 0x10


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    with RunningDaemon(tmp_path_factory.mktemp("daemon")) as running:
        yield running


@pytest.fixture
def client(shared: RunningDaemon) -> Iterator[Client]:
    with no_descriptor_leaked(), connect(shared.socket, name="bringer") as made:
        yield made


@contextmanager
def memfd(nbytes: int = NBYTES, *, flags: int = 0, seals: int = 0) -> Iterator[int]:
    fd = os.memfd_create("theirs", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | flags)
    try:
        os.ftruncate(fd, nbytes)
        if seals:
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
        yield fd
    finally:
        os.close(fd)


def daemon_fds(client: Client) -> int:
    return int(client.status()["daemon"]["fds"])


def test_a_stream_is_in_the_memory_that_was_brought(client: Client) -> None:
    with memfd(NBYTES + 3 * PAGE) as fd:
        with (
            client.create_stream(
                "ring",
                slots=SLOTS,
                slot_nbytes=SLOT,
                memory="foreign",
                segment=fd,
                segment_offset=2 * PAGE,
            ) as stream,
            client.open_stream("ring") as reader,
        ):
            used = client.status()["daemon"]["memory_bytes"]
            with stream.acquire() as slot:
                index = slot.index
                memoryview(slot.core)[:5] = b"there"
            assert os.pread(fd, 5, 2 * PAGE + index * SLOT) == b"there"
            with reader.next() as frame:
                assert bytes(frame.buffer[:5]) == b"there"
            os.pwrite(fd, b"THERE", 2 * PAGE + index * SLOT)
            with reader.recent(1)[0] as frame:
                assert bytes(frame.buffer[:5]) == b"THERE"
            (lease,) = (
                row
                for row in client.list("leases")
                if row["kind"] == "segment" and row.get("memory") == "foreign"
            )
            assert (lease["bytes"], lease["offset"], lease["seals"]) == (NBYTES, 2 * PAGE, [])
            assert used < NBYTES + 10 * PAGE + SLOTS * PAGE
        assert client.status()["daemon"]["memory_bytes"] == 0


def test_only_what_the_daemon_itself_reserves_is_charged(client: Client) -> None:
    with (
        memfd(1 << 40) as fd,  # sparse: nobody has so much memory
        client.create_stream(
            "vast", slots=4, slot_nbytes=1 << 38, memory="foreign", segment=fd, holds=1
        ) as stream,
    ):
        assert client.status()["daemon"]["memory_bytes"] < 1 << 20
        with stream.acquire() as slot:
            slot.nbytes = 3
        assert os.fstat(fd).st_blocks == 0


def test_a_segment_is_brought_by_its_name(client: Client) -> None:
    path = Path("/dev/shm") / f"theirs-{os.getpid()}"
    path.write_bytes(bytes(NBYTES))
    try:
        with (
            client.create_stream(
                "named", slots=SLOTS, slot_nbytes=SLOT, memory="foreign", segment=f"/{path.name}"
            ) as stream,
            client.open_stream("named") as reader,
        ):
            path.unlink()
            with stream.acquire() as slot:
                memoryview(slot.core)[:2] = b"on"
            with reader.next() as frame:
                assert bytes(frame.buffer[:2]) == b"on"
            assert not path.exists()
            leases = [row for row in client.list("leases") if row["kind"] == "segment"]
            assert path.name not in str(leases)
    finally:
        path.unlink(missing_ok=True)


@pytest.mark.parametrize("name", ["", "/", "..", "a/b", "/../etc/passwd", "x\0y", "n" * 300])
def test_what_is_no_name_is_refused(client: Client, name: str) -> None:
    with pytest.raises((InvalidRequest, NotFound)):
        client.create_stream("no", slots=6, slot_nbytes=1, memory="foreign", segment=name)


def test_a_symbolic_link_in_its_place_is_not_followed(client: Client, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(bytes(NBYTES))
    link = Path("/dev/shm") / f"link-{os.getpid()}"
    link.symlink_to(target)
    try:
        with pytest.raises(InvalidRequest, match="no shared memory"):
            client.create_stream(
                "no", slots=SLOTS, slot_nbytes=SLOT, memory="foreign", segment=link.name
            )
    finally:
        link.unlink()


def _pipe() -> int:
    reading, writing = os.pipe()
    os.close(writing)
    return reading


def _read_only() -> int:
    fd = os.memfd_create("r")
    os.ftruncate(fd, NBYTES)
    again = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
    os.close(fd)
    return again


def _on_disk() -> int:
    path = Path("/var/tmp") / f"mcpd-{os.getpid()}"
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    path.unlink()
    os.ftruncate(fd, NBYTES)
    return fd


def _fifo() -> int:
    path = Path("/dev/shm") / f"fifo-{os.getpid()}"
    os.mkfifo(path)
    fd = os.open(path, os.O_RDWR)
    path.unlink()
    return fd


WRONG: dict[str, Callable[[], int]] = {
    "pipe": _pipe,
    "fifo": _fifo,
    "directory": lambda: os.open("/dev/shm", os.O_RDONLY),
    "zero": lambda: os.open("/dev/zero", os.O_RDWR),
    "null": lambda: os.open("/dev/null", os.O_RDWR),
    "socket": lambda: socket.socket(socket.AF_UNIX).detach(),
    "eventfd": lambda: os.eventfd(0),
    "proc": lambda: os.open("/proc/self/maps", os.O_RDONLY),
    "read only": _read_only,
    "on disk": _on_disk,
    "path": lambda: os.open("/dev/shm", os.O_PATH),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_is_no_shared_memory_is_refused(client: Client, kind: str) -> None:
    before = daemon_fds(client)
    fd = WRONG[kind]()
    try:
        with pytest.raises(InvalidRequest) as refused:
            client.create_stream("no", slots=SLOTS, slot_nbytes=SLOT, memory="foreign", segment=fd)
    finally:
        os.close(fd)
    assert "/" not in str(refused.value).replace("/dev/shm", "")
    assert daemon_fds(client) == before
    assert client.status()["daemon"]["memory_bytes"] == 0
    assert list(client.list("streams")) == []


@pytest.mark.parametrize(
    ("nbytes", "offset"),
    [
        (NBYTES - 1, 0),
        (0, 0),
        (NBYTES, PAGE),
        (NBYTES, 1),
        (NBYTES + PAGE, PAGE - 1),
        (NBYTES, -PAGE),
        (NBYTES, -1),
        (NBYTES, (1 << 63) - PAGE),
        (NBYTES, 1 << 63),
        (NBYTES, (1 << 64) - PAGE),
        (NBYTES, (1 << 64) - NBYTES),
        (NBYTES, (1 << 64) - 1),
    ],
)
def test_offsets_and_sizes_that_the_segment_has_not_are_refused(
    client: Client, nbytes: int, offset: int
) -> None:
    """Asked of the daemon itself, whatever the client library would say."""
    spec = StreamSpec(slots=SLOTS, slot_nbytes=SLOT, memory="foreign")
    with memfd(nbytes) as fd, pytest.raises(InvalidRequest):
        client.connection.request(CreateStream(name="no", spec=spec, segment_offset=offset), [fd])
    assert list(client.list("streams")) == []
    assert client.status()["daemon"]["memory_bytes"] == 0


@pytest.mark.parametrize("segment_offset", [-1, 1 << 63, 1.5, "0", True])
def test_the_library_refuses_offsets_of_no_sense(client: Client, segment_offset: object) -> None:
    with memfd() as fd, pytest.raises(InvalidRequest):
        client.create_stream(
            "no",
            slots=SLOTS,
            slot_nbytes=SLOT,
            memory="foreign",
            segment=fd,
            segment_offset=segment_offset,  # type: ignore[arg-type]
        )


def test_memory_and_segment_go_together(client: Client) -> None:
    with memfd() as fd:
        with pytest.raises(InvalidRequest, match="A segment goes with"):
            client.create_stream("no", slots=SLOTS, slot_nbytes=SLOT, segment=fd)
        with pytest.raises(InvalidRequest, match="A segment goes with"):
            client.create_stream("no", slots=SLOTS, slot_nbytes=SLOT, memory="foreign")
        with pytest.raises(InvalidRequest, match="no open descriptor"):
            client.create_stream(
                "no", slots=SLOTS, slot_nbytes=SLOT, memory="foreign", segment=1 << 20
            )


@pytest.mark.parametrize("count", [0, 2, 8])
def test_a_stream_of_foreign_memory_brings_one_descriptor(
    shared: RunningDaemon, client: Client, count: int
) -> None:
    spec = StreamSpec(slots=SLOTS, slot_nbytes=SLOT, memory="foreign")
    before = daemon_fds(client)
    with memfd() as fd, connect(shared.socket) as other, pytest.raises(McpdError):
        other.connection.request(CreateStream(name="no", spec=spec), [fd] * count)
    assert daemon_fds(client) <= before + 1


def test_descriptors_with_anything_else_end_the_session(
    shared: RunningDaemon, client: Client
) -> None:
    before = daemon_fds(client)
    spec = StreamSpec(slots=SLOTS, slot_nbytes=SLOT)
    for message in (Status(), CreateStream(name="no", spec=spec)):
        with memfd() as fd, connect(shared.socket) as other:
            with pytest.raises(McpdError):
                other.connection.request(message, [fd])
            with pytest.raises(McpdError):
                other.status()
    assert daemon_fds(client) <= before + 1


@pytest.mark.parametrize("seals", [fcntl.F_SEAL_WRITE, F_SEAL_FUTURE_WRITE])
def test_a_segment_that_nobody_can_write_is_refused(client: Client, seals: int) -> None:
    with memfd(seals=seals) as fd, pytest.raises(InvalidRequest, match="sealed against writing"):
        client.create_stream("no", slots=SLOTS, slot_nbytes=SLOT, memory="foreign", segment=fd)


def test_seals_are_listed_and_may_be_added_later(client: Client) -> None:
    with (
        memfd(seals=fcntl.F_SEAL_SHRINK) as fd,
        client.create_stream(
            "sealed", slots=SLOTS, slot_nbytes=SLOT, memory="foreign", segment=fd
        ) as stream,
    ):
        (lease,) = (row for row in client.list("leases") if row.get("memory") == "foreign")
        assert lease["seals"] == ["shrink"]
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, F_SEAL_FUTURE_WRITE)
        with client.open_stream("sealed") as reader:
            with stream.acquire() as slot:
                memoryview(slot.core)[:2] = b"on"
            with reader.next() as frame:
                assert bytes(frame.buffer[:2]) == b"on"


def test_a_foreign_stream_is_resized_into_memory_of_the_daemons(client: Client) -> None:
    with (
        memfd() as fd,
        client.create_stream(
            "ring", slots=SLOTS, slot_nbytes=SLOT, memory="foreign", segment=fd
        ) as stream,
        client.open_stream("ring") as reader,
    ):
        with pytest.raises(InvalidRequest, match="cannot be resized"):
            stream.resize(slots=8)
        os.ftruncate(fd, 0)
        with pytest.raises(SegmentLost), stream.acquire() as slot:
            memoryview(slot.core)[:2] = b"on"
        stream.resize(memory="memfd")
        with stream.acquire() as slot:
            memoryview(slot.core)[:2] = b"on"
        with reader.next(10) as frame:
            assert bytes(frame.buffer[:2]) == b"on"


def test_a_stream_ends_with_the_process_that_brought_its_memory(
    shared: RunningDaemon, client: Client
) -> None:
    before = daemon_fds(client)
    with memfd() as fd:
        other = connect(shared.socket)
        stream = other.create_stream(
            "ring", slots=SLOTS, slot_nbytes=SLOT, memory="foreign", segment=fd
        )
        with client.open_stream("ring") as reader:
            with stream.acquire() as slot:
                memoryview(slot.core)[:2] = b"on"
            other.close()
            with reader.next(10) as frame:
                assert bytes(frame.buffer[:2]) == b"on"
    assert daemon_fds(client) <= before


def test_a_shrinking_segment_harms_only_who_reads_it(client: Client) -> None:
    for nbytes in (0, PAGE, NBYTES - PAGE):
        with (
            memfd() as fd,
            client.create_stream(
                "ring", slots=SLOTS, slot_nbytes=SLOT, memory="foreign", segment=fd
            ) as stream,
            client.open_stream("ring") as reader,
        ):
            for _ in range(3):
                with suppress(SegmentLost), stream.acquire() as slot:
                    memoryview(slot.core)[:] = b"\1" * SLOT
            os.ftruncate(fd, nbytes)
            frame = reader.next(10)
            seen = set(bytes(frame.buffer))
            if seen == {1}:
                frame.close()
            else:
                with pytest.raises(SegmentLost):
                    frame.close()


def test_a_client_that_reconnects_brings_its_segment_again(tmp_path: Path) -> None:
    with (
        no_descriptor_leaked(),
        RunningDaemon(tmp_path) as daemon,
        memfd(NBYTES + PAGE) as fd,
        connect(daemon.socket, reconnect=True) as client,
    ):
        place: dict[str, Any] = {"memory": "foreign", "segment": fd, "segment_offset": PAGE}
        stream = client.create_stream("ring", slots=SLOTS, slot_nbytes=SLOT, **place)
        daemon.kill()
        daemon.start()
        with stream.acquire(20) as slot:
            index = slot.index
            memoryview(slot.core)[:2] = b"on"
        assert os.pread(fd, 2, PAGE + index * SLOT) == b"on"
