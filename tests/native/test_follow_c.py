"""Readers of libmcpd that go on in the next generation of their stream."""

from __future__ import annotations

import ctypes
import errno
import select
import threading
from collections.abc import Iterator
from ctypes import byref, c_int64, c_uint32, c_void_p
from typing import Any

import pytest

from mcpd.shm import connect
from mcpd.shm.client import Client
from tests.support.daemon import RunningDaemon, wait_until
from tests.support.libmcpd import PATIENCE_NS, CError, LibMcpd, Meta

NOT, WRITER, NAME = 0, 1, 2
CLOSED, MOVED = 1, 5


class Follower:
    """A reader read by mcpd_stream_next; closes its stream."""

    def __init__(self, lib: LibMcpd, client: c_void_p, policy: str, **options: Any) -> None:
        self._lib = lib
        lib["stream_slot"].restype = c_void_p
        self.stream = lib.attach(client, "cam", policy, **options)

    def next(self, timeout_ns: int = PATIENCE_NS) -> tuple[int, int, bytes]:
        """A pin or a negative errno; number and first byte of the frame."""
        meta = Meta()
        pin: int = self._lib["stream_next"](self.stream, c_int64(timeout_ns), byref(meta))
        return pin, meta.seq, self.at(pin) if pin >= 0 else b""

    def at(self, pin: int) -> bytes:
        return ctypes.string_at(self._lib["stream_slot"](self.stream, c_uint32(pin)), 1)

    def read(self) -> tuple[int, bytes]:
        pin, seq, data = self.next()
        assert pin >= 0, pin
        assert self.call("unpin", c_uint32(pin)) == 0
        return seq, data

    def call(self, name: str, *arguments: Any) -> int:
        result: int = self._lib[f"stream_{name}"](self.stream, *arguments)
        return result

    def close(self) -> None:
        self._lib["stream_close"](self.stream)


@pytest.fixture
def client(libmcpd: LibMcpd, bare_daemon: RunningDaemon) -> Iterator[c_void_p]:
    opened = libmcpd.connect(bare_daemon.socket)
    yield opened
    libmcpd["close"](opened)


@pytest.fixture
def session(bare_daemon: RunningDaemon) -> Iterator[Client]:
    with connect(bare_daemon.socket) as opened:
        yield opened


def publish(writer: Any, *values: int) -> None:
    for value in values:
        with writer.acquire(10) as slot:
            slot.planes[0][...] = value
            slot.publish()


def generations(session: Client) -> list[int]:
    """Of every reader that the daemon has of the stream."""
    return sorted(row["generation"] for row in session.list("readers") if row["name"] == "cam")


@pytest.mark.parametrize("policy", ["lossless", "fifo", "latest"])
def test_a_reader_goes_on_after_a_resize(
    libmcpd: LibMcpd, client: c_void_p, session: Client, policy: str
) -> None:
    with session.create_stream("cam", format="gray8", width=64, height=64, slots=12) as writer:
        depth = 4 if policy == "fifo" else 0
        reader = Follower(libmcpd, client, policy, follow=WRITER, max_pins=2, depth=depth)
        publish(writer, 1)
        held, seq, data = reader.next()
        assert (held, seq, data) == (0, 1, b"\1")
        publish(writer, 2)
        writer.resize(height=128)
        publish(writer, 3)
        assert reader.read() == (2, b"\2")
        assert reader.read() == (3, b"\3")
        assert reader.call("ended") == 0
        assert reader.at(held) == b"\1"
        assert generations(session) == [1, 2]
        assert reader.call("unpin", c_uint32(held)) == 0
        assert reader.call("unpin", c_uint32(held)) == -errno.EINVAL
        wait_until(lambda: generations(session) == [2], 10, "the old generation left")
        assert reader.next(0)[0] == -errno.EAGAIN
        writer.end()
        assert reader.next()[0] == -errno.EPIPE
        assert reader.call("ended") == CLOSED
        reader.close()
    assert generations(session) == []


