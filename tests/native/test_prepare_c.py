"""The C tests of preparation, under the address and undefined-behaviour sanitizers."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.native.c_programs import ASAN, INCLUDE, NATIVE, WARNINGS


def run(folder: Path, test: str, *flags: str) -> subprocess.CompletedProcess[str]:
    """Builds native/tests/prepare.c and runs one of its tests."""
    sources = [NATIVE / "tests/prepare.c", *sorted((NATIVE / "src/prepare").glob("*.c"))]
    binary = folder / "prepare"
    command = ["gcc", *WARNINGS, *ASAN.flags, *INCLUDE, *flags, *map(str, sources)]
    subprocess.run([*command, "-lm", "-o", str(binary)], check=True, timeout=300)
    return subprocess.run(
        [str(binary), test],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )


def test_random_geometries_stay_inside_their_buffers(tmp_path: Path) -> None:
    done = run(tmp_path, "random_geometries_stay_inside_their_buffers")
    assert done.returncode == 0, done.stdout


def test_a_byte_read_beyond_the_source_is_found(tmp_path: Path) -> None:
    done = run(tmp_path, "a_source_one_byte_too_short_is_found", "-DPLANT_SHORT_SOURCE")
    assert done.returncode != 0
    assert "heap-buffer-overflow" in done.stdout
