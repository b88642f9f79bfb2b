"""Labelled steps of a process under test: builds that have them, and pages to arm them by.

The C core's steps are MCPD_STEP in native/; Python's are named functions that are wrapped as their
modules are loaded (step_labels.py), so that the product has no hooks. A page is a file that a
process maps: the test reads from it which steps it came to, and writes into it where it is to die.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import re
import shutil
import struct
import subprocess
import sysconfig
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.support.step_labels import LABELS as PYTHON_LABELS

ROOT = Path(__file__).resolve().parents[2]
SITE = Path(__file__).with_name("steps_site")
SOURCE = Path(__file__).with_name("steps.c")
MAX_LABELS, LABEL_NBYTES = 320, 48
HEADER = struct.Struct("<IiIIIIIIi28x")
LABELS_AT = HEADER.size
REACHED_AT = LABELS_AT + MAX_LABELS * LABEL_NBYTES
PAGE_NBYTES = REACHED_AT + 8 * MAX_LABELS
STEP = re.compile(r'MCPD_STEP\("([^"]+)"\)')


def native_labels(folder: str = "") -> list[str]:
    """The labels of native/src and native/client, or of one of the two, in their order."""
    folders = [folder] if folder else ["src", "client"]
    text = "".join(
        path.read_text()
        for name in folders
        for path in sorted((ROOT / "native" / name).glob("*.c"))
    )
    return list(dict.fromkeys(STEP.findall(text)))


def all_labels() -> list[str]:
    """Every label there is: those of the C core, then those of the wrapped functions."""
    return [*native_labels(), *(label.name for label in PYTHON_LABELS)]


class Steps:
    """A page: which steps a process came to, and where it is to die. The test's side.

    Args:
        path: Where the file is made, or is.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.labels = all_labels()
        assert len(self.labels) <= MAX_LABELS, f"{len(self.labels)} labels: raise MAX_LABELS"
        assert len(set(self.labels)) == len(self.labels), "a label stands for two steps"
        with open(path, "a+b") as file:
            file.truncate(PAGE_NBYTES)
            self._page = mmap.mmap(file.fileno(), PAGE_NBYTES)
        struct.pack_into("<I", self._page, 20, len(self.labels))
        for place, label in enumerate(self.labels):
            encoded = label.encode()
            assert len(encoded) < LABEL_NBYTES, f"label {label!r} is too long"
            at = LABELS_AT + place * LABEL_NBYTES
            self._page[at : at + len(encoded)] = encoded

    def arm(self, label: str, passes: int, signum: int) -> None:
        """The process sends itself the signal when it comes to the step for the passes-th time."""
        struct.pack_into("<iI", self._page, 4, passes, signum)
        struct.pack_into("<I", self._page, 0, self.labels.index(label) + 1)

    def pause(self, label: str, pause_ms: int) -> None:
        """The next pass of a step takes so long: for what only a lost race comes to."""
        struct.pack_into("<II", self._page, 12, self.labels.index(label) + 1, pause_ms)

    def disarm(self) -> None:
        """It lives on, whatever it comes to."""
        struct.pack_into("<I", self._page, 0, 0)
        struct.pack_into("<I", self._page, 12, 0)

    @property
    def struck(self) -> int:
        """How often a signal was sent."""
        return int(struct.unpack_from("<I", self._page, 24)[0])

    @property
    def unknown(self) -> int:
        """Steps that were come to and are in no table."""
        return int(struct.unpack_from("<I", self._page, 28)[0])

    @property
    def pid(self) -> int:
        """Who was struck last."""
        return int(struct.unpack_from("<i", self._page, 32)[0])

    def reached(self) -> dict[str, int]:
        """How often each step was come to."""
        counts = struct.unpack_from(f"<{len(self.labels)}Q", self._page, REACHED_AT)
        return dict(zip(self.labels, counts, strict=True))

    def forget(self) -> None:
        """Starts the counts anew."""
        self._page[REACHED_AT:PAGE_NBYTES] = bytes(PAGE_NBYTES - REACHED_AT)

    def close(self) -> None:
        """Unmaps it; the file stays."""
        self._page.close()


class TestBuild:
    """The extension and libmcpd, compiled with steps; made once for a state of the sources.

    Attributes:
        core: The extension, to be loaded as mcpd.native._core.
        library: libmcpd.so.
    """

    __test__ = False

    def __init__(self, folder: Path | None = None) -> None:
        native = ROOT / "native"
        parts = [native / part for part in ("include", "src", "client")]
        files = [SOURCE, ROOT / "pyproject.toml"]
        files += sorted(path for part in parts for path in part.rglob("*.[ch]"))
        digest = hashlib.sha256()
        for path in files:
            digest.update(path.read_bytes())
        base = folder or ROOT / ".pytest_cache" / "steps"
        made = base / digest.hexdigest()[:16]
        self.core, self.library = made / "_core.abi3.so", made / "libmcpd.so"
        if not (self.core.exists() and self.library.exists()):
            made.mkdir(parents=True, exist_ok=True)
            self._build()

    def _build(self) -> None:
        with open(ROOT / "pyproject.toml", "rb") as file:
            module = tomllib.load(file)["tool"]["setuptools"]["ext-modules"][0]
        stream = sorted((ROOT / "native" / "src").glob("*.c"))
        client = sorted((ROOT / "native" / "client").glob("*.c"))
        binding = [ROOT / name for name in module["sources"] if ROOT / name not in stream]
        work = self.core.with_name(f"work-{os.getpid()}")
        work.mkdir(exist_ok=True)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            compiled = pool.map(
                lambda path: _compile(path, work), [SOURCE, *stream, *client, *binding]
            )
            objects = dict(zip([SOURCE, *stream, *client, *binding], compiled, strict=True))
        for out, sources in (
            (self.core, [SOURCE, *stream, *binding]),
            (self.library, [SOURCE, *stream, *client]),
        ):
            linked = work / out.name
            _call("-shared", *(objects[path] for path in sources), "-lm", "-pthread", "-o", linked)
            os.replace(linked, out)
        shutil.rmtree(work)

    def environment(self, pages: Path) -> dict[str, str]:
        """What a Python process needs to load it, and to find its page in that folder."""
        return {
            "MCPD_STEPS_CORE": str(self.core),
            "MCPD_STEPS_PAGES": str(pages),
            "PYTHONPATH": os.pathsep.join((str(SITE), str(ROOT))),
        }


def _compile(source: Path, work: Path) -> Path:
    """The object of one source. Preparing frames has no steps, and takes longest to optimise."""
    out = work / f"{source.parent.name}_{source.stem}.o"
    flags = ["-std=c11", "-O0" if source.parent.name == "prepare" else "-O1", "-w", "-fPIC"]
    flags += ["-fvisibility=hidden", "-pthread", "-DMCPD_TEST_STEPS", "-D_GNU_SOURCE"]
    flags += ['-DMCPD_VERSION="steps"', "-DPy_LIMITED_API=0x030B0000"]
    flags += [f"-I{ROOT / 'native' / part}" for part in ("include", "src", "client")]
    _call(*flags, f"-I{sysconfig.get_path('include')}", "-c", source, "-o", out)
    return out


def _call(*arguments: str | Path) -> None:
    done = subprocess.run(["gcc", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"the test build failed:\n{done.stderr}"
