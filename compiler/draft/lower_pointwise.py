"""Operators on single elements: arithmetic, comparisons, activations, casts."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch

from .expressions import COMPUTED, Expr, binary, cast, compare, constant, make, unary, where
from .lowering import Lowering, lowers
from .tensors import Value

WRAPPING = (torch.int8, torch.uint8, torch.int16)
"""Computed in more bits than they have, so that what an operator makes has to be cut."""


def _apply(low: Lowering, function, *arguments, type: str | None = None) -> Value:
    """`function` of the arguments' elements, each cast to `type` (the result's where left out)."""
    type = type or COMPUTED[low.dtype]
    shape = low.shape
    readers = [low.as_value(argument, type) for argument in arguments]

    def formula(position):
        made = cast(_as_eager(low, function(*(read(position, shape) for read in readers))), COMPUTED[low.dtype])
        return _stored(made, low.dtype) if low.dtype in WRAPPING and made.op != "round_to" else made

    return low.formula(formula)


def _as_eager(low: Lowering, made: Expr) -> Expr:
    """A product that is all of an operator is rounded before another operator adds to it."""
    if low.is_rounded and made.op == "mul" and made.type in ("float", "double"):
        return make("product", *made.args, type=made.type)
    return made


def _promoted(*arguments) -> str:
    """The type in which operands meet: tensors decide, numbers only where they are of a higher kind."""
    values = [a for a in arguments if isinstance(a, Value)]
    tensors = [a.dtype for a in values if a.shape] or [a.dtype for a in values]
    if any(a.dtype.is_floating_point for a in values) and not any(type.is_floating_point for type in tensors):
        tensors.append(next(a.dtype for a in values if a.dtype.is_floating_point))
    type = tensors[0]
    for other in tensors[1:]:
        type = torch.promote_types(type, other)
    if any(isinstance(a, float) for a in arguments) and not type.is_floating_point:
        type = torch.float32
    return COMPUTED[type]


# ---------------------------------------------------------------------------------------------- arithmetic


for _name in ("add", "sub"):

    def _summed(low: Lowering, a, b, *, alpha=1, _name=_name):
        if alpha == 1:
            return _apply(low, lambda x, y: binary(_name, x, y), a, b)
        return _apply(low, lambda x, y: binary(_name, x, binary("mul", y, constant(alpha, y.type))), a, b)

    lowers(f"aten.{_name}.Tensor", f"aten.{_name}.Scalar")(_summed)


@lowers("aten.rsub.Scalar", "aten.rsub.Tensor")
def rsub(low: Lowering, a, b, *, alpha=1):
    return _apply(low, lambda x, y: binary("sub", x, y), b, a) if alpha == 1 else None


@lowers("aten.mul.Tensor", "aten.mul.Scalar")
def mul(low: Lowering, a, b):
    if low.dtype == torch.bool:
        return _apply(low, lambda x, y: make("and", x, y, type="bool"), a, b, type="bool")
    return _apply(low, lambda x, y: binary("mul", x, y), a, b)


@lowers("aten.div.Tensor", "aten.div.Scalar", "aten.true_divide.Tensor")
def div(low: Lowering, a, b):
    if low.is_rounded and isinstance(b, (int, float)):
        reciprocal = 1 / torch.tensor(b, dtype=torch.float64 if COMPUTED[low.dtype] == "double" else torch.float32)
        return mul(low, a, float(reciprocal))
    return _apply(low, lambda x, y: binary("div", x, y), a, b)


def _whole_quotient(x: Expr, y: Expr, mode: str) -> Expr:
    """x / y without its fraction, below (floor) or towards zero (trunc), as exact as the type: what is left over is."""
    zero, over, left = constant(0, x.type), binary("div", x, y), make("fmod", x, y, type=x.type)
    found = unary("round", binary("div", binary("sub", x, left), y))
    if mode == "floor":
        turned = make("ne", compare("lt", left, zero), compare("lt", y, zero), type="bool")
        turned = make("and", turned, compare("ne", left, zero), type="bool")
        found = binary("sub", found, where(turned, constant(1, x.type), zero))
        return where(compare("eq", y, zero), over, found)
    return where(ASKED["isfinite"](over), found, over)


@lowers("aten.div.Tensor_mode", "aten.div.Scalar_mode", "aten.floor_divide.default", "aten.floor_divide.Scalar")
def whole_quotient(low: Lowering, a, b, *, rounding_mode="floor"):
    if rounding_mode is None:
        return div(low, a, b)
    return _apply(low, lambda x, y: _whole_quotient(x, y, rounding_mode), a, b) if low.dtype.is_floating_point else None


@lowers("aten.pow.Tensor_Scalar")
def pow_number(low: Lowering, a, exponent):
    if not low.dtype.is_floating_point and exponent not in range(MOST_FACTORS):
        return None
    return _apply(low, lambda x: power(x, exponent), a)


MOST_FACTORS = 9
"""Of a power of an integer."""


def power(x: Expr, exponent) -> Expr:
    """x ** number, by products where that is what torch does too."""
    if x.type in ("int64_t", "int32_t"):
        return functools.reduce(lambda made, _: binary("mul", made, x), range(exponent), constant(1, x.type))
    if exponent == 2:
        return binary("mul", x, x)
    if exponent == 3:
        return binary("mul", binary("mul", x, x), x)
    if exponent == 0.5:
        return unary("sqrt", x)
    if exponent == 1:
        return x
    if exponent == -1:
        return binary("div", constant(1, x.type), x)
    if exponent == -0.5:
        return unary("rsqrt", x)
    return make("pow", x, constant(exponent, x.type), type=x.type)


@lowers("aten.pow.Tensor_Tensor", "aten.pow.Scalar")
def pow_tensor(low: Lowering, a, b):
    if not low.dtype.is_floating_point:
        return None
    return _apply(low, _power_of, a, b)


def _power_of(x: Expr, y: Expr) -> Expr:
    """x ** y; of a number that is the same for all elements, and mostly 2, a square has a branch of its own."""
    general, exponent = make("pow", x, y, type=x.type), y
    while exponent.op == "cast":
        exponent = exponent.args[0]
    if exponent.op != "scalar":
        return general
    return where(compare("eq", y, constant(2, y.type)), binary("mul", x, x), general)


for _name, _op in {
    "aten.minimum.default": "min", "aten.maximum.default": "max", "aten.atan2.default": "atan2",
    "aten.fmod.Tensor": "fmod", "aten.fmod.Scalar": "fmod", "aten.hypot.default": "hypot", "aten.fmax.default": "fmax", "aten.fmin.default": "fmin",
}.items():  # fmt: skip

    def _two(low: Lowering, a, b, _op=_op):
        op = _op if low.dtype.is_floating_point else {"fmax": "max", "fmin": "min"}.get(_op, _op)
        return _apply(low, lambda x, y: make(op, x, y, type=x.type), a, b)

    lowers(_name)(_two)


@lowers("aten.remainder.Scalar", "aten.remainder.Tensor")
def remainder(low: Lowering, a, b):
    def of(x, y):
        left, zero = make("fmod", x, y, type=x.type), constant(0, x.type)
        moved = binary("add", left, y)  # with the sign of the divisor
        below, above = (where(compare(name, left, zero), moved, left) for name in ("lt", "gt"))
        return where(compare("lt", y, zero), above, below)

    return _apply(low, of, a, b) if low.dtype.is_floating_point else None


for _name in (
    "exp", "log", "log1p", "expm1", "tanh", "erf", "sqrt", "rsqrt", "sin", "cos", "sigmoid", "atan", "log2", "log10", "exp2", "erfc",
    "tan", "sinh", "cosh", "asin", "acos", "asinh", "acosh", "atanh", "lgamma",
):  # fmt: skip

    def _one(low: Lowering, a, _name=_name):
        name = "device_rsqrt" if _name == "rsqrt" and low.is_rounded else _name
        return _apply(low, lambda x: unary(name, x), a)

    lowers(f"aten.{_name}.default")(_one)

for _name in ("floor", "ceil", "trunc", "round"):

    def _rounded(low: Lowering, a, _name=_name):
        return _apply(low, lambda x: unary(_name, x) if x.type in ("float", "double") else x, a)

    lowers(f"aten.{_name}.default")(_rounded)


@lowers("aten.round.decimals")
def round_decimals(low: Lowering, a, *, decimals):
    by = 10.0 ** abs(decimals)
    there, back = ("mul", "div") if decimals > 0 else ("div", "mul")

    def of(x):
        return binary(back, unary("round", binary(there, x, constant(by, x.type))), constant(by, x.type))

    return _apply(low, of, a) if a.dtype.is_floating_point else a


FORMULAS: dict[tuple[str, ...], Callable[..., Expr]] = {
    ("neg.default", "_neg_view.default"): lambda x: unary("neg", x),
    ("abs.default",): lambda x: unary("abs", x),
    ("reciprocal.default",): lambda x: binary("div", constant(1, x.type), x),
    ("square.default",): lambda x: binary("mul", x, x),
    ("ldexp.Tensor",): lambda x, y: binary("mul", x, unary("exp2", y)),
    ("lerp.Scalar", "lerp.Tensor"): lambda x, y, w: binary("add", x, binary("mul", w, binary("sub", y, x))),
}
"""What is no more than a formula of the arguments' elements."""

