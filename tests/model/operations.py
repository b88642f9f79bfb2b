"""The operations on shared words that native/src does, read from its text, in their order.

operations.txt is the same list, checked in, with the step of the model that stands for each.
`python -m tests.model.operations` prints the list as the code has it now, with what is known.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "native" / "src"
LIST = Path(__file__).with_name("operations.txt")
COUNTED = re.compile(r"mcpd_\w+_relaxed\(&(?:\w+->)*(?!not_before_ns|cursor|head)\w+(?:,|\))")
"""Relaxed operations are on counters, which nobody decides by, but for these words."""

FUNCTION = re.compile(r"^[a-z][\w ]*[ *](\w+)\([^;]*$")
OPERATION = re.compile(
    r"(?:mcpd_(load|store|exchange|compare_exchange|add)_(relaxed|acquire|release|seq_cst)"
    r"|atomic_(compare_exchange_strong)())\(([^;]*)"
)


class Operation(NamedTuple):
    file: str
    function: str
    what: str
    word: str

    def __str__(self) -> str:
        return " ".join(self)


def operations_in(file: str, text: str) -> list[Operation]:
    """Every operation of one source, in the order of its lines."""
    found: list[Operation] = []
    function = ""
    for line in joined(text):
        if named := FUNCTION.match(line):
            function = named[1]
        for match in OPERATION.finditer(line):
            if COUNTED.match(match[0]):
                continue
            kind, order, argument = match[1] or match[3], match[2] or match[4], match[5]
            what = f"{kind} {order or 'seq_cst'}"
            found.append(Operation(file, function, what, word_of(argument)))
    return found


def joined(text: str) -> list[str]:
    """The lines, each operation on one: continued ones are put together, comments left out."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    return re.sub(r"\(\n\s+|,\n\s+", lambda match: match[0].split("\n")[0], text).splitlines()


def word_of(argument: str) -> str:
    """The name of the word: the last member of the first argument."""
    depth = 0
    for at, character in enumerate(argument):
        depth += character in "[("
        depth -= character in "])"
        if depth < 0 or (character == "," and depth == 0):
            argument = argument[:at]
            break
    while "[" in argument:
        argument = re.sub(r"\[[^\[\]]*\]", "", argument)
    return re.split(r"->|\.|&", argument)[-1].strip()


def operations() -> list[Operation]:
    return [
        operation
        for path in sorted(SOURCES.glob("*.c"))
        for operation in operations_in(path.name, path.read_text())
    ]


def listed() -> list[tuple[str, str]]:
    """(operation, step of the model or `not modelled: why`) of each line of the list."""
    rows = []
    for line in LIST.read_text().splitlines():
        if line and not line.startswith("#"):
            operation, _, step = line.partition(" | ")
            rows.append((operation.strip(), step.strip()))
    return rows


def main() -> None:
    known: dict[str, list[str]] = {}
    for row, step in listed() if LIST.exists() else []:
        known.setdefault(row, []).append(step)
    for operation in operations():
        steps = known.get(str(operation), [])
        print(f"{operation} | {steps.pop(0) if steps else '?'}")


if __name__ == "__main__":
    main()
