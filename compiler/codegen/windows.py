"""What lanes load together: where packs begin, for which lanes a condition holds, packs across the edges of others, branches that read one
buffer at two places.

A pack that begins beside where packs are aligned lies in two that do not. All such loads at one place, a convolution's steps, share a
window of whole packs; one that lies outside the buffer is not loaded, since whoever wanted it would be guarded.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass

import sympy

from compiler.draft.expressions import Expr, binary, index_value, loads_of, make, put, walk, where
from compiler.draft.index import FloorDiv, Index, Modulo
from compiler.draft.packing import _is_multiple
from compiler.draft.tensors import Buffer

LANE_OPERATIONS: dict[str, Callable] = {
    "index": int, "const": int, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge, "eq": operator.eq,
    "ne": operator.ne, "and": operator.and_, "or": operator.or_, "not": operator.not_,
}  # fmt: skip
"""Of conditions that a lane's number may decide."""

MOST_PACKS = 4
"""Of a window."""
MOST_NEIGHBOURS = 12
"""Of a lane, in a window of whole packs: a filter of three by three is nine."""
CHEAP = 24
"""What branches may cost of which both are computed then."""


@dataclass(frozen=True)
class Window:
    """`width` neighbouring elements from `base` on, which a pack's lanes lie in. `by` is the computed part of the place."""

    buffer: Buffer
    base: Index
    width: int
    by: tuple[Expr, Index] | None = None
    """(computed index, its stride in elements)."""
    aligned: bool = True
    """Whether it begins where a pack may be moved at once; otherwise see ragged.py."""
    edged: bool = False
    """Whether packs of it may lie outside the buffer: see shifts_of."""


def odd_width(first: Index, most: int, lanes: int) -> list[int]:
    """Of elements of a few each: three neighbours of every lane are a window of 24."""
    steps = [int(term.as_coeff_Mul()[0]) for term in sympy.Add.make_args(first) if term.free_symbols]
    width = math.gcd(*steps) if all(step > 0 for step in steps) else 0
    whole = width % lanes == 0
    return [width] if whole and most < width <= MOST_NEIGHBOURS * lanes else []


def holding(condition: Expr, lane: Index, width: int) -> frozenset[int] | None:
    """The lanes for which a condition holds; None where more than the lane decides it."""
    if any(e.op not in LANE_OPERATIONS for e in walk([condition])):
        return None
    if any(e.args[0].free_symbols - {lane} for e in walk([condition]) if e.op == "index"):
        return None

    def value(expr: Expr, at: int):
        if expr.op == "index":
            return int(expr.args[0].subs(lane, at))
        if expr.op == "const":
            return expr.args[0]
        return LANE_OPERATIONS[expr.op](*(value(arg, at) for arg in expr.args))

    return frozenset(at for at in range(width) if value(condition, at))


def by_lines(index: Index, pack: Index, lines: tuple[Index, Index, Index]) -> Index:
    """A place in packs that are counted by lines: (the line, the place in it, a line's length)."""
    if pack not in index.free_symbols:
        return index
    line, at, length = lines
    parts: dict[Index, Index] = {}
    for atom in index.atoms(FloorDiv, Modulo):
        by = sympy.cancel(atom.args[1] / length) if atom.args[0] == pack else None
        if by is not None and by != 1 and sympy.numer(by) == 1:  # a part of a line
            part = FloorDiv(at, atom.args[1]) + line / by
            parts[atom] = part if isinstance(atom, FloorDiv) else Modulo(at, atom.args[1])
            continue
        if by is None or sympy.denom(by) != 1:
            continue
        if isinstance(atom, FloorDiv):
            parts[atom] = line if by == 1 else FloorDiv(line, by)
        else:
            parts[atom] = at if by == 1 else Modulo(line, by) * length + at
    return sympy.expand(index.xreplace(parts).xreplace({pack: line * length + at}))


