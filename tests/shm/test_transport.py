"""A message socket: whole messages, their descriptors, and none of those ever left open."""

from __future__ import annotations

import array
import os
import select
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpd.shm.errors import ProtocolError
from mcpd.shm.messages import MAX_FDS, MAX_MESSAGE_NBYTES, List, Reply
from mcpd.shm.transport import MessageSocket, close_fds
from mcpd.shm.wire import HEADER_NBYTES, encode
from tests.support.descriptors import no_descriptor_leaked


class Pair:
    """A message socket, and the raw socket of its peer."""

    def __init__(self) -> None:
        ours, self.raw = socket.socketpair()
        self.messages = MessageSocket(ours)

    def send_fds(self, data: bytes, count: int) -> None:
        """Sends bytes with as many new descriptors."""
        fds = [os.eventfd(0) for _ in range(count)]
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
        self.raw.sendmsg([data], ancillary if fds else [])
        close_fds(fds)

    def close(self) -> None:
        self.messages.close()
        self.raw.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    with no_descriptor_leaked():
        made = Pair()
        yield made
        made.close()


def message(number: int, fds: int = 0) -> bytes:
    return encode(List(id=number, what="streams", fds=fds))


def test_messages_come_whole_however_the_bytes_are_cut(pair: Pair) -> None:
    data = message(1) + message(2) + message(3)
    got = []
    for index in range(len(data)):
        pair.raw.send(data[index : index + 1])
        got += pair.messages.receive()
    assert [body for body, _ in got] == [message(n)[HEADER_NBYTES:] for n in (1, 2, 3)]
    assert pair.messages.bytes_in == len(data)


def test_several_messages_in_one_read_are_told_apart(pair: Pair) -> None:
    pair.raw.send(message(1) + message(2)[:7])
    assert len(pair.messages.receive()) == 1
    pair.raw.send(message(2)[7:])
    assert [body for body, _ in pair.messages.receive()] == [message(2)[HEADER_NBYTES:]]


def test_largest_message_goes_through(pair: Pair) -> None:
    body = b"\x82\xa4type\xa4list\xa1x\xc5" + (MAX_MESSAGE_NBYTES - 16).to_bytes(2, "big")
    body += bytes(MAX_MESSAGE_NBYTES - len(body))
    pair.raw.send(len(body).to_bytes(4, "little") + body)
    got: list[tuple[bytes, list[int]]] = []
    while not got:
        got = pair.messages.receive()
    assert got[0][0] == body


def test_descriptors_come_with_their_message_and_close_on_exec(pair: Pair) -> None:
    pair.raw.send(message(1))
    pair.send_fds(message(2, fds=2), 2)
    pair.send_fds(message(3, fds=1), 1)
    got = pair.messages.receive()
    assert [len(fds) for _, fds in got] == [0, 2, 1]
    for _, fds in got:
        assert not any(os.get_inheritable(fd) for fd in fds)
        close_fds(fds)


def test_sent_descriptors_stay_the_senders_and_arrive_with_the_first_byte(pair: Pair) -> None:
    fd = os.eventfd(5)
    pair.messages.queue(encode(Reply(id=1, fds=1)), [fd])
    assert pair.messages.flush()
    os.close(fd)
    data, fds, _, _ = socket.recv_fds(pair.raw, 1, MAX_FDS)
    assert len(data) == 1
    assert os.eventfd_read(fds[0]) == 5
    close_fds(fds)


def test_descriptors_wait_with_a_message_that_waits(pair: Pair) -> None:
    filler = encode(Reply(id=1, result={"x": "y" * 60000}))
    while pair.messages.pending_nbytes == 0:
        pair.messages.queue(filler)
        pair.messages.flush()
    fd = os.eventfd(7)
    pair.messages.queue(encode(Reply(id=2, fds=1)), [fd])
    os.close(fd)
    peer = MessageSocket(pair.raw)
    got: list[tuple[bytes, list[int]]] = []
    while not got or not got[-1][1]:
        got += peer.receive()
        pair.messages.flush()
    assert os.eventfd_read(got[-1][1][0]) == 7
    assert pair.messages.pending_nbytes == 0
    assert pair.messages.bytes_out == peer.bytes_in
    close_fds(got[-1][1])


def test_descriptors_that_are_not_taken_are_closed_as_they_arrive() -> None:
    ours, theirs = socket.socketpair()
    with no_descriptor_leaked(), theirs, closing(MessageSocket(ours, takes_fds=False)) as messages:
        reading, writing = os.pipe()
        socket.send_fds(theirs, [message(1, fds=1)[:5]], [writing])
        os.close(writing)
        assert messages.receive() == []
        assert (
            os.read(reading, 1) == b""
        )  # nobody has the other end, though the message is not whole
        os.close(reading)
        theirs.send(message(1, fds=1)[5:])
        assert messages.receive() == [(message(1, fds=1)[HEADER_NBYTES:], [-1])]


def test_more_descriptors_than_a_message_may_carry_end_the_session(pair: Pair) -> None:
    pair.send_fds(message(1, fds=MAX_FDS), MAX_FDS + 4)
    with pytest.raises(ProtocolError, match="MSG_CTRUNC"):
        pair.messages.receive()


