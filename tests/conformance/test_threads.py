"""Both ends as threads of one process, under ThreadSanitizer: no access races another."""

from __future__ import annotations

import itertools
import os
import subprocess
from pathlib import Path

import pytest

from tests.conformance.programs import THREAD, build
from tests.conformance.streams import IMPLEMENTATIONS

ONE_ADDRESS = ("-Wl,--wrap=mmap", "-Wl,--wrap=munmap")
FRAMES = 3000


@pytest.fixture(scope="session")
def race() -> Path:
    return build("race.c", THREAD, link=ONE_ADDRESS)


def run(race: Path, writer: str, reader: str) -> subprocess.CompletedProcess[str]:
    command = [str(race), writer, reader, str(FRAMES)]
    env = os.environ | {"TSAN_OPTIONS": "halt_on_error=1"}
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=120)


@pytest.mark.parametrize(
    ("writer", "reader"), list(itertools.product(IMPLEMENTATIONS, IMPLEMENTATIONS))
)
def test_no_access_races_another(race: Path, writer: str, reader: str) -> None:
    done = run(race, writer, reader)
    assert done.returncode == 0, done.stderr


def test_a_planted_race_is_found() -> None:
    relaxed = "-DLOAD(word)=LOAD_RELAXED(word)"
    race = build("race.c", THREAD, link=ONE_ADDRESS, planted=[relaxed])
    done = run(race, "second", "second")
    assert done.returncode != 0
    assert "data race" in done.stderr
