"""docs/frames.md: its examples run as they stand, and its tables are the code's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mcpd.shm.dtypes import DTYPES
from mcpd.shm.formats import FORMAT_CODES
from tests.cli.clips import GREEN, RED, write_video
from tests.support.daemon import RunningDaemon

PAGE = (Path(__file__).parents[2] / "docs" / "frames.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def run(folder: Path, socket: str, code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-W", "error", "-c", code],
        cwd=folder,
        env={**os.environ, "MCPD_SOCKET": socket},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_examples_run_one_after_the_other(shared: RunningDaemon, tmp_path: Path) -> None:
    assert len(EXAMPLES) == 6
    write_video(tmp_path / "clip.mp4", [RED, GREEN] * 3)
    done = run(tmp_path, shared.socket, "\n".join(EXAMPLES))
    assert done.stderr == ""
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("honest", "planted"),
    [("[240, 320] == 90", "[240, 320] == 91"), ("and frame.keyframe", "== 1")],
)
def test_an_example_that_is_wrong_is_caught(
    shared: RunningDaemon, tmp_path: Path, honest: str, planted: str
) -> None:
    code = "\n".join(EXAMPLES)
    assert honest in code
    write_video(tmp_path / "clip.mp4", [RED, GREEN] * 3)
    assert run(tmp_path, shared.socket, code.replace(honest, planted)).returncode != 0


def test_every_format_and_dtype_is_on_the_page() -> None:
    for name in FORMAT_CODES:
        assert f"`{name}`" in PAGE
    told = set(re.findall(r"`(\w+)`", PAGE[PAGE.index("| dtype |") :]))
    ranges = {"int16", "int32", "uint16", "uint32"}  # within `int8` to `int64`
    plain = {name for name in DTYPES if "[" not in name}
    assert plain - told - ranges == set()
    assert {name[:-1].split("[")[1] for name in DTYPES if "[" in name} == set(
        re.findall(r"`\[(\w+)\]`", PAGE)
    )
