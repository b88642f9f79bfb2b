"""The stream with shared words that are anything: a fixed number of inputs, under sanitizers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.native import c_programs
from tests.native.c_programs import FUZZ

INPUTS = 2000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("c_fuzz")
    if not c_programs.can_build(FUZZ, folder):
        pytest.skip("the compiler cannot build for asan here")
    return folder


def test_no_word_in_shared_memory_makes_a_side_crash_hang_or_read_beyond(folder: Path) -> None:
    done = c_programs.run(c_programs.build(FUZZ, "fuzz_stream", folder), str(INPUTS))
    assert done.returncode == 0, done.stdout
    assert f"ok {INPUTS} inputs" in done.stdout


@pytest.mark.parametrize(
    ("file", "right", "wrong"),
    [
        ("take", "slot < reader->geometry.nslots ? (int)slot : -EBADMSG", "(int)(slot % 60000)"),
        ("pinning", "meta->nbytes > reader->geometry.slot_nbytes", "0"),
        ("thinning", "__builtin_add_overflow(a, b, &sum) ? INT64_MAX : sum", "(sum = a + b)"),
    ],
    ids=["a slot index", "a size", "a time"],
)
def test_the_fuzzing_finds_one_check_that_is_left_out(
    file: str, right: str, wrong: str, folder: Path
) -> None:
    flavour = replace(FUZZ, name=f"fuzz-{file}", patch=(file, right, wrong), objects="fuzz")
    done = c_programs.run(c_programs.build(flavour, "fuzz_stream", folder), str(INPUTS))
    assert done.returncode != 0, "it was not found"
