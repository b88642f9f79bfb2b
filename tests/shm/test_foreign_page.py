"""docs/foreign.md: its examples run as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.daemon import RunningDaemon

PAGE = (Path(__file__).parents[2] / "docs" / "foreign.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def run(socket: str, code: str) -> subprocess.CompletedProcess[str]:
    # Two runs of the tests at once have a segment each.
    code = code.replace("frames-of-mine", f"frames-of-mine-{os.getpid()}")
    try:
        return subprocess.run(
            [sys.executable, "-P", "-W", "error", "-c", code],
            env={**os.environ, "MCPD_SOCKET": socket},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    finally:
        (Path("/dev/shm") / f"frames-of-mine-{os.getpid()}").unlink(missing_ok=True)


def test_the_examples_run_one_after_the_other(shared: RunningDaemon) -> None:
    assert len(EXAMPLES) == 3
    done = run(shared.socket, "\n".join(EXAMPLES))
    assert (done.stderr, done.returncode) == ("", 0)


@pytest.mark.parametrize(
    ("honest", "planted"), [("== bytes([90])", "== bytes([91])"), ("max()) == 0", "max()) == 90")]
)
def test_an_example_that_is_wrong_is_caught(
    shared: RunningDaemon, honest: str, planted: str
) -> None:
    code = "\n".join(EXAMPLES)
    assert honest in code
    assert run(shared.socket, code.replace(honest, planted)).returncode != 0
