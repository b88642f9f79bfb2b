"""Builds the C tests of native/tests, each flavour of them once, and runs single tests."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

NATIVE = Path(__file__).resolve().parents[2] / "native"
BUILD = NATIVE / "tests/build/c"
"""Objects, for every file of tests and every run of them."""
STREAM = tuple(sorted(path.stem for path in (NATIVE / "src").glob("*.c")))
PROGRAMS = (
    "bus",
    "distrust",
    "group_distrust",
    "group_race",
    "groups",
    "guard",
    "lost",
    "policies",
    "race",
    "reader",
    "thinning",
    "wake",
    "writer",
)
TIMEOUT_S = 300
"""A hung test is killed after this long; a test itself gives up on a wait much earlier."""

INCLUDE = tuple(f"-I{NATIVE / part}" for part in ("include", "src", "tests"))
WARNINGS = ("-std=c11", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", "-pthread", "-g")


@dataclass(frozen=True)
class Flavour:
    """One way to build: compiler flags, sources of native/tests to add, functions they replace."""

    name: str
    flags: tuple[str, ...]
    extra: tuple[str, ...] = ()
    wrap: tuple[str, ...] = ()
    patch: tuple[str, str, str] = ("", "", "")
    """A fault: in this file of native/src the one place that says the second says the third."""
    objects: str = ""
    """The flavour, of the same compiler flags, whose objects serve this one as well."""


ASAN = Flavour("asan", ("-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"))
TSAN = Flavour(
    "tsan",
    ("-O1", "-fsanitize=thread"),
    extra=("same_pages",),
    wrap=("mcpd_map_open", "mcpd_map_close"),
)
ASLEEP = tuple(
    replace(flavour, name=f"{flavour.name}-asleep", flags=(*flavour.flags, "-DLOOK_ON_NS=0"))
    for flavour in (ASAN, TSAN)
)
"""Readers that sleep at once, however soon the next frame comes."""
CLAIM_STEPS = Flavour(
    "claim-steps",
    ASAN.flags,
    wrap=("mcpd_reader_find", "mcpd_reader_confirm", "mcpd_writer_claimed"),
    objects="asan",
)
"""For the program claim_steps, likewise."""
CLOCK = Flavour("clock", ASAN.flags, wrap=("mcpd_now_ns",), objects="asan")
"""For the program clock, which sets the time."""
FUZZ = Flavour("fuzz", (*ASAN.flags, "-DMCPD_MAX_RETRIES=64"))
"""For the program fuzz_stream: gives up sooner on words that make no sense, to get on."""
STEPS = Flavour("steps", ASAN.flags, wrap=("mcpd_reader_confirm", "mcpd_writer_pinned"))
"""For the program interleave, which has the replacements itself."""
NO_RECHECK = Flavour("no-recheck", (*ASAN.flags, "-DPLANT_NO_RECHECK"), wrap=STEPS.wrap)
NO_SCAN_STEP = Flavour("no-scan-step", (*ASAN.flags, "-DPLANT_NO_SCAN"), wrap=STEPS.wrap)
NO_SCAN = Flavour("no-scan", ("-O2",), ("plant_no_scan",), ("mcpd_writer_pinned",))
NO_SIGNAL = Flavour(
    "no-signal",
    ("-O2", "-DLOST_NS=INT64_C(1000000000)", "-DLOOK_ON_NS=0"),
    ("plant_no_signal",),
    ("mcpd_wake_seen",),
)
RELAXED = Flavour(
    "relaxed",
    (*TSAN.flags, "-include", str(NATIVE / "tests" / "plant_relaxed.h")),
    TSAN.extra,
    TSAN.wrap,
)


def tests_of(program: str) -> list[str]:
    """The names of a program's tests, read from its source."""
    source = (NATIVE / "tests" / f"{program}.c").read_text()
    return re.findall(r"^TEST\((\w+)\)", source, re.MULTILINE)


def build(flavour: Flavour, program: str, folder: Path) -> Path:
    """Compiles and links one program; the stream's objects are built once for each flavour."""

    def of_the_stream(name: str) -> Path:
        if name == flavour.patch[0]:
            return _patched(flavour, folder)
        return _compile(flavour, NATIVE / "src" / f"{name}.c", folder, f"src_{name}")

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(of_the_stream, STREAM))
    for name in (*flavour.extra, program):
        objects.append(_compile(flavour, NATIVE / "tests" / f"{name}.c", folder, f"test_{name}"))
    binary = folder / f"{flavour.name}_{program}"
    if not binary.exists():
        wraps = [f"-Wl,--wrap={name}" for name in flavour.wrap]
        _call(["gcc", *WARNINGS, *flavour.flags, *map(str, objects), *wraps, "-o", str(binary)])
    return binary


def run(binary: Path, test: str) -> subprocess.CompletedProcess[str]:
    """Runs one test of a program; a sanitizer's finding gives an exit status that is not 0."""
    environment = dict(os.environ)
    environment["ASAN_OPTIONS"] = "detect_leaks=1:abort_on_error=0"
    environment["TSAN_OPTIONS"] = "halt_on_error=1:exitcode=66"
    return subprocess.run(
        [binary, test],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


@functools.cache
def can_build(flavour: Flavour, folder: Path) -> bool:
    """Whether a program of this flavour can be linked and run here at all."""
    source = folder / f"probe_{flavour.name}.c"
    source.write_text("int main(void) { return 0; }\n")
    binary = folder / f"probe_{flavour.name}"
    command = ["gcc", *INCLUDE, *flavour.flags, str(source), "-o", str(binary)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        return False
    return subprocess.run([binary], capture_output=True, check=False).returncode == 0


def _patched(flavour: Flavour, folder: Path) -> Path:
    name, right, wrong = flavour.patch
    text = (NATIVE / "src" / f"{name}.c").read_text()
    assert text.count(right) == 1, f"{name}.c has {text.count(right)} places that say {right!r}"
    source = folder / f"{flavour.name}_{name}.c"
    source.write_text(text.replace(right, wrong))
    quiet = replace(flavour, objects="", flags=(*flavour.flags, "-w"))
    return _compile(quiet, source, folder, f"patched_{name}")


def _compile(flavour: Flavour, source: Path, folder: Path, name: str) -> Path:
    """The object; what was compiled of the same text by the same command is used again."""
    out = folder / f"{flavour.objects or flavour.name}_{name}.o"
    if out.exists():
        return out
    command = ["gcc", *WARNINGS, *INCLUDE, *flavour.flags]
    said = hashlib.sha256(repr((command, source.name)).encode() + _headers() + source.read_bytes())
    kept = BUILD / f"{name}-{said.hexdigest()[:16]}.o"
    if not kept.exists():
        BUILD.mkdir(parents=True, exist_ok=True)
        part = kept.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
        _call([*command, "-c", str(source), "-o", str(part)])
        part.rename(kept)
    out.symlink_to(kept)
    return out


@functools.cache
def _headers() -> bytes:
    folders = [Path(flag.removeprefix("-I")) for flag in INCLUDE]
    return b"".join(path.read_bytes() for each in folders for path in sorted(each.glob("*.h")))


def _call(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr}"
