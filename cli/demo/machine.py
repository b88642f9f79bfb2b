"""The machine a figure was measured on, in words that tell whether another one compares."""

from __future__ import annotations

import os
import platform


def describe_machine() -> dict[str, str | int]:
    """cpu (model name), cores (that this process may use), memory_mib, kernel, python."""
    return {
        "cpu": _field("/proc/cpuinfo", "model name") or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_mib": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20,
        "kernel": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
    }


def _field(path: str, key: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            name, _, value = line.partition(":")
            if name.strip() == key:
                return value.strip()
    return ""
