"""What holds memory on this machine, whose it is, and what nobody owns any more.

    from mcpd.shm.leaks import ORPHANED, scan
    left = [entry for entry in scan() if entry.verdict == ORPHANED]

docs/leaks.md tells what each verdict means and how it is come by.
"""

from mcpd.shm.leaks.entry import IN_USE, ORPHANED, UNKNOWN, Entry, escape
from mcpd.shm.leaks.scanning import Options, Report, examine, scan, status_of

__all__ = [
    "IN_USE",
    "ORPHANED",
    "UNKNOWN",
    "Entry",
    "Options",
    "Report",
    "escape",
    "examine",
    "scan",
    "status_of",
]
