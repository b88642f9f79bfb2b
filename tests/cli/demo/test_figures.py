"""The figures' document, and what counts as failed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mcpd.cli.demo.clip import Clip
from mcpd.cli.demo.comparison import Handover
from mcpd.cli.demo.figures import make_document, percentile
from mcpd.cli.demo.readings import Use
from mcpd.cli.demo.streaming import Streamed
from mcpd.cli.demo.tables import print_tables
from mcpd.shm.result import Detection

FRAMES = 20
TRUTH = {"person": (0.0, 0.0, 100.0, 100.0), "cup": (200.0, 0.0, 300.0, 100.0)}
CLIP = Clip(Path("clip.mp4"), 640, 480, 30, [TRUTH] * FRAMES)
PERSON = Detection(2.0, 0.0, 100.0, 100.0, 0.9, "person", 1)
CUP = Detection(200.0, 0.0, 300.0, 100.0, 0.8, "cup", 47)
TABLE = Detection(0.0, 0.0, 640.0, 480.0, 0.5, "dining table", 67)


def make_streamed(frames: int = FRAMES) -> Streamed:
    return Streamed(
        max_speed=False,
        detections={index: [PERSON, CUP, TABLE] for index in range(frames)},
        seconds=1.0,
        handover_ms=[0.1] * frames,
        latency_ms=[float(n) for n in range(frames)],
        uses={"source": Use(4.0, 7.0, 6000.0, 0.0), "worker": Use(20.0, 15.0, 0.0, 5.0)},
        source={"blocked_s": 0.0, "nbytes": 1000 * frames, "frames": frames},
    )


def document_of(streamed: Streamed, left_over: list[str] | None = None) -> dict[str, Any]:
    as_json = Handover(10, ms_p50=100.0, sender_cpu_ms=60.0, receiver_cpu_ms=40.0, nbytes=8000.0)
    in_slots = Handover(10, ms_p50=1.0, sender_cpu_ms=0.6, receiver_cpu_ms=0.4, nbytes=50.0)
    files = {"video": "v.mp4", "still": "s.png", "figures": "f.json"}
    return make_document(CLIP, streamed, as_json, in_slots, left_over or [], files)


def test_a_good_run_is_ok() -> None:
    document = document_of(make_streamed())
    assert document["ok"]
    assert document["failures"] == []
    assert document["all"]["recall"] == document["all"]["precision"] == 1.0
    assert document["other_labels"] == {"dining table": FRAMES}
    assert document["frames_per_s"] == FRAMES - 1
    assert document["same_frames"]["ratio"] == {"ms": 100.0, "cpu": 100.0, "bytes": 160.0}


def test_the_document_is_json() -> None:
    document = document_of(make_streamed())
    assert json.loads(json.dumps(document)) == document


def test_a_class_found_too_seldom_fails() -> None:
    streamed = make_streamed()
    for index in range(3):
        streamed.detections[index] = [PERSON]
    document = document_of(streamed)
    assert not document["ok"]
    assert document["failures"] == ["recall of cup is 0.850, below 0.9"]


def test_frames_without_a_result_fail_and_count_as_missed() -> None:
    document = document_of(make_streamed(FRAMES - 1))
    assert document["failures"] == [f"{FRAMES - 1} results for {FRAMES} frames"]
    assert document["classes"]["cup"]["recall"] == (FRAMES - 1) / FRAMES


def test_anything_left_over_fails() -> None:
    document = document_of(make_streamed(), ["process 7 (worker)"])
    assert document["failures"] == ["left over: process 7 (worker)"]


@pytest.mark.parametrize(("q", "value"), [(50, 5), (99, 10), (10, 1), (0, 1), (100, 10)])
def test_percentiles_are_values_that_occurred(q: float, value: int) -> None:
    assert percentile([10, 9, 8, 7, 6, 5, 4, 3, 2, 1], q) == value


def test_the_tables_tell_the_main_figures(capsys: pytest.CaptureFixture[str]) -> None:
    print_tables(document_of(make_streamed(), ["process 7 (worker)"]))
    text = capsys.readouterr().out
    for words in ("process 7 (worker)", "person", "worker", "base64 in JSON", "p99 19.0 ms"):
        assert words in text


def test_tables_say_nothing_when_nothing_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    print_tables(document_of(make_streamed()))
    (line,) = (text for text in capsys.readouterr().out.splitlines() if "left over" in text)
    assert line.split()[2:] == ["nothing"]
