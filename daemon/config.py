"""The daemon's settings, from its command line and environment."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from msgspec import Struct

from mcpd.shm import limits, paths
from mcpd.shm.limits import Limits, Option

LOG_LEVELS = ("debug", "info", "warning", "error")


class Settings(Struct, frozen=True, kw_only=True):
    """Everything that a daemon is told when it starts."""

    socket: str
    models: Path
    load: str = "all"
    """Models to load at start: "all", "none" (each when it is first asked for) or names."""
    log_level: str = "info"
    json_log: bool = False
    memory_limit_nbytes: int = 0
    """Most bytes of all streams together; 0: as much as the machine has."""
    park_after: int = 5
    """A model whose worker ends so often within the window is parked; 0: never."""
    park_window_s: float = 600.0
    limits: Limits = limits.DEFAULTS

    def wants(self, model: str) -> bool:
        """Whether this model is to be loaded at start."""
        return self.load == "all" or (self.load != "none" and model in self.load.split(","))


def parse(arguments: Sequence[str]) -> Settings:
    """The settings; says what is wrong with a command line and exits with status 2."""
    parser = _Parser(prog="python -P -m mcpd.daemon", description=__doc__)
    parser.as_json = "--json-log" in arguments
    parser.add_argument("--socket", default=None, help="path of the control socket")
    parser.add_argument("--models", type=Path, default=None, help="model repository folder")
    parser.add_argument("--load", default="all", help="all, none, or names divided by commas")
    parser.add_argument("--log-level", choices=LOG_LEVELS, default="info")
    parser.add_argument("--json-log", action="store_true", help="log JSON lines")
    parser.add_argument(
        "--memory-limit",
        type=_nbytes,
        default=os.environ.get("MCPD_MEMORY_LIMIT") or "0",
        metavar="BYTES",
        help="most memory of all streams together, e.g. 2G; 0: as much as the machine has",
    )
    parser.add_argument(
        "--park-after",
        type=_count,
        default=os.environ.get("MCPD_PARK_AFTER") or "5",
        metavar="N",
        help="park a model whose worker ends so often within --park-window; 0: never",
    )
    parser.add_argument(
        "--park-window",
        type=_seconds,
        default=os.environ.get("MCPD_PARK_WINDOW") or "600",
        metavar="SECONDS",
        help="time in which a model's failures count together",
    )
    for option in limits.OPTIONS:
        parser.add_argument(
            option.flag,
            type=_reader(option),
            default=os.environ.get(option.variable) or str(option.default),
            metavar=option.kind.upper(),
            help=option.help.replace("%", "%%"),
        )
    options = parser.parse_args(arguments)
    return Settings(
        socket=options.socket or paths.default_socket(),
        models=options.models or paths.default_models(),
        load=options.load,
        log_level=options.log_level,
        json_log=options.json_log,
        memory_limit_nbytes=options.memory_limit,
        park_after=options.park_after,
        park_window_s=options.park_window,
        limits=Limits(**{o.field: getattr(options, o.field) for o in limits.OPTIONS}),
    )


def report(code: str, message: str, hint: str, *, as_json: bool) -> None:
    """Why no daemon was started: lines on standard error, or a document on standard output."""
    if as_json:
        print(json.dumps({"error": {"code": code, "message": message, "hint": hint}}), flush=True)
        return
    print(f"mcpd: error: {message}", file=sys.stderr)
    if hint:
        print(f"hint: {hint}", file=sys.stderr)


class _Parser(argparse.ArgumentParser):
    """Tells errors as `mcpd` does, which becomes this process."""

    as_json = False

    def error(self, message: str) -> NoReturn:
        report("usage", message, "`mcpd start --help` shows what it takes", as_json=self.as_json)
        sys.exit(2)


def _nbytes(text: str) -> int:
    try:
        return limits.parse_nbytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 7):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 999999")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time from 0 to 86400 seconds")
    return seconds


def _reader(option: Option) -> Callable[[str], int | float]:
    def read(text: str) -> int | float:
        try:
            return limits.parse(option, text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return read