def test_descriptors_that_no_message_announces_end_the_session(pair: Pair) -> None:
    pair.send_fds(message(1), 2)
    with pytest.raises(ProtocolError, match="2 descriptors came that no message announces"):
        pair.messages.receive()


def test_announced_descriptors_that_do_not_come_end_the_session(pair: Pair) -> None:
    pair.send_fds(message(1, fds=3), 1)
    with pytest.raises(ProtocolError, match="announces 3 descriptors, 1 came"):
        pair.messages.receive()


def test_descriptors_dribbled_into_one_message_are_bounded(pair: Pair) -> None:
    data = message(1, fds=MAX_FDS)
    pair.send_fds(data[:1], MAX_FDS)
    assert pair.messages.receive() == []
    pair.send_fds(data[1:2], 1)
    with pytest.raises(ProtocolError, match=f"{MAX_FDS + 1} descriptors"):
        pair.messages.receive()


def test_error_closes_the_descriptors_of_good_messages_before_it(pair: Pair) -> None:
    pair.send_fds(message(1, fds=2), 2)
    pair.raw.send(b"\0\0\0\0")
    with pytest.raises(ProtocolError, match="length 0"):
        pair.messages.receive()


def test_descriptors_of_a_message_cut_off_by_the_end_are_closed(pair: Pair) -> None:
    pair.send_fds(message(1, fds=2)[:-1], 2)
    pair.raw.shutdown(socket.SHUT_WR)
    assert pair.messages.receive() == []
    assert pair.messages.eof


def test_closing_gives_up_what_waits_in_both_directions(pair: Pair) -> None:
    fd = os.eventfd(0)
    pair.send_fds(message(1, fds=2)[:-1], 2)
    pair.messages.receive()
    pair.messages.queue(encode(Reply(id=2, fds=1)), [fd])
    os.close(fd)
    pair.messages.close()
    pair.messages.close()
    assert pair.messages.fileno() == -1


def test_messages_before_the_end_are_delivered(pair: Pair) -> None:
    pair.raw.send(message(1))
    pair.raw.shutdown(socket.SHUT_WR)
    assert len(pair.messages.receive()) == 1
    assert pair.messages.eof


@pytest.mark.parametrize("data", [b"\xff" * 8, b"\x04\0\0\0\xc1\xc1\xc1\xc1", b"GET / HTTP/1.1"])
def test_garbage_is_a_protocol_error(pair: Pair, data: bytes) -> None:
    pair.raw.send(data)
    with pytest.raises(ProtocolError):
        pair.messages.receive()


def test_peer_that_does_not_read_is_given_up_at_the_bound() -> None:
    with no_descriptor_leaked():
        ours, raw = socket.socketpair()
        messages = MessageSocket(ours, outbound_nbytes=200_000)
        data = encode(Reply(id=1, result={"x": "y" * 60000}))

        def send_for_ever() -> None:
            while True:
                messages.queue(data)
                messages.flush()

        with pytest.raises(ProtocolError, match=r"does not read.*the limit is 200000"):
            send_for_ever()
        assert messages.pending_nbytes <= 200_000
        messages.close()
        raw.close()


def test_peer_that_reads_slowly_gets_everything_in_order(pair: Pair) -> None:
    sent = b"".join(message(n) for n in range(1, 2000))
    for number in range(1, 2000):
        pair.messages.queue(message(number))
    got = bytearray()
    while len(got) < len(sent):
        pair.messages.flush()
        got += pair.raw.recv(777)
    assert got == sent


def test_writing_to_a_peer_that_is_gone_is_an_os_error_and_no_signal(pair: Pair) -> None:
    pair.raw.close()
    pair.messages.queue(message(1))
    with pytest.raises(BrokenPipeError):
        pair.messages.flush()
    pair.messages.drop_outbound()
    assert pair.messages.pending_nbytes == 0


@given(st.lists(st.tuples(st.binary(max_size=40) | st.just(message(1)), st.integers(0, 3))))
def test_any_bytes_with_any_descriptors_are_messages_or_an_error_and_leak_nothing(
    pieces: list[tuple[bytes, int]],
) -> None:
    with no_descriptor_leaked():
        made = Pair()
        try:
            for data, count in pieces:
                if data:
                    made.send_fds(data, count)
                for _, fds in made.messages.receive():
                    close_fds(fds)
        except ProtocolError as error:
            assert error.message  # noqa: PT017  (either outcome is right)
        finally:
            made.close()


def test_one_call_reads_a_bounded_amount(pair: Pair) -> None:
    pair.raw.setblocking(False)
    block = message(1) * 2000
    total = 0
    try:
        while True:
            total += pair.raw.send(block)
    except BlockingIOError:
        pass
    first = pair.messages.receive()
    assert pair.messages.bytes_in <= 4 * 64 * 1024
    while select.select([pair.messages.fileno()], [], [], 0)[0]:
        first += pair.messages.receive()
    assert pair.messages.bytes_in == total
