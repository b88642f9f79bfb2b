"""The demo from beginning to end; whatever happens, everything it started is gone afterwards."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcpd.cli.demo.annotate import write_annotated
from mcpd.cli.demo.clip import FPS, Clip, cached_clip, pictures
from mcpd.cli.demo.comparison import Handover, hand_over_as_json, hand_over_in_slots
from mcpd.cli.demo.figures import make_document
from mcpd.cli.demo.leftover import Census
from mcpd.cli.demo.processes import PrivateDaemon, Process, interruptible
from mcpd.cli.demo.screen import Screen
from mcpd.cli.demo.streaming import MODEL, Streamed, stream_clip
from mcpd.shm import connect
from mcpd.shm.errors import NotFound, from_wire

if TYPE_CHECKING:
    from mcpd.shm.client import Client

_FETCH_S = 900.0
_COMPARED = 18
"""Frames handed over both ways: base64 takes about a tenth of a second for each."""
_CAPTION = f"mcpd demo · {MODEL} · thick: detected · thin white: true"


@dataclass(frozen=True)
class Options:
    """What the demo is to do.

    Attributes:
        repository: The model repository; the model is fetched into it if it lacks it.
        cache: Folder for the clip and the photos in it.
        output: Folder for the annotated video, the still and the figures; made if missing.
        seconds: Length of the clip.
        max_speed: Whether frames go as fast as the detector takes them, not at the clip's pace.
    """

    repository: Path
    cache: Path
    output: Path
    seconds: int
    max_speed: bool


def run_demo(options: Options, screen: Screen) -> dict[str, Any]:
    """Runs the demo and returns its figures, which it also writes into the output folder.

    Raises:
        McpdError: Something failed; what was started has been ended and nothing is left of it.
        KeyboardInterrupt: Ctrl-C, SIGTERM or SIGHUP; likewise.
    """
    _require_extras()
    with interruptible():
        options.output.mkdir(parents=True, exist_ok=True)
        fetch_model(options.repository, screen)
        frames = options.seconds * FPS
        with screen.bar("making the clip", frames) as bar:
            clip = cached_clip(options.cache, options.seconds, bar.advance)
            bar.advance(frames, frames, str(clip.path))
        daemon, census, streamed, as_json, in_slots = _measure(options, clip, screen)
        left = census.left() + [f"{name} in the socket's folder" for name in daemon.left]
        video, still = options.output / "annotated.mp4", options.output / "still.png"
        detections = [streamed.detections.get(index, []) for index in range(frames)]
        with screen.bar("writing the annotated video", frames) as bar:
            write_annotated(clip, detections, _CAPTION, video, still, bar.advance)
        figures = options.output / "figures.json"
        files = {"video": str(video), "still": str(still), "figures": str(figures)}
        document = make_document(clip, streamed, as_json, in_slots, left, files)
        figures.write_text(json.dumps(document, indent=2) + "\n")
        return document


def _require_extras() -> None:
    """Raises NotFound when a package is missing that the base installation does not bring."""
    needed = {"av": "PyAV", "PIL": "Pillow", "onnx": "onnx", "onnxruntime": "ONNX Runtime"}
    missing = [name for module, name in needed.items() if find_spec(module) is None]
    if missing:
        raise NotFound(
            f"the demo needs {', '.join(missing)}, which this Python has not",
            "Install them with pip install 'mcpd-inference[onnx,video]'.",
        )


def fetch_model(repository: Path, screen: Screen) -> None:
    """Has the model fetched and converted, in a process of its own, unless it is there.

    Raises:
        McpdError: It could not be fetched; the message is the fetching process's.
    """
    if (repository / MODEL / "model.toml").exists():
        return
    command = [sys.executable, "-P", "-m", "mcpd.daemon.models", "fetch", MODEL]
    command += ["--repository", str(repository), "--json"]
    with screen.bar(f"fetching {MODEL}", 100) as bar:

        def show(line: str) -> None:
            message = json.loads(line)
            bar.advance(round(100 * message.get("fraction", 1)), 100, message.get("stage", ""))

        with Process("fetching of the model", command, on_output=show) as process:
            if process.wait(_FETCH_S) != 0:
                failure = json.loads(process.output()[-1]) if process.output() else {}
                if "error" in failure:
                    raise from_wire(**failure["error"])
                raise process.failure()


def _measure(
    options: Options, clip: Clip, screen: Screen
) -> tuple[PrivateDaemon, Census, Streamed, Handover, Handover]:
    with PrivateDaemon(options.repository, load=MODEL) as daemon:
        census = Census(daemon.pid)
        screen.say(f"daemon: pid {daemon.pid}, socket {daemon.socket}")
        with connect(daemon.socket, name="mcpd-demo") as client:
            streamed = stream_clip(
                clip, daemon, client, census, screen, max_speed=options.max_speed
            )
            as_json, in_slots = _compare(clip, client, screen)
            census.note()
    return daemon, census, streamed, as_json, in_slots


def _compare(clip: Clip, client: Client, screen: Screen) -> tuple[Handover, Handover]:
    import numpy as np

    with screen.bar("the same frames as base64 in JSON, and in slots"):
        frames = [np.asarray(picture) for picture in islice(pictures(clip), _COMPARED)]
        return hand_over_as_json(frames), hand_over_in_slots(frames, client)
