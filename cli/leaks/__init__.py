"""`mcpd leaks`: who holds what, whether the owner lives, and what nobody owns any more."""

from mcpd.cli.leaks.command import command
from mcpd.cli.leaks.recording import record

command.add_command(record)

__all__ = ["command"]
