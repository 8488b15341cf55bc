"""Sums, means, extremes, norms, variances, softmax, losses and scans."""

from __future__ import annotations

import math

import sympy
import torch

from .expressions import (
    COMPUTED,
    Expr,
    all_of,
    binary,
    cast,
    compare,
    constant,
    index_value,
    masked,
    unary,
    where,
)
from .index import product
from .lower_pointwise import power
from .lower_views import side_by_side
from .lowering import Lowering, axes_of, broadcast, keep_dims, lowers
from .tensors import Value

LONG = 16384
"""Elements of a row from which it stays in no cache, so that reading it once more costs as much as the first time."""


def fold_over(low: Lowering, kind: str, a: Value, dims, keepdim: bool, element=None, dtype=None) -> Value:
    axes = axes_of(dims, len(a.shape))
    if all(a.shape[axis] == 1 for axis in axes):
        return _of_one(low, a, axes, keepdim, element, dtype or low.dtype)
    result = low.program.fold(kind, a, axes, [dtype or low.dtype], element)[0]
    return keep_dims(low.program, result, axes, len(a.shape), keepdim)


def _of_one(low: Lowering, a: Value, axes, keepdim: bool, element, dtype) -> Value:
    """A sum, product, mean or extreme over one element is that element."""
    read, type = element or a.at, COMPUTED[dtype]
    whole = low.formula(lambda position: cast(read(position), type), a.shape, dtype)
    kept = [1 if axis in axes else size for axis, size in enumerate(a.shape)]
    return low.program.reshape(whole, kept if keepdim else [s for x, s in enumerate(kept) if x not in axes])


def _count(low: Lowering, a: Value, dims):
    return product(a.shape[axis] for axis in axes_of(dims, len(a.shape)))


def _typed(low: Lowering, a: Value, dtype=None):
    type = COMPUTED[dtype or low.dtype]
    return lambda position: cast(a.at(position), type)


def mapped(low: Lowering, value: Value, function, dtype=None) -> Value:
    """`function` of each element."""
    type = COMPUTED[dtype or value.dtype]
    return low.formula(lambda position: cast(function(value.at(position)), type), value.shape, dtype or value.dtype)


for _kind, _names in {"sum": ("default", "dim_IntList"), "prod": ("default", "dim_int")}.items():

    def _total(low: Lowering, a, dims=None, keepdim=False, *, _kind=_kind, **__):
        return fold_over(low, _kind, a, dims, keepdim, _typed(low, a))

    lowers(*(f"aten.{_kind}.{name}" for name in _names))(_total)


@lowers("aten.mean.default", "aten.mean.dim")
def mean(low: Lowering, a, dims=None, keepdim=False, **__):
    result = fold_over(low, "sum", a, dims, keepdim, _typed(low, a))
    count = _count(low, a, dims)
    return mapped(low, result, lambda x: binary("div", x, index_value(count, x.type)))


def _extreme(low: Lowering, kind: str, a, dim, keepdim):
    """Values and their places; what nobody reads is not computed."""
    wanted = {user.args[1] for user in low.node.users}
    value = index = None
    if wanted <= {0}:
        value = fold_over(low, kind, a, dim, keepdim, dtype=a.dtype)
    else:
        index = fold_over(low, f"arg{kind}", a, dim, keepdim, dtype=torch.int64)
        if 0 in wanted:
            value = fold_over(low, kind, a, dim, keepdim, dtype=a.dtype)
    return value, index


def _place(low: Lowering, kind: str, a, dim, keepdim):
    if dim is None:
        a, dim = low.program.reshape(a, [product(a.shape)]), 0
        if keepdim:
            return None
    if a.shape[dim] == 1:
        return low.formula(lambda position: constant(0, "int64_t"))
    return fold_over(low, kind, a, dim, keepdim, dtype=torch.int64)


for _kind in ("max", "min"):

    def _largest(low: Lowering, a, dims=None, keepdim=False, *, _kind=_kind):
        return fold_over(low, _kind, a, dims, keepdim)

    def _with_place(low: Lowering, a, dim, keepdim=False, *, _kind=_kind):
        return _extreme(low, _kind, a, dim, keepdim)

    def _only_place(low: Lowering, a, dim=None, keepdim=False, *, _kind=_kind):
        return _place(low, f"arg{_kind}", a, dim, keepdim)

    lowers(f"aten.a{_kind}.default", f"aten.{_kind}.default")(_largest)
    lowers(f"aten.{_kind}.dim")(_with_place)
    lowers(f"aten.arg{_kind}.default")(_only_place)

for _kind in ("any", "all"):

    def _logical(low: Lowering, a, dims=None, keepdim=False, *, _kind=_kind):
        return fold_over(low, _kind, a, dims, keepdim, lambda position: cast(a.at(position), "bool"))

    lowers(f"aten.{_kind}.default", f"aten.{_kind}.dim", f"aten.{_kind}.dims")(_logical)


