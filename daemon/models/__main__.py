"""`python -P -m mcpd.daemon.models`: fetches known models into a repository folder.

`mcpd models fetch` runs it as a process, so that onnx and numpy stay out of the command line. With
--json, stdout has one JSON object a line: {"stage", "fraction"} while it works, and at the end
{"model", "path"} or {"error": {"code", "message", "hint"}}.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from mcpd.daemon.models.packages import PACKAGES, fetch
from mcpd.shm import paths
from mcpd.shm.errors import McpdError


def main(arguments: Sequence[str]) -> int:
    """Runs one command; 0 when it succeeded, 1 when it failed."""
    options = _parse(arguments)
    try:
        if options.command == "list":
            _list(options)
        else:
            _fetch(options)
    except McpdError as error:
        if options.json:
            _print({"error": {"code": error.code, "message": error.message, "hint": error.hint}})
        else:
            print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -P -m mcpd.daemon.models", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    fetching = commands.add_parser("fetch", help="fetch a known model into a repository")
    fetching.add_argument("name", metavar="NAME", help=f"one of {', '.join(PACKAGES)}")
    fetching.add_argument("--repository", type=Path, default=None, help="folder of models")
    fetching.add_argument("--force", action="store_true", help="replace what is there")
    listing = commands.add_parser("list", help="list the known models")
    listing.add_argument("--repository", type=Path, default=None, help="folder of models")
    for command in (fetching, listing):
        command.add_argument("--json", action="store_true", help="print JSON")
    return parser.parse_args(arguments)


def _fetch(options: argparse.Namespace) -> None:
    repository = options.repository or paths.default_models()
    report = _report_json if options.json else _report_text
    path = fetch(options.name, repository, report, force=options.force)
    if options.json:
        _print({"model": options.name, "path": str(path)})
    else:
        print(path)


def _list(options: argparse.Namespace) -> None:
    repository = options.repository or paths.default_models()
    for package in PACKAGES.values():
        installed = (repository / package.name / "model.toml").is_file()
        if options.json:
            _print(msgspec.to_builtins(package) | {"installed": installed})
        else:
            state = "installed" if installed else f"{package.nbytes / 1e6:.0f} MB to download"
            print(f"{package.name}  {package.summary} ({package.licence}; {state})")


def _report_json(stage: str, fraction: float) -> None:
    _print({"stage": stage, "fraction": round(fraction, 3)})


def _report_text(stage: str, fraction: float) -> None:
    print(f"{fraction:4.0%} {stage}", file=sys.stderr)


def _print(value: dict[str, Any]) -> None:
    print(json.dumps(value), flush=True)


def _leave(signum: int, _frame: object) -> None:
    sys.exit(128 + signum)


if __name__ == "__main__":
    # Through SystemExit, so that what was begun is removed.
    signal.signal(signal.SIGTERM, _leave)
    sys.exit(main(sys.argv[1:]))
