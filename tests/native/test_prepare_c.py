"""The C tests of preparation, under the address and undefined-behaviour sanitizers."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.native.c_programs import ASAN, INCLUDE, NATIVE, TSAN, WARNINGS
from tests.support.prepare import isas

OUTLINE = "-DMCPD_PREPARE_OUTLINE"
"""One copy of each inner loop: sanitizers check the same lines; gcc takes 1 s, not 20."""


class Program:
    """native/tests/prepare.c, built once for each set of flags."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._built: dict[tuple[str, ...], Path] = {}

    def run(
        self, test: str, *flags: str, isa: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs one test, by the instruction set named or by the fastest."""
        if flags not in self._built:
            self._built[flags] = self._build(flags)
        return subprocess.run(
            [str(self._built[flags]), test],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
            env={**os.environ, "MCPD_PREPARE": isa or ""},
        )

    def _build(self, flags: tuple[str, ...]) -> Path:
        sources = [NATIVE / "tests/prepare.c", *sorted((NATIVE / "src/prepare").glob("*.c"))]
        binary = self._folder / f"prepare{len(self._built)}"
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(lambda source: self._object(source, flags), sources))
        command = ["gcc", *_sanitizer(flags), *flags, *map(str, objects), "-lm"]
        subprocess.run([*command, "-o", str(binary)], check=True, timeout=300)
        return binary

    def _object(self, source: Path, flags: tuple[str, ...]) -> Path:
        """Compiled; a definition that it does not look at leaves it as it is."""
        text = source.read_text() + "".join(
            header.read_text() for header in (NATIVE / "src/prepare").glob("*.h")
        )
        flags = tuple(f for f in flags if not f.startswith("-D") or f[2:].split("=")[0] in text)
        out = self._folder / f"{source.stem}{'_'.join(flags).replace('/', '_')}.o"
        if not out.exists():
            command = ["gcc", *WARNINGS, *_sanitizer(flags), *INCLUDE, OUTLINE, *flags]
            subprocess.run([*command, "-c", str(source), "-o", str(out)], check=True, timeout=300)
        return out


def _sanitizer(flags: tuple[str, ...]) -> tuple[str, ...]:
    return () if "-fsanitize=thread" in flags else ASAN.flags


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return Program(tmp_path_factory.mktemp("prepare"))


@pytest.mark.parametrize("isa", isas())
def test_random_geometries_stay_inside_their_buffers(program: Program, isa: str) -> None:
    done = program.run("random_geometries_stay_inside_their_buffers", isa=isa)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("isa", isas())
def test_a_byte_read_beyond_the_source_is_found(program: Program, isa: str) -> None:
    test = "a_source_one_byte_too_short_is_found"
    done = program.run(test, "-DPLANT_SHORT_SOURCE", isa=isa)
    assert done.returncode != 0
    assert "heap-buffer-overflow" in done.stdout


@pytest.mark.parametrize("isa", isas())
def test_garbage_is_refused_or_stays_inside_its_buffers(program: Program, isa: str) -> None:
    done = program.run("garbage_is_refused_or_stays_inside_its_buffers", isa=isa)
    assert done.returncode == 0, done.stdout


def test_rows_are_asked_for_once_and_two_rows_before(program: Program) -> None:
    done = program.run("rows_are_asked_for_once_and_two_rows_before")
    assert done.returncode == 0, done.stdout


BATCHES = "batches_by_several_threads_are_the_same_to_the_bit"


@pytest.mark.parametrize("flags", [(), TSAN.flags], ids=["asan", "tsan"])
def test_batches_by_several_threads_are_the_same_to_the_bit(
    program: Program, flags: tuple[str, ...]
) -> None:
    done = program.run(BATCHES, *flags)
    assert done.returncode == 0, done.stdout


SAME = "images_are_the_same_to_the_bit_by_scalar_and_by_the_fastest"


def test_images_are_the_same_to_the_bit_by_scalar_and_by_the_fastest(program: Program) -> None:
    done = program.run(SAME)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("test", [SAME, BATCHES])
def test_one_bit_that_differs_is_found(program: Program, test: str) -> None:
    done = program.run(test, "-DPLANT_ONE_BIT")
    assert done.returncode != 0
    assert "memcmp" in done.stdout