@lowers("aten.linalg_vector_norm.default", "aten.norm.ScalarOpt_dim", "aten.norm.Scalar")
def vector_norm(low: Lowering, a, order=2, dims=None, keepdim=False, **__):
    if not isinstance(order, (int, float)):
        return None
    read = _typed(low, a)
    if abs(order) == float("inf"):
        return fold_over(low, "max" if order > 0 else "min", a, dims, keepdim, lambda p: unary("abs", read(p)))

    def element(position) -> Expr:
        one = read(position)
        if order == 0:
            return cast(compare("ne", one, constant(0, one.type)), one.type)
        return power(one if order == 2 else unary("abs", one), order)

    summed = fold_over(low, "sum", a, dims, keepdim, element)
    return summed if order in (0, 1) else mapped(low, summed, lambda x: power(x, 1 / order))


# ---------------------------------------------------------------------------------------------- spread


def moments(low: Lowering, a: Value, axes: list[int]) -> tuple[Value, Value]:
    """Mean and sum of squared deviations from it, each with the folded axes kept as ones, computed in float or double.

    A row that stays in a cache is read twice (the mean, then the deviations from it); a longer one once, by Welford's recurrence.
    """
    rank, dtype = len(a.shape), torch.float64 if a.dtype == torch.float64 else torch.float32
    count = product(a.shape[axis] for axis in axes)
    low.settle(a)
    if low.program.settles and low.program.estimate(count) > LONG:  # the compiler reads a row that stays once
        found = low.program.fold("welford", a, axes, [dtype, dtype], _typed(low, a, dtype))
        centre, squares = (keep_dims(low.program, f, axes, rank, True) for f in found)
        return centre, squares
    summed = fold_over(low, "sum", a, axes, True, _typed(low, a, dtype), dtype)
    centre = mapped(low, summed, lambda x: binary("div", x, index_value(count, x.type)), dtype)

    def deviation(position) -> Expr:
        return power(binary("sub", cast(a.at(position), COMPUTED[dtype]), centre.at(broadcast(centre, position))), 2)

    squares = fold_over(low, "sum", a, axes, True, deviation, dtype)
    return centre, squares


def _variance(low: Lowering, a: Value, dims, correction, keepdim) -> Value:
    axes = axes_of(dims, len(a.shape))
    _, squares = moments(low, a, axes)
    count = index_value(product(a.shape[axis] for axis in axes), squares.type)
    correction = 1 if correction is None else correction
    fewer = binary("sub", count, constant(correction, squares.type)) if correction else count
    result = mapped(low, squares, lambda x: binary("div", x, fewer))
    return result if keepdim else low.program.reshape(result, low.shape)


for _name, _of in {"var": lambda x: x, "std": lambda x: unary("sqrt", x)}.items():

    def _spread(low: Lowering, a, dims=None, *, correction=None, keepdim=False, _of=_of):
        return mapped(low, _variance(low, a, dims, correction, keepdim), _of, low.dtype)

    def _spread_old(low: Lowering, a, dims=None, unbiased=True, keepdim=False, *, _of=_of):
        return mapped(low, _variance(low, a, dims, 1 if unbiased else 0, keepdim), _of, low.dtype)

    lowers(f"aten.{_name}.correction")(_spread)
    lowers(f"aten.{_name}.dim", f"aten.{_name}.default")(_spread_old)


# ---------------------------------------------------------------------------------------------- softmax


def shifted(low: Lowering, a: Value, axes: list[int]) -> tuple[Value, Value]:
    """The maximum and the sum of exp(x - maximum), folded axes kept as ones. Long rows are read once for both."""
    rank, dtype = len(a.shape), torch.float64 if a.dtype == torch.float64 else torch.float32
    low.settle(a, 3)
    read = _typed(low, a, dtype)
    if low.program.estimate(product(a.shape[axis] for axis in axes)) > LONG:
        found = low.program.fold("softmax", a, axes, [dtype, dtype], read)
        highest, exponentials = (keep_dims(low.program, f, axes, rank, True) for f in found)
        return highest, exponentials
    highest = fold_over(low, "max", a, axes, True, read, dtype)

    def exponential(position) -> Expr:
        return unary("exp", binary("sub", read(position), highest.at(broadcast(highest, position))))

    return highest, fold_over(low, "sum", a, axes, True, exponential, dtype)


def _over(low: Lowering, a: Value, dim: int, function) -> Value:
    """A formula of x, the maximum and the sum of exponentials along an axis."""
    highest, exponentials = shifted(low, a, [dim % len(a.shape)] if a.shape else [])
    type = COMPUTED[low.dtype]

    def formula(position):
        read = broadcast(highest, position)
        x = cast(a.at(position), highest.type)
        return cast(function(x, highest.at(read), exponentials.at(read)), type)

    return low.formula(formula)


@lowers("aten.softmax.int", "aten._softmax.default")
def softmax(low: Lowering, a, dim, *_, **__):
    return _over(low, a, dim, lambda x, m, s: binary("div", unary("exp", binary("sub", x, m)), s))


