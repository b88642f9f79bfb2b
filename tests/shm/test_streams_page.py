"""docs/streams.md: every example runs as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.daemon import RunningDaemon

PAGE = Path(__file__).resolve().parents[2] / "docs/streams.md"


def examples() -> list[tuple[str, str]]:
    """Heading and code of each."""
    found = []
    heading = ""
    for part in re.split(r"(?m)^(?=## |```python)", PAGE.read_text(encoding="utf-8")):
        if part.startswith("## "):
            heading = part.splitlines()[0].removeprefix("## ")
        code = re.match(r"```python\n(.*?)```", part, re.DOTALL)
        if code is not None:
            found.append((heading or "Streams", code[1]))
    return found


def run(code: str, daemon: RunningDaemon) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-W", "error", "-c", code],
        env={**os.environ, "MCPD_SOCKET": daemon.socket},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(("heading", "code"), examples())
def test_example_runs(shared: RunningDaemon, heading: str, code: str) -> None:
    done = run(code, shared)
    assert done.returncode == 0, f"{heading}:\n{done.stderr}"


def test_every_heading_has_an_example_and_one_that_fails_is_seen(shared: RunningDaemon) -> None:
    headings = set(re.findall(r"(?m)^## (.*)$", PAGE.read_text(encoding="utf-8")))
    assert headings == {heading for heading, _ in examples()} - {"Streams"}
    assert run("assert 1 == 2", shared).returncode == 1
