"""Arguments are checked by the schema, and a refusal says value, limit and next step."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from mcpd.mcp_adapter.arguments import MAX_SHOWN, checked
from mcpd.mcp_adapter.manifest import LIST_STREAMS, NAME_PATTERN, RUN_INFERENCE
from mcpd.shm.errors import InvalidRequest


def test_defaults_are_filled_in() -> None:
    assert checked(RUN_INFERENCE, {"model": "m", "stream": "s"}) == {
        "model": "m",
        "stream": "s",
        "min_score": 0,
        "max_results": 50,
    }


def test_missing_arguments_object_means_none() -> None:
    assert checked(LIST_STREAMS, None) == {}


def test_null_counts_as_left_out() -> None:
    values = checked(RUN_INFERENCE, {"model": "m", "path": None, "max_results": None})
    assert values == {"model": "m", "min_score": 0, "max_results": 50}


def test_whole_number_with_a_point_is_an_integer() -> None:
    value = checked(RUN_INFERENCE, {"model": "m", "max_results": 7.0})["max_results"]
    assert value == 7
    assert isinstance(value, int)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, ["needs the argument 'model'", "list_models"]),
        ({"model": "m", "modle": 1}, ['no argument "modle"', "Its arguments are: model, stream"]),
        ({"model": 7}, ["'model' is 7", "must be a string", "list_models"]),
        ({"model": True}, ["'model' is true", "must be a string"]),
        ({"model": "../x"}, ["'model' is \"../x\"", NAME_PATTERN]),
        ({"model": "m\n"}, ["'model' is", NAME_PATTERN]),
        ({"model": "m", "path": ""}, ["'path' is \"\"", "1 to 4096 characters, not 0"]),
        ({"model": "m", "min_score": 1.5}, ["'min_score' is 1.5", "from 0 to 1"]),
        ({"model": "m", "min_score": "0.5"}, ["'min_score' is \"0.5\"", "a JSON number"]),
        ({"model": "m", "min_score": math.nan}, ["'min_score' is NaN", "from 0 to 1"]),
        ({"model": "m", "max_results": 0}, ["'max_results' is 0", "from 1 to 1000"]),
        ({"model": "m", "max_results": 2.5}, ["'max_results' is 2.5", "whole number"]),
        ({"model": "m", "max_results": True}, ["'max_results' is true", "a JSON integer"]),
        ({"model": "m", "max_results": 10**400}, ["'max_results' is 1000", "from 1 to 1000"]),
        ([1], ["are [1], and must be a JSON object"]),
    ],
)
def test_wrong_arguments_are_refused_in_words(arguments: Any, words: list[str]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        checked(RUN_INFERENCE, arguments)
    for word in words:
        assert word in str(caught.value)


def test_tool_without_arguments_says_so() -> None:
    with pytest.raises(InvalidRequest, match="list_streams has no argument") as caught:
        checked(LIST_STREAMS, {"stream": "x"})
    assert caught.value.hint == "It takes no arguments"


def test_long_value_is_cut_in_the_message() -> None:
    with pytest.raises(InvalidRequest) as caught:
        checked(RUN_INFERENCE, {"model": "x" * 100_000})
    assert len(caught.value.message) < MAX_SHOWN + 200


_anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(
        st.sampled_from([*RUN_INFERENCE["inputSchema"]["properties"], "other"]), _anything
    )
)
def test_what_passes_is_valid_by_the_schema(arguments: dict[str, Any]) -> None:
    try:
        values = checked(RUN_INFERENCE, arguments)
    except InvalidRequest:
        return
    Draft202012Validator(RUN_INFERENCE["inputSchema"]).validate(values)
