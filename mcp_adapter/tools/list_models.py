"""The tool `list_models`: what models there are, and what they can tell apart."""

from __future__ import annotations

from typing import Any

from mcpd.mcp_adapter.link import Link
from mcpd.mcp_adapter.manifest import MAX_LABELS
from mcpd.mcp_adapter.reply import Reply, answer, clipped


async def call(link: Link, arguments: dict[str, Any]) -> Reply:
    """Lists the models of the repository with their state and labels."""
    rows = await link.ask(lambda client: client.list("models"))
    models = [_model(row) for row in sorted(rows, key=lambda row: (row["name"], -row["version"]))]
    return answer({"count": len(models), "models": models}, rows="models")


def _model(row: dict[str, Any]) -> dict[str, Any]:
    model = {"name": row["name"], "version": row["version"], "state": row["state"]}
    for name in ("engine", "provider"):
        if row[name]:
            model[name] = row[name]
    if row["decode"]:
        model["answers"] = row["decode"]
    if row["labels"]:
        model["label_count"] = row["labels"]
        model["labels"] = row["label_names"][:MAX_LABELS]
    if row["error"]:
        model["error"] = clipped(row["error"])
    return model
