"""The daemon process: `python -P -m mcpd.daemon`, in the foreground until it is told to end.

SIGTERM and SIGINT drain: streams end, workers finish a frame, nothing is left. A second one ends
it at once; the kernel then takes the workers along.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import signal
import sys
from collections.abc import Sequence

from mcpd.daemon.config import Settings, parse, report
from mcpd.daemon.instance import Instance
from mcpd.daemon.log import start_logging
from mcpd.daemon.process_limits import check_threads, raise_file_limit
from mcpd.daemon.server import Server
from mcpd.daemon.tables import ProcessFigures
from mcpd.native import _core
from mcpd.shm.errors import McpdError

log = logging.getLogger("mcpd.daemon")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the daemon; returns its exit status: 0 after a drain, 1 if it could not start."""
    settings = parse(sys.argv[1:] if arguments is None else arguments)
    start_logging(settings.log_level, as_json=settings.json_log)
    faulthandler.enable()
    try:
        with Instance(settings.socket) as instance:
            # The files under /proc/self are root's once the process is not dumpable.
            figures = ProcessFigures()
            _core.set_dumpable(False)
            raise_file_limit()
            check_threads()
            if not settings.models.is_dir():
                log.warning("model repository %s does not exist: no models", settings.models)
            asyncio.run(_serve(settings, instance, figures))
    except McpdError as error:
        report(error.code, error.message, error.hint, as_json=settings.json_log)
        return 1
    return 0


async def _serve(settings: Settings, instance: Instance, figures: ProcessFigures) -> None:
    server = Server(settings, instance.listener, figures)
    loop = asyncio.get_running_loop()
    received: list[int] = []

    def on_signal(signum: int) -> None:
        received.append(signum)
        if len(received) > 1:
            instance.close()
            os._exit(128 + signum)
        log.info("signal=%s", signal.Signals(signum).name)
        server.stop()

    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, on_signal, signum)
    await server.run()


if __name__ == "__main__":
    sys.exit(main())
