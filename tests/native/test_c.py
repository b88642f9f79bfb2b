"""The C tests of the stream, under sanitizers; and planted faults, which they must find."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.native import c_programs
from tests.native.c_programs import (
    ASAN,
    ASLEEP,
    CLAIM_STEPS,
    CLOCK,
    NO_RECHECK,
    NO_SCAN,
    NO_SCAN_STEP,
    NO_SIGNAL,
    RELAXED,
    STEPS,
    TSAN,
    Flavour,
)

EVERY_TEST = [(name, test) for name in c_programs.PROGRAMS for test in c_programs.tests_of(name)]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("c")


def run(flavour: Flavour, program: str, test: str, folder: Path) -> tuple[int, str]:
    if not c_programs.can_build(flavour, folder):
        pytest.skip(f"the compiler cannot build for {flavour.name} here")
    done = c_programs.run(c_programs.build(flavour, program, folder), test)
    return done.returncode, done.stdout


@pytest.mark.parametrize(("program", "test"), EVERY_TEST)
@pytest.mark.parametrize("flavour", [ASAN, TSAN], ids=lambda flavour: flavour.name)
def test_c(flavour: Flavour, program: str, test: str, folder: Path) -> None:
    status, output = run(flavour, program, test, folder)
    assert status == 0, output


@pytest.mark.parametrize("test", c_programs.tests_of("lost"))
@pytest.mark.parametrize("flavour", ASLEEP, ids=lambda flavour: flavour.name)
def test_c_of_readers_that_sleep_at_once(flavour: Flavour, test: str, folder: Path) -> None:
    status, output = run(flavour, "lost", test, folder)
    assert status == 0, output


@pytest.mark.parametrize(
    ("flavour", "program", "test"),
    [
        (flavour, program, test)
        for flavour, program in [
            (STEPS, "interleave"),
            (CLAIM_STEPS, "claim_steps"),
            (CLOCK, "clock"),
        ]
        for test in c_programs.tests_of(program)
    ],
)
def test_c_step_by_step(flavour: Flavour, program: str, test: str, folder: Path) -> None:
    status, output = run(flavour, program, test, folder)
    assert status == 0, output


@pytest.mark.parametrize(
    ("flavour", "program", "test", "finding"),
    [
        pytest.param(
            NO_RECHECK,
            "interleave",
            "a_slot_that_moved_on_before_it_was_pinned_is_left_for_the_newest",
            "FAILED",
            id="a reader that does not look again after pinning",
        ),
        pytest.param(
            NO_SCAN_STEP,
            "interleave",
            "a_frame_pinned_before_the_scan_is_put_back",
            "FAILED",
            id="a writer that reclaims without looking for pins",
        ),
        pytest.param(
            NO_SCAN,
            "race",
            "threads_never_see_a_torn_frame",
            "is torn",
            id="torn frames of a writer that reclaims without looking for pins",
        ),
        pytest.param(
            NO_SIGNAL,
            "lost",
            "no_wake_up_of_a_reader_is_lost",
            "FAILED",
            id="a writer that forgets a wake-up",
        ),
        pytest.param(
            RELAXED,
            "race",
            "lossless_and_latest_readers_race_together",
            "data race",
            id="stores that release nothing",
        ),
        pytest.param(
            ASAN,
            "misuse",
            "a_handle_is_used_after_close",
            "heap-use-after-free",
            id="a handle used after close",
        ),
        pytest.param(
            ASAN, "misuse", "a_handle_is_forgotten", "LeakSanitizer", id="a handle never closed"
        ),
        pytest.param(
            ASAN,
            "misuse",
            "a_slot_is_read_after_the_mapping_is_gone",
            "SEGV",
            id="a slot used after close",
        ),
    ],
)
def test_the_c_tests_find(
    flavour: Flavour, program: str, test: str, finding: str, folder: Path
) -> None:
    status, output = run(flavour, program, test, folder)
    assert status != 0, f"the planted fault was not found:\n{output}"
    assert finding in output
