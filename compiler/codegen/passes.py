"""What one pass over a row leaves in registers for a later one, which would compute it again for much."""

from __future__ import annotations

from collections.abc import Iterable

from compiler.codegen.text import Text, Window
from compiler.draft.expressions import Expr

DEAR, CHEAP = 8, 2
"""Instructions, roughly, from which on a number is kept for a later pass, not computed again: as many as registers are worth, and one more than a
load where it takes no more of them than what it is made of."""


def find_recomputed(text: Text, passes: dict[int, list[Expr]], least: int = DEAR) -> dict[int, list[Expr]]:
    """Of each pass, what a later one would compute again by at least so many instructions."""
    found: dict[int, list[Expr]] = {}
    known: dict[int, int] = {}
    for stage, roots in passes.items():
        stack, seen = list(reversed(roots)), set()
        while stack:
            expr = stack.pop()
            if id(expr) in seen:
                continue
            seen.add(id(expr))
            if id(expr) in known and expr.type == "float" and text.cost(expr) >= least:
                here = found.setdefault(known[id(expr)], [])
                here += [] if expr in here else [expr]
                continue
            stack.extend(
                arg for arg in reversed(expr.args[:1] if expr.op == "masked" else expr.args) if isinstance(arg, Expr)
            )
        known = {id(e): stage for e in text.always(roots, known)} | known
    return found


def keep_for_later(text: Text, passes: dict[int, list[Expr]]) -> dict[int, list[Expr]]:
    """What a pass leaves for a later one: all that takes no more registers than what is loaded (a sum of two rows), else what costs much and takes
    at most twice as many."""
    loaded = window_bytes(text.windows([root for roots in passes.values() for root in roots]), 0)
    for least, times in ((CHEAP, 1), (DEAR, 2)):
        found = find_recomputed(text, passes, least)
        if found and bytes_between(text, passes, found, 0) <= times * loaded:
            return found
    return {}


HELD_BYTES = 128
"""Of what a thread holds beside what it has loaded, at most: more leave room for one block of long rows alone, which loads nothing while it computes
(softmax of 8192 rows of 32000 halves: 308 us held, 256 computed again; H200)."""


def holds_few(text: Text, passes: dict[int, list[Expr]], held: dict[int, list[Expr]]) -> str:
    """The condition under which what is held stays in registers, which it takes more of than what is loaded; empty where it always does."""
    loaded = window_bytes(text.windows([root for roots in passes.values() for root in roots]), 0)
    found = [expr for exprs in held.values() for expr in exprs]
    more = bytes_between(text, passes, held, 0) > loaded and all(text.cost(expr) < 2 * DEAR for expr in found)
    return f"Items * {4 * text.width * len(found)} <= {HELD_BYTES}" if more else ""


def bytes_between(text: Text, passes: dict[int, list[Expr]], held: dict[int, list[Expr]], beside: int) -> int:
    """Of registers for a pack between two passes, at most: numbers that a later pass takes, and windows that are read again once the first
    of what is held has been computed. An exponential that follows from a held element takes the place of that element."""
    if not held:
        return 0
    made = {id(expr): stage for stage, found in held.items() for expr in found}
    last = dict(made)
    for stage, roots in passes.items():
        earlier = {one for one, at in made.items() if at < stage}
        stack, seen = list(roots), set[int]()
        while stack:
            expr = stack.pop()
            if id(expr) in seen:
                continue
            seen.add(id(expr))
            if id(expr) in earlier:
                last[id(expr)] = max(last[id(expr)], stage)
                continue
            stack.extend(arg for arg in expr.args if isinstance(arg, Expr))
    first = min(held)
    later = [root for stage, roots in passes.items() if stage > first for root in roots]
    live = max(sum(made[one] <= stage < last[one] for one in made) for stage in passes)
    return window_bytes(text.windows(later, made), beside) + 4 * text.width * live


def window_bytes(windows: Iterable[Window], beside: int) -> int:
    """Of the registers that hold them."""
    return sum(max(4, window.width * window.buffer.dtype.itemsize) + beside for window in windows)
