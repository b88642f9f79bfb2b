"""`mcpd leaks`: who holds what, whether the owner lives, and what nobody owns any more."""

from mcpd.cli.leaks.command import command

__all__ = ["command"]
