"""The C tests of copying rows, under the address and undefined-behaviour sanitizers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.native import c_programs
from tests.native.c_programs import ASAN, INCLUDE, NATIVE, WARNINGS

PORTABLE = ("-U__SSE2__",)
"""As on a processor without streaming stores."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("copy")


def build(folder: Path, name: str, source: str, *flags: str) -> Path:
    """The program, with the text of copy.c given."""
    (folder / f"{name}.c").write_text(source)
    binary = folder / name
    sources = [str(NATIVE / "tests/copy.c"), str(folder / f"{name}.c")]
    command = ["gcc", *WARNINGS, *INCLUDE, *ASAN.flags, *flags, *sources, "-o", str(binary)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return binary


def run(binary: Path, test: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(binary), test],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize("flags", [(), PORTABLE], ids=["sse2", "portable"])
@pytest.mark.parametrize("test", c_programs.tests_of("copy"))
def test_rows_are_copied(folder: Path, test: str, flags: tuple[str, ...]) -> None:
    source = (NATIVE / "src/copy.c").read_text()
    done = run(build(folder, f"{test}{len(flags)}", source, *flags), test)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("name", "honest", "planted"),
    [
        ("too_long", "nbytes - at >= LINE", "nbytes - at >= LINE / 2"),
        ("no_tail", "memcpy(target + at, source + at, nbytes - at);", ""),
        ("unaligned", "-(uintptr_t)target % LINE", "-(uintptr_t)target % LINE / 2"),
    ],
)
def test_a_planted_fault_is_caught(folder: Path, name: str, honest: str, planted: str) -> None:
    source = (NATIVE / "src/copy.c").read_text()
    assert honest in source
    binary = build(folder, name, source.replace(honest, planted))
    assert run(binary, "rows_are_copied_past_the_caches_and_nothing_else_changes").returncode != 0
