"""Operators that only the compiler lowers: bits and quotients of integers, scatters. Registered by being imported."""

from __future__ import annotations

import functools

import sympy
import torch

from compiler.draft.expressions import COMPUTED, Expr, binary, cast, compare, constant, index_value, make, where
from compiler.draft.index import Index
from compiler.draft.lower_pointwise import _stored
from compiler.draft.lower_views import wrapped
from compiler.draft.lowering import LOWERINGS, Lowering
from compiler.draft.tensors import NoDraft, Program, Scatter, Value

INTEGERS = {
    "bit_and": ("bitwise_and.Tensor", "bitwise_and.Scalar", "__and__.Tensor", "__and__.Scalar"),
    "bit_or": ("bitwise_or.Tensor", "bitwise_or.Scalar", "__or__.Tensor", "__or__.Scalar"),
    "bit_xor": ("bitwise_xor.Tensor", "bitwise_xor.Scalar", "__xor__.Tensor", "__xor__.Scalar"),
    "shift_right": ("bitwise_right_shift.Tensor", "bitwise_right_shift.Tensor_Scalar", "__rshift__.Scalar", "__rshift__.Tensor"),
    "shift_left": ("bitwise_left_shift.Tensor", "bitwise_left_shift.Tensor_Scalar", "__lshift__.Scalar", "__lshift__.Tensor"),
    "floor_quotient": ("floor_divide.default", "floor_divide.Scalar"),
    "floor_remainder": ("remainder.Tensor", "remainder.Scalar"),
}  # fmt: skip
"""Operation -> torch's operators, of integers; results of narrow ones wrap as torch's do."""


def _register(op: str, name: str) -> None:
    before = LOWERINGS.get(name)

    def lowered(low: Lowering, a, b):
        if before is not None and (found := before(low, a, b)) is not None:
            return found
        if low.dtype.is_floating_point or low.dtype == torch.bool:
            return None
        type, shape = COMPUTED[low.dtype], low.shape
        readers = [low.as_value(argument, type) for argument in (a, b)]

        def element(position) -> Expr:
            value = make(op, *(read(position, shape) for read in readers), type=type)
            return cast(_stored(value, low.dtype), type)

        return low.formula(element)

    LOWERINGS[name] = lowered


for _op, _names in INTEGERS.items():
    for _name in _names:
        _register(_op, f"aten.{_name}")


def _index_put(low: Lowering, a: Value, places, source, accumulate=False):
    """Of neighbouring axes that integer tensors name; which of two elements for one place wins is nobody's promise, as in torch."""
    named = [axis for axis, place in enumerate(places) if place is not None]
    apart = named != list(range(named[0], named[-1] + 1)) or any(not _counts(places[axis]) for axis in named)
    if low.program.settles or accumulate or apart or a.scatter is not None:
        return None
    first, last = named[0], named[-1]
    chosen = [places[axis] for axis in named]
    ranks = {len(place.shape) for place in chosen}
    if len(ranks) != 1:
        return None
    (rank,) = ranks
    counts = next(place.shape for place in chosen if all(size != 1 for size in place.shape) or place is chosen[-1])
    shape = (*a.shape[:first], *counts, *a.shape[last + 1 :])
    read = low.as_value(source, COMPUTED[a.dtype])

    def place_of(position) -> Index:
        rest = [*position[:first], *[sympy.Integer(0)] * len(named), *position[first + rank :]]
        return sympy.expand(a.offset + sympy.Add(*(p * s for p, s in zip(rest, a.strides, strict=True))))

    def by(position) -> tuple[Expr, Index]:
        at, stride = position[first : first + rank], a.strides[last]
        parts = []
        for axis, place in zip(named, chosen, strict=True):
            here = [sympy.Integer(0) if size == 1 else p for p, size in zip(at, place.shape, strict=True)]
            one, times = wrapped(low, place.at(here), a.shape[axis]), sympy.cancel(a.strides[axis] / stride)
            parts.append(one if times == 1 else binary("mul", one, index_value(times, "int64_t")))
        return functools.reduce(lambda one, other: binary("add", one, other), parts), stride

    def unread(position) -> Expr:
        raise NoDraft("what was written at computed places is read again")

    value = low.formula(unread, a.shape, a.dtype)
    value.scatter = Scatter(a, shape, lambda position: read(position, shape), place_of, by)
    return value


def _counts(place: Value) -> bool:
    return not place.dtype.is_floating_point and place.dtype != torch.bool


LOWERINGS["aten.index_put.default"] = _index_put

MOST_IN_TABLE = 64
"""Elements of a table that is chosen from by comparisons."""


def table_of(program: Program, held: torch.Tensor) -> Value:
    """The numbers of a tensor that a reference writes down, as an expression of the place. Raises NoDraft."""
    if held.numel() > MOST_IN_TABLE or type(held) is not torch.Tensor:
        raise NoDraft(f"the reference writes a tensor of more than {MOST_IN_TABLE} numbers down")
    type_, numbers = COMPUTED[held.dtype], held.flatten().tolist()

    def element(position) -> Expr:
        flat = sympy.Integer(0)
        for size, at in zip(held.shape, position, strict=True):
            flat = flat * size + at
        return _chosen(index_value(flat), [constant(number, type_) for number in numbers])

    return program.formula(held.shape, held.dtype, element, "table")


def _chosen(place: Expr, parts: list[Expr], first: int = 0) -> Expr:
    """The part at a place, by halves; `first`: the place of the first of these."""
    if place.op == "index" and place.args[0].is_Integer:
        return parts[int(place.args[0])]
    if len(parts) == 1:
        return parts[0]
    half = len(parts) // 2
    here = compare("lt", place, constant(first + half, "int64_t"))
    return where(here, _chosen(place, parts[:half], first), _chosen(place, parts[half:], first + half))


def _index(low: Lowering, a: Value, places):
    """Of a short table that is no buffer; the rest is gathered."""
    (place, *more) = places
    short = a.buffer is None and len(a.shape) == 1 and a.shape[0].is_Integer and a.shape[0] <= MOST_IN_TABLE
    if more or place is None or not _counts(place) or not short:
        return _GATHERED(low, a, places)
    parts = [a.at([sympy.Integer(number)]) for number in range(int(a.shape[0]))]
    return low.formula(lambda position: _chosen(wrapped(low, place.at(position), a.shape[0]), parts))


_GATHERED = LOWERINGS["aten.index.Tensor"]
LOWERINGS["aten.index.Tensor"] = _index
