"""Named segments as a dead daemon leaves them."""

from __future__ import annotations

import subprocess
import sys

from mcpd.shm.segment import Owner, posix_name

_MAKE = """
import sys
from mcpd.shm.segment import Owner, create_posix
create_posix(Owner(*map(int, sys.argv[1:4])), int(sys.argv[4]), int(sys.argv[5]))
"""


def leave_segment(owner: Owner, number: int, nbytes: int) -> str:
    """Has a process that ends at once make a segment in the name of `owner`; returns its name."""
    arguments = [str(value) for value in (*owner, number, nbytes)]
    subprocess.run([sys.executable, "-P", "-c", _MAKE, *arguments], check=True)
    return posix_name(owner, number)
