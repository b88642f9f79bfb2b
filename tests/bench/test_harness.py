"""What every benchmark stands on; a goal that is missed is told as missed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from bench.harness import (
    at_least,
    at_most,
    cpu_ns,
    machine,
    percentile,
    private_daemon,
    ratio,
    report,
)
from mcpd.shm import connect

FIGURES = {"one way": {"p50 ms": 1.5, "frames": 1200}, "other": {"p50 ms": 30.25}}


def test_percentiles_are_values_that_occurred() -> None:
    values = [float(n) for n in range(1, 101)]
    assert [percentile(values, q) for q in (50, 99, 100, 0)] == [50.0, 99.0, 100.0, 1.0]


def test_a_percentile_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="of 0 values"):
        percentile([], 50)


def test_goals_are_met_up_to_their_limit_and_missed_beyond() -> None:
    assert at_most("a", 1.0, 1.0)["ok"]
    assert not at_most("a", 1.01, 1.0)["ok"]
    assert at_least("a", 1.0, 1.0)["ok"]
    assert not at_least("a", 0.99, 1.0)["ok"]


def test_the_report_as_json_has_machine_figures_and_goals(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report("planted", FIGURES, [at_most("p50", 1.5, 1.0)], json=True)
    document = json.loads(capsys.readouterr().out)
    assert document["bench"] == "planted"
    assert document["figures"] == FIGURES
    assert document["goals"] == [{"name": "p50", "value": 1.5, "limit": 1.0, "ok": False}]
    assert document["machine"] == machine()


def test_the_report_as_a_table_says_which_goal_was_missed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report("planted", FIGURES, [at_most("p50", 1.5, 1.0), at_least("x", 2, 1)], json=False)
    lines = capsys.readouterr().out.splitlines()
    row = next(line for line in lines if line.startswith("| one way"))
    assert [cell.strip() for cell in row.strip("|").split("|")] == ["one way", "1.5", "1,200"]
    assert [line.rpartition(" ")[2] for line in lines if line.startswith("- ")] == [
        "MISSED",
        "met",
    ]


def test_goal_that_could_not_be_measured_is_missed(capsys: pytest.CaptureFixture[str]) -> None:
    goals = [at_most("p50", None, 1.0), at_least("x", None, 1)]
    assert [goal["ok"] for goal in goals] == [False, False]
    report("planted", FIGURES, goals, json=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "- x: not measured (limit 1) MISSED"


def test_ratio_is_the_median_of_the_rounds() -> None:
    assert ratio([2.0, 30.0, 3.0], [1.0, 10.0, 1.0]) == 3.0


def test_the_machine_is_described() -> None:
    described = machine()
    assert described["cpu"]
    assert described["cores"] == len(os.sched_getaffinity(0))


def test_cpu_time_of_a_process_goes_up_as_it_works() -> None:
    before = cpu_ns(os.getpid())
    sum(range(3_000_000))
    assert cpu_ns(os.getpid()) > before


def test_a_private_daemon_serves_and_ends(tmp_path: Path) -> None:
    with private_daemon(tmp_path, load="none") as daemon, connect(daemon.socket) as client:
        assert client.daemon_pid == daemon.pid
    assert daemon.poll() == 0
