"""leaks --watch: its exit status, its lines, JSON and the page."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mcpd.cli.leaks.growing import parse_span
from tests.cli.command import run_mcpd

GROWS = """
import time
kept = []
print("ready", flush=True)
while True:
    kept.append(bytes(100_000))
    time.sleep(0.01)
"""


def test_a_process_that_grows_gives_status_1_and_its_page(tmp_path: Path) -> None:
    # Long enough for ten readings on a machine with other things to do.
    page = tmp_path / "growth.html"
    with subprocess.Popen([sys.executable, "-c", GROWS], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        options = ("--pid", str(process.pid), "--interval", "50ms", "--for", "4s")
        ran = run_mcpd("leaks", "--watch", *options, "--html", str(page), "--json")
        process.kill()
    assert ran.status == 1
    document = ran.document
    assert "private memory growing" in page.read_text()
    assert document["verdict"] == "growing"
    assert document["processes"][0]["pid"] == process.pid


def test_too_short_a_look_gives_status_2() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        ran = run_mcpd("leaks", "--watch", "--pid", str(process.pid), "--for", "0s")
        process.communicate()
    assert ran.status == 2
    assert f"({process.pid}): private memory: could not tell: too short" in ran.out
    assert "of a core" in ran.out


@pytest.mark.parametrize(
    "arguments",
    [
        ("--interval", "1s"),
        ("--pid", "1"),
        ("--watch", "--for", "soon"),
        ("--watch", "--interval", "1ms"),
    ],
)
def test_wrong_options_are_refused(arguments: tuple[str, ...]) -> None:
    ran = run_mcpd("leaks", *arguments)
    assert ran.status == 2
    assert ran.err.startswith("mcpd: error: ")


def test_no_daemon_and_no_pid_is_an_error() -> None:
    assert run_mcpd("leaks", "--watch").status == 3


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("30", 30), ("1.5m", 90), ("2h", 7200)]
)
def test_spans_are_read(text: str, seconds: float) -> None:
    assert parse_span(text) == seconds
