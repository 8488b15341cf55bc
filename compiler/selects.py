"""Where the extremes of an axis are, in the reductions that every sketch has: the extreme, then the first place that holds it.

A row that stays in registers is read once, whatever number of reductions goes over it. Drafts, whose rows do not, keep
their reduction over pairs. `extend_table` registers them.
"""

from __future__ import annotations

import functools
import itertools
from typing import TypeVar

import sympy
import torch

from compiler.draft.expressions import (
    COMPUTED,
    Expr,
    binary,
    cast,
    compare,
    constant,
    index_value,
    loads_of,
    make,
    symbols_of,
    walk,
    where,
)
from compiler.draft.index import flatten, product, unflatten
from compiler.draft.lower_reductions import fold_over
from compiler.draft.lowering import Lowering, extend, lowers, plain
from compiler.draft.partition import Kernel
from compiler.draft.tensors import Buffer, Definition, NoDraft, Piece, Program, Value
from compiler.one_hot import read_of_one_hot
from compiler.strides import LEAST_EXTENT, goes_across, loads_at_once, strides_along

Taken = TypeVar("Taken", bound=Kernel)
MOST_SELECTED = 8
"""Rounds of two reductions each; sorting is another algorithm."""
NOWHERE = 2**31 - 1


def _either(a: Expr, b: Expr) -> Expr:
    return binary("or", a, b)


def _one(low: Lowering, a: Value, axis: int, kind: str, taken: tuple[Value, ...]) -> tuple[Value, Value]:
    """(the extreme, the first place that holds it) along an axis, of places that are not `taken`, with the axis as one."""
    floats = a.dtype.is_floating_point
    worst = (float("-inf") if kind == "max" else float("inf")) if floats else (-(2**31) if kind == "max" else NOWHERE)

    def beside(value: Value, position) -> Expr:
        at = list(position)
        at[axis] = sympy.Integer(0)
        return value.at(at)

    def is_taken(position) -> Expr | None:
        place, found = index_value(position[axis], "int64_t"), None
        for other in taken:
            same = compare("eq", place, beside(other, position))
            found = same if found is None else _either(found, same)
        return found

    def left(position) -> Expr:
        value, gone = a.at(position), is_taken(position)
        return value if gone is None else where(gone, constant(worst, value.type), value)

    best = fold_over(low, kind, a, [axis], True, left, dtype=a.dtype)

    def place_if_best(position) -> Expr:
        value, most = a.at(position), beside(best, position)
        hit = compare("eq", value, most)
        if floats:  # torch takes what is no number for the largest and the smallest
            hit = _either(hit, binary("and", compare("ne", value, value), compare("ne", most, most)))
        gone, nowhere = is_taken(position), constant(NOWHERE, "int64_t")
        here = where(hit, index_value(position[axis], "int64_t"), nowhere)
        return here if gone is None else where(gone, nowhere, here)

    return best, fold_over(low, "min", a, [axis], True, place_if_best, dtype=torch.int64)


def _shaped(low: Lowering, value: Value, axis: int, keepdim: bool) -> Value:
    shape = [size for at, size in enumerate(value.shape) if keepdim or at != axis]
    return low.program.reshape(value, shape)


def _arg(kind: str, before, low: Lowering, a: Value, dim=None, keepdim=False):
    if low.program.settles or dim is None or not a.shape:
        return before(low, a, dim, keepdim)
    axis = dim % len(a.shape)
    return _shaped(low, _one(low, a, axis, kind, ())[1], axis, keepdim)


def _with_places(kind: str, before, low: Lowering, a: Value, dim, keepdim=False):
    if low.program.settles or not a.shape:
        return before(low, a, dim, keepdim)
    axis = dim % len(a.shape)
    return tuple(_shaped(low, found, axis, keepdim) for found in _one(low, a, axis, kind, ()))


LONGEST_ACROSS = 2048
"""Elements of a row that lies across memory of which several rounds are taken there; more are turned first."""