def test_a_reader_waits_for_the_next_writer(
    libmcpd: LibMcpd, client: c_void_p, session: Client
) -> None:
    with session.create_stream("cam", format="gray8", width=64, height=64) as writer:
        reader = Follower(libmcpd, client, "lossless", follow=NAME)
        publish(writer, 1)
    assert reader.read() == (1, b"\1")
    assert reader.next(0)[0] == -errno.EAGAIN
    assert reader.next(1000)[0] == -errno.ETIMEDOUT
    assert reader.call("ended") == 0
    found: list[tuple[int, bytes]] = []
    waits = threading.Thread(target=lambda: found.append(reader.read()))
    waits.start()
    with session.create_stream("cam", format="gray8", width=64, height=64) as writer:
        publish(writer, 2)
        waits.join()
        assert found == [(2, b"\2")]
        reader.close()


def test_a_reader_that_does_not_follow_ends_as_moved(
    libmcpd: LibMcpd, client: c_void_p, session: Client
) -> None:
    with session.create_stream("cam", format="gray8", width=64, height=64, slots=8) as writer:
        reader = Follower(libmcpd, client, "lossless", follow=NOT)
        writer.resize(height=128)
        assert reader.next()[0] == -errno.EPIPE
        assert reader.call("ended") == MOVED
        publish(writer, *range(20))  # nobody in the new generation holds it up
        reader.close()
    assert generations(session) == []


def test_readers_closed_on_their_way_leave_nothing(
    libmcpd: LibMcpd, client: c_void_p, session: Client
) -> None:
    with session.create_stream("cam", format="gray8", width=64, height=64, slots=8) as writer:
        reader = Follower(libmcpd, client, "lossless", follow=WRITER)
        publish(writer, 1)
        for height in (128, 64, 128):
            writer.resize(height=height)
        reader.close()
        publish(writer, *range(20))
        wait_until(lambda: generations(session) == [], 10, "every generation left")


def test_a_member_waits_for_what_another_has_in_work(
    libmcpd: LibMcpd, client: c_void_p, session: Client
) -> None:
    with session.create_stream("cam", format="gray8", width=64, height=64, slots=8) as writer:
        one, other = (
            Follower(libmcpd, client, "lossless", follow=WRITER, group=b"g") for _ in range(2)
        )
        publish(writer, 1)
        pin, seq, _ = other.next()
        assert (pin, seq) == (0, 1)
        writer.resize(height=128)
        publish(writer, 2)
        assert one.next(0)[0] == -errno.EAGAIN
        assert other.call("give_back", c_uint32(pin)) == 0
        assert one.read() == (1, b"\1")
        assert one.read() == (2, b"\2")
        one.close()
        other.close()


def test_an_event_loop_is_told_of_the_next_generation(
    libmcpd: LibMcpd, client: c_void_p, session: Client
) -> None:
    with session.create_stream("cam", format="gray8", width=64, height=64, slots=8) as writer:
        reader = Follower(libmcpd, client, "lossless", follow=WRITER)
        poll = select.poll()
        poll.register(reader.call("fileno"), select.POLLIN)
        seen: list[int] = []
        for step in range(9):
            if step % 3 == 2:
                writer.resize(height=step + 1)
            publish(writer, step)
            while len(seen) <= step:
                pin, seq, _ = reader.next(0)
                if pin >= 0:
                    seen.append(seq)
                    assert reader.call("unpin", c_uint32(pin)) == 0
                elif reader.call("arm") == 0:
                    assert poll.poll(10_000)
                    assert reader.call("disarm") == 0
        assert seen == list(range(1, 10))
        assert reader.next(0)[0] == -errno.EAGAIN
        assert reader.call("arm") == 0
        assert not poll.poll(0)
        reader.close()


def test_an_unknown_follow_is_refused(libmcpd: LibMcpd, client: c_void_p) -> None:
    with pytest.raises(CError, match="follow is 3"):
        Follower(libmcpd, client, "latest", follow=3)
