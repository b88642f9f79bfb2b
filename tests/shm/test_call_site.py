"""A program that traces has its call sites in the daemon's table of leases; others send nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mcpd.shm import aio, connect
from mcpd.shm.call_site import MAX_SITE_LENGTH, clean_site, tracing
from mcpd.shm.client import Client
from tests.support.daemon import RunningDaemon


def sites(client: Client, stream: str) -> dict[str, str]:
    rows = [row for row in client.list("leases") if row["name"] == stream]
    return {row["kind"]: row["site"] for row in rows if "site" in row}


def make_stream(client: Client) -> None:
    client.create_stream("traced", width=64, height=48, format="rgb24")
    client.open_stream("traced")


def test_a_traced_stream_and_reader_say_where_they_were_asked_for(shared: RunningDaemon) -> None:
    with connect(shared.socket, trace=True) as client:
        make_stream(client)
        found = sites(client, "traced")
    first = make_stream.__code__.co_firstlineno
    assert found["stream"].endswith(f"{Path(__file__).name}:{first + 1} in make_stream")
    assert found["reader"].endswith(f"{Path(__file__).name}:{first + 2} in make_stream")


def test_who_does_not_trace_sends_nothing(shared: RunningDaemon) -> None:
    with connect(shared.socket) as client:
        make_stream(client)
        assert set(sites(client, "traced").values()) == {""}


def test_a_coroutine_is_named_and_not_its_event_loop(shared: RunningDaemon) -> None:
    async def open_camera() -> None:
        async with (
            aio.connect(shared.socket, trace=True) as client,
            client.create_stream("traced", width=64, height=48, format="rgb24"),
        ):
            with connect(shared.socket) as other:
                assert sites(other, "traced")["stream"].endswith("open_camera")

    asyncio.run(open_camera())


@pytest.mark.parametrize(
    ("value", "traced"), [("1", True), ("on", True), ("", False), ("0", False)]
)
def test_the_environment_turns_it_on(
    monkeypatch: pytest.MonkeyPatch, value: str, traced: bool
) -> None:
    monkeypatch.setenv("MCPD_TRACE", value)
    assert tracing() is traced
    assert tracing(False) is False


def test_what_a_peer_sends_is_cut_and_cleaned() -> None:
    assert clean_site("x" * 1000 + "\x1b[31m.py:1\n in f") == ("x" * 1000 + "[31m.py:1 in f")[-198:]
    assert len(clean_site("y" * 1000)) == MAX_SITE_LENGTH