def _lies_across(low: Lowering, a: Value) -> bool:
    """Whether a long row's elements lie apart, each beside the next row's."""
    if low.program.estimate(a.shape[-1]) <= LONGEST_ACROSS:
        return False
    at = [low.program.ranges.variable(f"read{axis}", size) for axis, size in enumerate(a.shape)]
    found = [strides_along(load.args[1], at) for load in loads_at_once([a.at(at)])]
    return any(goes_across(steps, axis, len(at) - 1) for steps in found for axis in range(len(at) - 1))


def _topk(low: Lowering, a: Value, k, dim=-1, largest=True, sorted=True):
    if low.program.settles or not a.shape or plain(k) > MOST_SELECTED or dim % len(a.shape) != len(a.shape) - 1:
        return None
    if plain(k) > 1 and _lies_across(low, a):
        if not low.program.in_scratch:
            raise NoDraft("the largest few of what lies across memory are taken of rows that are turned first")
        low.program.realise(a)
    axis = len(a.shape) - 1
    values: list[Value] = []
    places: list[Value] = []
    for _ in range(plain(k)):
        best, place = _one(low, a, axis, "max" if largest else "min", tuple(places))
        if place.buffer is not None and isinstance(made := place.buffer.written_by, Definition):
            made.first = len(places) + 1
        values.append(best)
        places.append(place)
    return _side_by_side(low, values, a.dtype), _side_by_side(low, places, torch.int64)


def _side_by_side(low: Lowering, columns: list[Value], dtype: torch.dtype) -> Value:
    """[..., 1] each as [..., k]."""
    return low.formula(_columns_at(columns), [*columns[0].shape[:-1], len(columns)], dtype)


def _columns_at(columns: list[Value]):
    """[..., 1] each: the element of the one that the last index names."""

    def element(position) -> Expr:
        if position[-1].is_Integer:
            return columns[int(position[-1])].at([*position[:-1], sympy.Integer(0)])
        chosen = columns[-1].at([*position[:-1], sympy.Integer(0)])
        for number in range(len(columns) - 2, -1, -1):
            here = compare("eq", index_value(position[-1]), constant(number, "int64_t"))
            chosen = where(here, columns[number].at([*position[:-1], sympy.Integer(0)]), chosen)
        return chosen

    return element


