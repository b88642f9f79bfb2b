"""A session's client end: every request gets its answer or an error, and nothing leaks."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from mcpd.shm.connection import Connection
from mcpd.shm.errors import (
    DaemonUnavailable,
    Internal,
    InvalidRequest,
    LimitExceeded,
    McpdError,
    NotFound,
    ProtocolError,
    TimedOut,
    UnsupportedVersion,
)
from mcpd.shm.messages import (
    AttachReader,
    CloseStream,
    CreateStream,
    DetachReader,
    ErrorReply,
    Hello,
    List,
    Message,
    OpenResults,
    ReaderJoin,
    ReaderLeave,
    Reply,
    Run,
    Serve,
    Status,
    StreamSpec,
)
from mcpd.shm.replies import Answer
from tests.support.descriptors import no_descriptor_leaked
from tests.support.scripted import GREETING, ScriptedDaemon, greet


@pytest.fixture(autouse=True)
def nothing_leaked() -> Iterator[None]:
    with no_descriptor_leaked():
        yield
    assert [t for t in threading.enumerate() if t.name == "mcpd-io"] == []


def answer(message: Message) -> Message | None:
    """Answers status, refuses lists, and leaves all else unanswered."""
    match message:
        case Hello():
            return greet(message)
        case Status():
            return Reply(result={"streams": 3})
        case List():
            return ErrorReply(code="not_found", message="no such table", hint="Look again.")
    return None


@pytest.fixture
def daemon() -> Iterator[ScriptedDaemon]:
    with ScriptedDaemon(answer) as made:
        yield made


@pytest.fixture
def connection(daemon: ScriptedDaemon) -> Iterator[Connection]:
    with Connection(daemon.client, name="tester") as made:
        yield made


def test_greeting_names_client_and_versions(connection: Connection, daemon: ScriptedDaemon) -> None:
    assert daemon.received == [Hello(id=1, versions=[1], client="tester")]
    assert (connection.session, connection.daemon_pid, connection.socket_path) == (7, 1, "/none")


def test_request_gets_its_result(connection: Connection) -> None:
    assert connection.request(Status()) == ({"streams": 3}, [])


def test_request_gets_its_error_as_the_exception_of_that_code(connection: Connection) -> None:
    with pytest.raises(NotFound, match="no such table") as caught:
        connection.request(List(what="x"))
    assert caught.value.hint == "Look again."


def test_requests_of_many_threads_get_their_own_answers(connection: Connection) -> None:
    failures: list[object] = []

    def ask() -> None:
        for _ in range(50):
            if connection.request(Status()) != ({"streams": 3}, []):
                failures.append("wrong")

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_request_without_an_answer_times_out(connection: Connection) -> None:
    with pytest.raises(TimedOut, match=r"no reply to attach_reader from the daemon in 0\.01 s"):
        connection.request(AttachReader(stream="x"), timeout_s=0.01)


@pytest.mark.parametrize(
    ("message", "result", "undone"),
    [
        (AttachReader(stream="x"), {"reader": 5}, DetachReader(reader=5)),
        (OpenResults(stream="x", model="m"), {"grant": {"reader": 6}}, DetachReader(reader=6)),
        (
            CreateStream(name="x", spec=StreamSpec(slots=4, slot_nbytes=1)),
            {"stream": 8},
            CloseStream(stream=8),
        ),
    ],
)
def test_what_comes_too_late_is_given_back(
    connection: Connection,
    daemon: ScriptedDaemon,
    message: Message,
    result: dict[str, object],
    undone: DetachReader | CloseStream,
) -> None:
    with pytest.raises(TimedOut):
        connection.request(message, timeout_s=0.01)
    wake = os.eventfd(0)
    daemon.send(Reply(id=message.id, result=result), [wake, wake])
    os.close(wake)
    (seen,) = daemon.wait_for(type(undone))
    undone.id = seen.id
    assert seen == undone


def test_what_came_and_is_no_longer_wanted_is_given_back(
    connection: Connection, daemon: ScriptedDaemon
) -> None:
    message = AttachReader(stream="x")
    future: Future[Answer] = connection.submit(message)
    wake = os.eventfd(0)
    daemon.send(Reply(id=message.id, result={"reader": 5}), [wake])
    os.close(wake)
    future.result(10)
    connection.abandon(message, future)
    daemon.wait_for(DetachReader)


def test_reply_that_nobody_asked_for_is_dropped_with_its_descriptors(
    connection: Connection, daemon: ScriptedDaemon
) -> None:
    wake = os.eventfd(0)
    daemon.send(Reply(id=99), [wake])
    os.close(wake)
    assert connection.request(Status())[0] == {"streams": 3}


def test_end_of_the_daemon_fails_what_is_pending_and_is_told_once(daemon: ScriptedDaemon) -> None:
    told: list[McpdError] = []
    ended = threading.Event()

    def on_closed(error: McpdError) -> None:
        told.append(error)
        ended.set()

    with Connection(daemon.client, on_closed=on_closed) as connection:
        futures = [connection.submit(AttachReader(stream="x")) for _ in range(3)]
        daemon.wait_for(AttachReader, 3)
        daemon.hang_up()
        for future in futures:
            with pytest.raises(DaemonUnavailable, match="the daemon closed the connection"):
                future.result(10)
        assert ended.wait(10)
        assert connection.lost
        with pytest.raises(DaemonUnavailable):
            connection.request(Status())
    assert [type(error) for error in told] == [DaemonUnavailable]


def test_reason_that_the_daemon_gives_is_the_reason_of_the_failure(
    connection: Connection, daemon: ScriptedDaemon
) -> None:
    future = connection.submit(AttachReader(stream="x"))
    daemon.wait_for(AttachReader)
    daemon.send(ErrorReply(id=0, code="protocol", message="message length 0"))
    daemon.hang_up()
    with pytest.raises(DaemonUnavailable, match="session ended: message length 0"):
        future.result(10)


def test_garbage_from_the_daemon_ends_the_session(
    connection: Connection, daemon: ScriptedDaemon
) -> None:
    future = connection.submit(AttachReader(stream="x"))
    daemon.send_raw(b"\xff" * 8)
    with pytest.raises(DaemonUnavailable, match="length 4294967295"):
        future.result(10)


def test_closing_fails_what_is_pending_and_is_not_told(daemon: ScriptedDaemon) -> None:
    told: list[McpdError] = []
    connection = Connection(daemon.client, on_closed=told.append)
    future = connection.submit(AttachReader(stream="x"))
    connection.close()
    connection.close()
    with pytest.raises(DaemonUnavailable, match="connection was closed"):
        future.result(0)
    assert told == []


def test_unknown_request_of_the_daemon_is_refused_under_its_id(
    connection: Connection, daemon: ScriptedDaemon
) -> None:
    daemon.send(Status(id=31))
    (error,) = daemon.wait_for(ErrorReply)
    assert isinstance(error, ErrorReply)
    assert (error.id, error.code) == (31, "invalid")
    assert connection.request(Status())[0] == {"streams": 3}


def test_worker_messages_are_refused_by_a_client_that_is_none(
    connection: Connection, daemon: ScriptedDaemon
) -> None:
    daemon.send(Serve(id=4, binding=1, stream="s", results_name="r", frames="latest"))
    daemon.send(Run(binding=1))
    (error,) = daemon.wait_for(ErrorReply)
    assert isinstance(error, ErrorReply)
    assert (error.id, error.code) == (4, "not_permitted")
    assert connection.request(Status())[0] == {"streams": 3}


def test_worker_gets_its_messages_and_answers_them(daemon: ScriptedDaemon) -> None:
    seen: list[Message] = []

    def on_message(message: Message) -> None:
        seen.append(message)
        if isinstance(message, Serve):
            session.reply(message, {"stream": 12})
        else:
            session.reply_error(message, LimitExceeded("too many"))

    with Connection(daemon.client, on_message=on_message) as session:
        daemon.send(Serve(id=4, binding=1, stream="s", results_name="r", frames="latest"))
        daemon.send(Run(id=5, binding=1))
        (reply,) = daemon.wait_for(Reply)
        (error,) = daemon.wait_for(ErrorReply)
    assert isinstance(reply, Reply)
    assert isinstance(error, ErrorReply)
    assert (reply.id, reply.result) == (4, {"stream": 12})
    assert (error.id, error.code) == (5, "limit")
    assert [type(message) for message in seen] == [Serve, Run]


def test_handler_that_fails_is_an_internal_error_and_the_session_goes_on(
    daemon: ScriptedDaemon, caplog: pytest.LogCaptureFixture
) -> None:
    def on_message(message: Message) -> None:
        raise ZeroDivisionError("by zero")

    with Connection(daemon.client, on_message=on_message) as session:
        daemon.send(Serve(id=4, binding=1, stream="s", results_name="r", frames="latest"))
        (error,) = daemon.wait_for(ErrorReply)
        assert session.request(Status())[0] == {"streams": 3}
    assert isinstance(error, ErrorReply)
    assert (error.code, "by zero" in error.message) == ("internal", True)
    assert "failed" in caplog.text


def test_request_on_the_io_thread_is_a_mistake_that_is_told(daemon: ScriptedDaemon) -> None:
    def on_message(message: Message) -> None:
        session.request(Status())

    with Connection(daemon.client, on_message=on_message) as session:
        daemon.send(Serve(id=4, binding=1, stream="s", results_name="r", frames="latest"))
        (error,) = daemon.wait_for(ErrorReply)
    assert isinstance(error, ErrorReply)
    assert error.code == Internal.code


def test_reader_of_a_stream_that_is_not_written_here_is_refused(
    connection: Connection, daemon: ScriptedDaemon
) -> None:
    wakes = [os.eventfd(0) for _ in range(2)]
    daemon.send(ReaderJoin(id=3, stream=5, reader=1, max_pins=1, policy="latest"), wakes)
    daemon.send(ReaderLeave(stream=5, reader=1, pins="drop"))
    for wake in wakes:
        os.close(wake)
    (error,) = daemon.wait_for(ErrorReply)
    assert isinstance(error, ErrorReply)
    assert (error.id, error.code) == (3, "not_found")


@pytest.mark.parametrize(
    ("reply", "kind", "said"),
    [
        (ErrorReply(code="version", message="7"), UnsupportedVersion, "7"),
        (Reply(result={"session": "seven"}), ProtocolError, "greeting is not readable"),
        (Reply(result={**GREETING, "daemon_pid": None}), ProtocolError, "greeting"),
        (None, TimedOut, "no reply to hello"),
    ],
)
def test_greeting_that_fails_leaves_nothing_behind(
    reply: Message | None, kind: type[McpdError], said: str
) -> None:
    with ScriptedDaemon(lambda _: reply) as daemon, pytest.raises(kind, match=said):
        Connection(daemon.client, timeout_s=0.2)


def test_daemon_that_hangs_up_on_the_greeting_is_unavailable() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    with pytest.raises(DaemonUnavailable):
        Connection(ours)


def test_daemon_that_does_not_read_is_given_up(
    connection: Connection, daemon: ScriptedDaemon
) -> None:
    daemon.stop_reading()
    message = List(what="x" * 60000)

    def send_for_ever() -> None:
        while True:
            connection.notify(message)

    with pytest.raises(ProtocolError, match="does not read"):
        send_for_ever()


def test_messages_that_wait_are_sent_by_the_thread(
    connection: Connection, daemon: ScriptedDaemon
) -> None:
    message = List(what="x" * 60000)
    for _ in range(12):  # more than the socket takes at once, less than the bound
        connection.notify(message)
    assert len(daemon.wait_for(List, 12)) == 12


CHILD = """
import os, sys
from mcpd.shm.connection import Connection
from mcpd.shm.errors import InvalidRequest
from mcpd.shm.messages import Status
from tests.support.scripted import GREETING, ScriptedDaemon
from mcpd.shm.messages import Reply
with ScriptedDaemon(lambda _: Reply(result=GREETING)) as daemon:
    with Connection(daemon.client) as connection:
        pid = os.fork()
        if pid == 0:
            try:
                connection.request(Status())
            except InvalidRequest as error:
                connection.close()
                os._exit(0 if "used in its child" in error.message else 3)
            os._exit(4)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert connection.request(Status())[0] == GREETING
"""


def test_connection_is_refused_in_a_forked_child_and_lives_on_in_the_parent() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHILD], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def test_message_that_cannot_be_sent_leaves_nothing_pending(connection: Connection) -> None:
    with pytest.raises(LimitExceeded, match="the limit is 65536"):
        connection.request(List(what="x" * 70000))
    with pytest.raises(InvalidRequest):
        connection.request(CloseStream(stream=2**65))
    assert len(connection._replies) == 0
