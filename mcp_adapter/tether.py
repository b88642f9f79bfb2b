"""Becomes another program that the kernel kills when our parent dies, whatever kills the parent.

`python -P -m mcpd.mcp_adapter.tether PARENT_PID PROGRAM ARGUMENT...`; the tie outlives exec.
"""

from __future__ import annotations

import os
import signal
import sys

from mcpd.native import _core


def main(arguments: list[str]) -> None:
    """Ties this process to its parent and replaces it by the program in `arguments[1:]`."""
    _core.die_with_parent(signal.SIGKILL, int(arguments[0]))
    os.execv(arguments[1], arguments[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
