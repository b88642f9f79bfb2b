"""A session answers in order, survives its handlers, and waits for no peer that does not read."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest

from mcpd.daemon import session as session_module
from mcpd.daemon.limits import MemoryLedger
from mcpd.daemon.pace import Pace
from mcpd.daemon.peer import Peer, identify
from mcpd.daemon.quotas import Quotas
from mcpd.daemon.session import Answer, EndOfSession, Session, SessionEnded
from mcpd.shm import wire
from mcpd.shm.errors import NotFound, NotPermitted, TimedOut
from mcpd.shm.limits import DEFAULTS, Limits
from mcpd.shm.messages import Message, ReaderJoin, Status
from mcpd.shm.transport import MessageSocket

Work = Callable[[Session, Message], Answer | Coroutine[Any, Any, Answer]]


class Server:
    """The other side of the handler protocol: does what the test says."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.ended_sessions: list[Session] = []

    def handle(self, session: Session, message: Message) -> Answer | Coroutine[Any, Any, Answer]:
        return self.work(session, message)

    def ended(self, session: Session) -> None:
        self.ended_sessions.append(session)


class Wired:
    """A session and the socket of its peer, in one event loop."""

    def __init__(self, work: Work, limits: Limits) -> None:
        ours, theirs = socket.socketpair()
        self.server = Server(work)
        loop = asyncio.get_running_loop()
        peer = Peer(os.getpid(), os.geteuid(), -1)
        quotas = Quotas(MemoryLedger(), limits, 1000)
        self.session = Session(loop, ours, peer, 1, self.server, quotas, Pace(limits))
        self.peer = MessageSocket(theirs)

    def send(self, **fields: Any) -> None:
        body = msgspec.msgpack.encode(fields)
        self.peer.queue(len(body).to_bytes(4, "little") + body)
        self.peer.flush()

    async def receive(self, count: int = 1) -> list[dict[str, Any]]:
        """So many messages; fewer at end-of-file."""
        got: list[dict[str, Any]] = []
        async with asyncio.timeout(10):
            while len(got) < count and not self.peer.eof:
                for body, fds in self.peer.receive():
                    for fd in fds:
                        os.close(fd)
                    got.append(msgspec.msgpack.decode(body))
                await asyncio.sleep(0.001)
        return got

    def close(self) -> None:
        self.session.close()
        self.peer.close()


def with_session(
    work: Work,
    scenario: Callable[[Wired], Coroutine[Any, Any, None]],
    limits: Limits = DEFAULTS,
) -> Server:
    """Runs a scenario against a session whose requests do `work`."""

    async def run() -> Server:
        wired = Wired(work, limits)
        try:
            await scenario(wired)
        finally:
            wired.close()
        return wired.server

    return asyncio.run(run())


def count_ids(session: Session, message: Message) -> Answer:
    return Answer({"seen": message.id})


def test_requests_are_answered_in_order_under_their_ids() -> None:
    async def scenario(wired: Wired) -> None:
        for number in range(1, 51):
            wired.send(type="status", id=number)
        answers = await wired.receive(50)
        assert [answer["id"] for answer in answers] == list(range(1, 51))
        assert [answer["result"]["seen"] for answer in answers] == list(range(1, 51))

    with_session(count_ids, scenario)


def test_unexpected_exception_is_an_internal_error_and_the_session_lives() -> None:
    def work(session: Session, message: Message) -> Answer:
        if message.id == 1:
            raise ZeroDivisionError("oh")
        return Answer()

    async def scenario(wired: Wired) -> None:
        wired.send(type="status", id=1)
        wired.send(type="status", id=2)
        first, second = await wired.receive(2)
        assert (first["type"], first["code"]) == ("error", "internal")
        assert "ZeroDivisionError" in first["message"]
        assert second["type"] == "reply"

    with_session(work, scenario)


def test_what_a_request_waits_for_is_given_up_when_its_peer_goes_away() -> None:
    given_up = asyncio.Event()

    async def wait_long(session: Session) -> Answer:
        try:
            await session.wait_for(asyncio.get_running_loop().create_future(), 3600)
        except SessionEnded:
            given_up.set()
            raise
        return Answer()

    async def scenario(wired: Wired) -> None:
        wired.send(type="status", id=1)
        wired.send(type="list", id=2, what="streams")
        (answer,) = await wired.receive()  # by then the first request waits
        assert answer["id"] == 2
        wired.peer.close()
        async with asyncio.timeout(10):
            await given_up.wait()

    def work(session: Session, message: Message) -> Answer | Coroutine[Any, Any, Answer]:
        return wait_long(session) if message.id == 1 else Answer()

    with_session(work, scenario)


def test_slow_request_does_not_hold_back_the_next() -> None:
    release = asyncio.Event()

    async def slow() -> Answer:
        await release.wait()
        raise NotFound("nothing came")

    def work(session: Session, message: Message) -> Answer | Coroutine[Any, Any, Answer]:
        return slow() if message.id == 1 else Answer()

    async def scenario(wired: Wired) -> None:
        wired.send(type="status", id=1)
        wired.send(type="status", id=2)
        assert [answer["id"] for answer in await wired.receive(1)] == [2]
        release.set()
        (late,) = await wired.receive(1)
        assert (late["id"], late["code"]) == (1, "not_found")

    with_session(work, scenario)


def test_too_many_slow_requests_are_refused() -> None:
    async def never() -> Answer:
        await asyncio.get_running_loop().create_future()
        return Answer()

    async def scenario(wired: Wired) -> None:
        for number in range(1, DEFAULTS.session_requests + 2):
            wired.send(type="status", id=number)
        (refused,) = await wired.receive(1)
        assert (refused["id"], refused["code"]) == (DEFAULTS.session_requests + 1, "limit")

    with_session(lambda session, message: never(), scenario)


