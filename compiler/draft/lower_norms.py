"""Normalisations: layer, RMS, group, instance, batch (with the statistics of the batch, or with those it keeps)."""

from __future__ import annotations

import sympy
import torch

from . import library
from .expressions import COMPUTED, Expr, binary, cast, constant, index_value, unary
from .index import product
from .lower_pointwise import power
from .lower_reductions import fold_over, moments
from .lowering import Lowering, broadcast, lowers
from .tensors import Value


def _affine(x: Expr, weight: Value | None, bias: Value | None, at) -> Expr:
    """x * weight + bias, each where there is one, with the elements at a place."""
    x = x if weight is None else binary("mul", x, cast(weight.at(at), x.type))
    return x if bias is None else binary("add", x, cast(bias.at(at), x.type))


def _one_over_root(squares: Expr, count, eps: float) -> Expr:
    """1 / sqrt(squares / count + eps)."""
    spread = binary("div", squares, index_value(count, squares.type))
    return unary("rsqrt", binary("add", spread, constant(eps, squares.type)))


def inverse_root(low: Lowering, squares: Value, count, eps: float) -> Value:
    """1 / sqrt(squares / count + eps), once a row."""
    value = low.formula(lambda p: _one_over_root(squares.at(p), count, eps), squares.shape, squares.dtype)
    low.program.realise(value)
    return value


def _normalised(low: Lowering, a: Value, axes, eps: float, weight, bias, place) -> Value:
    """(x - mean) / sqrt(variance + eps) over the axes, times weight, plus bias, which `place(position)` says the place in."""
    centre, squares = moments(low, a, axes)
    inverse = inverse_root(low, squares, product(a.shape[axis] for axis in axes), eps)
    return _scaled(low, a, centre, inverse, weight, bias, place, low.dtype)


def _scaled(low: Lowering, a: Value, centre: Value, inverse: Value, weight, bias, place, dtype: torch.dtype) -> Value:
    """(x - centre) * inverse * weight + bias."""

    def formula(position):
        row = broadcast(centre, position)
        apart = binary("sub", cast(a.at(position), centre.type), centre.at(row))
        return cast(_affine(binary("mul", apart, inverse.at(row)), weight, bias, place(position)), COMPUTED[dtype])

    return low.formula(formula, a.shape, dtype)


@lowers("aten.layer_norm.default")
def layer_norm(low: Lowering, a, shape, weight=None, bias=None, eps=1e-5, *_):
    first = len(a.shape) - len(shape)
    return _normalised(low, a, list(range(first, len(a.shape))), eps, weight, bias, lambda p: p[first:])


@lowers("aten.rms_norm.default")
def rms_norm(low: Lowering, a, shape, weight=None, eps=None):
    first = len(a.shape) - len(shape)
    axes = list(range(first, len(a.shape)))
    dtype = torch.float64 if a.dtype == torch.float64 else torch.float32
    eps = torch.finfo(a.dtype).eps if eps is None else eps
    low.settle(a)
    squares = fold_over(low, "sum", a, axes, True, lambda p: power(cast(a.at(p), COMPUTED[dtype]), 2), dtype)
    inverse = inverse_root(low, squares, product(a.shape[axis] for axis in axes), eps)

    def formula(position):
        x = binary("mul", cast(a.at(position), squares.type), inverse.at(broadcast(inverse, position)))
        return cast(_affine(x, weight, None, position[first:]), COMPUTED[low.dtype])

    return low.formula(formula)


@lowers("aten.group_norm.default")
def group_norm(low: Lowering, a, groups, weight=None, bias=None, eps=1e-5, *_):
    """Groups of channels are rows of a reshape: [batch, groups, elements of a group]."""
    channels = a.shape[1]
    low.settle(a)
    flat = low.program.reshape(a, [a.shape[0], groups, channels / groups, product(a.shape[2:])])
    found = _normalised(low, flat, [2, 3], eps, weight, bias, lambda p: [p[1] * (channels / groups) + p[2]])
    return low.program.reshape(found, a.shape)


@lowers("aten.instance_norm.default")
def instance_norm(low: Lowering, a, weight, bias, running_mean, running_var, use_input_stats, momentum, eps, *_):
    if not use_input_stats or running_mean is not None:
        return None
    return _normalised(low, a, list(range(2, len(a.shape))), eps, weight, bias, lambda p: [p[1]])


@lowers("aten._native_batch_norm_legit_functional.default")
def batch_norm_training(low: Lowering, a, weight, bias, running_mean, running_var, training, momentum, eps):
    """Statistics of the batch; the running ones move towards them, the variance with n - 1."""
    if not training:
        return None
    if low.is_exact:
        out = library.batch_norm(low, a, weight, bias, running_mean, running_var, momentum, eps)
        return out, None, None, running_mean, running_var
    axes = [axis for axis in range(len(a.shape)) if axis != 1]
    centre, squares = moments(low, a, axes)
    count = product(a.shape[axis] for axis in axes)
    inverse = inverse_root(low, squares, count, eps)
    one = [sympy.Integer(0)] * len(axes)

    def channelwise(at) -> Value:
        def formula(position):
            return at([*one[:1], position[0], *one[1:]], position)

        return low.formula(formula, a.shape[1:2], running_mean.dtype)

    def moved(old: Value, new):
        def formula(row, channel):
            before = cast(old.at(channel), centre.type)
            return cast(_towards(before, new(row), momentum), old.type)

        return channelwise(formula)

    n = index_value(count, centre.type)
    fewer = binary("sub", n, constant(1, n.type))
    out = _scaled(low, a, centre, inverse, weight, bias, lambda p: [p[1]], low.meta[0].dtype)
    new_mean = moved(running_mean, centre.at)
    new_var = moved(running_var, lambda row: binary("div", squares.at(row), fewer))
    saved_mean, saved_inverse = channelwise(lambda row, _: centre.at(row)), channelwise(lambda row, _: inverse.at(row))
    return out, saved_mean, saved_inverse, new_mean, new_var


def _towards(old: Expr, new: Expr, momentum: float) -> Expr:
    kept = binary("mul", old, constant(1 - momentum, old.type))
    return binary("add", kept, binary("mul", new, constant(momentum, old.type)))


@lowers("aten._native_batch_norm_legit_no_training.default")
def batch_norm_kept(low: Lowering, a, weight, bias, mean, var, momentum, eps):
    """With the statistics that the module keeps: one scale and one shift a channel."""
    type = "double" if a.dtype == torch.float64 else "float"

    def formula(position):
        channel = [position[1]]
        x = binary("sub", cast(a.at(position), type), cast(mean.at(channel), type))
        x = binary("mul", x, unary("rsqrt", binary("add", cast(var.at(channel), type), constant(eps, type))))
        x = _affine(x, weight, bias, channel)
        return cast(x, COMPUTED[low.meta[0].dtype])

    return low.formula(formula, a.shape, low.meta[0].dtype), None, None


@lowers("aten.batch_norm.default")
def batch_norm(low: Lowering, a, weight, bias, mean, var, training, momentum, eps, *_):
    """Without running statistics, or with kept ones."""
    if training and mean is None:
        axes = [axis for axis in range(len(a.shape)) if axis != 1]
        return _normalised(low, a, axes, eps, weight, bias, lambda p: [p[1]])
    if training:
        return None
    return batch_norm_kept(low.part((low.meta,)), a, weight, bias, mean, var, momentum, eps)[0]
