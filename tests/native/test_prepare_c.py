"""The C tests of preparation, under the address and undefined-behaviour sanitizers."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.native.c_programs import ASAN, INCLUDE, NATIVE, WARNINGS
from tests.support.prepare import isas


def run(
    folder: Path, test: str, *flags: str, isa: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Builds native/tests/prepare.c and runs one of its tests, by an instruction set."""
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
        env={**os.environ, "MCPD_PREPARE": isa or ""},
    )


@pytest.mark.parametrize("isa", isas())
def test_random_geometries_stay_inside_their_buffers(tmp_path: Path, isa: str) -> None:
    done = run(tmp_path, "random_geometries_stay_inside_their_buffers", isa=isa)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("isa", isas())
def test_a_byte_read_beyond_the_source_is_found(tmp_path: Path, isa: str) -> None:
    test = "a_source_one_byte_too_short_is_found"
    done = run(tmp_path, test, "-DPLANT_SHORT_SOURCE", isa=isa)
    assert done.returncode != 0
    assert "heap-buffer-overflow" in done.stdout


SAME = "images_are_the_same_to_the_bit_by_scalar_and_by_the_fastest"


def test_images_are_the_same_to_the_bit_by_scalar_and_by_the_fastest(tmp_path: Path) -> None:
    done = run(tmp_path, SAME)
    assert done.returncode == 0, done.stdout


def test_one_bit_that_differs_is_found(tmp_path: Path) -> None:
    done = run(tmp_path, SAME, "-DPLANT_ONE_BIT")
    assert done.returncode != 0
    assert "memcmp" in done.stdout
