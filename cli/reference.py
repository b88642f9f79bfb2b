"""Writes docs/cli.md from the commands' own help: `python -m mcpd.cli.reference > docs/cli.md`."""

from __future__ import annotations

import sys

import click

from mcpd.cli.group import commands

WIDTH = 88

INTRODUCTION = """\
# Commands

Made by `python -m mcpd.cli.reference > docs/cli.md` from the commands' own help.
Over 400 lines: one page for all of them.

| exit status | means |
| --- | --- |
| 0 | done |
| 1 | failed, or `leaks` found something orphaned |
| 2 | wrong usage, or `leaks` could not tell |
| 3 | no daemon answers |
| 130 | Ctrl-C |
| 143 | SIGTERM |
| 141 | the reader of standard output went away |

An error is one line `mcpd: error: ...` on standard error, and a line `hint: ...` with the next step
if there is one. With `--json` it is one document on standard output instead:
`{"error": {"code": ..., "message": ..., "hint": ...}}`.
"""


def reference() -> str:
    """The whole page: the introduction, then every command's help."""
    sections = [INTRODUCTION]
    for path, text in _helps(commands, ("mcpd",)):
        sections.append(f"{'#' * min(len(path) + 1, 3)} {' '.join(path)}\n\n```text\n{text}\n```\n")
    return "\n".join(sections)


def _helps(command: click.Command, path: tuple[str, ...]) -> list[tuple[tuple[str, ...], str]]:
    context = click.Context(
        command, info_name=" ".join(path), terminal_width=WIDTH, **command.context_settings
    )
    found = [(path, command.get_help(context))]
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None:
                found += _helps(below, (*path, name))
    return found


if __name__ == "__main__":
    sys.stdout.write(reference())
