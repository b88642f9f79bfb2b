"""Each tool, asked by the official client in both eras, about a real daemon with a live stream."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mcp.shared.exceptions import MCPError

from mcpd.mcp_adapter import manifest
from mcpd.mcp_adapter.tools import run_inference
from mcpd.shm import WriterStream, connect
from tests.support.adapter import answered, connected, refused, servers_of
from tests.support.daemon import RunningDaemon, wait_until
from tests.support.models import TINY_IMAGE_LABELS

RED, GREEN, DARK = (255, 0, 0), (0, 204, 0), (9, 9, 9)


@pytest.fixture(scope="module")
def running(
    tmp_path_factory: pytest.TempPathFactory, model_repository: Path
) -> Iterator[RunningDaemon]:
    """One daemon for all these tests: they change nothing."""
    with RunningDaemon(tmp_path_factory.mktemp("daemon"), model_repository) as daemon:
        yield daemon


@pytest.fixture
def cam0(running: RunningDaemon) -> Iterator[WriterStream]:
    """A stream of 64x48 frames, with one red frame in it."""
    with (
        connect(running.socket, name="camera") as client,
        client.create_stream("cam0", width=64, height=48, format="rgb24") as stream,
    ):
        publish(stream, RED)
        yield stream


def publish(stream: WriterStream, colour: tuple[int, int, int], pts_ns: int = 1_500_000_000) -> int:
    with stream.acquire() as slot:
        slot.planes[0][...] = colour
        slot.pts_ns = pts_ns
    return slot.seq


def ask(running: RunningDaemon, mode: str, tool: str, **arguments: Any) -> dict[str, Any]:
    async def main() -> dict[str, Any]:
        async with connected(running.socket, mode) as client:
            return await answered(client, tool, **arguments)

    return asyncio.run(main())


def ask_in_vain(running: RunningDaemon, tool: str, **arguments: Any) -> str:
    async def main() -> str:
        async with connected(running.socket) as client:
            return await refused(client, tool, **arguments)

    return asyncio.run(main())


def test_tool_list_is_the_manifest(running: RunningDaemon, mode: str) -> None:
    async def main() -> list[dict[str, Any]]:
        async with connected(running.socket, mode) as client:
            tools = (await client.list_tools()).tools
            return [tool.model_dump(by_alias=True, exclude_none=True) for tool in tools]

    assert asyncio.run(main()) == list(manifest.TOOLS)


def test_streams_are_listed(running: RunningDaemon, cam0: WriterStream, mode: str) -> None:
    listed = ask(running, mode, "list_streams")
    assert listed["count"] == 1
    (stream,) = listed["streams"]
    assert (
        stream.items()
        >= {
            "name": "cam0",
            "kind": "frames",
            "format": "rgb24",
            "width": 64,
            "height": 48,
            "frames": 1,
        }.items()
    )
    assert stream["newest_age_s"] >= 0
    assert stream["memory_mib"] > 0


def test_no_stream_is_an_empty_list(running: RunningDaemon) -> None:
    assert ask(running, "auto", "list_streams") == {"count": 0, "streams": []}


def test_models_are_listed_with_their_labels(running: RunningDaemon, mode: str) -> None:
    listed = ask(running, mode, "list_models")
    models = {model["name"]: model for model in listed["models"]}
    assert listed["count"] == len(models) == 2
    assert models["tiny-image"]["answers"] == "detections"
    assert tuple(models["tiny-image"]["labels"]) == TINY_IMAGE_LABELS
    assert models["trivial"]["answers"] == "tensors"
    assert "labels" not in models["trivial"]


def test_detections_of_the_newest_frame(
    running: RunningDaemon, cam0: WriterStream, mode: str
) -> None:
    seq = publish(cam0, GREEN)
    found = ask(running, mode, "run_inference", model="tiny-image", stream="cam0")
    assert found["counts"] == {"green": 1}
    assert found["detections"] == [{"label": "green", "score": 0.8, "box": [0, 0, 64, 48]}]
    assert found["count"] == 1
    assert (
        found.items()
        >= {
            "model": "tiny-image",
            "version": 1,
            "stream": "cam0",
            "frame": seq,
            "width": 64,
            "height": 48,
            "time_s": 1.5,
        }.items()
    )
    assert found["model_ms"] > 0
    assert found["frame_age_s"] > 0
    assert "outputs" not in found


def test_frame_with_nothing_in_it_gives_empty_counts(
    running: RunningDaemon, cam0: WriterStream
) -> None:
    publish(cam0, DARK)
    found = ask(running, "auto", "run_inference", model="tiny-image", stream="cam0")
    assert (found["count"], found["counts"], found["detections"]) == (0, {}, [])


def test_min_score_leaves_out_what_scores_below(running: RunningDaemon, cam0: WriterStream) -> None:
    publish(cam0, GREEN)
    arguments = {"model": "tiny-image", "stream": "cam0", "min_score": 0.9}
    assert ask(running, "auto", "run_inference", **arguments)["count"] == 0


def test_model_that_does_not_detect_shows_its_outputs(running: RunningDaemon, mode: str) -> None:
    with (
        connect(running.socket) as client,
        client.create_stream("t0", width=8, height=8, format="rgb24") as stream,
    ):
        publish(stream, (10, 20, 30))
        found = ask(running, mode, "run_inference", model="trivial", stream="t0")
    assert found["outputs"] == [
        {"name": "mean", "dtype": "float32", "shape": [1, 3], "values": [10, 20, 30]}
    ]
    assert found["detections"] == []


def test_value_that_json_has_not_is_null() -> None:
    values = [None, float("nan"), float("inf"), 1 / 3, True]
    shown = run_inference.output("x", "float32", [5], values)
    assert shown["values"] == [None, None, None, 0.333333, 1]


def test_best_detections_are_kept_and_all_are_counted() -> None:
    found = [
        {"label": label, "score": score, "box": [0.123, 1.26, 2, 3]}
        for label, score in (("cat", 0.2), ("dog", 0.91239), ("cat", 0.5), ("cat", 0.05))
    ]
    assert run_inference.select(found, 0.1, 2) == {
        "counts": {"cat": 2, "dog": 1},
        "count": 3,
        "detections": [
            {"label": "dog", "score": 0.912, "box": [0.1, 1.3, 2, 3]},
            {"label": "cat", "score": 0.5, "box": [0.1, 1.3, 2, 3]},
        ],
        "omitted": 1,
        "note": "1 detections beyond max_results=2 were left out.",
    }


def test_status_sums_up_and_names_a_still_stream(
    running: RunningDaemon, cam0: WriterStream, mode: str
) -> None:
    status = ask(running, mode, "get_status")
    assert status["pid"] == running.pid
    assert status["socket"] == running.socket
    assert status["models"] == 2
    # On a slow machine cam0 may count as still by now.
    assert {problem["about"] for problem in status["problems"]} <= {"stream cam0"}
    with (
        connect(running.socket, name="quiet") as client,
        client.create_stream("silent", width=8, height=8, format="gray8"),
    ):
        problems = ask(running, mode, "get_status")["problems"]
    (problem,) = [each for each in problems if each["about"] == "stream silent"]
    assert problem["problem"] == "has had no frame yet"
    assert "(quiet)" in problem["next_step"]


def test_broken_model_is_a_problem_and_its_error_is_shown(tmp_path: Path) -> None:
    (tmp_path / "models/bad/1").mkdir(parents=True)
    (tmp_path / "models/bad/model.toml").write_text("[[input]]\n")
    with RunningDaemon(tmp_path, tmp_path / "models") as daemon:
        (problem,) = ask(daemon, "auto", "get_status")["problems"]
        assert problem["about"] == "model bad"
        assert problem["problem"].startswith("broken: ")
        (model,) = ask(daemon, "auto", "list_models")["models"]
        assert model["state"] == "broken"
        text = ask_in_vain(daemon, "run_inference", model="bad", stream="x")
        assert text.startswith("error: ")


WRONG: list[tuple[dict[str, Any], list[str]]] = [
    ({"stream": "cam0"}, ["error: invalid", "needs the argument 'model'"]),
    ({"model": "tiny-image"}, ["error: invalid", "exactly one of stream and path"]),
    (
        {"model": "tiny-image", "stream": "cam0", "path": "/x"},
        ["error: invalid", "and has both"],
    ),
    ({"model": "tiny-image", "stream": 7}, ["error: invalid", "'stream' is 7"]),
    (
        {"model": "tiny-image", "stream": "none"},
        ["error: not_found", "no stream 'none'", "cam0"],
    ),
    (
        {"model": "none", "stream": "cam0"},
        ["error: not_found", "no model 'none'", "tiny-image"],
    ),
    ({"model": "tiny-image", "path": "/etc/passwd"}, ["not_permitted", "MCPD_MCP_ROOTS"]),
]


def test_wrong_call_is_an_error_to_read(running: RunningDaemon, cam0: WriterStream) -> None:
    async def main() -> None:
        async with connected(running.socket) as client:
            for arguments, words in WRONG:
                text = await refused(client, "run_inference", **arguments)
                for word in [*words, "Next step: "]:
                    assert word in text

    asyncio.run(main())


def test_model_that_does_not_fit_the_stream_is_an_error_to_read(running: RunningDaemon) -> None:
    with (
        connect(running.socket) as client,
        client.create_stream("g0", width=9, height=9, format="gray8") as stream,
    ):
        with stream.acquire() as slot:
            slot.planes[0][...] = np.uint8(1)
        text = ask_in_vain(running, "run_inference", model="trivial", stream="g0")
    assert text.startswith("error: ")
    assert "trivial" in text


def test_unknown_tool_is_a_protocol_error_that_names_the_tools(
    running: RunningDaemon, mode: str
) -> None:
    async def main() -> None:
        async with connected(running.socket, mode) as client:
            with pytest.raises(MCPError, match="the tools are: get_status, list_streams"):
                await client.call_tool("look", {})

    asyncio.run(main())


def test_without_a_daemon_every_tool_says_how_to_start_it(no_daemon: str, mode: str) -> None:
    async def main() -> None:
        async with connected(no_daemon, mode) as client:
            tools = (await client.list_tools()).tools
            assert len(tools) == 4
            for tool in tools:
                needed = {name: "x" for name in ("model", "stream") if tool.name == "run_inference"}
                text = await refused(client, tool.name, **needed)
                assert text.startswith("error: unavailable")
                assert no_daemon in text
                assert "mcpd start" in text

    asyncio.run(main())


def test_daemon_that_restarts_in_mid_session_is_found_again(
    tmp_path: Path, model_repository: Path, mode: str
) -> None:
    async def main() -> None:
        with RunningDaemon(tmp_path, model_repository) as daemon:
            async with connected(daemon.socket, mode) as client:
                first = await answered(client, "get_status")
                await asyncio.to_thread(daemon.kill)
                assert "mcpd start" in await refused(client, "list_models")
                await asyncio.to_thread(daemon.start)
                second = await answered(client, "get_status")
                assert first["pid"] != second["pid"] == daemon.pid
                # Restarted between two calls, so that the kept connection is the first to notice.
                await asyncio.to_thread(daemon.stop)
                await asyncio.to_thread(daemon.start)
                assert (await answered(client, "get_status"))["pid"] == daemon.pid

    asyncio.run(main())


def test_many_calls_at_once_are_all_answered(running: RunningDaemon, cam0: WriterStream) -> None:
    async def main() -> None:
        async with connected(running.socket) as client, asyncio.TaskGroup() as group:
            for _ in range(10):
                group.create_task(answered(client, "list_streams"))
                group.create_task(
                    answered(client, "run_inference", model="tiny-image", stream="cam0")
                )

    asyncio.run(main())


def test_session_with_the_daemon_ends_with_the_adapter(running: RunningDaemon) -> None:
    async def main() -> int:
        async with connected(running.socket) as client:
            await answered(client, "get_status")
            sessions: int = (await answered(client, "get_status"))["sessions"]
            return sessions

    before = asyncio.run(main())
    with connect(running.socket) as client:
        wait_until(
            lambda: client.status()["daemon"]["sessions"] <= before, 10, "the session is gone"
        )
        names = {row["client"] for row in client.list("sessions")}
    assert "mcpd mcp" not in names


def test_live_adapter_has_no_numpy_mapped(running: RunningDaemon, cam0: WriterStream) -> None:
    async def main() -> None:
        async with connected(running.socket) as client:
            await answered(client, "run_inference", model="tiny-image", stream="cam0")
            (server,) = servers_of(running.socket)
            mapped = {Path(each.path).name for each in server.memory_maps()}
            assert any(name.startswith("_core.abi3") for name in mapped)
            assert not [name for name in mapped if "multiarray" in name or "onnx" in name]

    asyncio.run(main())