for _names, _formula in FORMULAS.items():

    def _of_elements(low: Lowering, *arguments, _formula=_formula):
        return _apply(low, _formula, *arguments)

    lowers(*(f"aten.{name}" for name in _names))(_of_elements)


@lowers("aten.sign.default", "aten.sgn.default")
def sign(low: Lowering, a):
    def of(x):
        zero = constant(0, x.type)  # of NaN as well
        one, minus = constant(1, x.type), constant(-1, x.type)
        return where(compare("gt", x, zero), one, where(compare("lt", x, zero), minus, zero))

    return _apply(low, of, a)


@lowers("aten.clamp.default", "aten.clamp.Tensor", "aten.clamp_min.default")
def clamp(low: Lowering, a, lowest=None, highest=None):
    bounds = [b for b in (lowest, highest) if b is not None]

    def of(x, *given):
        ends = list(given)
        if lowest is not None:
            x = make("max", x, ends.pop(0), type=x.type)
        return make("min", x, ends.pop(0), type=x.type) if highest is not None else x

    return _apply(low, of, a, *bounds)


@lowers("aten.clamp_max.default")
def clamp_max(low: Lowering, a, highest):
    return clamp(low, a, None, highest)


# ---------------------------------------------------------------------------------------------- comparisons, choices


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):

    def _compared(low: Lowering, a, b, _name=_name):
        return _apply(low, lambda x, y: compare(_name, x, y), a, b, type=_promoted(a, b))

    lowers(f"aten.{_name}.Tensor", f"aten.{_name}.Scalar")(_compared)

