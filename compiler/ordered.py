"""Operators whose results go through memory: sorts, scans, counts, scatters into anything, places in sorted rows. `extend_table` registers them."""

from __future__ import annotations

import functools
import math

import sympy
import torch

from compiler.draft.expressions import (
    COMPUTED,
    Expr,
    all_of,
    binary,
    cast,
    compare,
    constant,
    index_value,
    make,
    masked,
    where,
)
from compiler.draft.index import number
from compiler.draft.lower_reductions import is_short_scan
from compiler.draft.lowering import LOWERINGS, Lowering, extend, lowers, plain
from compiler.draft.tensors import Definition, NoDraft, Position, Value
from compiler.indexing import begin_of, into, is_kept
from compiler.selects import MOST_SELECTED

# ------------------------------------------------------------------------------------------ sorts


def _sorted(low: Lowering, a: Value, dim: int, falling: bool, first: int = 0) -> tuple[Value, Value]:
    """(the values in order, the places that they had) along an axis; equal ones as they stood. `first`: how many are wanted; 0: all."""
    axis, program = dim % len(a.shape), low.program
    last = [n for n in range(len(a.shape)) if n != axis] + [axis]
    back = [last.index(n) for n in range(len(a.shape))]
    shape, order = [a.shape[n] for n in last], program.next_order()
    outs = [
        program.allocate(shape, dtype, f"{low.name}_{word}")
        for dtype, word in ((a.dtype, "values"), (torch.int64, "places"))
    ]
    definition = Definition(
        order, "sort_falling" if falling else "sort", tuple(shape), frozenset({len(shape) - 1}),
        lambda position: a.at([position[n] for n in back]), outs, low.name, a.type, first=first,
    )  # fmt: skip
    values, places = program.define(definition)
    if axis == len(a.shape) - 1:
        return values, places

    def turned(value: Value) -> Value:
        return program.formula(a.shape, value.dtype, lambda p: value.at([p[n] for n in last]), low.name)

    return turned(values), turned(places)


def _sort(low: Lowering, a: Value, *more, dim=-1, descending=False, stable=None):
    """aten.sort and aten.sort.stable, whose orders of arguments differ."""
    if not is_kept(low):
        return None
    if low.node is not None and str(low.node.target).endswith("stable"):
        more = more[1:]
    dim, descending = (*more, *(dim, descending)[len(more) :])
    if not a.shape:
        return a, low.program.formula((), torch.int64, lambda _: constant(0, "int64_t"), low.name)
    return _sorted(low, a, dim, bool(descending))


MOST_FIRST = 16
"""Elements up to which the largest are found one by one."""


def _topk(before, low: Lowering, a: Value, k, dim=-1, largest=True, sorted=True):
    few = isinstance(k, int) and k <= MOST_SELECTED and bool(a.shape) and dim % len(a.shape) == len(a.shape) - 1
    if low.program.settles or not a.shape or (few and not low.program.in_memory):
        return before(low, a, k, dim, largest, sorted)
    if not is_kept(low):
        return None
    axis = dim % len(a.shape)
    shape = [number(plain(k)) if at == axis else size for at, size in enumerate(a.shape)]
    first = k if isinstance(k, int) and 0 < k <= MOST_FIRST else 0
    found = _sorted(low, a, axis, bool(largest), first)
    return tuple(low.program.strided(v, shape, v.strides, v.offset) if v.buffer is not None else low.formula(v.at, shape, v.dtype) for v in found)  # fmt: skip


# ------------------------------------------------------------------------------------------ scans


SCANS = {
    "scan_sum": "cumsum",
    "scan_prod": "cumprod",
    "scan_max": "cummax",
    "scan_min": "cummin",
    "scan_log_add": "logcumsumexp",
}
EXTREMES = ("scan_max", "scan_min")
"""Those that answer places, too."""


def _scan(kind: str, before, low: Lowering, a: Value, dim, **more):
    if low.program.settles or (kind in ("scan_sum", "scan_prod") and is_short_scan(a)):
        return before(low, a, dim, **more)
    if kind == "scan_sum" and (found := _differences_summed(low, a, dim)) is not None:
        return found
    is_kept(low)
    pair = kind in EXTREMES
    dtype = low.meta[0].dtype if pair else low.dtype
    made = low.program.scan(kind, a, dim, dtype, False, False) if a.shape else a
    return (made, low.program.formula(made.shape, torch.int64, _unread, low.name)) if pair else made


