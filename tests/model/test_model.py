"""The protocol holds in every state of small streams, and none of its steps can be weakened.

`make verify` runs the larger ones; docs/verification.md says what is modelled and what is not.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.model.checker import MEMORIES, explore, names
from tests.model.plan import LARGER, QUICK
from tests.model.verify import table
from tests.model.weakenings import WEAKENINGS, Weakening


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("configuration", QUICK)
def test_no_state_breaks_a_promise(configuration: str, memory: str) -> None:
    if (configuration, memory) in LARGER:
        pytest.skip("larger: make verify")
    outcome = explore(configuration, memory)
    assert outcome.violation is None, f"{outcome.violation}\n{outcome.trace}"
    assert outcome.all


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("weakening", WEAKENINGS, ids=lambda one: one.name)
def test_a_weakened_step_is_found(weakening: Weakening, memory: str) -> None:
    configuration = weakening.tso if memory == "tso" else weakening.views
    if configuration is None:
        assert weakening.why, "what nothing sees has a reason"
        return
    if (weakening.name, memory) in LARGER:
        pytest.skip("larger: make verify")
    outcome = explore(configuration, memory, weakening.name)
    assert outcome.violation is not None, f"{weakening.what}: not seen in {outcome.states} states"
    assert outcome.trace.count("\n") > 5, "the way to it is told"


def test_the_tables_name_what_the_model_knows() -> None:
    assert sorted(one.name for one in WEAKENINGS) == sorted(names("weakening"))
    planned = {*QUICK, *(name for name, _ in LARGER if name in names("configuration"))}
    assert planned == set(names("configuration"))


def test_every_weakening_is_seen_somewhere_or_says_why_not() -> None:
    silent = [one.name for one in WEAKENINGS if not (one.tso and one.views) and not one.why]
    assert silent == []


def test_the_page_has_the_table_of_weakenings() -> None:
    page = Path(__file__).parents[2] / "docs" / "verification.md"
    lines = page.read_text().splitlines()
    at = lines.index(table()[0])
    assert lines[at : at + len(table())] == table(), (
        "python -m tests.model.verify --table prints it"
    )