for _name, _op in {
    "logical_and": "and",
    "logical_or": "or",
    "bitwise_and": "and",
    "bitwise_or": "or",
    "logical_xor": "ne",
}.items():

    def _both(low: Lowering, a, b, _op=_op):
        if low.dtype != torch.bool:
            return None
        return _apply(low, lambda x, y: make(_op, x, y, type="bool"), a, b, type="bool")

    lowers(f"aten.{_name}.default", f"aten.{_name}.Tensor")(_both)


@lowers("aten.logical_not.default", "aten.bitwise_not.default")
def logical_not(low: Lowering, a):
    if low.dtype != torch.bool:
        return None
    return _apply(low, lambda x: make("not", x, type="bool"), a, type="bool")


ASKED: dict[str, Callable[..., Expr]] = {
    "isnan": lambda x: compare("ne", x, x),
    "isinf": lambda x: compare("eq", unary("abs", x), constant(math.inf, x.type)),
    "isfinite": lambda x: compare("lt", unary("abs", x), constant(math.inf, x.type)),
    "isposinf": lambda x: compare("eq", x, constant(math.inf, x.type)),
    "isneginf": lambda x: compare("eq", x, constant(-math.inf, x.type)),
}
ASKED["signbit"] = lambda x: make(
    "or",
    compare("lt", x, constant(0, x.type)),
    compare("lt", binary("div", constant(1, x.type), x), constant(0, x.type)),
    type="bool",
)  # 1 / -0 is below zero
for _name, _question in ASKED.items():

    def _asked(low: Lowering, a, _question=_question):
        return _apply(low, _question, a, type=a.type) if a.dtype.is_floating_point else None

    lowers(f"aten.{_name}.default")(_asked)


