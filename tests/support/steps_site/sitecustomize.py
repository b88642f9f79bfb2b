"""Has a Python process run with steps: the test build of the C core, and wrapped functions.

Python runs this in every process that has this folder on its path; steps.py says how they get it.
The process's page is named by what it runs: `daemon`, `worker-MODEL`, `source`. One that is not
there is not looked for again.
"""

from __future__ import annotations

import os
import sys

if "MCPD_STEPS_CORE" in os.environ:
    from tests.support.step_loading import begin, page_name

    if page := page_name(sys.orig_argv):
        begin(page)
