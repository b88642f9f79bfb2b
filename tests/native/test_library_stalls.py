"""libmcpd's end of a reader that held its writer up."""

from __future__ import annotations

import errno
from pathlib import Path

from mcpd.shm import connect
from tests.support.daemon import RunningDaemon, wait_until
from tests.support.libmcpd import LibMcpd
from tests.support.numbered import NumberedWriter

EVICTED = 6


def test_reader_that_holds_its_writer_up_is_told_of_its_eviction(
    libmcpd: LibMcpd, tmp_path: Path
) -> None:
    with RunningDaemon(tmp_path, arguments=["--stall-limit", "0.3"]) as daemon:
        client = libmcpd.connect(daemon.socket)
        with connect(daemon.socket) as python:
            stream = python.create_stream("cam", width=64, height=16, format="gray8", slots=12)
            reader = libmcpd.attach(client, "cam", "lossless")
            with NumberedWriter(stream) as writer:
                wait_until(
                    lambda: libmcpd["stream_ended"](reader) == EVICTED, 30, "it is told of it"
                )
                writer.wait_frames(50)
                assert libmcpd.next(reader)[0] in (-errno.EPIPE, -errno.ECANCELED)
                libmcpd["stream_close"](reader)
                wait_until(lambda: python.list("readers") == [], 10, "it has left")
                writer.stop()
        libmcpd["close"](client)
