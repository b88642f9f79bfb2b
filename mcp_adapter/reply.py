"""What a tool call answers: structured content kept small, its JSON text, or an error to read."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from mcpd.mcp_adapter.manifest import MAX_RESULT_NBYTES
from mcpd.shm.errors import McpdError

MAX_TEXT = 500
"""Most characters of one text that others wrote, such as a model's error."""


class Reply(NamedTuple):
    """The answer to one call.

    Attributes:
        structured: Valid by the tool's output schema; None for an error.
        text: The same as JSON, or the error in words.
    """

    structured: dict[str, Any] | None
    text: str


def answer(structured: dict[str, Any], rows: str) -> Reply:
    """The reply with `structured`, cut to MAX_RESULT_NBYTES of JSON.

    Entries are dropped from the end of the list `structured[rows]`, which is changed; `omitted`
    then counts them, with those counted there already, and `note` says so.
    """
    text = _json(structured)
    if len(text.encode()) <= MAX_RESULT_NBYTES:
        return Reply(structured, text)
    entries, omitted = structured[rows], structured.get("omitted", 0)
    note = f"{structured['note']} " if "note" in structured else ""

    def cut_to(length: int) -> str:
        structured[rows] = entries[:length]
        structured["omitted"] = omitted + len(entries) - length
        structured["note"] = (
            f"{note}{len(entries) - length} more of {rows} were left out to keep this answer "
            f"below {MAX_RESULT_NBYTES // 1000} KB."
        )
        return _json(structured)

    low, high = 0, len(entries) - 1
    while low < high:
        middle = (low + high + 1) // 2
        if len(cut_to(middle).encode()) <= MAX_RESULT_NBYTES:
            low = middle
        else:
            high = middle - 1
    return Reply(structured, cut_to(low))


def failure(error: McpdError) -> Reply:
    """The reply that says what went wrong and what to do, for a model to read.

    It has no structured content: clients check that against the tool's output schema, which an
    error does not fit.
    """
    lines = [f"error: {error.code}", error.message]
    if error.hint:
        lines.append(f"Next step: {error.hint}")
    if error.retryable:
        lines.append("The same call may succeed later.")
    return Reply(None, "\n".join(lines))


def clipped(text: str) -> str:
    """`text`, cut to MAX_TEXT characters."""
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 3]}..."


def _json(value: dict[str, Any]) -> str:
    # NaN and infinity are no JSON: callers have replaced them, and a slip shall not pass.
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
