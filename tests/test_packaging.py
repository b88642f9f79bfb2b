"""What is built and installed is what the tree holds: packages listed, wheel and sdist complete.

The wheel is built from the sdist, as an installer without wheels would, so one build proves both.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("native", "shm", "daemon", "mcp_adapter", "cli")


class Built(NamedTuple):
    """The distributions built from a copy of the tree, and the wheel installed into a folder."""

    sdist: Path
    wheel: Path
    installed: Path


def tracked_files() -> list[str]:
    """The files of the tree that git knows or would add, so that no build output is among them."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [name for name in listed.split("\0") if name and (ROOT / name).exists()]


def unlisted_packages(files: Iterable[str], listed: Iterable[str]) -> set[str]:
    """Packages of the tree that `listed` lacks, and those it lists that the tree lacks."""
    packages = {
        "mcpd." + name.removesuffix("/__init__.py").replace("/", ".")
        for name in files
        if name.endswith("/__init__.py") and name.split("/")[0] in FOLDERS
    }
    return packages ^ set(listed)


def lost_modules(files: Iterable[str], listed: Iterable[str]) -> set[str]:
    """Python files below the five folders that lie in no listed package."""
    folders = {package.removeprefix("mcpd.").replace(".", "/") for package in listed}
    return {
        name
        for name in files
        if name.endswith(".py")
        and name.split("/")[0] in FOLDERS
        and name.rpartition("/")[0] not in folders
    }


def missing_from_wheel(files: Iterable[str], wheel: Iterable[str]) -> set[str]:
    """Files of the tree that an installed mcpd needs and the wheel lacks."""
    needed = {
        f"mcpd/{name}"
        for name in files
        if name.split("/")[0] in FOLDERS
        and (name.endswith((".py", ".pyi", "py.typed")) or name.startswith("native/include/"))
    }
    return needed - set(wheel)


def strangers_in_wheel(wheel: Iterable[str]) -> set[str]:
    """Files of the wheel that no user needs: tests, benchmarks, sources."""
    return {
        name
        for name in wheel
        if (name.split("/")[0] not in {"mcpd"} and not name.split("/")[0].endswith(".dist-info"))
        or "/tests/" in name
        or name.endswith((".c", ".o"))
        or "__pycache__" in name
    }


@pytest.fixture(scope="module")
def listed() -> list[str]:
    with open(ROOT / "pyproject.toml", "rb") as file:
        packages: list[str] = tomllib.load(file)["tool"]["setuptools"]["packages"]
    return packages


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    work = tmp_path_factory.mktemp("packaging")
    tree = work / "tree"
    for name in tracked_files():
        target = tree / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target, follow_symlinks=False)
    out = work / "out"
    build("build_sdist", tree, out)
    (sdist,) = out.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        if hasattr(tarfile, "data_filter"):  # from Python 3.11.4, and the only way from 3.14
            archive.extraction_filter = staticmethod(tarfile.data_filter)
        archive.extractall(work / "unpacked")
    (unpacked,) = (work / "unpacked").iterdir()
    build("build_wheel", unpacked, out)
    (wheel,) = out.glob("*.whl")
    installed = work / "installed"
    pip = [sys.executable, "-P", "-m", "pip", "--disable-pip-version-check", "install", "-q"]
    subprocess.run(
        [*pip, "--no-deps", "--no-index", "--no-compile", "--target", installed, wheel],
        check=True,
        timeout=60,
    )
    return Built(sdist, wheel, installed)


def build(hook: str, tree: Path, out: Path) -> None:
    """Runs one hook of the build backend that pyproject names, in a process of its own."""
    out.mkdir(exist_ok=True)
    code = f"from setuptools import build_meta as b; b.{hook}({str(out)!r})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tree, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr


