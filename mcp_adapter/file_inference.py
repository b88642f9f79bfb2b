"""Runs a model on a file by `mcpd infer` in a process of its own: the adapter sees no pixels."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any, Final

import anyio
from anyio.abc import ByteReceiveStream

from mcpd.mcp_adapter.manifest import TIME_LIMIT_S
from mcpd.mcp_adapter.reply import clipped
from mcpd.shm.errors import Internal, LimitExceeded, TimedOut, from_wire

MAX_ANSWER_NBYTES: Final = 4 * 1024 * 1024
"""Most that the process may answer; detections of one frame take below 200 KiB."""
MAX_LOG_NBYTES: Final = 64 * 1024


async def run(model: str, file: Path) -> dict[str, Any]:
    """The document that `mcpd infer MODEL FILE --frames 1 --json` prints.

    The process ends when this returns, raises or is cancelled, and when the adapter dies.

    Args:
        model: Its name, checked by the caller: it does not begin with a dash.
        file: Absolute path of a regular file that may be read, links resolved.

    Raises:
        TimedOut: It took longer than TIME_LIMIT_S.
        McpdError: What `mcpd infer` reports, with its code.
        Internal, LimitExceeded: It ended without an answer, or answered too much.
    """
    try:
        with anyio.fail_after(TIME_LIMIT_S - 1):
            status, answer, log = await _finished(_command(model, file))
    except TimeoutError:
        raise TimedOut(
            f"model {model!r} on {file} took longer than {TIME_LIMIT_S - 1:.0f} s",
            "Call again if the model was still loading (list_models tells), or give a smaller file",
        ) from None
    document = _parsed(answer)
    if isinstance(error := document.get("error"), dict):
        raise from_wire(str(error["code"]), str(error["message"]), str(error.get("hint", "")))
    if status != 0 or not document:
        raise Internal(
            f"mcpd infer ended with status {status} and no answer",
            clipped(log.decode(errors="replace").strip()),
        )
    return document


def _command(model: str, file: Path) -> list[str]:
    python = [sys.executable, "-P", "-m"]
    tethered = [*python, "mcpd.mcp_adapter.tether", str(os.getpid())]
    infer = ["infer", "--json", "--frames", "1", "--", model, str(file)]
    return [*tethered, *python, "mcpd.cli.main", *infer]


async def _finished(command: list[str]) -> tuple[int, bytes, bytes]:
    """Exit status, standard output and error of a process, which is killed if this does not end."""
    process = await anyio.open_process(
        command, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, start_new_session=True
    )
    read: dict[str, bytes] = {}

    async def drain(name: str, stream: ByteReceiveStream | None, limit: int, strict: bool) -> None:
        kept = bytearray()
        assert stream is not None
        async for part in stream:
            if strict and len(kept) + len(part) > limit:
                raise LimitExceeded(f"mcpd infer answered more than {limit} bytes")
            kept += part[: limit - len(kept)]
        read[name] = bytes(kept)

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(drain, "out", process.stdout, MAX_ANSWER_NBYTES, True)
            group.start_soon(drain, "log", process.stderr, MAX_LOG_NBYTES, False)
            await process.wait()
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    finally:
        with anyio.CancelScope(shield=True):
            if process.returncode is None:
                process.kill()
            await process.aclose()
    return process.returncode or 0, read["out"], read["log"]


def _parsed(answer: bytes) -> dict[str, Any]:
    try:
        document = json.loads(answer)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
