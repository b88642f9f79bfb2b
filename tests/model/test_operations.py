"""The model follows the code: operations.txt is what native/src does, each with its step."""

from __future__ import annotations

import re
from itertools import zip_longest

from tests.model.checker import SOURCES
from tests.model.operations import listed, operations, operations_in


def steps() -> set[str]:
    text = "".join(path.read_text() for path in SOURCES.glob("*.c"))
    return set(re.findall(r'STEP\("([^"]+)"\)', text))


def test_the_code_does_the_operations_that_are_listed_in_their_order() -> None:
    in_code = [str(operation) for operation in operations()]
    differing = [
        pair for pair in zip_longest(in_code, (row for row, _ in listed())) if len(set(pair)) > 1
    ]
    assert differing == [], (
        "change the model (tests/model/*.c), then operations.txt: operations.py prints it"
    )


def test_every_operation_is_a_step_of_the_model_or_says_why_not() -> None:
    unknown = [
        step
        for _, step in listed()
        if step not in steps() and not step.startswith("not modelled: ")
    ]
    assert unknown == []


BEFORE = """
static void f(int a)
{
    mcpd_store_release(&x->head, 1);
    mcpd_load_seq_cst(&y->epoch);
}
"""


def test_a_changed_order_and_a_swapped_line_are_seen() -> None:
    before = operations_in("a.c", BEFORE)
    assert [str(one) for one in before] == [
        "a.c f store release head",
        "a.c f load seq_cst epoch",
    ]
    lines = BEFORE.splitlines()
    lines[3], lines[4] = lines[4], lines[3]
    assert operations_in("a.c", "\n".join(lines)) == before[::-1]
    assert operations_in("a.c", BEFORE.replace("release", "seq_cst")) != before


def test_counters_are_left_out_and_what_is_decided_by_is_not() -> None:
    text = "\n".join(
        [
            "void f(void)",
            "{",
            "    mcpd_store_relaxed(&r->rctl->wakes, 1);",
            "    mcpd_store_relaxed(",
            "        &r->rctl->not_before_ns, 1);",
            "}",
        ]
    )
    assert [one.word for one in operations_in("a.c", text)] == ["not_before_ns"]
