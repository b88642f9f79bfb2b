"""docs/protocol.md draws the layout that the code has: every row is compiled as an assertion."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.native.c_programs import INCLUDE

PAGE = Path(__file__).parents[2] / "docs" / "protocol.md"
NBYTES = {"u8": 1, "u16": 2, "u32": 4, "u64": 8, "i32": 4, "i64": 8, "f32": 4, "tensor": 192}
STRUCTS = {
    "mcpd_wctl": 21,
    "mcpd_meta": 17,
    "mcpd_description": 12,
    "mcpd_tensor": 10,
    "mcpd_rctl": 21,
    "mcpd_gctl": 10,
}
"""Each struct that the page draws, with its number of fields that are not reserved."""

Row = tuple[str, str, str, str]


def rows_of(page: str) -> list[Row]:
    """(struct, field, offset, type) of every row of the tables under a `struct ...` line."""
    rows: list[Row] = []
    struct = ""
    for line in page.splitlines():
        if line.startswith("#"):
            struct = ""
        if named := re.match(r"`struct (\w+)`", line):
            struct = named[1]
        if row := re.match(r"\| (\d+) \| (?:atomic )?(\w+(?:\[\d+\])?) \| (\w+) \|", line):
            rows.append((struct, row[3], row[1], row[2]))
    return rows


def compile_rows(rows: list[Row], folder: Path) -> subprocess.CompletedProcess[str]:
    lines = ['#include "layout.h"']
    for struct, field, offset, kind in rows:
        base, _, count = kind.rstrip("]").partition("[")
        nbytes = NBYTES[base] * int(count or 1)
        lines.append(
            f"static_assert(offsetof(struct {struct}, {field}) == {offset} && "
            f'sizeof(((struct {struct} *)0)->{field}) == {nbytes}, "{struct}.{field}");'
        )
    source = folder / "rows.c"
    source.write_text("\n".join(lines) + "\n")
    return subprocess.run(
        ["gcc", "-std=c11", *INCLUDE, "-fsyntax-only", str(source)],
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_row_of_the_page_is_as_in_the_code(tmp_path: Path) -> None:
    rows = rows_of(PAGE.read_text())
    assert {name: sum(row[0] == name for row in rows) for name in STRUCTS} == STRUCTS
    done = compile_rows(rows, tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "row",
    [("mcpd_wctl", "head", "72", "u64"), ("mcpd_meta", "flags", "116", "u64")],
    ids=["offset", "size"],
)
def test_a_row_that_is_wrong_is_found(row: Row, tmp_path: Path) -> None:
    assert f"{row[0]}.{row[1]}" in compile_rows([row], tmp_path).stderr