def test_worker_may_ask_for_as_many_streams_as_its_clients_want_at_once() -> None:
    async def scenario(wired: Wired) -> None:
        wired.session.is_worker = True
        for number in range(1, DEFAULTS.session_requests + 11):
            wired.send(type="status", id=number)
        await asyncio.sleep(0)
        release.set()
        answers = await wired.receive(DEFAULTS.session_requests + 10)
        assert {answer["type"] for answer in answers} == {"reply"}

    async def later() -> Answer:
        await release.wait()
        return Answer()

    release = asyncio.Event()
    with_session(lambda session, message: later(), scenario)


def test_peer_that_does_not_read_loses_its_session_and_nobody_waits() -> None:
    blob = {"x": "y" * 60000}

    async def scenario(wired: Wired) -> None:
        number = 0
        async with asyncio.timeout(10):
            while wired.session.open:
                number += 1
                wired.session.send(Status(id=number))
                wired.send(type="status", id=number)
                await asyncio.sleep(0)

    server = with_session(lambda session, message: Answer(blob), scenario)
    assert len(server.ended_sessions) == 1


def test_peer_that_is_gone_does_not_end_its_session_in_the_middle_of_a_send() -> None:
    async def scenario(wired: Wired) -> None:
        wired.peer.close()
        wired.session.send(Status(id=1))
        assert wired.server.ended_sessions == []
        async with asyncio.timeout(10):
            while wired.session.open:
                await asyncio.sleep(0)
        assert len(wired.server.ended_sessions) == 1

    with_session(count_ids, scenario)


@pytest.mark.parametrize("count", [1, 2, 8])
def test_descriptors_that_nobody_asked_for_are_closed_and_end_the_session(count: int) -> None:
    async def scenario(wired: Wired) -> None:
        before = len(os.listdir("/proc/self/fd"))
        body = msgspec.msgpack.encode({"type": "status", "id": 1, "fds": count})
        wired.peer.queue(len(body).to_bytes(4, "little") + body, [0] * count)
        wired.peer.flush()
        (error,) = await wired.receive(1)
        assert (error["type"], error["code"]) == ("error", "protocol")
        assert await wired.receive(1) == []
        assert len(os.listdir("/proc/self/fd")) < before  # the session's own socket is closed, too

    with_session(count_ids, scenario)


def test_request_without_an_id_ends_the_session() -> None:
    async def scenario(wired: Wired) -> None:
        wired.send(type="status")
        (error,) = await wired.receive(1)
        assert (error["type"], error["code"]) == ("error", "protocol")
        assert await wired.receive(1) == []

    with_session(count_ids, scenario)


def test_end_of_session_tells_the_reason_under_the_request_id() -> None:
    def work(session: Session, message: Message) -> Answer:
        raise EndOfSession(NotPermitted("not you"))

    async def scenario(wired: Wired) -> None:
        wired.send(type="status", id=7)
        answers = await wired.receive(5)
        assert [(a["type"], a["id"], a["code"]) for a in answers] == [("error", 7, "not_permitted")]

    with_session(work, scenario)


def test_daemon_asks_its_peer_and_takes_the_answer() -> None:
    async def scenario(wired: Wired) -> None:
        asked = asyncio.ensure_future(
            wired.session.request(
                ReaderJoin(stream=1, reader=2, max_pins=1, policy="latest"), (0,), timeout_s=10
            )
        )
        (request,) = await wired.receive(1)
        assert (request["type"], request["fds"]) == ("reader_join", 1)
        wired.send(type="reply", id=request["id"], result={"start_seq": 5})
        assert await asked == {"start_seq": 5}

    with_session(count_ids, scenario)


def test_peer_that_refuses_does_not_answer_or_goes_away_is_told_apart() -> None:
    def join() -> ReaderJoin:
        return ReaderJoin(stream=1, reader=2, max_pins=1, policy="latest")

    async def scenario(wired: Wired) -> None:
        refused = asyncio.ensure_future(wired.session.request(join(), timeout_s=10))
        (request,) = await wired.receive(1)
        wired.send(type="error", id=request["id"], code="not_found", message="no")
        with pytest.raises(NotFound):
            await refused
        with pytest.raises(TimedOut):
            await wired.session.request(join(), timeout_s=0.01)
        gone = asyncio.ensure_future(wired.session.request(join(), timeout_s=10))
        await asyncio.sleep(0)
        wired.peer.close()
        with pytest.raises(SessionEnded):
            await gone
        with pytest.raises(SessionEnded):
            await wired.session.request(join(), timeout_s=10)

    with_session(count_ids, scenario)


def test_reply_larger_than_a_message_is_an_error_not_the_end() -> None:
    async def scenario(wired: Wired) -> None:
        wired.send(type="status", id=1)
        (error,) = await wired.receive(1)
        assert (error["id"], error["code"]) == (1, "limit")
        assert wired.session.open

    with_session(lambda session, message: Answer({"x": "y" * 70000}), scenario)


def test_peer_is_known_by_the_kernel(tmp_path: Any) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        listener.bind(path)
        listener.listen()
        client.connect(path)
        accepted, _ = listener.accept()
        with accepted:
            peer = identify(accepted)
            assert (peer.pid, peer.uid) == (os.getpid(), os.geteuid())
            assert peer.alive()
            peer.close()
            assert not peer.alive()  # without a pidfd nobody knows


def test_decoder_of_a_client_knows_no_worker_messages() -> None:
    assert "worker_state" not in session_module._CLIENT._tags
    assert isinstance(session_module._WORKER, wire.Decoder)