@lowers("aten.where.self", "aten.where.ScalarSelf", "aten.where.ScalarOther", "aten.where.Scalar")
def choose(low: Lowering, condition, a, b):
    type, shape = COMPUTED[low.dtype], low.shape
    read = [low.as_value(condition, "bool"), low.as_value(a, type), low.as_value(b, type)]
    return low.formula(lambda position: where(*(r(position, shape) for r in read)))


@lowers("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def masked_fill(low: Lowering, a, mask, value):
    return choose(low, mask, value, a)


# ---------------------------------------------------------------------------------------------- activations


def _positive(x: Expr) -> Expr:
    return make("max", x, constant(0, x.type), type=x.type)


def _between(x: Expr, low: float, high: float) -> Expr:
    return make("min", make("max", x, constant(low, x.type), type=x.type), constant(high, x.type), type=x.type)


def _scaled(x: Expr, by: float) -> Expr:
    return binary("mul", x, constant(by, x.type))


def _hardsigmoid(x: Expr) -> Expr:
    return _scaled(_between(binary("add", x, constant(3, x.type)), 0, 6), 1 / 6)


def _softplus(x: Expr, beta: float, threshold: float) -> Expr:
    scaled = _scaled(x, beta) if beta != 1 else x
    curve = unary("log1p", unary("exp", scaled))
    curve = _scaled(curve, 1 / beta) if beta != 1 else curve
    return where(compare("gt", scaled, constant(threshold, x.type)), x, curve)


def _log_sigmoid(x: Expr) -> Expr:
    """min(x, 0) - log(1 + exp(-|x|)), exact on both sides in any precision."""
    falling = unary("log1p", unary("exp", unary("neg", unary("abs", x))))
    return binary("sub", make("min", x, constant(0, x.type), type=x.type), falling)


def _mish(x: Expr) -> Expr:
    """x tanh(log(1 + e)) with e = exp(x) is x / (1 + 2 / (e (e + 2))), which takes one function instead of three; above 20 that is x."""
    e, one, two = (
        unary("exp", make("min", x, constant(20, x.type), type=x.type)),
        constant(1, x.type),
        constant(2, x.type),
    )
    return binary("div", x, binary("add", one, binary("div", two, binary("mul", e, binary("add", e, two)))))


def _gelu(x: Expr, approximate: str) -> Expr:
    one = constant(1, x.type)
    if approximate == "tanh":
        cubed = _scaled(binary("mul", binary("mul", x, x), x), 0.044715)
        inner = unary("tanh", _scaled(binary("add", x, cubed), math.sqrt(2 / math.pi)))
    else:
        inner = unary("erf", _scaled(x, math.sqrt(0.5)))
    return binary("mul", _scaled(x, 0.5), binary("add", one, inner))


def _elu(x: Expr, alpha: float, scale: float, input_scale: float) -> Expr:
    inner = _scaled(x, input_scale) if input_scale != 1 else x
    negative = _scaled(unary("expm1", inner), alpha * scale)
    return where(compare("gt", x, constant(0, x.type)), _scaled(x, scale) if scale != 1 else x, negative)


def _leaky(x: Expr, slope: float) -> Expr:
    return where(compare("gt", x, constant(0, x.type)), x, _scaled(x, slope))


_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946

ACTIVATIONS: dict[str, Callable[..., Expr]] = {
    "aten.relu.default": lambda x: _positive(x),
    "aten.relu6.default": lambda x: _between(x, 0, 6),
    "aten.silu.default": lambda x: binary("mul", x, unary("sigmoid", x)),
    "aten.mish.default": _mish,
    "aten.gelu.default": lambda x, approximate="none": _gelu(x, approximate),
    "aten.hardtanh.default": lambda x, low=-1, high=1: _between(x, low, high),
    "aten.hardsigmoid.default": _hardsigmoid,
    "aten.hardswish.default": lambda x: binary("mul", x, _hardsigmoid(x)),
    "aten.softplus.default": lambda x, beta=1, threshold=20: _softplus(x, beta, threshold),
    "aten.elu.default": lambda x, alpha=1, scale=1, input_scale=1: _elu(x, alpha, scale, input_scale),
    "aten.selu.default": lambda x: _elu(x, _SELU_ALPHA, _SELU_SCALE, 1),
    "aten.celu.default": lambda x, alpha=1: _elu(x, alpha, 1, 1 / alpha),
    "aten.leaky_relu.default": lambda x, slope=0.01: _leaky(x, slope),
    "aten.log_sigmoid.default": lambda x: _log_sigmoid(x),
    "aten.tanhshrink.default": lambda x: binary("sub", x, unary("tanh", x)),
    "aten.softsign.default": lambda x: binary("div", x, binary("add", constant(1, x.type), unary("abs", x))),
}

AS_EAGER: dict[str, Callable[..., Expr]] = {
    "aten.silu.default": lambda x: binary("div", x, binary("add", constant(1, x.type), unary("exp", unary("neg", x)))),
    "aten.mish.default": lambda x: binary("mul", x, unary("tanh", unary("log1p", unary("exp", x)))),
    "aten.hardswish.default": lambda x: _scaled(
        binary("mul", x, _between(binary("add", x, constant(3, x.type)), 0, 6)), 1 / 6
    ),
}
"""Where eager's CUDA kernel rounds otherwise than what is cheaper."""

for _name, _activation in ACTIVATIONS.items():

    def _activated(low: Lowering, a, *numbers, _activation=_activation, _name=_name, **named):
        if not low.dtype.is_floating_point:
            return None
        activation = AS_EAGER.get(_name, _activation) if low.is_rounded else _activation
        return _apply(low, lambda x: activation(x, *numbers, **named), a)

    lowers(_name)(_activated)


@lowers("aten.prelu.default")
def prelu(low: Lowering, a, weight):
    if weight.shape[0] != 1:
        weight = low.program.reshape(weight, [weight.shape[0], *[1] * (len(a.shape) - 2)])

    def of(x, w):
        return where(compare("gt", x, constant(0, x.type)), x, binary("mul", w, x))

    return _apply(low, of, a, weight)


@lowers("aten.glu.default")
def glu(low: Lowering, a, dim=-1):
    dim %= len(a.shape)
    half = low.shape[dim]

    def formula(position):
        other = list(position)
        other[dim] = other[dim] + half
        return _as_eager(low, binary("mul", a.at(position), unary("sigmoid", a.at(other))))

    return low.formula(formula)


# ---------------------------------------------------------------------------------------------- copies and casts


@lowers("aten._to_copy.default", "aten.to.dtype", "aten.to.dtype_layout", "aten.type_as.default")
def to(low: Lowering, a, *_, **__):
    if a.dtype == low.dtype:
        return a
    return _apply(low, lambda x: _stored(x, low.dtype), a, type=a.type)


def _stored(x: Expr, dtype: torch.dtype) -> Expr:
    """A cast rounds: to a half, or from a float to an integer."""
    if dtype in (torch.float16, torch.bfloat16, torch.float8_e4m3fn):
        return make("round_to", cast(x, "float"), str(dtype).removeprefix("torch."), type="float")
    if dtype in WRAPPING:
        return make("round_to", x, str(dtype).removeprefix("torch."), type="int32_t")
    return cast(x, COMPUTED[dtype])


@lowers(
    "aten.clone.default", "aten.alias.default", "aten.detach.default", "aten.lift_fresh_copy.default",
    "aten.contiguous.default", "aten.positive.default",
)  # fmt: skip
def same(low: Lowering, a, *_, **__):
    return a


for _name in ("mul", "div"):

    def _added(low: Lowering, a, b, c, *, value=1, _name=_name):
        return _apply(low, lambda x, y, z: binary("add", x, _scaled(binary(_name, y, z), value)), a, b, c)

    lowers(f"aten.addc{_name}.default")(_added)


@lowers("aten.copy.default")
def copy(low: Lowering, a, b, *_):
    return _apply(low, lambda x: x, b)
