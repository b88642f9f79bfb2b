"""The C client's msgpack: its C tests and a fixed number of fuzz inputs under sanitizers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import msgspec
import pytest

from tests.native import c_programs
from tests.native.c_programs import ASAN, NATIVE, WARNINGS

FUZZ = ("mutated_messages_are_read_within_their_bytes",)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("msgpack")


def build(folder: Path, name: str, source: str) -> Path:
    """The program, with the text of msgpack.c given."""
    binary = folder / name
    if not binary.exists():
        (folder / f"{name}.c").write_text(source)
        include = [f"-I{NATIVE / part}" for part in ("client", "tests")]
        sources = [str(NATIVE / "tests/msgpack.c"), str(folder / f"{name}.c")]
        command = ["gcc", *WARNINGS, *include, *ASAN.flags, *sources, "-o", str(binary)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return binary


@pytest.mark.parametrize("test", c_programs.tests_of("msgpack"))
def test_msgpack(folder: Path, test: str) -> None:
    source = (NATIVE / "client/msgpack.c").read_text()
    done = c_programs.run(build(folder, "honest", source), test)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("name", "honest", "planted"),
    [
        ("width", "(size_t)(end - *at) < width", "(size_t)(end - *at) + 1 < width"),
        ("length", "> (uint64_t)(end - *at))\n", "> (uint64_t)(end - *at) + 1)\n"),
        ("head", "if (*at >= end)", "if (*at > end)"),
    ],
)
def test_fuzzing_finds_a_planted_fault(folder: Path, name: str, honest: str, planted: str) -> None:
    source = (NATIVE / "client/msgpack.c").read_text()
    assert honest in source
    binary = build(folder, name, source.replace(honest, planted))
    assert any(c_programs.run(binary, test).returncode != 0 for test in FUZZ)


def test_the_fuzz_target_compiles(folder: Path) -> None:
    """Under libFuzzer where clang has it; the same inputs run above without it."""
    main = folder / "main.c"
    text = msgspec.msgpack.encode({"type": "reply", "id": 3, "result": {"labels": ["a"]}})
    main.write_text(
        "#include <stddef.h>\n#include <stdint.h>\n"
        "int LLVMFuzzerTestOneInput(const uint8_t *, size_t);\n"
        f"int main(void) {{ static const uint8_t data[] = {{{', '.join(map(str, text))}}};\n"
        "return LLVMFuzzerTestOneInput(data, sizeof data); }\n"
    )
    sources = [NATIVE / "tests/fuzz_msgpack.c", NATIVE / "client/msgpack.c", main]
    command = ["gcc", *WARNINGS, f"-I{NATIVE / 'client'}", *ASAN.flags, *map(str, sources)]
    binary = folder / "fuzz"
    subprocess.run([*command, "-o", str(binary)], check=True, capture_output=True)
    subprocess.run([binary], check=True)
