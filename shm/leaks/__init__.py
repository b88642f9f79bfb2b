"""What holds memory on this machine, whose it is, and what nobody owns any more.

    from mcpd.shm.leaks import ORPHANED, assert_no_leaks, scan
    left = [entry for entry in scan() if entry.verdict == ORPHANED]
    with assert_no_leaks():
        work()

docs/leaks.md tells what each verdict means and how it is come by, docs/growth.md of leaks in time.
Its parts are loaded when they are used: pytest loads the plugin in it at every start.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcpd.shm.leaks.belongings import Thing
    from mcpd.shm.leaks.checks import LeakError, assert_no_leaks
    from mcpd.shm.leaks.entry import IN_USE, ORPHANED, UNKNOWN, Entry, escape
    from mcpd.shm.leaks.scanning import Options, Report, examine, scan, status_of

__all__ = [
    "IN_USE",
    "ORPHANED",
    "UNKNOWN",
    "Entry",
    "LeakError",
    "Options",
    "Report",
    "Thing",
    "assert_no_leaks",
    "escape",
    "examine",
    "scan",
    "status_of",
]

_HOMES = {
    "LeakError": "checks",
    "Options": "scanning",
    "Report": "scanning",
    "Thing": "belongings",
    "assert_no_leaks": "checks",
    "examine": "scanning",
    "scan": "scanning",
    "status_of": "scanning",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES.get(name, 'entry')}"), name)
    globals()[name] = value
    return value