class SelectedProgram(Program):
    """Whose definitions over a few columns that were selected are one a column, so that a row's reductions stay where they are."""

    def take(self, kernel: Taken) -> Taken:
        """The kernel, whose definitions are no other's."""
        definitions = {member.definition for member in kernel.members}
        self.definitions = [d for d in self.definitions if d not in definitions]
        return kernel

    open_steps: tuple[tuple[sympy.Symbol, sympy.Expr], ...] = ()
    """The steps of loops that stay loops, with how many there are."""
    finite: frozenset[Buffer] = frozenset()
    """Inputs that hold no infinity, or of which nobody asks what becomes of one."""
    unrolled = 0
    """Elements up to which a reduction is an expression."""

    def fold(self, kind, source, axes, dtypes, element=None):
        last, read = len(source.shape) - 1, element or source.at
        folded = {axis % len(source.shape) for axis in axes}
        count: sympy.Expr = product(source.shape[axis] for axis in folded)
        only_axis = next(iter(folded)) if len(folded) == 1 else None
        one = read_of_one_hot(self.ranges, source, only_axis, read) if kind == "sum" and only_axis is not None else None
        if one is not None:
            kept = [size for axis, size in enumerate(source.shape) if axis != only_axis]
            return [self.formula(kept, dtypes[0], lambda p: cast(one(p), COMPUTED[dtypes[0]]), source.origin)]
        if self.repeats and count.is_Integer and count <= MOST_REPEATED and kind in LOOPED and self._is_small(source):
            return [self._repeated(kind, source, sorted(folded), dtypes[0], read)]
        if count.is_Integer and count <= self.unrolled and kind in JOINED:
            return [self._unrolled(kind, source, sorted(folded), dtypes[0], read)]
        joined = JOINED.get(kind)
        if (
            joined is None
            or [axis % len(source.shape) for axis in axes] != [last]
            or not _is_selected(self, source, read)
        ):
            if (
                self.divides_rows
                and kind in JOINED
                and folded == {last}
                and last > 0
                and _is_few(source.shape[last - 1])
            ):
                return [self._of_groups(kind, source, dtypes[0], read)]
            (only, *more) = folded or (0,)
            edge = None if kind not in JOINED or more or not folded else self._edge(source, only, read)
            if edge is not None:
                return [self._in_parts(kind, source, only, edge, dtypes[0], read)]
            return super().fold(kind, source, axes, dtypes, element)
        type = COMPUTED[dtypes[0]]

        def of_columns(position) -> Expr:
            values = [cast(read([*position, sympy.Integer(number)]), type) for number in range(int(source.shape[last]))]
            return functools.reduce(lambda a, b: binary(joined, a, b), values)

        return [self.formula(source.shape[:last], dtypes[0], of_columns, self.operator or source.origin)]

    multiplies = False
    """Whether a phase can be a product of matrices, as on a CPU."""
    repeats = False
    """Whether every thread takes the reductions itself that go over little beside what the kernel reads at all."""

    def _edge(self, source: Value, axis: int, read) -> sympy.Expr | None:
        """How many elements of a reduction lie before a few last ones that are something else: a row's, of which a sink is one more."""
        size = source.shape[axis]
        if self.settles or size.is_Integer:
            return None
        at = [self.ranges.named(f"read{n}", end) for n, end in enumerate(source.shape)]
        for expr in walk([read(at)]):
            if expr.op == "lt" and all(arg.op == "index" for arg in expr.args) and expr.args[0].args[0] == at[axis]:
                end = expr.args[1].args[0]
                if (size - end).is_Integer and 0 < size - end <= MOST_LAST:
                    return end
        return None

    def _in_parts(self, kind: str, source: Value, axis: int, edge: sympy.Expr, dtype, read) -> Value:
        shape = [edge if n == axis else size for n, size in enumerate(source.shape)]
        first = self.formula(shape, source.dtype, read, source.origin)
        (main,) = self.fold(kind, first, [axis], [dtype])
        type = COMPUTED[dtype]

        def element(position) -> Expr:
            found = cast(main.at(position), type)
            for last in range(int(source.shape[axis] - edge)):
                own = read([*position[:axis], edge + last, *position[axis:]])
                found = binary(JOINED[kind], found, cast(own, type))
            return found

        return self.formula(main.shape, dtype, element, self.operator or source.origin)

    def _repeated(self, kind: str, source: Value, folded: list[int], dtype: torch.dtype, read) -> Value:
        sizes = [source.shape[axis] for axis in folded]
        kept = [size for axis, size in enumerate(source.shape) if axis not in folded]

        def element(position) -> Expr:
            step = self.ranges.named(self.name("each"), product(sizes))
            at = list(position)
            for axis, place in zip(folded, unflatten(step, sizes, self.ranges), strict=True):
                at.insert(axis, place)
            value = cast(read(at), COMPUTED[dtype])
            return make("repeated", kind, step, product(sizes), value, type=COMPUTED[dtype])

        return self.formula(kept, dtype, element, self.operator or source.origin)

    def _is_small(self, source: Value) -> bool:
        largest = max(self.estimate(buffer.elements) for buffer in self.buffers)
        return self.estimate(product(source.shape)) * SMALL_BY <= largest

    divides_rows = False
    """Whether reductions of each of a few parts of a row are reductions of the row, of which they take their part."""

    def _of_groups(self, kind: str, source: Value, dtype: torch.dtype, read) -> Value:
        """[..., groups, each] over `each`: the row [..., groups * each] is read once for all of them."""
        *lead, groups, each = source.shape
        type, row = COMPUTED[dtype], (*lead, sympy.expand(groups * each))
        columns = []
        for number in range(int(groups)):

            def element(position, number=number) -> Expr:
                *outer, place = position
                group, within = unflatten(place, (groups, each), self.ranges)
                own = compare("eq", index_value(group), index_value(sympy.Integer(number)))
                value = cast(read([*outer, group, within]), type)
                return where(own, value, constant(NEUTRAL[kind](dtype), type))

            whole = self.formula(row, dtype, element, source.origin)
            (one,) = super().fold(kind, whole, [len(row) - 1], [dtype])
            columns.append(self.reshape(one, (*lead, 1)))
        return self.formula((*lead, groups), dtype, _columns_at(columns), self.operator or source.origin)

    def _unrolled(self, kind: str, source: Value, folded: list[int], dtype: torch.dtype, read) -> Value:
        sizes = [int(source.shape[axis]) for axis in folded]
        kept = [size for axis, size in enumerate(source.shape) if axis not in folded]

        def element(position) -> Expr:
            values = []
            for steps in itertools.product(*map(range, sizes)):
                at = list(position)
                for axis, step in zip(folded, steps, strict=True):
                    at.insert(axis, sympy.Integer(step))
                values.append(cast(read(at), COMPUTED[dtype]))
            return functools.reduce(lambda a, b: binary(JOINED[kind], a, b), values)

        return self.formula(kept, dtype, element, self.operator or source.origin)


