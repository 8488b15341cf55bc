"""Sums over what is zero but at one place: what stands there."""

from __future__ import annotations

from collections.abc import Callable

import sympy

from compiler.draft.expressions import Expr, all_of, cast, compare, constant, index_value, masked, symbols_of
from compiler.draft.index import Ranges
from compiler.draft.tensors import Position, Value
from compiler.indexing import _put_in


def read_of_one_hot(ranges: Ranges, source: Value, axis: int, read) -> Callable[[Position], Expr] | None:
    """What a sum along an axis is of whose elements all but one are zero, the one where a number says; None where they are not.

    Numbers that are multiplied by zeros are integers: of floats, infinity would be no number.
    """
    at = ranges.probe(source.shape)
    if not at[axis].is_Symbol or _one_of(read(at), at[axis]) is None:
        return None
    size = source.shape[axis]

    def element(position: Position) -> Expr:
        step = sympy.Symbol("one_hot", integer=True, nonnegative=True)
        found = _one_of(read([*position[:axis], step, *position[axis:]]), step)
        assert found is not None
        place, value = found
        inside = [compare("ge", place, constant(0, "int64_t")), compare("lt", place, index_value(size))]
        return masked(all_of(inside), _put_in(value, {step: place}), constant(0, value.type))

    return element


def _one_of(value: Expr, step: sympy.Symbol) -> tuple[Expr, Expr] | None:
    """(the one place at which it is not zero, the value there)."""
    type = value.type
    while value.op == "cast" and value.args[0].type != "bool":
        value = value.args[0]
    if value.op in ("where", "masked") and value.args[2].op == "const" and value.args[2].args[0] == 0:
        place, value = _place_of_one(value.args[0], step), value.args[1]
    elif value.op == "cast":
        place, value = _place_of_one(value.args[0], step), constant(1, value.type)
    elif value.op == "mul" and value.type in ("int32_t", "int64_t"):
        places = [_place_of_one(part.args[0], step) if part.op == "cast" else None for part in value.args]
        place, value = next(((p, other) for p, other in zip(places, value.args[::-1], strict=True) if p is not None), (None, value))  # fmt: skip
    else:
        return None
    return None if place is None else (place, cast(value, type))


def _place_of_one(condition: Expr, step: sympy.Symbol) -> Expr | None:
    """What the step is equal to where the condition holds."""
    if condition.op != "eq" or any(arg.type in ("float", "double", "bool") for arg in condition.args):
        return None
    sides = [arg.args[0] if arg.op == "cast" else arg for arg in condition.args]
    for own, other in (sides, sides[::-1]):
        if own.op == "index" and own.args[0] == step and step not in symbols_of(other):
            return cast(other, "int64_t")
    return None
