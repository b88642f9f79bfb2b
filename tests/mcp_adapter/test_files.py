"""run_inference on a file: the model runs, the adapter sees no pixel, nothing is left behind."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest
from PIL import Image

from mcpd.mcp_adapter import file_inference
from mcpd.shm.errors import McpdError, TimedOut
from tests.cli.clips import write_video
from tests.support.adapter import (
    COMMAND,
    answered,
    children_running,
    connected,
    refused,
    servers_of,
)
from tests.support.daemon import RunningDaemon, wait_until

RED = (255, 0, 0)


@pytest.fixture(scope="module")
def running(
    tmp_path_factory: pytest.TempPathFactory, model_repository: Path
) -> Iterator[RunningDaemon]:
    with RunningDaemon(tmp_path_factory.mktemp("daemon"), model_repository) as daemon:
        yield daemon


@pytest.fixture
def media(tmp_path: Path) -> Path:
    """A folder with a red picture, and one with a hostile name that is no picture."""
    Image.new("RGB", (64, 48), RED).save(tmp_path / "red.png")
    (tmp_path / "--json; $(reboot).mp4").write_bytes(b"not a video")
    return tmp_path


def look(running: RunningDaemon, media: Path, name: str, **arguments: Any) -> Any:
    async def main() -> Any:
        roots = {"MCPD_MCP_ROOTS": str(media)}
        async with connected(running.socket, env=roots) as client:
            wanted = arguments.pop("wanted", answered)
            return await wanted(client, "run_inference", path=f"{media}/{name}", **arguments)

    return asyncio.run(main())


def test_picture_is_looked_at(running: RunningDaemon, media: Path) -> None:
    found = look(running, media, "red.png", model="tiny-image")
    assert found["counts"] == {"red": 1}
    (detection,) = found["detections"]
    assert detection["box"] == [0, 0, 64, 48]
    assert detection["score"] > 0.95
    assert found["path"] == str(media / "red.png")
    assert (found["width"], found["height"]) == (64, 48)


def test_model_that_does_not_detect_shows_its_outputs(running: RunningDaemon, media: Path) -> None:
    (shown,) = look(running, media, "red.png", model="trivial")["outputs"]
    assert (shown["name"], shown["shape"]) == ("mean", [1, 3])
    assert shown["values"] == pytest.approx(RED, abs=4)


def test_file_that_is_no_picture_is_an_error_whatever_its_name(
    running: RunningDaemon, media: Path
) -> None:
    text = look(running, media, "--json; $(reboot).mp4", model="trivial", wanted=refused)
    assert text.startswith("error: ")
    assert "$(reboot).mp4" in text


def test_playlist_does_not_lead_out_of_the_roots(
    running: RunningDaemon, media: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    secret = write_video(
        tmp_path_factory.mktemp("elsewhere") / "secret.ts", [RED] * 30, codec="mpeg2video"
    )
    (media / "list.m3u8").write_text(
        f"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\n{secret}\n#EXT-X-ENDLIST\n"
    )
    (media / "list.mp4").write_text(f"ffconcat version 1.0\noption safe 0\nfile {secret}\n")
    shutil.copy(secret, media / "allowed.ts")
    assert look(running, media, "allowed.ts", model="tiny-image")["counts"] == {"red": 1}
    for name in ("list.m3u8", "list.mp4"):
        text = look(running, media, name, model="tiny-image", wanted=refused)
        assert text.startswith("error: invalid")


def test_unknown_model_is_an_error_to_read(running: RunningDaemon, media: Path) -> None:
    text = look(running, media, "red.png", model="none", wanted=refused)
    assert text.startswith("error: not_found")
    assert "tiny-image" in text


def test_file_outside_the_roots_is_refused(running: RunningDaemon, media: Path) -> None:
    text = look(running, media, "../red.png", model="trivial", wanted=refused)
    assert text.startswith("error: not_permitted")
    assert "MCPD_MCP_ROOTS" in text


def test_without_a_daemon_a_file_is_refused_with_the_way_to_start_it(
    no_daemon: str, media: Path
) -> None:
    async def main() -> str:
        async with connected(no_daemon, env={"MCPD_MCP_ROOTS": str(media)}) as client:
            path = str(media / "red.png")
            return await refused(client, "run_inference", model="trivial", path=path)

    text = asyncio.run(main())
    assert text.startswith("error: unavailable")
    assert "mcpd start" in text


@contextmanager
def frozen_daemon(daemon: RunningDaemon) -> Iterator[None]:
    """Meanwhile the daemon answers nobody."""
    os.kill(daemon.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(daemon.pid, signal.SIGCONT)


@pytest.fixture
def frozen(daemon: RunningDaemon, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The daemon accepts nothing, so that `mcpd infer` waits."""
    monkeypatch.setenv("MCPD_SOCKET", daemon.socket)
    with frozen_daemon(daemon):
        yield


def children() -> list[psutil.Process]:
    return children_running("infer")


def test_cancelled_call_kills_the_process(frozen: None, media: Path) -> None:
    async def main() -> psutil.Process:
        call = asyncio.create_task(file_inference.run("trivial", media / "red.png"))
        await asyncio.to_thread(wait_until, lambda: bool(children()), 30, "a child is there")
        (child,) = children()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        return child

    assert not asyncio.run(main()).is_running()


def test_call_that_takes_too_long_says_so_and_kills_the_process(
    frozen: None, media: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_inference, "TIME_LIMIT_S", 1.5)
    with pytest.raises(TimedOut, match="took longer than"):
        anyio.run(file_inference.run, "trivial", media / "red.png")
    assert children() == []


def test_answer_that_is_too_long_is_refused(
    running: RunningDaemon, media: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MCPD_SOCKET", running.socket)
    monkeypatch.setattr(file_inference, "MAX_ANSWER_NBYTES", 10)
    with pytest.raises(McpdError, match="answered more than 10 bytes"):
        anyio.run(file_inference.run, "trivial", media / "red.png")
    assert children() == []


def test_adapter_that_is_killed_takes_the_process_along(daemon: RunningDaemon, media: Path) -> None:
    async def main() -> psutil.Process:
        async with connected(daemon.socket, env={"MCPD_MCP_ROOTS": str(media)}) as client:
            await answered(client, "list_models")
            (server,) = servers_of(daemon.socket)
            (adapter,) = children_running(*COMMAND)
            with frozen_daemon(daemon):
                path = str(media / "red.png")
                call = asyncio.create_task(
                    client.call_tool("run_inference", {"model": "trivial", "path": path})
                )
                await asyncio.to_thread(
                    wait_until, lambda: bool(server.children()), 30, "a child is there"
                )
                (child,) = server.children()
                adapter.kill()
                with pytest.raises(Exception, match="closed"):
                    await call
                return child

    child = asyncio.run(main())
    wait_until(lambda: not child.is_running(), 10, "the child is gone")