@lowers("aten.log_softmax.int", "aten._log_softmax.default")
def log_softmax(low: Lowering, a, dim, *_, **__):
    return _over(low, a, dim, lambda x, m, s: binary("sub", binary("sub", x, m), unary("log", s)))


@lowers("aten.logsumexp.default")
def logsumexp(low: Lowering, a, dims, keepdim=False):
    """log(sum(exp(x))) = m + log(sum(exp(x - m))); where the maximum is infinite it is left at that, as torch does."""
    axes = axes_of(dims, len(a.shape))
    if all(a.shape[axis] == 1 for axis in axes):
        return _of_one(low, a, axes, keepdim, None, low.dtype)
    highest, exponentials = shifted(low, a, axes)
    infinite = constant(float("inf"), highest.type)

    def formula(position):
        m = highest.at(position)
        return where(
            compare("eq", unary("abs", m), infinite), m, binary("add", m, unary("log", exponentials.at(position)))
        )

    result = low.formula(lambda p: cast(formula(p), COMPUTED[low.dtype]), highest.shape)
    return result if keepdim else low.program.reshape(result, low.shape)


# ---------------------------------------------------------------------------------------------- scans


SHORT_SCAN = 8
"""Elements that whoever reads a scanned value joins himself: steps between the cells of three dimensions were a kernel's phases, 9.3 us for 2.6 (H200)."""


def is_short_scan(a: Value) -> bool:
    return bool(a.shape) and all(size.is_Integer for size in a.shape) and math.prod(a.shape) <= SHORT_SCAN


def _short_scan(low: Lowering, a: Value, axis: int, kind: str, exclusive: bool, backwards: bool) -> Value:
    type, join = COMPUTED[low.dtype], {"scan_sum": "add", "scan_prod": "mul"}[kind]

    def formula(position):
        order = range(int(a.shape[axis]))
        held, found = constant(0 if join == "add" else 1, type), None
        for at in reversed(order) if backwards else order:
            before, place = held, [*position[:axis], sympy.Integer(at), *position[axis + 1 :]]
            held = binary(join, held, cast(a.at(place), type))
            own = before if exclusive else held
            is_here = compare("eq", index_value(position[axis]), index_value(sympy.Integer(at)))
            found = own if found is None else where(is_here, own, found)
        return found

    return low.formula(formula, a.shape)


for _name, _scan in {
    # what joins, whether an element's own is left out, whether from behind
    "aten.cumsum.default": ("scan_sum", False, False),
    "aten.cumprod.default": ("scan_prod", False, False),
    "draft.cumsum_backwards": ("scan_sum", False, True),
    "draft.cumsum_exclusive": ("scan_sum", True, False),
}.items():

    def _scanned(low: Lowering, a, dim, *, _scan=_scan, **__):
        kind, exclusive, backwards = _scan
        if is_short_scan(a):
            return _short_scan(low, a, dim % len(a.shape), kind, exclusive, backwards)
        return low.program.scan(kind, a, dim, low.dtype, exclusive, backwards) if a.shape else a

    lowers(_name)(_scanned)


# ---------------------------------------------------------------------------------------------- products that are sums


@lowers("aten.matmul.default", "aten.mv.default", "aten.mm.default", "aten.dot.default")
def product_with_vector(low: Lowering, a: Value, b: Value):
    """A matrix times a vector reads each element once: a fold, bound by memory."""
    column = len(b.shape) == 2 and b.shape[1] == 1
    if not (len(b.shape) == 1 or column) or not low.dtype.is_floating_point or low.dtype == torch.float64:
        return None
    read, type, axis = low.as_value(b, "float"), "float", len(a.shape) - 1
    low.settle(b, 1000)

    def element(position):
        place = [position[axis], sympy.Integer(0)] if column else [position[axis]]
        return binary("mul", cast(a.at(position), type), read(place, b.shape))

    summed = low.program.fold("sum", a, [axis], [torch.float32], element)[0]
    result = low.formula(lambda p: cast(summed.at(p), COMPUTED[low.dtype]), summed.shape)
    return low.program.reshape(result, low.shape)


@lowers("draft.transposed_convolution_sums")
def sums_over_ranges(low: Lowering, a: Value, parts):
    """[batch, part, channel] as rows of [batch, part * channel]: the sum of each channel over a range of places."""
    rank = len(a.shape) - 2
    axes = list(range(2, rank + 2))
    low.settle(a, 2)

    def part_of(ranges):
        def element(position):
            inside = []
            for axis, (first, end) in zip(axes, ranges, strict=True):
                if first > 0:
                    inside.append(compare("ge", index_value(position[axis]), index_value(sympy.Integer(first))))
                if end < a.shape[axis]:
                    inside.append(compare("lt", index_value(position[axis]), index_value(sympy.Integer(end))))
            return masked(all_of(inside), cast(a.at(position), COMPUTED[low.dtype]), constant(0, COMPUTED[low.dtype]))

        return low.program.fold("sum", a, axes, [low.dtype], element)[0]

    return side_by_side(low, [part_of(ranges) for ranges in parts], 1)
