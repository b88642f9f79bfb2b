"""A worker process: one model, loaded, and the streams it works on. Started by the daemon only.

    python -P -m mcpd.daemon.worker --fd N --model NAME --version V --path DIR --parent PID

N is a socket to the daemon, DIR the model's folder, PID the daemon's. It dies with the daemon;
SIGTERM has it finish its frame and leave.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import logging
import os
import signal
import socket
import sys
from pathlib import Path

from mcpd.daemon.log import start_logging
from mcpd.native import _core
from mcpd.shm.errors import McpdError

log = logging.getLogger("mcpd.daemon.worker")


def main() -> int:
    """Loads the model and serves; returns the exit status."""
    options = _parse()
    _core.die_with_parent(signal.SIGKILL, options.parent)
    faulthandler.enable()
    # At the daemon's word: all stacks, even of a thread that is stuck in C with Python's lock.
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    start_logging(options.log_level, as_json=options.json_log)
    # A terminal's Ctrl-C reaches the daemon too, which then tells its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    from mcpd.daemon.models.repository import read_model
    from mcpd.daemon.worker.pipeline import ModelRunner
    from mcpd.daemon.worker.serving import Serving
    from mcpd.shm.connection import Connection
    from mcpd.shm.messages import WorkerState

    serving = Serving(options.version)
    signal.signal(signal.SIGTERM, lambda *_: serving.stop())
    with Connection(
        socket.socket(fileno=options.fd),
        name=f"worker {options.model}",
        on_message=serving.on_message,
        on_closed=_leave,
    ) as connection:
        try:
            config = read_model(options.path)
            runner = ModelRunner(config, config.version_path(options.version))
            runner.load()
            runner.warm_up()
        except McpdError as error:
            connection.notify(WorkerState(state="failed", error=str(error)[:4000]))
            return 1
        # What the model took to load lives as long as the process: never worth looking through.
        gc.collect()
        gc.freeze()
        connection.notify(WorkerState(state="ready", details=runner.details))
        serving.run(connection, runner)
        runner.close()
    return 0


def _leave(error: McpdError) -> None:
    """The daemon is gone: so is this process, even in the middle of a frame."""
    log.info("leaving: %s", error)
    os._exit(1)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -P -m mcpd.daemon.worker", description=__doc__)
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--version", type=int, required=True)
    parser.add_argument("--path", type=Path, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--log-level", default="info")
    parser.add_argument("--json-log", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
