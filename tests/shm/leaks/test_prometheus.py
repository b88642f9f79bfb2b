"""The text file for alerts: whole, in node_exporter's form, with a series for each verdict."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mcpd.shm.leaks import ORPHANED, Entry, Report
from mcpd.shm.leaks.prometheus import render_metrics, write_metrics

LEFT = Entry(
    kind="shm",
    name="torch_1_2",
    verdict=ORPHANED,
    reason="",
    program='a "program"\\',
    nbytes=4096,
    resident_nbytes=1024,
)
SAMPLE = re.compile(r'[a-z_]+(\{([a-z]+="([^"\\\n]|\\[\\"n])*",?)+\})? [0-9.e+-]+')


def test_every_line_is_a_sample_or_says_what_the_next_are() -> None:
    lines = render_metrics(Report([LEFT], 0, 0.5), now_s=1e9).splitlines()
    assert all(SAMPLE.fullmatch(line) or line.startswith(("# HELP ", "# TYPE ")) for line in lines)
    labels = 'kind="shm",program="a \\"program\\"\\\\",verdict="orphaned"'
    for sample in (
        f"mcpd_leaks_objects{{{labels}}} 1",
        f"mcpd_leaks_bytes{{{labels}}} 4096",
        f"mcpd_leaks_resident_bytes{{{labels}}} 1024",
        "mcpd_leaks_status 1",
        "mcpd_leaks_scan_seconds 0.5",
    ):
        assert sample in lines


def test_clean_scan_has_zeros_to_alert_on() -> None:
    text = render_metrics(Report([], 0, 0.1), now_s=1.0)
    assert 'mcpd_leaks_objects{kind="shm",program="",verdict="orphaned"} 0\n' in text


def test_file_is_replaced_in_one_step_and_readable_by_its_collector(tmp_path: Path) -> None:
    path = tmp_path / "mcpd.prom"
    path.write_text("old\n")
    before = path.stat().st_ino
    write_metrics(path, Report([LEFT], 0, 0.5))
    assert path.stat().st_ino != before
    assert path.stat().st_mode & 0o777 == 0o644
    assert [p.name for p in tmp_path.iterdir()] == ["mcpd.prom"]


def test_nothing_is_left_where_it_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "mcpd.prom").mkdir()
    with pytest.raises(OSError, match=r"mcpd\.prom"):
        write_metrics(tmp_path / "mcpd.prom", Report([], 0, 0.1))
    assert [p.name for p in tmp_path.iterdir()] == ["mcpd.prom"]
