"""The process that `mcpd push` becomes: `python -P -m mcpd.daemon.source SOURCE --stream NAME`.

Exit status: 0 the source was played to its end, 1 it failed or the daemon went away, 2 wrong usage,
3 no daemon; 130 and 143 when SIGINT and SIGTERM ended it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from collections.abc import Sequence

from mcpd.daemon.source.player import FORMATS, Player, Settings
from mcpd.daemon.source.progress import Counts, Progress, ProgressKind
from mcpd.shm.errors import DaemonUnavailable, McpdError
from mcpd.shm.interruption import end_if_stuck, status_of_signal, unwind_on_signals

EXIT_FAILED = 1
EXIT_NO_DAEMON = 3

_telling = threading.Lock()
"""Taken for good by the thread that tells why the process ends, so that only one does."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Plays one source into a stream and returns the exit status."""
    options = _parse(sys.argv[1:] if arguments is None else arguments)
    unwind_on_signals()
    settings = Settings(
        source=options.source,
        stream=options.stream,
        socket=options.socket,
        max_speed=options.max_speed,
        plays=options.loop,
        format=options.format,
        slots=options.slots,
        wait_readers=options.wait_readers,
    )
    progress = Progress(
        Counts(options.source, options.stream), _progress_kind(options.progress, options.json)
    )
    try:
        status = _play(settings, progress, options.json)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        _give_up_output()
        return 128 + signal.SIGPIPE
    except OSError as error:
        _give_up_output()
        print(f"mcpd: error: cannot write to standard output: {error.strerror}", file=sys.stderr)
        return EXIT_FAILED


def _play(settings: Settings, progress: Progress, as_json: bool) -> int:
    try:
        with end_if_stuck():
            Player(settings, progress).play(lambda: _daemon_gone(progress, as_json))
    except McpdError as error:
        if status_of_signal():
            return status_of_signal()  # the error only tells what the signal broke off
        _telling.acquire()
        progress.close()
        _report(error.code, error.message, error.hint, as_json)
        unavailable = isinstance(error, DaemonUnavailable)
        return EXIT_NO_DAEMON if unavailable else EXIT_FAILED
    finally:
        progress.close()
    summary = progress.summary()
    if as_json:
        print(json.dumps(summary), flush=True)
    else:
        print(
            f"{summary['stream']}: {summary['frames']} frames in {summary['seconds']:.1f} s, "
            f"{summary['fps']:.1f} fps",
            file=sys.stderr,
        )
    return 0


def _give_up_output() -> None:
    # The interpreter's own flush at exit must not complain either.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="mcpd push", description="Decodes video into a stream.")
    parser.add_argument("source", help="video file, image or URL")
    parser.add_argument("--stream", required=True, metavar="NAME")
    parser.add_argument("--socket", default="", metavar="PATH")
    parser.add_argument("--max-speed", action="store_true")
    parser.add_argument("--loop", type=int, nargs="?", const=0, default=1, metavar="N")
    parser.add_argument("--format", choices=("auto", *FORMATS), default="auto")
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--wait-readers", type=int, default=0, metavar="N")
    parser.add_argument("--progress", choices=("auto", "bar", "json", "none"), default="auto")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(arguments)


def _progress_kind(wanted: str, as_json: bool) -> ProgressKind:
    kinds: dict[str, ProgressKind] = {"bar": "bar", "json": "json", "none": "none"}
    if wanted in kinds:
        return kinds[wanted]
    if as_json:
        return "json"
    return "bar" if sys.stderr.isatty() else "none"


def _daemon_gone(progress: Progress, as_json: bool) -> None:
    """Called on the client's I/O thread; the main thread may be deep in a decoder or a wait."""
    _telling.acquire()
    try:
        progress.close()
        _report(
            DaemonUnavailable.code,
            "the daemon went away",
            "Start it again with `mcpd start`, then push again.",
            as_json,
        )
    finally:
        # Also when nobody reads what it says: the main thread may be waiting for that lock.
        os._exit(EXIT_FAILED)


def _report(code: str, message: str, hint: str, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"error": {"code": code, "message": message, "hint": hint}}), flush=True)
        return
    print(f"mcpd: error: {message}", file=sys.stderr)
    if hint:
        print(f"hint: {hint}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