def _lowest(dtype: torch.dtype):
    return float("-inf") if dtype.is_floating_point else -(2**31)


def _highest(dtype: torch.dtype):
    return float("inf") if dtype.is_floating_point else NOWHERE


NEUTRAL = {
    "sum": lambda dtype: 0, "prod": lambda dtype: 1, "max": _lowest, "min": _highest, "any": lambda dtype: False, "all": lambda dtype: True,
}  # fmt: skip


def _is_few(size) -> bool:
    return bool(size.is_Integer and 1 < size <= MOST_GROUPS)


LOOPED = ("sum", "max", "min")
MOST_REPEATED, SMALL_BY = 256, 32
"""Elements of a reduction that every thread takes itself, which is that much smaller than the largest tensor."""
MOST_GROUPS = 16
"""Parts of a row up to which each has a reduction of the whole row."""
MOST_LAST = 8
"""Elements behind a row's that are joined to its reduction one by one."""
JOINED = {"sum": "add", "prod": "mul", "max": "max", "min": "min", "any": "or", "all": "and"}
"""Reduction -> the operation that joins two."""


def _is_selected(program: Program, value: Value, read) -> bool:
    """Whether nothing that it loads differs from column to column of a few."""
    if value.buffer is not None or not value.shape or not value.shape[-1].is_Integer or value.shape[-1] > MOST_SELECTED:
        return False
    at = [program.ranges.named(f"at{axis}", size) for axis, size in enumerate(value.shape)]
    expr = read(at)
    return at[-1] in symbols_of(expr) and not any(at[-1] in load.args[1].free_symbols for load in loads_of([expr]))


def pieces_of(program: Program, value: Value) -> tuple[Piece, ...]:
    """The columns of a value that was computed of a few selected ones, each written by itself; none of any other."""
    if not _is_selected(program, value, value.at):
        return ()
    *kept, count = value.shape

    def piece(number: int) -> Piece:
        whole = lambda position: [*position, sympy.Integer(number)]  # noqa: E731
        column = program.formula(kept, value.dtype, lambda position: value.at(whole(position)), value.origin)
        return Piece(column, lambda position: flatten(whole(position), value.shape))

    return tuple(piece(number) for number in range(int(count)))


MOST_PLANES = 4
"""Elements of an axis of which a thread writes all: three colours."""


