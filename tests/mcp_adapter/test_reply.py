"""Answers stay small and say what was left out; errors are words with a next step."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mcpd.mcp_adapter.manifest import MAX_RESULT_NBYTES
from mcpd.mcp_adapter.reply import MAX_TEXT, answer, clipped, failure
from mcpd.shm.errors import DaemonUnavailable, NotFound


def test_text_is_the_structured_content_as_json() -> None:
    reply = answer({"count": 1, "rows": [{"name": "größe"}]}, "rows")
    assert json.loads(reply.text) == reply.structured
    assert "größe" in reply.text


def test_long_list_is_cut_and_says_how_many_were_left_out() -> None:
    structured: dict[str, Any] = {"rows": [{"name": "x" * 90} for _ in range(2000)], "omitted": 5}
    reply = answer(structured, "rows")
    assert reply.structured is not None
    kept = len(reply.structured["rows"])
    assert MAX_RESULT_NBYTES - 200 < len(reply.text.encode()) <= MAX_RESULT_NBYTES
    assert reply.structured["omitted"] == 5 + 2000 - kept
    assert f"{2000 - kept} more of rows were left out" in reply.structured["note"]
    assert json.loads(reply.text) == reply.structured


def test_size_is_counted_in_bytes_not_characters() -> None:
    reply = answer({"rows": ["€" * 100 for _ in range(1000)]}, "rows")
    assert len(reply.text.encode()) <= MAX_RESULT_NBYTES


def test_number_that_json_has_not_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        answer({"rows": [float("nan")]}, "rows")


def test_error_names_code_cause_and_next_step() -> None:
    reply = failure(NotFound("no stream 'x'", "Call list_streams"))
    assert reply.structured is None
    assert reply.text == "error: not_found\nno stream 'x'\nNext step: Call list_streams"


def test_error_that_may_pass_says_so() -> None:
    assert "may succeed later" in failure(DaemonUnavailable("gone")).text


def test_long_text_is_clipped() -> None:
    assert clipped("short") == "short"
    assert len(clipped("x" * 10_000)) == MAX_TEXT