def _differences_summed(low: Lowering, a: Value, dim: int) -> Value | None:
    """Sums of integers' differences: what stands there less what stood first."""
    if a.dtype != torch.int64 or low.dtype != torch.int64 or not a.shape:
        return None
    axis, program = dim % len(a.shape), low.program
    at = [program.ranges.named(f"read{n}", size) for n, size in enumerate(a.shape)]
    whole = a.at(at)
    if whole.op != "sub" or any(one.op != "load" for one in whole.args):
        return None
    (buffer, behind), (other, ahead) = (one.args for one in whole.args)
    if buffer is not other or sympy.expand(ahead.subs(at[axis], at[axis] + 1) - behind) != 0:
        return None

    def element(position: Position) -> Expr:
        first = [sympy.S.Zero if n == axis else one for n, one in enumerate(position)]
        return make("sub", a.at(position).args[0], a.at(first).args[1], type="int64_t")

    return low.formula(element, a.shape, torch.int64)


def _unread(position: Position) -> Expr:
    raise NoDraft("places of running extremes are read otherwise than from torch.cummax: call that")


# ------------------------------------------------------------------------------------------ scatters


def _along(kind: str):
    """aten.scatter and scatter_add: the index names places along one axis."""

    def lowered(low: Lowering, a: Value, dim, indices: Value, source, **_):
        if not is_kept(low):
            return None
        dim %= len(a.shape)
        read = low.as_value(source, a.type)

        def at(position):
            return [cast(indices.at(position), "int64_t") if n == dim else p for n, p in enumerate(position)]

        element = lambda position: read(position, indices.shape)  # noqa: E731
        return into(low.program, low.name, a, kind, indices.shape, element, at)

    return lowered


JOINS = {"sum": "add", "mean": "add", "amax": "scatter_max", "amin": "scatter_min"}
JOINED = (torch.float32, torch.float64, torch.int32, torch.int64)
"""What the device compares and swaps in one step."""


def _reduced(low: Lowering, a: Value, dim, indices: Value, source: Value, reduce, include_self=True):
    """aten.scatter_reduce, whose indices have the source's axes, and aten.index_reduce, whose have one."""
    floating = a.dtype.is_floating_point
    if reduce not in JOINS or (reduce == "mean" and not floating) or not is_kept(low):
        return None
    if not floating and a.dtype not in JOINED:
        raise NoDraft(f"no phase joins {str(a.dtype).removeprefix('torch.')} at computed places")
    dim %= len(a.shape)
    along = len(indices.shape) == len(source.shape)
    shape = indices.shape if along else source.shape
    dtype = torch.float32 if floating and a.dtype.itemsize < 4 else a.dtype
    type = COMPUTED[dtype]

    def at(position):
        place = cast(indices.at(position if along else [position[dim]]), "int64_t")
        return [place if n == dim else p for n, p in enumerate(position)]

    def made(kind: str, start, element) -> Value:
        return into(
            low.program, low.name, low.program.formula(a.shape, dtype, start, low.name), kind, shape, element, at
        )

    start = lambda position: cast(a.at(position), type)  # noqa: E731
    count = None
    if reduce == "mean" or not include_self:
        count = made("add", lambda _: constant(int(include_self), type), lambda _: constant(1, type)).at
    if count is not None and not include_self:
        reset = {"amax": -math.inf, "amin": math.inf}.get(reduce, 0) if floating else None
        if reset is None and reduce != "sum":
            raise NoDraft("integers at places that take no part themselves")
        begin, named = constant(reset or 0, type), count
        start = lambda p: where(compare("gt", named(p), constant(0, type)), begin, cast(a.at(p), type))  # noqa: E731
    joined = made(JOINS[reduce], start, lambda position: cast(source.at(position), type))
    if reduce != "mean" or count is None:
        return low.formula(joined.at, a.shape, a.dtype)
    most = lambda p: make("max", count(p), constant(1, type), type=type)  # noqa: E731
    return low.formula(lambda p: binary("div", joined.at(p), most(p)), a.shape, a.dtype)


