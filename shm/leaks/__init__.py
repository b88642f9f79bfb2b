"""What holds memory on this machine, whose it is, and what nobody owns any more."""

from mcpd.shm.leaks.census import IN_USE, ORPHANED, Entry, scan

__all__ = ["IN_USE", "ORPHANED", "Entry", "scan"]
