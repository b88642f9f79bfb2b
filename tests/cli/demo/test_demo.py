"""`mcpd demo` as a person runs it, with the real detector; and interrupted, at several moments."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest
from PIL import Image

from tests.cli.command import MCPD, environment, run_mcpd
from tests.support.photos import cache_folder

DEADLINE_S = 120.0


@pytest.fixture
def places(short_path: Path) -> dict[str, str]:
    """Downloads are kept between runs of the tests; what a run leaves would be in TMPDIR."""
    return {
        "MCPD_MODELS": str(cache_folder() / "models"),
        "XDG_CACHE_HOME": str(cache_folder()),
        "TMPDIR": str(short_path),
    }


def left_in(folder: str) -> list[str]:
    """Names in a folder, but for the one that onnxruntime writes whenever it is imported."""
    return sorted(path.name for path in Path(folder).iterdir() if path.name != ".ses")


def test_the_demo_finds_everything_and_leaves_nothing(
    tmp_path: Path, places: dict[str, str]
) -> None:
    output = tmp_path / "out"
    ran = run_mcpd("demo", "--seconds", "1", "--output", str(output), "--json", env=places)
    assert ran.status == 0, ran.err
    document = ran.document
    assert document["ok"]
    assert document["frames"] == 30
    assert document["left_over"] == []
    for label in ("person", "cat", "cup"):
        assert document["classes"][label]["recall"] >= 0.9
    assert {"source", "daemon", "worker", "client"} <= document["cpu_ms_per_frame"].keys()
    for part, use in document["bytes_per_frame"].items():
        assert use["read_and_written"] + use["control_socket"] < 4096, part
    assert document["same_frames"]["ratio"]["bytes"] > 1000
    assert sorted(path.name for path in output.iterdir()) == [
        "annotated.mp4",
        "figures.json",
        "still.png",
    ]
    with Image.open(output / "still.png") as still:
        assert still.size == (1920, 1080)
    assert left_in(places["TMPDIR"]) == []


def start_demo(places: dict[str, str], output: Path, moment: str) -> subprocess.Popen[str]:
    """A demo that has just said `moment` on its standard error."""
    demo = subprocess.Popen(
        [*MCPD, "demo", "--seconds", "1", "--max-speed", "--output", str(output)],
        env=environment(extra=places),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert demo.stderr is not None
    said = ""
    while moment not in said and (character := demo.stderr.read(1)):
        said += character
    assert moment in said, said
    return demo


def still_running(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that have not ended within 10 s; what only waits to be reaped has ended."""
    _, alive = psutil.wait_procs(processes, timeout=10.0)
    return [p for p in alive if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        ("daemon: pid", signal.SIGINT),
        ("detecting", signal.SIGINT),
        ("detecting", signal.SIGTERM),
        ("the same frames", signal.SIGINT),
        ("writing", signal.SIGHUP),
    ],
)
def test_interrupted_it_leaves_nothing(
    tmp_path: Path, places: dict[str, str], moment: str, number: signal.Signals
) -> None:
    """Once its standard error has said where it is, and whatever it was at by then."""
    with start_demo(places, tmp_path / "out", moment) as demo:
        children = psutil.Process(demo.pid).children(recursive=True)
        os.kill(demo.pid, number)
        assert demo.stderr is not None
        demo.stderr.read()
        assert demo.wait(DEADLINE_S) == 130
    assert still_running(children) == []
    assert left_in(places["TMPDIR"]) == []
    assert not [path for path in (tmp_path / "out").iterdir() if path.name.startswith(".")]


def test_killed_outright_it_takes_its_processes_along(
    tmp_path: Path, places: dict[str, str]
) -> None:
    with start_demo(places, tmp_path / "out", "detecting") as demo:
        children = psutil.Process(demo.pid).children(recursive=True)
        demo.kill()
    assert len(children) >= 2
    assert still_running(children) == []


def test_a_demo_of_no_length_is_wrong_usage(tmp_path: Path, places: dict[str, str]) -> None:
    ran = run_mcpd("demo", "--seconds", "0", "--output", str(tmp_path / "out"), env=places)
    assert ran.status == 2
    assert not (tmp_path / "out").exists()