# ------------------------------------------------------------------------------------------ places in sorted rows


def _place_in(low: Lowering, row: Value, value: Value, right: bool) -> Value:
    """How many of a sorted row stand before each value, found by halving; in memory where there is any, so that each is found once."""
    program, length, lead = low.program, row.shape[-1], len(row.shape) - 1

    def element(position: Position) -> Expr:
        step = program.ranges.named(program.name("halved"), length)
        one, sought = row.at([*position[:lead], step]), value.at(position)
        return make("halved", step, length, compare("le" if right else "lt", one, sought), type="int64_t")

    if not program.in_memory:
        return low.formula(element, value.shape)
    out = program.allocate(value.shape, torch.int64, low.name)
    return program.define(
        Definition(program.next_order(), "map", value.shape, frozenset(), element, [out], low.name, "int64_t")
    )[0]


def _searchsorted(low: Lowering, row: Value, value, out_int32=False, right=False, side=None, sorter=None):
    if low.program.settles or sorter is not None:
        return None
    if not isinstance(value, Value):
        number_ = value
        value = low.formula(lambda _: constant(number_, row.type), (), row.dtype)
    return _place_in(low, row, value, bool(right) or side == "right")


def _bucketize(low: Lowering, value, row: Value, out_int32=False, right=False):
    return _searchsorted(low, row, value, right=right)


def _in_memory(lowering, before, low: Lowering, *arguments, **keywords):
    """In place of what an operator is without memory, where there is some, and behind it."""
    first = lowering if low.program.in_memory else before
    return _behind(lowering, first, low, *arguments, **keywords)


def _select_scatter(low: Lowering, a: Value, source: Value, dim, index):
    dim %= len(a.shape)
    at = number(index) if not isinstance(index, int) or index >= 0 else a.shape[dim] + index

    def element(position: Position) -> Expr:
        here = compare("eq", index_value(position[dim]), index_value(at))
        return where(here, cast(source.at([*position[:dim], *position[dim + 1 :]]), a.type), a.at(position))

    return low.formula(element)


def _slice_scatter(low: Lowering, a: Value, source: Value, dim=0, start=None, end=None, step=1):
    dim %= len(a.shape)
    if step != 1:
        return None
    first = begin_of(a, dim, start)

    def element(position: Position) -> Expr:
        place = index_value(position[dim])
        inside = [
            compare("ge", place, index_value(first)),
            compare("lt", place, index_value(first + source.shape[dim])),
        ]
        within = [p - first if n == dim else p for n, p in enumerate(position)]
        return masked(all_of(inside), cast(source.at(within), a.type), a.at(position))

    return low.formula(element)


def _behind(lowering, before, low: Lowering, *arguments, **keywords):
    """Where an operator has no other form."""
    found = before(low, *arguments, **keywords)
    return found if found is not None or low.program.settles else lowering(low, *arguments, **keywords)


def _empty(low: Lowering, *_, **__):
    return None if low.program.settles else low.formula(lambda _: constant(0, COMPUTED[low.dtype]))


def extend_table() -> None:
    extend(functools.partial(_behind, _select_scatter), "aten.select_scatter.default")
    extend(functools.partial(_behind, _slice_scatter), "aten.slice_scatter.default")
    extend(_topk, "aten.topk.default")
    lowers("aten.sort.default", "aten.sort.stable")(_sort)
    for kind, name in SCANS.items():
        extend(functools.partial(_scan, kind), f"aten.{name}.default")
    for name in ("aten.empty_permuted.default", "aten.empty.memory_format"):
        LOWERINGS.setdefault(name, _empty)
    extend(functools.partial(_in_memory, _along("map")), "aten.scatter.src", "aten.scatter.value")
    lowers("aten.scatter_add.default")(_along("add"))
    lowers("aten.scatter_reduce.two", "aten.index_reduce.default")(_reduced)
    lowers("aten.searchsorted.Tensor", "aten.searchsorted.Scalar")(_searchsorted)
    lowers("aten.bucketize.Tensor")(_bucketize)
