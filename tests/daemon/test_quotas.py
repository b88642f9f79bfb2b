"""What a session, a user and all together may have: each limit is told, and harms nobody else."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from mcpd.daemon.config import parse
from mcpd.daemon.limits import MemoryLedger
from mcpd.daemon.quotas import THINGS, Quotas
from mcpd.shm import Client, LimitExceeded, McpdError, connect
from mcpd.shm.limits import Limits
from tests.support.bystander import Bystander
from tests.support.daemon import RunningDaemon, wait_until
from tests.support.raw import RawSession

MIB = 1 << 20


class Peer(NamedTuple):
    number: int
    uid: int = 1000
    is_worker: bool = False


def quotas(**limits: int) -> Quotas:
    return Quotas(MemoryLedger(), Limits(**limits), 1000)


def test_each_scope_of_each_limit_says_what_is_used_allowed_and_which_option_raises_it() -> None:
    for thing in ("streams", "readers", "requests"):
        for prefix, who in (("session", "session 1"), ("user", "user 1000"), ("max", "all")):
            table = quotas(**{f"{prefix}_{thing}": 2})
            shares = [table.take(Peer(1), "it", **{thing: 1}) for _ in range(2)]
            with pytest.raises(LimitExceeded) as caught:
                table.take(Peer(1), "stream 'cam0'", **{thing: 1})
            assert f"stream 'cam0' asks for 1; {who}" in caught.value.message
            assert "2 of 2" in caught.value.message
            assert f"--{prefix}-{thing} raises it" in caught.value.hint
            shares[0].give_back()
            table.take(Peer(1), "it", **{thing: 1})


def test_memory_is_told_in_sizes() -> None:
    table = quotas(user_memory=1 << 30)
    table.take(Peer(1), "stream 'a'", memory=512 * MIB).settle()
    with pytest.raises(LimitExceeded) as caught:
        table.take(Peer(2), "stream 'b'", memory=513 * MIB)
    told = "stream 'b' asks for 513.0 MiB; user 1000 uses 512.0 MiB of 1.0 GiB memory"
    assert caught.value.message == told
    assert "--user-memory raises it" in caught.value.hint
    table.take(Peer(3, uid=1001), "stream 'c'", memory=513 * MIB)


def test_what_is_refused_counts_nowhere() -> None:
    table = quotas(max_streams=1)
    table.take(Peer(1), "it", streams=1, memory=MIB, fds=5)
    before = list(table.rows())
    with pytest.raises(LimitExceeded):
        table.take(Peer(2), "it", streams=1, memory=MIB, fds=5)
    assert list(table.rows()) == before
    assert table.ledger.used_nbytes == MIB


def test_share_is_given_back_once_and_leaves_nothing() -> None:
    table = quotas()
    share = table.take(Peer(1), "it", readers=1, memory=MIB, fds=3)
    for _ in range(2):
        share.give_back()
    (row,) = table.rows()
    assert row["used"] == dict.fromkeys(THINGS, 0)
    assert table.ledger.used_nbytes == 0


def test_worker_is_of_no_user_and_counts_in_all() -> None:
    table = quotas(session_streams=1, user_streams=1, max_streams=3)
    for _ in range(3):
        table.take(Peer(1, is_worker=True), "it", streams=1)
    with pytest.raises(LimitExceeded, match="all together use 3 of 3 streams"):
        table.take(Peer(2), "it", streams=1)


def test_descriptors_are_shared_out_so_that_one_session_cannot_use_them_up() -> None:
    table = quotas()
    shares = {scope: table.allowed(scope, "fds") for scope in ("session", "user", "all")}
    assert shares == {"session": 250, "user": 875, "all": 1000}
    assert quotas(session_fds=10).allowed("session", "fds") == 10
    assert quotas(session_fds=10_000).allowed("session", "fds") == 1000


# ---- against a daemon ----------------------------------------------------------------------------

UNPACED = ("--session-rate", "0", "--user-rate", "0", "--max-rate", "0")
Daemon = Callable[..., RunningDaemon]


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[Daemon]:
    """Starts a daemon with options; stopped at the end."""
    running: list[RunningDaemon] = []

    def start(*arguments: str) -> RunningDaemon:
        daemon = RunningDaemon(tmp_path, arguments=arguments)
        running.append(daemon.__enter__())
        return daemon

    yield start
    for daemon in running:
        daemon.__exit__(None, None, None)


def small(client: Client, name: str) -> Any:
    return client.create_stream(name, width=64, height=16, format="gray8", slots=12)


def test_streams_and_readers_of_a_session_end_at_its_limit_and_others_notice_nothing(
    limited: Daemon,
) -> None:
    daemon = limited("--session-streams", "2", "--session-readers", "2")
    with Bystander(daemon.socket) as bystander, connect(daemon.socket) as client:
        streams = [small(client, f"cam{number}") for number in range(2)]
        with pytest.raises(LimitExceeded) as caught:
            small(client, "cam2")
        assert f"session {client.session} uses 2 of 2 streams" in caught.value.message
        assert "--session-streams raises it" in caught.value.hint
        readers = [client.open_stream("cam0"), client.open_stream("cam1", group="g")]
        with pytest.raises(LimitExceeded, match=f"session {client.session} uses 2 of 2 readers"):
            client.open_stream("cam0")
        with connect(daemon.socket) as other:
            other.open_stream("cam0").close()
        for end in (*readers, *streams):
            end.close()
        small(client, "cam2").close()
        bystander.check()
        (row,) = [r for r in client.list("sessions") if r["session"] == client.session]
        assert (row["streams"], row["readers"], row["memory"], row["fds"]) == (0, 0, 0, 2)


def test_session_beyond_the_limit_is_told_so_and_the_next_one_after_an_end_comes_in(
    limited: Daemon,
) -> None:
    daemon = limited("--max-sessions", "3")
    with Bystander(daemon.socket) as bystander:
        with connect(daemon.socket), connect(daemon.socket):
            for _ in range(20):
                with pytest.raises(McpdError) as caught:
                    connect(daemon.socket)
                assert caught.value.code == "limit", caught.value
                assert "all together use 3 of 3 sessions" in str(caught.value)
                assert "--max-sessions raises it" in str(caught.value)
            with RawSession(daemon.socket, hello=False) as raw:
                answer = raw.receive()
                assert (answer["type"], answer["code"]) == ("error", "limit")
                assert raw.receive() == {}
        bystander.check()
        wait_until(lambda: _comes_in(daemon.socket), 10, "a session comes in again")


def _comes_in(path: str) -> bool:
    try:
        connect(path).close()
    except LimitExceeded:
        return False
    return True


def test_sessions_of_a_user_have_a_limit_of_their_own(limited: Daemon) -> None:
    daemon = limited("--user-sessions", "1")
    with connect(daemon.socket):
        told = f"user {os.geteuid()} uses 1 of 1 sessions"
        with pytest.raises(LimitExceeded, match=told):
            connect(daemon.socket)


def test_memory_of_a_session_ends_at_its_limit(limited: Daemon) -> None:
    daemon = limited("--session-memory", "1M", "--user-memory", "2M")
    with connect(daemon.socket) as one, connect(daemon.socket) as two, connect(daemon.socket) as c:
        one.create_stream("a", slots=8, slot_nbytes=96 * 1024)
        with pytest.raises(LimitExceeded, match=r"uses 8\d\d\.0 KiB of 1\.0 MiB memory") as caught:
            one.create_stream("b", slots=8, slot_nbytes=96 * 1024)
        assert "--session-memory raises it" in caught.value.hint
        two.create_stream("b", slots=8, slot_nbytes=96 * 1024)
        with pytest.raises(LimitExceeded, match=r"user \d+ uses 1\.\d MiB of 2\.0 MiB memory"):
            c.create_stream("c", slots=8, slot_nbytes=96 * 1024)


def test_one_session_cannot_use_up_the_descriptors_of_the_daemon(limited: Daemon) -> None:
    daemon = limited("--session-fds", "40")
    with Bystander(daemon.socket) as bystander, connect(daemon.socket) as client:
        small(client, "cam0")
        readers: list[Any] = []

        def open_ever_more() -> None:
            for number in range(100):
                small(client, f"more{number}")
                readers.append(client.open_stream(f"more{number}"))

        with pytest.raises(LimitExceeded) as caught:
            open_ever_more()
        assert "of 40 descriptors of the daemon" in caught.value.message
        assert "--session-fds raises it" in caught.value.hint
        with connect(daemon.socket) as other:
            small(other, "other")
        bystander.check()
        rows = {row["scope"]: row for row in client.list("limits")}
        assert rows["all"]["used"]["fds"] < 80
        assert rows["all"]["allowed"]["fds"] > 100


def test_requests_that_wait_have_a_limit_and_a_fast_one_still_goes_through(
    limited: Daemon,
) -> None:
    daemon = limited("--session-requests", "2")
    with RawSession(daemon.socket) as writer, RawSession(daemon.socket) as raw:
        made = writer.ask(type="create_stream", name="a", spec={"slots": 12, "slot_nbytes": 64})
        writer.ask(type="seal_stream", stream=made["result"]["stream"])
        for number in range(1, 4):  # the writer does not answer
            raw.send(type="attach_reader", id=number, stream="a")
        refused = raw.receive()
        assert (refused["id"], refused["code"]) == (3, "limit")
        assert "request attach_reader asks for 1;" in refused["message"]
        assert "2 of 2 requests that wait" in refused["message"]
        raw.send(type="status", id=4)
        assert raw.receive()["id"] == 4


def test_session_that_does_not_read_is_ended_with_what_waits_for_it(limited: Daemon) -> None:
    daemon = limited("--outbound", "128K", *UNPACED)
    with Bystander(daemon.socket) as bystander:
        body = b"\x82\xa4type\xa6status\xa2id\x01"
        request = len(body).to_bytes(4, "little") + body
        with (
            RawSession(daemon.socket) as raw,
            pytest.raises((BrokenPipeError, ConnectionResetError)),
        ):
            raw.sock.sendall(request * 1_000_000)
        bystander.check()
    assert "peer does not read" in daemon.stderr
    assert "the limit is 131072" in daemon.stderr


def test_limits_are_listed_for_all_and_each_user(limited: Daemon) -> None:
    daemon = limited("--user-streams", "7", "--memory-limit", "1G")
    with connect(daemon.socket) as client:
        stream = small(client, "cam0")
        rows = {row["scope"]: row for row in client.list("limits")}
        assert set(rows) == {"all", "user"}
        assert rows["user"]["id"] == os.geteuid()
        assert rows["user"]["allowed"]["streams"] == 7
        assert rows["all"]["allowed"]["memory"] == 1 << 30
        for row in rows.values():
            assert (row["used"]["streams"], row["used"]["sessions"]) == (1, 1)
            assert row["used"]["memory"] == stream_nbytes(client)
        stream.close()


def stream_nbytes(client: Client) -> int:
    (row,) = client.list("streams")
    return int(row["memory_bytes"])


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--session-streams", "-1", "not a whole number"),
        ("--user-memory", "5X", "not a size"),
        ("--outbound", "10", "less than one message"),
    ],
)
def test_limit_that_makes_no_sense_is_refused_at_start(
    option: str, value: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse([f"{option}={value}"])
    assert told in capsys.readouterr().err


def test_limits_come_from_the_environment_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCPD_SESSION_STREAMS", "9")
    monkeypatch.setenv("MCPD_USER_MEMORY", "2G")
    limits = parse([]).limits
    assert (limits.session_streams, limits.user_memory) == (9, 2 << 30)
    assert parse(["--session-streams", "3"]).limits.session_streams == 3