def planes_of(program: Program, value: Value) -> tuple[Piece, ...]:
    """The parts along an axis of a few elements that lie between each other in what is read, or in what is written but not in what is read,
    each by itself: one thread then has them all, and what it moves lies together. None of any other value."""
    shape, last = value.shape, len(value.shape) - 1
    if value.buffer is not None and value.is_whole:
        return components_of(program, value)
    if last < 1 or value.pieces:
        return ()
    few = [axis for axis, size in enumerate(shape) if size.is_Integer and 1 < size <= MOST_PLANES]
    at = [program.ranges.named(f"read{axis}", size) for axis, size in enumerate(shape)]
    found = [strides_along(load.args[1], at) for load in loads_at_once([value.at(at)])] if few else []

    def apart(axis: int) -> bool:
        beside = last - 1 if axis == last else last
        if program.estimate(shape[beside]) < LEAST_EXTENT:
            return False
        read = [(steps[axis], steps[beside]) for steps in found]
        if axis == last:
            return any(beside_by == 1 and by not in (None, 0, 1) for by, beside_by in read)
        return any(by == 1 and beside_by == shape[axis] for by, beside_by in read)

    axis = next((axis for axis in few if apart(axis)), None)
    return () if axis is None else tuple(_plane(program, value, axis, number) for number in range(int(shape[axis])))


def components_of(program: Program, value: Value) -> tuple[Piece, ...]:
    """A sum of vectors of a few elements over pairs of what is kept and what is summed, a sum to each element: most of what is summed is the same for
    all of them, as a pair's distance is, and a thread then computes it once. None of a sum of what lies in memory for each pair."""
    made = value.buffer.written_by if value.buffer is not None else None
    if (
        not isinstance(made, Definition)
        or made.kind not in JOINED
        or len(made.outs) > 1
        or len(made.reduced) != 1
        or len(made.ranges) < 3
    ):
        return ()
    (folded,), last = made.reduced, len(made.ranges) - 1
    count = made.ranges[last]
    if folded == last or not (count.is_Integer and 1 < count <= MOST_PLANES):
        return ()
    at = program.ranges.probe(made.ranges)
    step, element, rows = at[folded], at[last], {one for axis, one in enumerate(at) if axis not in (folded, last)}
    told = [
        (step in found, bool(rows & found), element in found, expr.op)
        for expr in walk([made.element(at)])
        for found in [symbols_of(expr)]
    ]
    in_memory = any(by_step and by_row for by_step, by_row, _, op in told if op in ("load", "load_at"))
    shared = sum(by_step and by_row and not by_element for by_step, by_row, by_element, _ in told)
    if in_memory or shared < sum(by_element for _, _, by_element, _ in told):
        return ()
    kept = [size for axis, size in enumerate(made.ranges) if axis not in (folded, last)]

    def plane(number: int) -> Piece:
        def of(position):
            where = [*position[1:], sympy.Integer(number)]
            return made.element([*where[:folded], position[0], *where[folded:]])

        whole = program.formula([made.ranges[folded], *kept], value.dtype, of, made.origin)
        (sums,) = program.fold(made.kind, whole, [0], [value.dtype])
        return Piece(sums, lambda position: flatten([*position, sympy.Integer(number)], value.shape))

    return tuple(plane(number) for number in range(int(count)))


def _plane(program: Program, value: Value, axis: int, number: int) -> Piece:
    def within(position):
        return [*position[:axis], sympy.Integer(number), *position[axis:]]

    kept = [size for at, size in enumerate(value.shape) if at != axis]
    plane = program.formula(kept, value.dtype, lambda position: value.at(within(position)), value.origin)
    return Piece(plane, lambda position: flatten(within(position), value.shape))


def extend_table() -> None:
    for kind in ("max", "min"):
        extend(functools.partial(_arg, kind), f"aten.arg{kind}.default")
        extend(functools.partial(_with_places, kind), f"aten.{kind}.dim")
    lowers("aten.topk.default")(_topk)
