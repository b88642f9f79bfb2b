"""Checks a tool call's arguments against the tool's input schema, in words a model can act on."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from mcpd.shm.errors import InvalidRequest

MAX_SHOWN = 80
"""Most characters of a wrong value that an error repeats."""


def checked(tool: Mapping[str, Any], arguments: object) -> dict[str, Any]:
    """The arguments of a call to `tool`, valid by its `inputSchema`, with the defaults filled in.

    Knows the keywords that our schemas use: type, pattern, minLength, maxLength, minimum, maximum,
    default, required; other arguments than those listed are refused. JSON's `null` counts as
    leaving the argument out, which is how some hosts send an optional argument.

    Raises:
        InvalidRequest: The first thing that is wrong, with the value and the limit.
    """
    schema = tool["inputSchema"]
    properties: Mapping[str, Mapping[str, Any]] = schema["properties"]
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, Mapping):
        raise InvalidRequest(
            f"the arguments of {tool['name']} are {_shown(arguments)}, and must be a JSON object",
            _known(tool),
        )
    given = {name: value for name, value in arguments.items() if value is not None}
    for name in given:
        if name not in properties:
            raise InvalidRequest(f"{tool['name']} has no argument {_shown(name)}", _known(tool))
    for name in schema["required"]:
        if name not in given:
            raise InvalidRequest(
                f"{tool['name']} needs the argument {name!r}", properties[name]["description"]
            )
    values = {name: rule["default"] for name, rule in properties.items() if "default" in rule}
    values |= {name: _value(name, value, properties[name]) for name, value in given.items()}
    return values


def _value(name: str, value: object, rule: Mapping[str, Any]) -> Any:
    match rule["type"]:
        case "string":
            return _string(name, value, rule)
        case "integer" | "number" as kind:
            return _numeric(name, value, rule, kind)
        case other:
            raise TypeError(f"the schema of {name!r} has type {other!r}, which is not handled")


def _string(name: str, value: object, rule: Mapping[str, Any]) -> str:
    if not isinstance(value, str):
        raise _wrong(name, value, "must be a string", rule)
    limit = rule.get("maxLength", math.inf)
    if not rule.get("minLength", 0) <= len(value) <= limit:
        raise _wrong(name, value, f"must have 1 to {limit} characters, not {len(value)}", rule)
    # Ours are anchored at both ends; `$` alone would let a line feed follow.
    if "pattern" in rule and not re.fullmatch(rule["pattern"], value):
        raise _wrong(name, value, f"must match {rule['pattern']}", rule)
    return value


def _numeric(name: str, value: object, rule: Mapping[str, Any], kind: str) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(name, value, f"must be a JSON {kind}", rule)
    low, high = rule.get("minimum", -math.inf), rule.get("maximum", math.inf)
    # A comparison with NaN is false, so this refuses it too.
    if not low <= value <= high:
        raise _wrong(name, value, f"must be from {low} to {high}", rule)
    if kind == "number":
        return value
    if value != int(value):
        raise _wrong(name, value, "must be a whole number", rule)
    return int(value)


def _wrong(name: str, value: object, must: str, rule: Mapping[str, Any]) -> InvalidRequest:
    return InvalidRequest(
        f"the argument {name!r} is {_shown(value)}, and {must}", rule["description"]
    )


def _shown(value: object) -> str:
    text = json.dumps(value, default=repr)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def _known(tool: Mapping[str, Any]) -> str:
    names = ", ".join(tool["inputSchema"]["properties"])
    return f"Its arguments are: {names}" if names else "It takes no arguments"
