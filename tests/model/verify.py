"""`make verify`: every configuration and weakening under both memories, with its figures.

--quick leaves out what is larger; --table prints the table of docs/verification.md.
"""

from __future__ import annotations

import argparse
import sys

from tests.model.checker import MEMORIES, Outcome, explore, names
from tests.model.plan import LARGER
from tests.model.weakenings import WEAKENINGS


def show(outcome: Outcome, name: str, good: bool) -> None:
    print(
        f"{'ok  ' if good else 'FAIL'} {name:24} {outcome.memory:6} {outcome.states:>10,} states "
        f"{outcome.transitions:>11,} transitions {outcome.seconds:8.2f} s  "
        f"{outcome.violation or 'no violation'}",
        flush=True,
    )


def configurations(quick: bool) -> bool:
    good = True
    for name in names("configuration"):
        for memory in MEMORIES:
            if quick and (name, memory) in LARGER:
                continue
            outcome = explore(name, memory)
            holds = outcome.violation is None and outcome.all
            show(outcome, name, holds)
            good &= holds
    return good


def weakenings(quick: bool) -> bool:
    good = True
    for one in WEAKENINGS:
        for memory in MEMORIES:
            configuration = one.tso if memory == "tso" else one.views
            if quick and (one.name, memory) in LARGER:
                continue
            outcome = explore(configuration or one.unseen_in, memory, one.name)
            seen = outcome.violation is not None
            show(outcome, one.name, seen == (configuration is not None))
            good &= seen == (configuration is not None)
    return good


def table() -> list[str]:
    """The table of weakenings, a row each: what is planted, and where it is seen."""
    lines = ["| weakening | what | x86-TSO | views |", "| --- | --- | --- | --- |"]
    for one in WEAKENINGS:
        cells = [f"`{seen}`" if seen else "unseen" for seen in (one.tso, one.views)]
        why = f" ({one.why})" if one.why else ""
        lines.append(f"| {one.name} | {one.what}{why} | {cells[0]} | {cells[1]} |")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    if arguments.table:
        print("\n".join(table()))
        return 0
    good = configurations(arguments.quick)
    return 0 if weakenings(arguments.quick) and good else 1


if __name__ == "__main__":
    sys.exit(main())
