"""The tool list as hosts take it: names, flat schemas, and words for a model that knows nothing."""

from __future__ import annotations

import json
import re
from typing import Any

import mcp_types as types
import pytest
from jsonschema import Draft202012Validator

from mcpd.mcp_adapter import manifest

NAMES = ["get_status", "list_streams", "list_models", "run_inference"]


def schema_faults(schema: dict[str, Any]) -> list[str]:
    """What some host would refuse in a tool's schema."""
    faults = []
    if schema.get("type") != "object":
        faults.append("the root is not an object")
    faults += [f"{word} at the root" for word in ("oneOf", "anyOf", "allOf") if word in schema]
    if schema.get("additionalProperties") is not False:
        faults.append("more properties than those listed")
    faults += [
        f"{name} lacks a type or a description"
        for name, rule in schema.get("properties", {}).items()
        if "type" not in rule or "description" not in rule
    ]
    faults += [
        f"{name} is nested"
        for name, rule in schema.get("properties", {}).items()
        if rule.get("type") == "object" and "properties" in rule
    ]
    unknown = set(schema.get("required", [])) - schema.get("properties", {}).keys()
    return faults + [f"required {name} is not listed" for name in sorted(unknown)]


def test_there_are_the_agreed_tools() -> None:
    assert [entry["name"] for entry in manifest.TOOLS] == NAMES


@pytest.mark.parametrize("entry", manifest.TOOLS, ids=NAMES)
def test_names_are_those_that_every_host_takes(entry: dict[str, Any]) -> None:
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", entry["name"])


@pytest.mark.parametrize("key", ["inputSchema", "outputSchema"])
@pytest.mark.parametrize("entry", manifest.TOOLS, ids=NAMES)
def test_schemas_are_valid_and_flat(entry: dict[str, Any], key: str) -> None:
    Draft202012Validator.check_schema(entry[key])
    assert schema_faults(entry[key]) == []


def test_a_planted_bad_schema_is_caught() -> None:
    bad = {
        "type": "array",
        "anyOf": [],
        "properties": {"x": {"type": "object", "properties": {}}},
        "required": ["y"],
    }
    assert schema_faults(bad) == [
        "the root is not an object",
        "anyOf at the root",
        "more properties than those listed",
        "x lacks a type or a description",
        "x is nested",
        "required y is not listed",
    ]


@pytest.mark.parametrize("entry", manifest.TOOLS, ids=NAMES)
def test_every_tool_says_what_it_does_and_that_it_changes_nothing(entry: dict[str, Any]) -> None:
    assert entry["title"]
    assert len(entry["description"]) > 100
    assert entry["annotations"]["readOnlyHint"] is True
    assert entry["annotations"]["openWorldHint"] is False


def test_the_sdk_takes_the_entries_as_they_are_on_the_wire() -> None:
    for entry in manifest.TOOLS:
        tool = types.Tool.model_validate(entry)
        assert tool.model_dump(by_alias=True, exclude_none=True) == entry


def test_the_whole_list_costs_a_model_little_to_read() -> None:
    assert len(json.dumps(manifest.TOOLS)) < 12_000


def test_a_tool_is_found_by_its_name() -> None:
    assert manifest.tool("get_status") is manifest.GET_STATUS
    assert manifest.tool("get-status") is None
