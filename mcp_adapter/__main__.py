"""The adapter's process: `python -P -m mcpd.mcp_adapter`, one for each host that uses mcpd.

Standard input and output belong to the protocol, and are taken before anything is imported that
might print. The process ends at end-of-file, at SIGINT, SIGTERM and SIGHUP, and when the process
that started it is gone, each at once: it holds nothing that outlives it, since the daemon takes
back at end-of-file what the session had, and a child is tied to it (mcpd.mcp_adapter.tether).
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading


def main() -> None:
    """Serves MCP until the host has gone; does not return."""
    # The kernel's own action: no Python code, which a busy or blocked process might not reach.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    from mcpd.mcp_adapter import stdio

    try:
        wire_in, wire_out = stdio.take_wire()
    except OSError as error:
        sys.exit(f"mcpd mcp: standard input and output are the protocol and are closed: {error}")
    _end_with_parent()
    code = 0
    try:
        import anyio

        from mcpd.mcp_adapter.server import serve

        output = stdio.WireOutput(wire_out, on_closed=lambda: os._exit(0))
        anyio.run(serve, stdio.WireInput(wire_in), output)
    except Exception as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    sys.stderr.flush()
    # Not a return: the interpreter would wait for threads that still wait for the daemon.
    os._exit(code)


def _end_with_parent() -> None:
    """Ends this process when its parent does.

    End-of-file alone is not enough: a process that inherited the other end of our standard input,
    such as a second server started by the same host, keeps it open after the host has died.
    """
    parent = os.getppid()
    try:
        watched = os.pidfd_open(parent)
    except ProcessLookupError:
        os._exit(0)
    if os.getppid() != parent:  # it died and its number was taken before it was opened
        os._exit(0)

    def watch() -> None:
        poll = select.poll()
        poll.register(watched, select.POLLIN)
        poll.poll()
        os._exit(0)

    threading.Thread(target=watch, name="mcpd-parent", daemon=True).start()


if __name__ == "__main__":
    main()
