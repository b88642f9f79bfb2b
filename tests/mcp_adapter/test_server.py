"""What the server makes of a tool that fails, never answers or is cancelled; in one process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from mcp import Client

from mcpd.mcp_adapter import manifest, server
from mcpd.mcp_adapter.link import Link
from mcpd.mcp_adapter.reply import Reply
from mcpd.shm.aio import AsyncClient
from mcpd.shm.errors import DaemonUnavailable
from tests.support.adapter import refused
from tests.support.daemon import RunningDaemon

Handler = Callable[[Link, dict[str, Any]], Awaitable[Reply]]


def ask(monkeypatch: pytest.MonkeyPatch, handler: Handler) -> str:
    monkeypatch.setitem(server.HANDLERS, "get_status", handler)

    async def main() -> str:
        async with Link() as link, Client(server.make_server(link)) as client:
            return await refused(client, "get_status")

    return asyncio.run(main())


def test_every_tool_of_the_manifest_has_a_handler() -> None:
    assert [entry["name"] for entry in manifest.TOOLS] == list(server.HANDLERS)


def test_fault_of_ours_is_an_error_to_read_and_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(link: Link, arguments: dict[str, Any]) -> Reply:
        raise ZeroDivisionError("planted")

    assert ask(monkeypatch, broken).startswith("error: internal\nmcpd has a fault: ZeroDivision")
    assert "planted" in caplog.text


def test_tool_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    given_up = []

    async def stuck(link: Link, arguments: dict[str, Any]) -> Reply:
        try:
            await asyncio.Event().wait()
        finally:
            given_up.append(True)
        raise AssertionError

    monkeypatch.setattr(manifest, "TIME_LIMIT_S", 0.1)
    text = ask(monkeypatch, stuck)
    assert text.startswith("error: timeout\nget_status took longer than")
    assert given_up == [True]


def test_link_asks_again_once_when_the_kept_connection_is_lost(
    bare_daemon: RunningDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MCPD_SOCKET", bare_daemon.socket)
    sessions: list[int] = []

    async def question(client: AsyncClient) -> int:
        sessions.append(client.session)
        if len(sessions) == 2:
            raise DaemonUnavailable("planted")
        return (await client.status())["daemon"]["pid"]  # type: ignore[no-any-return]

    async def main() -> None:
        async with Link() as link:
            assert await link.ask(question) == bare_daemon.pid
            assert await link.ask(question) == bare_daemon.pid
            # Asked twice the second time, on another connection.
            assert len(sessions) == 3
            assert sessions[0] == sessions[1] != sessions[2]

    asyncio.run(main())


def test_question_that_fails_on_a_new_connection_is_not_repeated(
    bare_daemon: RunningDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MCPD_SOCKET", bare_daemon.socket)
    asked = []

    async def question(client: AsyncClient) -> None:
        asked.append(client.session)
        raise DaemonUnavailable("planted")

    async def main() -> None:
        async with Link() as link:
            with pytest.raises(DaemonUnavailable, match="planted"):
                await link.ask(question)

    asyncio.run(main())
    assert len(asked) == 1
