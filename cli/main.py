"""Entry of the `mcpd` command: runs a subcommand and gives each way to end its exit status.

Next to nothing is imported here, so that `mcpd mcp`, which an assistant starts and waits for,
becomes the MCP relay before anything else is loaded.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # not imported: `typing` takes half as long to load as the relay to start
if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcpd.cli.options import Invocation

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_NO_DAEMON = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit status.

    0 done, 1 failed or a leak was found, 2 wrong usage or `leaks` could not tell, 3 no daemon; 130
    after Ctrl-C, 143 after SIGTERM and 141 when the reader of standard output went away, as if the
    signal had ended it.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words == ["mcp"]:
        from mcpd.cli.launch import exec_relay

        exec_relay()
    import signal

    from mcpd.shm.interruption import unwind_on_signals

    _open_closed_streams()
    unwind_on_signals()
    try:
        status = _run(words)
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


def _open_closed_streams() -> None:
    """Puts the null device where the caller has closed a standard stream.

    The next file opened, such as a socket, would else be taken for it.
    """
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free one: fd
            stream = os.fdopen(fd, "w" if fd else "r", encoding="utf-8", closefd=False)
            setattr(sys, name, stream)


def _give_up_output() -> None:
    # The interpreter's own flush at exit must not complain either.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(words: list[str]) -> int:
    import signal

    import click

    from mcpd.cli.group import commands
    from mcpd.cli.options import Invocation
    from mcpd.shm.errors import DaemonUnavailable, McpdError
    from mcpd.shm.interruption import status_of_signal

    invocation = Invocation()
    json_asked = "--json" in words  # click takes words out as it reads them
    try:
        # make_context and invoke rather than commands.main(), which prints Ctrl-C and broken pipes.
        with commands.make_context("mcpd", words, obj=invocation) as context:
            commands.invoke(context)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return EXIT_USAGE
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.Abort:
        return 128 + signal.SIGINT
    except click.ClickException as error:
        # Options are read in order: --json may stand behind the word that stopped the parser.
        invocation.json |= json_asked
        command = (
            error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else ""
        )
        hint = f"`{command} --help` shows what it takes" if command else ""
        _report(invocation, "usage", error.format_message().rstrip("."), hint)
        return EXIT_USAGE
    except McpdError as error:
        if status_of_signal():
            return status_of_signal()  # the error only tells what the signal broke off
        _report(invocation, error.code, error.message, error.hint)
        return EXIT_NO_DAEMON if isinstance(error, DaemonUnavailable) else EXIT_FAILED
    except BrokenPipeError:
        raise
    except OSError as error:
        _report(invocation, "error", str(error), "")
        return EXIT_FAILED
    return 0


def _report(invocation: Invocation, code: str, message: str, hint: str) -> None:
    """The error as one JSON document on standard output, or as lines on standard error."""
    if invocation.json:
        import json

        print(json.dumps({"error": {"code": code, "message": message, "hint": hint}}), flush=True)
        return
    print(f"mcpd: error: {message}", file=sys.stderr)
    if hint:
        print(f"hint: {hint}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
