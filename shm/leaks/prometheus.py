"""The figures of a scan as a text file for node_exporter's textfile collector."""

from __future__ import annotations

import os
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from mcpd.shm.leaks.entry import IN_USE, KINDS, ORPHANED, UNKNOWN
from mcpd.shm.leaks.scanning import Report

_HELP = {
    "mcpd_leaks_objects": "Objects seen, by kind, program and verdict.",
    "mcpd_leaks_bytes": "Their sizes in bytes.",
    "mcpd_leaks_resident_bytes": "What of that takes memory or swap, as far as it is known.",
}


def write_metrics(path: Path, report: Report) -> None:
    """Writes the file anew, in one step: its reader sees the old one or the new one whole."""
    text = render_metrics(report, now_s=time.time())
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            os.fchmod(file.fileno(), 0o644)  # its reader is another user, as a rule
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def render_metrics(report: Report, *, now_s: float) -> str:
    """The text of such a file."""
    sums: dict[str, dict[tuple[str, str, str], int]] = {name: defaultdict(int) for name in _HELP}
    for kind in KINDS:
        for verdict in (IN_USE, ORPHANED, UNKNOWN):
            # A series that comes and goes cannot be alerted on.
            for series in sums.values():
                series[kind, "", verdict] = 0
    for entry in report.entries:
        key = entry.kind, entry.program, entry.verdict
        sums["mcpd_leaks_objects"][key] += 1
        sums["mcpd_leaks_bytes"][key] += entry.nbytes
        sums["mcpd_leaks_resident_bytes"][key] += entry.resident_nbytes or 0
    lines = []
    for name, text in _HELP.items():
        lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge"]
        for (kind, program, verdict), value in sorted(sums[name].items()):
            labels = f'kind="{kind}",program="{_quoted(program)}",verdict="{verdict}"'
            lines.append(f"{name}{{{labels}}} {value}")
    for name, text, number in (
        ("mcpd_leaks_status", "0 clean, 1 leak found, 2 could not tell.", report.status),
        ("mcpd_leaks_unreadable_processes", "Not looked into.", report.unreadable),
        ("mcpd_leaks_scan_seconds", "How long the scan took.", round(report.took_s, 6)),
        ("mcpd_leaks_scan_timestamp_seconds", "When it was made.", round(now_s, 3)),
    ):
        lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge", f"{name} {number}"]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