def sought_of(expr: Expr) -> tuple[Expr, ...]:
    """What a search by halving looks for, where that is loaded: it is found once, in front of the loop."""
    if expr.op != "halved" or expr.args[2].op not in ("le", "lt"):
        return ()
    sought = expr.args[2].args[1]
    return (sought,) if loads_of([sought]) else ()


def apart(place: Index, lane: Index) -> tuple[Index, int]:
    """(what is left of the place, the number in it) without the lane."""
    shift, rest = sympy.expand(place - lane).as_coeff_Add()
    return rest, int(shift) if shift.is_Integer else 0


def shifts_of(values: list[Expr], lane: sympy.Symbol, width: int) -> dict[tuple[Buffer, Index], tuple[int, int]]:
    """(buffer, place without its number) of loads of which some begin between packs -> (where their window begins, its width)."""
    found: dict[tuple[Buffer, Index], set[int]] = {}
    for load in loads_of(values):
        buffer, place = load.args[:2]
        if load.op == "load" and lane in place.free_symbols:
            rest, shift = apart(place, lane)
            if lane not in rest.free_symbols and _is_multiple(rest, width) and _is_multiple(buffer.elements, width):
                found.setdefault((buffer, rest), set()).add(shift)
    windows = {}
    for key, numbers in found.items():
        first = min(numbers) // width * width
        whole = -(-(max(numbers) + width - first) // width) * width
        if any(number % width for number in numbers) and whole <= MOST_PACKS * width:
            windows[key] = first, whole
    return windows


def together(expr: Expr, lanes: set[Index]) -> Expr:
    """`condition ? a : b` with one load for each two of the branches; as it was where they do not pair. `lanes`: what tells lanes apart."""
    condition, *branches = expr.args
    loads = [list(loads_of([branch])) for branch in branches]
    if not loads[0] or len(loads[0]) != len(loads[1]) or any(branch.cost > CHEAP for branch in branches):
        return expr
    nested = [
        {id(e) for load in side for arg in load.args if isinstance(arg, Expr) for e in loads_of([arg])}
        for side in loads
    ]
    tops = [[load for load in side if id(load) not in inside] for side, inside in zip(loads, nested, strict=True)]
    if len(tops[0]) != len(tops[1]):
        return expr
    parts: list[dict[Expr, Expr]] = [{}, {}]
    for one, other in zip(*tops, strict=True):
        both = _both(condition, one, other, lanes)
        if both is None:
            return expr
        parts[0][one] = parts[1][other] = both
    made = [put(branch, known.get) for branch, known in zip(branches, parts, strict=True)]
    return made[0] if made[0] is made[1] else make("where", condition, *made, type=expr.type)


def _both(condition: Expr, one: Expr, other: Expr, lanes: set[Index]) -> Expr | None:
    """A load that reads what the condition says."""
    if one is other:
        return one
    if one.args[0] is not other.args[0] or one.type != other.type:
        return None
    strides = {load.args[2] for load in (one, other) if load.op == "load_at"}
    apart = sympy.expand(other.args[1] - one.args[1])
    if len(strides) > 1 or apart.free_symbols & lanes:
        return None
    if strides:
        (stride,) = strides
    elif apart == 0:
        return None
    else:
        stride = sympy.Integer(math.gcd(*(int(term.as_coeff_Mul()[0]) for term in sympy.Add.make_args(apart))))
    steps = sympy.cancel(apart / stride)
    if sympy.denom(steps) != 1:
        return None
    places = [load.args[3] if load.op == "load_at" else index_value(sympy.S.Zero) for load in (one, other)]
    if steps != 0:
        places[1] = index_value(steps) if other.op == "load" else binary("add", places[1], index_value(steps))
    type = "int64_t"
    named = [place if place.type == type else make("cast", place, type=type) for place in places]
    place = together(make("masked", condition, *named, type=type), lanes)
    if place.op == "masked":
        if loads_of(named):
            return None
        place = where(condition, *named)
    return make("load_at", one.args[0], one.args[1], stride, place, type=one.type)
