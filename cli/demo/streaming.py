"""The clip through shared memory into the detector: every frame, shown live and measured."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mcpd.cli.demo.clip import Clip
from mcpd.cli.demo.leftover import Census
from mcpd.cli.demo.meters import Meters
from mcpd.cli.demo.processes import PrivateDaemon, Process
from mcpd.cli.demo.readings import Use
from mcpd.cli.demo.screen import Bar, Screen
from mcpd.shm.errors import McpdError, TimedOut

if TYPE_CHECKING:
    from mcpd.shm.client import Client
    from mcpd.shm.results import Detection, Result

STREAM = "demo"
MODEL = "ssdlite-coco"
_READ_EVERY = 30
"""Frames between two readings of what the processes use."""
_RESULT_S = 60.0
_STREAM_S = 20.0


@dataclass
class Streamed:
    """What came of it.

    Attributes:
        detections: Those of each frame, by its number in the clip.
        seconds: From the first result to the last.
        handover_ms, latency_ms: For each frame: from its publishing until the worker took it, and
            until its result was published.
        uses: For each process: what it used per frame.
        source: The source's own summary.
        max_speed: Whether it published as fast as it decodes.
    """

    max_speed: bool
    detections: dict[int, list[Detection]] = field(default_factory=dict)
    seconds: float = 0.0
    handover_ms: list[float] = field(default_factory=list)
    latency_ms: list[float] = field(default_factory=list)
    uses: dict[str, Use] = field(default_factory=dict)
    source: dict[str, Any] = field(default_factory=dict)


def stream_clip(
    clip: Clip,
    daemon: PrivateDaemon,
    client: Client,
    census: Census,
    screen: Screen,
    *,
    max_speed: bool,
) -> Streamed:
    """Starts a source for the clip and collects the detector's result for each of its frames.

    The source begins when the worker has attached, and every reader is lossless: the detector
    gets every frame, and a machine that is too slow for the clip's pace holds the source back.

    Raises:
        McpdError: The source or the model failed, or no result came for 60 s.
    """
    arguments = [sys.executable, "-P", "-m", "mcpd.daemon.source", "--socket", str(daemon.socket)]
    arguments += ["--stream", STREAM, "--wait-readers", "1", "--progress", "none", "--json"]
    if max_speed:
        arguments.append("--max-speed")
    streamed = Streamed(max_speed)
    with Process("source", [*arguments, "--", str(clip.path)]) as source:
        _wait_for_stream(client, source)
        with (
            screen.bar(f"detecting with {MODEL}", len(clip.truth)) as bar,
            client.results(STREAM, model=MODEL, frames="lossless", timeout_s=_RESULT_S) as results,
        ):
            pids = {"source": source.pid, "daemon": daemon.pid}
            pids |= {part: pid for pid, part in census.note([source.pid]).items()}
            meters = Meters(client, pids, clip.path, lambda: screen.nbytes)
            began = 0.0
            for result in results:
                with result:
                    index = _take(streamed, result, clip)
                done = len(streamed.detections)
                if done == 1:
                    began = time.monotonic()
                if done % _READ_EVERY == 1 or done == len(clip.truth):
                    meters.take(done)
                _show(bar, streamed, clip, index)
            streamed.seconds = time.monotonic() - began
        census.note()
        if source.wait(10.0) != 0:
            raise source.failure()
        streamed.source = json.loads(source.output()[-1])
    if not streamed.detections:
        raise McpdError(f"{MODEL} gave no result for any frame")
    streamed.uses = meters.uses()
    return streamed


def describe(detections: Sequence[Detection]) -> str:
    """Labels and scores on one line, the surest first."""
    ordered = sorted(detections, key=lambda d: d.score, reverse=True)
    return "  ".join(f"{d.label} {d.score:.2f}" for d in ordered) or "nothing"


def _wait_for_stream(client: Client, source: Process) -> None:
    deadline = time.monotonic() + _STREAM_S
    while ("live", STREAM) not in {(s["state"], s["name"]) for s in client.list("streams")}:
        if source.poll() is not None:
            raise source.failure()
        if time.monotonic() > deadline:
            raise TimedOut(f"the source has no stream after {_STREAM_S:g} s")
        time.sleep(0.02)


def _take(streamed: Streamed, result: Result, clip: Clip) -> int:
    """Keeps a result; returns the number of its frame, which its time in the clip tells."""
    index = round(result.pts_ns * clip.fps / 1e9)
    if not 0 <= index < len(clip.truth) or index in streamed.detections:
        raise McpdError(
            f"a result came for frame {index}, of {len(clip.truth)}, which is none or another's"
        )
    if result.status != "ok":
        raise McpdError(f"frame {index} failed in the model: {result.error}")
    streamed.detections[index] = list(result.detections)
    streamed.latency_ms.append(result.latency_ns / 1e6)
    streamed.handover_ms.append((result.awake_ns - result.source_publish_ns) / 1e6)
    return index


def _show(bar: Bar, streamed: Streamed, clip: Clip, index: int) -> None:
    detections = streamed.detections[index]
    bar.advance(len(streamed.detections), len(clip.truth), describe(detections))
    if index % clip.fps == clip.fps - 1:
        boxes = "  ".join(
            f"{d.label} {d.score:.2f} ({d.x0:.0f},{d.y0:.0f} {d.x1:.0f},{d.y1:.0f})"
            for d in sorted(detections, key=lambda d: d.score, reverse=True)
        )
        bar.line(f"frame {index:4d}  {streamed.latency_ms[-1]:5.1f} ms  {boxes}")
