"""Integers that a candidate leaves open: `#define BLOCK 256  // tune: 64 128 256 512`.

The tune gate searches them by measuring. A choice is baked into the source, so that every variant is a candidate of
its own, with its own hash, and the winner is an ordinary file that says which numbers were picked.
"""

from __future__ import annotations

import re

from pydantic import Field

from kernels.spec import Frozen

# An annotation of ours with a fixed form, one line, not C++: a regular expression is its grammar.
_LINE = re.compile(
    r"^(?P<head>[ \t]*#[ \t]*define[ \t]+(?P<name>[A-Z][A-Z0-9_]{0,40})[ \t]+)(?P<value>-?\d{1,9})"
    r"(?P<tail>(?P<mark>[ \t]*//[ \t]*tune:[ \t]*)(?P<choices>-?\d{1,9}(?:[ \t]+-?\d{1,9}){0,31})[ \t]*)$",
    re.MULTILINE,
)


class Tunable(Frozen):
    name: str
    value: int
    choices: tuple[int, ...] = Field(min_length=1)


def tunables(source: str) -> tuple[Tunable, ...]:
    """The integers that `source` leaves open, in order. Raises ValueError where a name is defined twice."""
    found = tuple(
        Tunable(name=m["name"], value=int(m["value"]), choices=tuple(dict.fromkeys(map(int, m["choices"].split()))))
        for m in _LINE.finditer(source)
    )
    names = [tunable.name for tunable in found]
    if len(set(names)) != len(names):
        raise ValueError(f"a tunable is defined twice: {', '.join(names)}")
    return found


def structure(source: str) -> str:
    """`source` with every tunable at its first choice: equal for variants that differ in their numbers only."""
    return bake(source, {tunable.name: tunable.choices[0] for tunable in tunables(source)})


def bake(source: str, values: dict[str, int]) -> str:
    """`source` with the named tunables set to `values`. Raises KeyError for a name that the source does not leave open."""
    left = dict(values)

    def chosen(match: re.Match[str]) -> str:
        return f"{match['head']}{left.pop(match['name'], int(match['value']))}{match['tail']}"

    baked = _LINE.sub(chosen, source)
    if left:
        raise KeyError(f"not left open by this source: {', '.join(left)}")
    return baked


def reopen(source: str, choices: dict[str, tuple[int, ...]]) -> str:
    """`source` with other choices for the named tunables."""

    def listed(match: re.Match[str]) -> str:
        if match["name"] not in choices:
            return match[0]
        return f"{match['head']}{match['value']}{match['mark']}{' '.join(map(str, choices[match['name']]))}"

    return _LINE.sub(listed, source)
