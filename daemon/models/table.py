"""Checks a TOML table against the keys it may have, and reports every fault at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from msgspec import Struct

NUMBER = "a number"
INTEGER = "an integer"
STRING = "a string"
BOOLEAN = "true or false"
NUMBERS = "a list of numbers"


class Key(Struct, frozen=True, kw_only=True):
    """What one key of a table may hold.

    Attributes:
        type: NUMBER, INTEGER, STRING, BOOLEAN or NUMBERS.
        default: What stands for a missing key; None: the key is required.
        choices: The strings allowed; empty: any that is not empty.
        least: Lowest number allowed, of each number in a list.
        most: Highest number allowed, of each number in a list.
        lengths: How long a list may be.
        nonzero: 0 is not allowed.
    """

    type: str
    default: Any = None
    choices: Sequence[str] = ()
    least: float = -math.inf
    most: float = math.inf
    lengths: Sequence[int] = ()
    nonzero: bool = False

    def allowed(self) -> str:
        """What may stand here, in words."""
        if self.choices:
            return "one of " + ", ".join(f'"{choice}"' for choice in self.choices)
        limits = ""
        if self.least > -math.inf and self.most < math.inf:
            limits = f" from {self.least:g} to {self.most:g}"
        elif self.least > -math.inf:
            limits = f" of at least {self.least:g}"
        if self.nonzero:
            limits += ", not 0"
        if self.lengths:
            return f"a list of {' or '.join(str(n) for n in self.lengths)} numbers{limits}"
        return self.type + limits

    def accepts(self, value: Any) -> bool:
        """Whether the value, as tomllib gives it, is allowed."""
        if self.type == BOOLEAN:
            return isinstance(value, bool)
        if self.type == STRING:
            return isinstance(value, str) and (
                value in self.choices if self.choices else bool(value)
            )
        if self.type == NUMBERS:
            return (
                isinstance(value, list)
                and (len(value) in self.lengths or not self.lengths)
                and all(self._accepts_number(number, integer=False) for number in value)
            )
        return self._accepts_number(value, integer=self.type == INTEGER)

    def _accepts_number(self, value: Any, *, integer: bool) -> bool:
        if isinstance(value, bool) or not isinstance(value, int if integer else (int, float)):
            return False
        if self.nonzero and value == 0:
            return False
        try:
            number = float(value)
        except OverflowError:  # TOML's integers are as long as its writer likes
            return False
        return math.isfinite(number) and self.least <= number <= self.most


def read_table(
    table: Mapping[str, Any], keys: Mapping[str, Key], where: str, problems: list[str]
) -> dict[str, Any]:
    """The values of a table, with defaults for what is missing.

    Args:
        table: As tomllib gives it.
        keys: What it may have; any other key is a fault.
        where: Put before a key's name in a fault, such as "input[0].".
        problems: Faults are added here, each with key, value and what is allowed.

    Returns:
        A value for every key. A key with a fault has its default, which is None if it has none.
    """
    for name, value in table.items():
        if name not in keys:
            close = get_close_matches(name, keys, n=1)
            meant = f'; did you mean "{close[0]}"?' if close else ""
            known = ", ".join(keys)
            problems.append(f"{where}{name} = {show(value)}: no such key{meant} (known: {known})")
    values = {}
    for name, key in keys.items():
        values[name] = key.default
        if name not in table:
            if key.default is None:
                problems.append(f"{where}{name} is missing: {key.allowed()}")
        elif key.accepts(table[name]):
            values[name] = table[name]
        else:
            problems.append(f"{where}{name} = {show(table[name])}: must be {key.allowed()}")
    return values


def show(value: Any) -> str:
    """A value as TOML writes it, cut to 60 characters."""
    if isinstance(value, bool):
        text = "true" if value else "false"
    elif isinstance(value, str):
        text = f'"{value}"'
    else:
        text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."
