"""The pytest plugin: active for the tests that ask for it, and no burden for others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_layers import modules_loaded

TESTS = """
import os
import pytest

kept = []

def test_leaks():
    kept.append(os.open("/etc/hostname", os.O_RDONLY))

def test_clean():
    pass

@pytest.mark.no_leaks(grace_s=0)
def test_marked():
    kept.append(os.open("/etc/hostname", os.O_RDONLY))

@pytest.mark.no_leaks(tolerance={"descriptor": 1})
def test_tolerated():
    kept.append(os.open("/etc/hostname", os.O_RDONLY))

def test_fixture(no_leaks):
    kept.append(os.open("/etc/hostname", os.O_RDONLY))
"""


def run_pytest(folder: Path, *arguments: str) -> str:
    (folder / "test_planted.py").write_text(TESTS)
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\n")
    plugin = () if installed() else ("-p", "mcpd.shm.leaks.pytest_plugin")
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, *plugin, *arguments],
        cwd=folder,
        env={**os.environ, "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.stdout


def installed() -> bool:
    """Whether the metadata of the installation names the plugin, as that of a newer one does."""
    from importlib.metadata import entry_points

    return any(entry.name == "mcpd_leaks" for entry in entry_points(group="pytest11"))


@pytest.mark.parametrize(("arguments", "failed"), [((), 1), (("--mcpd-leaks",), 3)])
def test_those_that_ask_are_checked(
    tmp_path: Path, arguments: tuple[str, ...], failed: int
) -> None:
    out = run_pytest(tmp_path, *arguments)
    assert f"{failed} failed" in out
    assert "FAILED test_planted.py::test_marked" in out
    assert ("FAILED test_planted.py::test_leaks" in out) == bool(arguments)
    assert "ERROR test_planted.py::test_fixture" in out or bool(arguments)
    assert "PASSED test_planted.py::test_clean" in out
    assert "PASSED test_planted.py::test_tolerated" in out
    assert "test_planted.py:15 in test_marked" in out


def test_loading_the_plugin_loads_nothing_heavy() -> None:
    loaded = modules_loaded("import mcpd.shm.leaks.pytest_plugin")
    assert loaded & {"numpy", "msgspec", "psutil", "posix_ipc", "click", "rich", "mcp"} == set()
    modules_loaded(
        "import sys, mcpd.shm.leaks.pytest_plugin",
        "assert 'mcpd.shm.leaks.checks' not in sys.modules",
    )
