"""The numbers that a search picked are searched again, from there, with choices beyond the edges that it met and between.

    #define ROW_BLOCKS 66  // tune: 66 99 198       ->      #define ROW_BLOCKS 66  // tune: 33 66 83 99
    #define ROW_THREADS 512  // tune: 128 256 512   ->      #define ROW_THREADS 512  // tune: 256 512 1024

Lists of powers of two stay such: their numbers are widths and counts of lanes. Changes no code; the tune gate does the rest.
"""

from __future__ import annotations

from harness.judge.tunables import Tunable, reopen, tunables
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.source import Source

MOST = 10**9 - 1


@rule(
    "cpu",
    "cuda",
    expected="numbers nearer to the best ones: the first search only had a coarse choice",
    speedup=1.0,
    after=("nontemporal_stores",),
    alone=True,
)
def rewrite(source: Source, facts: Facts) -> str | None:
    try:
        found = {t.name: choices for t in tunables(source.text) if (choices := _around(t)) != t.choices}
    except ValueError:
        return None
    return reopen(source.text, found) if found else None


def _around(tunable: Tunable) -> tuple[int, ...]:
    """The neighbours of the value, beyond the list's end by as much as its last step, and what lies half way to them."""
    value, choices = tunable.value, sorted({*tunable.choices, tunable.value})
    if choices[0] <= 0 or len(choices) < 2:
        return tunable.choices  # switches, and what has no scale
    powers = all(choice & (choice - 1) == 0 for choice in choices)
    at = choices.index(value)
    below = choices[at - 1] if at else _beyond(value, choices[1], powers)
    above = choices[at + 1] if at + 1 < len(choices) else _beyond(value, choices[-2], powers)
    between = [] if powers else [round((below * value) ** 0.5), round((value * above) ** 0.5)]
    return tuple(sorted({one for one in (below, *between, value, above) if 1 <= one <= MOST}))


def _beyond(edge: int, inner: int, powers: bool) -> int:
    return round(edge * (edge / inner if not powers else 2 if edge > inner else 0.5))
