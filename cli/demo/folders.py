"""The folder of a private daemon's socket: its name says whose it is, so that it can be swept."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
import time
from pathlib import Path

from mcpd.shm.segment import current_owner, process_start_ticks

_NAME = re.compile(r"mcpd-demo\.([0-9]+)\.([0-9]+)\.\w+", re.ASCII)
_YOUNG_S = 60.0
"""A folder is left alone for so long: its daemon may be about to start, in another namespace."""


def make_folder() -> Path:
    """A new folder of mode 0700 for a socket. Those that killed commands left are removed."""
    parent = Path(tempfile.gettempdir())
    sweep_folders(parent)
    owner = current_owner()
    return Path(tempfile.mkdtemp(prefix=f"mcpd-demo.{owner.pid}.{owner.start_ticks}.", dir=parent))


def sweep_folders(parent: Path, young_s: float = _YOUNG_S) -> list[Path]:
    """Removes this user's folders whose command is dead and that no daemon uses; returns them."""
    swept = []
    for path in parent.glob("mcpd-demo.*"):
        match = _NAME.fullmatch(path.name)
        if match is None or process_start_ticks(int(match[1])) == int(match[2]):
            continue
        try:
            status = path.lstat()
            old = time.time() - status.st_mtime >= young_s
            if status.st_uid != os.geteuid() or path.is_symlink() or not old or _is_used(path):
                continue
            shutil.rmtree(path)
        except OSError:
            continue  # another sweep was faster
        swept.append(path)
    return swept


def _is_used(folder: Path) -> bool:
    """Whether a daemon holds the lock beside its socket."""
    for lock in folder.glob("*.lock"):
        fd = os.open(lock, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
    return False