def run_installed(built: Built, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs Python at the root of the repository with the plain install and nothing editable.

    -S leaves out the hooks of an editable install; the packages we depend on are plain folders.
    """
    paths = (str(built.installed), sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
    return subprocess.run(
        [sys.executable, "-S", "-P", *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_every_package_of_the_tree_is_listed(listed: list[str]) -> None:
    assert unlisted_packages(tracked_files(), listed) == set()


def test_every_module_lies_in_a_listed_package(listed: list[str]) -> None:
    assert lost_modules(tracked_files(), listed) == set()


def test_a_planted_package_that_is_not_listed_is_caught(listed: list[str]) -> None:
    planted = [*tracked_files(), "daemon/planted/__init__.py", "shm/bare/module.py"]
    assert unlisted_packages(planted, listed) == {"mcpd.daemon.planted"}
    assert lost_modules(planted, listed) == {"daemon/planted/__init__.py", "shm/bare/module.py"}


def test_a_listed_package_that_the_tree_lacks_is_caught(listed: list[str]) -> None:
    assert unlisted_packages(tracked_files(), [*listed, "mcpd.gone"]) == {"mcpd.gone"}


def test_wheel_holds_all_of_mcpd_and_nothing_else(built: Built) -> None:
    names = zipfile.ZipFile(built.wheel).namelist()
    assert missing_from_wheel(tracked_files(), names) == set()
    assert strangers_in_wheel(names) == set()
    assert "mcpd/native/include/mcpd.h" in names
    assert "mcpd/native/_core.pyi" in names
    assert {f"mcpd/{folder}/py.typed" for folder in FOLDERS} <= set(names)


def test_wheel_check_catches_what_is_missing_and_what_is_strange() -> None:
    names = ["mcpd/shm/__init__.py", "tests/test_packaging.py", "mcpd/native/src/stream.c"]
    assert missing_from_wheel(["shm/__init__.py", "shm/lost.py"], names) == {"mcpd/shm/lost.py"}
    assert strangers_in_wheel(names) == {"tests/test_packaging.py", "mcpd/native/src/stream.c"}


def test_one_wheel_serves_every_python_from_311(built: Built) -> None:
    name = built.wheel.name
    assert name.startswith("mcpd_inference-")
    assert "-cp311-abi3-linux_" in name
    extensions = [n for n in zipfile.ZipFile(built.wheel).namelist() if n.endswith(".so")]
    assert extensions == ["mcpd/native/_core.abi3.so"]


def test_sdist_holds_every_source_and_header(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    sources = {
        name
        for name in tracked_files()
        if name.startswith(("native/src/", "native/include/")) and name.endswith((".c", ".h"))
    }
    assert sources
    assert sources - names == set()
    assert {"LICENSE", "README.md", "pyproject.toml"} <= names


def test_plain_install_imports(built: Built) -> None:
    code = (
        "import mcpd.shm, mcpd.native._core as core, mcpd.cli, mcpd.mcp_adapter.manifest\n"
        "print(mcpd.shm.__file__, core.__file__, mcpd.cli.__file__, sep='\\n')"
    )
    done = run_installed(built, "-c", code)
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        assert Path(line).is_relative_to(built.installed)


def test_daemon_is_ours_even_at_the_root_of_the_repository(built: Built) -> None:
    code = "from importlib.util import find_spec as f; print(f('mcpd.daemon.__main__').origin)"
    done = run_installed(built, "-c", code)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()) == built.installed / "mcpd/daemon/__main__.py"
    help_text = run_installed(built, "-m", "mcpd.daemon", "--help")
    assert help_text.returncode == 0, help_text.stderr
    assert "--socket" in help_text.stdout


def test_installed_relay_answers_without_site_packages(built: Built) -> None:
    code = (
        "from mcpd.cli.launch import relay_command; import subprocess, sys\n"
        'line = b\'{"jsonrpc":"2.0"}\\n\'\n'
        "command = relay_command()\n"
        "print(command[-1])\n"
        "print(subprocess.run(command, input=line, capture_output=True).stdout.decode())\n"
    )
    done = run_installed(built, "-c", code)
    assert done.returncode == 0, done.stderr
    folder, answer = done.stdout.split("\n", 1)
    assert Path(folder) == built.installed / "mcpd"
    assert '"code":-32600' in answer
