"""What all elements of an axis would compute again, made once and kept in a unit's memory: in phases nobody else takes it out of the loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import sympy
import torch

from compiler.draft.expressions import Expr, loads_of, make, put, replace_indices, symbols_of
from compiler.draft.index import Index, flatten, product
from compiler.draft.tensors import Definition, Position, Program

REPEATED, DEAR = 64, 16
"""Elements that compute the same, and its instructions, from which on it is kept."""


def keep_invariants(program: Program) -> None:
    """Maps of their own for parts of elements that lack axes of many elements: a matrix that a product's every column would make again."""
    for order, one in enumerate(sorted(program.definitions, key=lambda one: one.order)):
        one.order = 2 * order + 1
    found: list[Definition] = []
    for definition in program.definitions:
        found += [*_kept_of(program, definition), definition]
    program.definitions = found


def _kept_of(program: Program, definition: Definition) -> Iterator[Definition]:
    """The maps; the definition then reads what they make."""
    if definition.recurrence is not None or definition.planes is not None:
        return
    at = program.ranges.probe(definition.ranges, program.name("kept"))
    whole = definition.element(at)
    parts = list(dict.fromkeys(_parts(program, definition, whole, at)))
    loads: dict[Expr, Expr] = {}
    for part in parts:
        axes = _axes_of(part, at)
        ranges = tuple(definition.ranges[axis] for axis in axes)
        buffer = program.allocate(ranges, torch.float32, f"{definition.origin}_kept")
        own = [at[axis] for axis in axes]
        yield Definition(
            definition.order - 1, "map", ranges, frozenset(), _moved(part, own), [buffer], definition.origin, part.type
        )
        loads[part] = make("load", buffer, flatten(own, ranges), type="float")
    if loads:
        definition.element = _moved(put(whole, loads.get), at)


def _parts(program: Program, definition: Definition, expr: Expr, at: list[Index]) -> Iterator[Expr]:
    """The largest parts of an element that are worth it, none of what a condition guards."""
    lacks = [size for place, size in zip(at, definition.ranges, strict=True) if place not in symbols_of(expr)]
    others = symbols_of(expr) & program.ranges.ends.keys() - set(at)
    again = program.estimate(product(lacks)) >= REPEATED and not others
    if again and expr.cost >= DEAR and expr.type == "float" and loads_of([expr]):
        yield expr
        return
    guarded = expr.op in ("masked", "repeated", "halved")
    for arg in expr.args[: 1 if guarded else None]:
        if isinstance(arg, Expr) and expr.cost > DEAR and expr.op not in ("repeated", "halved"):
            yield from _parts(program, definition, arg, at)


def _axes_of(expr: Expr, at: list[Index]) -> list[int]:
    return [axis for axis, place in enumerate(at) if place in symbols_of(expr)]


def _moved(expr: Expr, at: list[Index]) -> Callable[[Position], Expr]:
    """The expression, which is of the place `at`, at any other."""

    def element(position: Position) -> Expr:
        moved = {symbol: place for symbol, place in zip(at, position, strict=True) if symbol.is_Symbol}
        return replace_indices(expr, lambda index: sympy.expand(index.xreplace(moved)))

    return element
