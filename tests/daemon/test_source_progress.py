"""The bar of a source: drawn on a terminal, but not over the command that has it meanwhile."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

JOB = """
from mcpd.daemon.source.progress import Counts, Progress
progress = Progress(Counts("clip.mp4", "cam0"), "bar")
progress.waiting(2)
progress.close()
"""

SHELL = """
import fcntl, subprocess, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
group = 0 if sys.argv[2] == "background" else None
sys.exit(subprocess.run([sys.executable, "-P", "-c", sys.argv[1]], process_group=group).returncode)
"""


@pytest.mark.parametrize(
    ("place", "drawn"),
    [("foreground", b"\r\x1b[Kcam0: waiting for readers, 0/2\r\n"), ("background", b"")],
)
def test_bar_is_drawn_only_by_the_job_that_has_the_terminal(place: str, drawn: bytes) -> None:
    ours, theirs = pty.openpty()
    try:
        subprocess.run(
            [sys.executable, "-P", "-c", SHELL, JOB, place],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            check=True,
            timeout=60,
        )
        os.write(theirs, b"end")
        shown = b""
        while not shown.endswith(b"end"):
            shown += os.read(ours, 4096)
        assert shown.removesuffix(b"end") == drawn
    finally:
        os.close(ours)
        os.close(theirs)
