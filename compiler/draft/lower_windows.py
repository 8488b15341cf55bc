"""Pooling, and convolutions whose channels do not mix: folds over a window."""

from __future__ import annotations

import itertools
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
    loads_of,
    make,
    masked,
    where,
)
from .index import Index, divide, flatten, product, strides_of
from .lowering import Lowering, lowers, plain
from .tensors import Value

MOST_PLACED = 16
"""Elements of a window of which the place of the largest is asked."""
CHEAP = 12
"""Instructions of an element up to which overlapping windows may compute it again."""
DEAR = 96
"""The same of all windows that it lies in, in kernels of the compiler: an H200 does some 150 while four bytes go to memory and back, and a kernel less
is 2 us."""


def _many(numbers, rank: int) -> list[int]:
    numbers = [numbers] if isinstance(numbers, int) else [plain(n) for n in numbers]
    return numbers * rank if len(numbers) == 1 else numbers


def _ready(low: Lowering, a: Value, window, stride) -> Value:
    """In memory where overlapping windows would compute an element several times, for more than it costs to store and load it."""
    repeats = math.prod(-(-w // s) for w, s in zip(window, stride, strict=True))
    if a.buffer is None and repeats > 1:
        expr = low.probe(a)
        dear = expr.cost > CHEAP if low.program.settles else expr.cost * (repeats - 1) > DEAR
        if dear or len(loads_of([expr])) > 3:
            low.program.realise(a)
    return a


def _windows(
    low: Lowering, a: Value, window, stride, padding, dilation, outside: Expr | None, dtype
) -> tuple[Value, int]:
    """a [..., places] -> [..., out places, window]; outside the input lies `outside`. Also the number of window axes.

    `outside` None: the window never leaves the input.
    """
    rank = len(window)
    lead = len(a.shape) - rank
    shape = [*low_shape(low)[: lead + rank], *window]

    def formula(position):
        inner, conditions = [], []
        for axis in range(rank):
            place = position[lead + axis] * stride[axis] + position[lead + rank + axis] * dilation[axis] - padding[axis]
            place = sympy.expand(place)
            size = a.shape[lead + axis]
            if padding[axis]:
                conditions.append(compare("ge", index_value(place), index_value(sympy.Integer(0))))
            if _may_leave(shape[lead + axis], size, window[axis], stride[axis], padding[axis], dilation[axis]):
                conditions.append(compare("lt", index_value(place), index_value(size)))
            inner.append(place)
        element = cast(a.at([*position[:lead], *inner]), COMPUTED[dtype])
        return element if outside is None else masked(all_of(conditions), element, outside)

    return low.formula(formula, shape, dtype), rank


def low_shape(low: Lowering):
    return low.part(low.meta[0] if isinstance(low.meta, (tuple, list)) else low.meta).shape


def _may_leave(out: Index, size: Index, window: int, stride: int, padding: int, dilation: int) -> bool:
    """Whether the last window reaches beyond the input's end."""
    last = sympy.expand((out - 1) * stride + (window - 1) * dilation - padding - (size - 1))
    return not (last.is_Integer and last <= 0)


def _pool_axes(a: Value, rank: int):
    first = len(a.shape)
    return list(range(first, first + rank))


def _max_pool(low: Lowering, a: Value, window, stride, padding, dilation, dtype):
    windows = _above_lowest(low, a, window, stride, padding, dilation, dtype)
    return low.program.fold("max", windows, _pool_axes(a, len(window)), [dtype])[0]


def _above_lowest(low: Lowering, a: Value, window, stride, padding, dilation, dtype) -> Value:
    """Windows whose padding is below everything."""
    _ready(low, a, window, stride)
    return _windows(low, a, window, stride, padding, dilation, constant(-math.inf, COMPUTED[dtype]), dtype)[0]


def max_pool(low: Lowering, a, window, stride=(), padding=0, dilation=1, *_, rank: int):
    if not low.dtype.is_floating_point:
        return None
    window = _many(window, rank)
    stride = _many(stride, rank) if stride else window
    return _max_pool(low, a, window, stride, _many(padding, rank), _many(dilation, rank), low.dtype)


def avg_pool(low: Lowering, a, window, stride=(), padding=0, ceil=False, include=True, divisor=None, *, rank: int):
    window, padding = _many(window, rank), _many(padding, rank)
    stride = _many(stride, rank) if stride else window
    if (ceil and any(padding)) or (not include and any(padding)) or not low.dtype.is_floating_point:
        return None
    if ceil and any(
        _may_leave(o, s, w, t, 0, 1)
        for o, s, w, t in zip(low.shape[-rank:], a.shape[-rank:], window, stride, strict=True)
    ):
        return None
    _ready(low, a, window, stride)
    dtype = low.dtype
    windows, _ = _windows(low, a, window, stride, padding, [1] * rank, constant(0, COMPUTED[dtype]), dtype)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    summed = low.program.fold("sum", windows, _pool_axes(a, rank), [wide])[0]
    by = constant(divisor or int(product(window)), COMPUTED[wide])
    return low.formula(lambda position: cast(binary("div", summed.at(position), by), COMPUTED[dtype]))


for _rank in (1, 2, 3):

    def _max(low: Lowering, *arguments, _rank=_rank):
        return max_pool(low, *arguments, rank=_rank)

    def _avg(low: Lowering, *arguments, _rank=_rank):
        return avg_pool(low, *arguments, rank=_rank)

    lowers(f"aten.max_pool{_rank}d.default")(_max)
    lowers(f"aten.avg_pool{_rank}d.default")(_avg)


@lowers("aten.max_pool2d_with_indices.default", "aten.max_pool3d_with_indices.default")
def max_pool_with_indices(low: Lowering, a, window, stride=(), padding=0, dilation=1, *_):
    placed = any(user.args[1] != 0 for user in low.node.users)
    if placed and low.program.settles:
        return None
    rank = 2 if "2d" in str(low.node.target) else 3
    window = _many(window, rank)
    stride = _many(stride, rank) if stride else window
    given = window, stride, _many(padding, rank), _many(dilation, rank)
    return _largest_of(low, a, *given) if placed else (_max_pool(low, a, *given, a.dtype), None)


def _first_place(at: list[Index], sizes, padding) -> Expr:
    """The place in its plane of the first element of a window, which begins at `at`, that is no padding."""
    if not any(padding):
        return index_value(flatten(at, sizes))
    found = zero = index_value(sympy.S.Zero)
    for one, by in zip(at, strides_of(sizes), strict=True):
        first = make("max", index_value(sympy.expand(one)), zero, type="int64_t")
        found = binary("add", found, binary("mul", first, index_value(by)))
    return found


def _largest_of(low: Lowering, a: Value, window, stride, padding, dilation) -> tuple[Value, Value] | None:
    """The largest of each window, and where it lies in its plane: the first one, or the last NaN, as torch has it."""
    rank, lead = len(window), len(a.shape) - len(window)
    if math.prod(window) > MOST_PLACED or any(step != 1 for step in dilation) or not a.dtype.is_floating_point:
        return None
    windows = _above_lowest(low, a, window, stride, padding, dilation, a.dtype)

    def element(position):
        largest = found = None
        for steps in itertools.product(*map(range, window)):
            at = [position[lead + n] * stride[n] + steps[n] - padding[n] for n in range(rank)]
            value = windows.at([*position, *map(sympy.Integer, steps)])
            if largest is None or found is None:
                largest, found = value, _first_place(at, a.shape[lead:], padding)
                continue
            better = binary("or", compare("gt", value, largest), compare("ne", value, value))
            found = where(better, index_value(flatten(at, a.shape[lead:])), found)
            largest = where(better, value, largest)
        return largest, found

    shape = low_shape(low)
    return low.formula(lambda at: element(at)[0], shape, a.dtype), low.formula(
        lambda at: element(at)[1], shape, torch.int64
    )


@lowers("aten.adaptive_avg_pool1d.default", "aten.adaptive_avg_pool2d.default", "aten.adaptive_avg_pool3d.default",
        "aten._adaptive_avg_pool2d.default", "aten._adaptive_avg_pool3d.default")  # fmt: skip
def adaptive_avg_pool(low: Lowering, a, sizes):
    """Where the sizes divide, adaptive pooling is pooling with window = stride = input / output."""
    window = _even_windows(low, a, len(sizes))
    return None if window is None else avg_pool(low, a, window, rank=len(sizes))


@lowers("aten.adaptive_max_pool2d.default", "aten.adaptive_max_pool3d.default")
def adaptive_max_pool(low: Lowering, a, sizes):
    window = _even_windows(low, a, len(sizes))
    if window is None or any(user.args[1] != 0 for user in low.node.users):
        return None
    return _max_pool(low, a, window, window, [0] * len(window), [1] * len(window), a.dtype), None


def _even_windows(low: Lowering, a: Value, rank: int) -> list[int] | None:
    pairs = list(zip(a.shape[-rank:], low_shape(low)[-rank:], strict=True))
    if not all(i.is_Integer and o.is_Integer and i % o == 0 for i, o in pairs):
        return None
    return [int(i // o) for i, o in pairs]


# ---------------------------------------------------------------------------------------------- convolutions


def depthwise(low: Lowering, a: Value, weight: Value, bias, stride, padding, dilation, rank: int):
    """A convolution with one input channel a group: channel c of the output reads channel c // (out / in) only.

    Nothing is shared between channels, so there is no matrix product in it for a library to win with.
    """
    window = [plain(size) for size in weight.shape[2:]]
    stride, dilation, padding = _many(stride, rank), _many(dilation, rank), _many(padding, rank)
    _ready(low, a, window, stride)
    zero = constant(0, COMPUTED[low.dtype])
    windows, _ = _windows(low, a, window, stride, padding, dilation, zero, low.dtype)
    times = sympy.cancel(weight.shape[0] / a.shape[1])
    lead, ranges = len(a.shape), low.program.ranges

    def element(position):
        channel = divide(position[1], times, ranges)
        x = windows.at([position[0], channel, *position[2:]])
        return binary("mul", x, cast(weight.at([position[1], sympy.Integer(0), *position[lead:]]), x.type))

    wide = torch.float64 if low.dtype == torch.float64 else torch.float32
    summed = low.program.fold("sum", windows, _pool_axes(a, rank), [wide], element)[0]
    return low.formula(lambda p: cast(_plus(summed.at(p), bias, p), COMPUTED[low.dtype]))


def _plus(x: Expr, bias: Value | None, position) -> Expr:
    return x if bias is None else binary("add", x, cast(bias.at([position[1]]), x.type))
