"""Losses: a value an element, and their sum or mean."""

from __future__ import annotations

import sympy
import torch

from .expressions import (
    COMPUTED,
    Expr,
    binary,
    cast,
    compare,
    constant,
    index_value,
    make,
    masked,
    unary,
    where,
)
from .index import product
from .lower_pointwise import power
from .lower_reductions import fold_over, mapped, shifted
from .lower_views import wrapped
from .lowering import Lowering, broadcast, lowers
from .tensors import SizeNeeded, Value

MEAN, SUM = 1, 2
"""torch's numbers of reductions; 0 is none."""


def _reduced(low: Lowering, shape, element, reduction: int) -> Value:
    losses = low.formula(element, shape)
    if reduction == 0:
        return losses
    summed = fold_over(low, "sum", losses, None, False)
    if reduction == SUM:
        return summed
    return mapped(low, summed, lambda x: binary("div", x, index_value(product(shape), x.type)))


def _pair(low: Lowering, a: Value, b: Value):
    shape = a.shape if len(a.shape) >= len(b.shape) else b.shape
    type = COMPUTED[low.dtype]
    return shape, lambda p: (cast(a.at(broadcast(a, p)), type), cast(b.at(broadcast(b, p)), type))


@lowers("aten.mse_loss.default")
def mse_loss(low: Lowering, a, b, reduction=MEAN):
    shape, pair = _pair(low, a, b)
    return _reduced(low, shape, lambda p: power(binary("sub", *pair(p)), 2), reduction)


@lowers("aten.l1_loss.default")
def l1_loss(low: Lowering, a, b, reduction=MEAN):
    shape, pair = _pair(low, a, b)
    return _reduced(low, shape, lambda p: unary("abs", binary("sub", *pair(p))), reduction)


def _huber(apart: Expr, delta: float, by: float) -> Expr:
    """Quadratic within delta, linear outside; `by` is what the quadratic part divides by and the linear part multiplies."""
    size = unary("abs", apart)
    d = constant(delta, size.type)
    inner = binary("mul", constant(0.5 / by, size.type), power(size, 2))
    outer = binary("mul", constant(delta / by, size.type), binary("sub", size, constant(0.5 * delta, size.type)))
    return where(compare("lt", size, d), inner, outer)


@lowers("aten.smooth_l1_loss.default")
def smooth_l1_loss(low: Lowering, a, b, reduction=MEAN, beta=1.0):
    if beta == 0:
        return l1_loss(low, a, b, reduction)
    shape, pair = _pair(low, a, b)
    return _reduced(low, shape, lambda p: _huber(binary("sub", *pair(p)), beta, beta), reduction)


@lowers("aten.huber_loss.default")
def huber_loss(low: Lowering, a, b, reduction=MEAN, delta=1.0):
    shape, pair = _pair(low, a, b)
    return _reduced(low, shape, lambda p: _huber(binary("sub", *pair(p)), delta, 1.0), reduction)


@lowers("aten.triplet_margin_loss.default")
def triplet_margin_loss(low: Lowering, anchor, near, far, margin=1.0, p=2.0, eps=1e-6, swap=False, reduction=MEAN):
    """max(0, margin + |anchor - near + eps| - |anchor - far + eps|) with the norm over the last axis."""
    if p != 2 or swap or not anchor.shape == near.shape == far.shape:
        return None
    type, last = COMPUTED[low.dtype], len(anchor.shape) - 1

    def distance(other: Value) -> Value:
        def element(position):
            apart = binary("sub", cast(anchor.at(position), type), cast(other.at(position), type))
            return power(binary("add", apart, constant(eps, type)), 2)

        return low.program.fold("sum", anchor, [last], [low.dtype], element)[0]

    to_near, to_far = distance(near), distance(far)

    def element(position):
        apart = binary("sub", unary("sqrt", to_near.at(position)), unary("sqrt", to_far.at(position)))
        return make("max", binary("add", apart, constant(margin, type)), constant(0, type), type=type)

    return _reduced(low, anchor.shape[:-1], element, reduction)


@lowers("aten.cross_entropy_loss.default")
def cross_entropy_loss(low: Lowering, logits, target, weight=None, reduction=MEAN, ignore=-100, smoothing=0.0):
    """Of class numbers: the mean over rows of log(sum(exp(x))) - x[target]; ignored rows count nothing.

    With class weights w a row counts w[target] times; smoothing s takes (1 - s) of that and s / classes of the same summed over all classes.
    """
    if target.dtype != torch.int64 or len(logits.shape) < 2:
        return None
    if reduction == 0 and len(low.shape) != len(target.shape):
        raise SizeNeeded(
            "torch.export has lost the shape of a loss that is not reduced"
        )  # where sizes are open: torch 2.13
    low.program.realise(logits)
    highest, exponentials = shifted(low, logits, [1])
    type = highest.type
    dtype = torch.float64 if type == "double" else torch.float32
    if weight is not None:
        low.program.realise(weight)

    def of_class(column):
        """The weight of a computed class."""
        if weight is None:
            return constant(1, type)
        place = wrapped(low, column, weight.shape[0])
        return cast(make("load_at", weight.buffer, weight.offset, weight.strides[0], place, type=weight.type), type)

    def apart_of_all(position):
        row = [position[0], sympy.Integer(0), *position[2:]]
        apart = binary("sub", cast(logits.at(position), type), highest.at(row))
        return apart if weight is None else binary("mul", cast(weight.at([position[1]]), type), apart)

    if smoothing:
        apart_sum = low.program.fold("sum", logits, [1], [dtype], apart_of_all)[0]
        weights = None if weight is None else fold_over(low, "sum", weight, None, False, dtype=dtype)
        classes = index_value(logits.shape[1], type)

    def element(position):
        inside, column = chosen_at(position)
        row = [position[0], sympy.Integer(0), *position[1:]]
        place = logits_at(low, logits, row, column)
        apart = binary("sub", cast(place, type), highest.at(row))  # first, so that nothing large is rounded
        logarithm = unary("log", exponentials.at(row))
        loss = binary("mul", of_class(column), binary("sub", logarithm, apart))
        if smoothing:
            count = classes if weights is None else cast(weights.at([]), type)
            of_all = binary("sub", binary("mul", count, logarithm), cast(apart_sum.at(position), type))
            share = binary("div", constant(smoothing, type), classes)
            loss = binary("add", binary("mul", constant(1 - smoothing, type), loss), binary("mul", share, of_all))
        return masked(inside, loss, constant(0, type))

    def chosen_at(position):
        chosen = cast(target.at(position), "int64_t")
        inside = compare("ne", chosen, constant(ignore, "int64_t"))
        return inside, where(inside, chosen, constant(0, "int64_t"))

    def counted(position):
        inside, column = chosen_at(position)
        return masked(inside, of_class(column), constant(0, type))

    if reduction != MEAN:
        return _reduced(low, target.shape, lambda p: cast(element(p), COMPUTED[low.dtype]), reduction)
    losses = low.formula(element, target.shape, dtype)
    summed = fold_over(low, "sum", losses, None, False, dtype=dtype)
    count = fold_over(low, "sum", low.formula(counted, target.shape, dtype), None, False, dtype=dtype)
    return low.formula(lambda p: cast(binary("div", summed.at(p), count.at(p)), COMPUTED[low.dtype]))


def logits_at(low: Lowering, logits: Value, row, column: Expr) -> Expr:
    """The element of `logits`, which is in memory, whose class is computed."""
    assert logits.buffer is not None
    return logits.along(1, wrapped(low, column, logits.shape[1]), [*row[:1], *row[2:]])
