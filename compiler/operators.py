"""Operators that only the compiler lowers: bits and quotients of integers, tables. `extend_table` registers them."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable

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
    loads_of,
    make,
    masked,
    pick,
    unary,
    where,
)
from compiler.draft.index import Index, divide, flatten, modulo, number, unflatten
from compiler.draft.lower_pointwise import _apply, _stored
from compiler.draft.lowering import Lowering, _nothing, extend, lowers
from compiler.draft.tensors import Definition, NoDraft, Position, Program, Value

INTEGERS = {
    "bit_and": ("bitwise_and.Tensor", "bitwise_and.Scalar", "__and__.Tensor", "__and__.Scalar"),
    "bit_or": ("bitwise_or.Tensor", "bitwise_or.Scalar", "__or__.Tensor", "__or__.Scalar"),
    "bit_xor": ("bitwise_xor.Tensor", "bitwise_xor.Scalar", "__xor__.Tensor", "__xor__.Scalar"),
    "shift_right": ("bitwise_right_shift.Tensor", "bitwise_right_shift.Tensor_Scalar", "__rshift__.Scalar", "__rshift__.Tensor"),
    "shift_left": ("bitwise_left_shift.Tensor", "bitwise_left_shift.Tensor_Scalar", "__lshift__.Scalar", "__lshift__.Tensor", "pow.Scalar"),
    "floor_quotient": ("floor_divide.default", "floor_divide.Scalar"),
    "floor_remainder": ("remainder.Tensor", "remainder.Scalar"),
}  # fmt: skip
"""Operation -> torch's operators, of integers; results of narrow ones wrap as torch's do."""


def _integer(op: str, power: bool, before, low: Lowering, a, b):
    if (found := before(low, a, b)) is not None or low.program.settles:
        return found  # what settles is a module's draft, whose texts have no such operations
    if low.dtype.is_floating_point or low.dtype == torch.bool:
        return None
    by = 1
    if power:  # of a power of two: 4 ** b is 1 << 2 * b
        if not isinstance(a, int) or a < 2 or a & (a - 1):
            return None
        by, a = a.bit_length() - 1, 1
    type, shape = COMPUTED[low.dtype], low.shape
    readers = [low.as_value(argument, type) for argument in (a, b)]

    def element(position) -> Expr:
        first, second = (read(position, shape) for read in readers)
        second = second if by == 1 else make("mul", second, constant(by, type), type=type)
        value = make(op, first, second, type=type)
        return cast(_stored(value, low.dtype), type)

    return low.formula(element)


def _integer_quotient(before, low: Lowering, a, b, *, rounding_mode=None):
    """Towards zero it is that of the magnitudes, with its sign."""
    if low.dtype.is_floating_point or rounding_mode is None or low.program.settles:
        return before(low, a, b, rounding_mode=rounding_mode)
    if rounding_mode == "floor":
        return _integer("floor_quotient", False, _nothing, low, a, b)
    zero = constant(0, COMPUTED[low.dtype])

    def of(x: Expr, y: Expr) -> Expr:
        size = make("floor_quotient", unary("abs", x), unary("abs", y), type=x.type)
        return where(make("ne", compare("lt", x, zero), compare("lt", y, zero), type="bool"), unary("neg", size), size)

    return _apply(low, of, a, b)


def _bit_not(before, low: Lowering, a):
    found = before(low, a)
    return found if found is not None or low.program.settles else _integer("bit_xor", False, _nothing, low, a, -1)


MOST_IN_TABLE = 256
"""Elements of a table that a reference writes down: codes of a byte."""


def table_of(program: Program, held: torch.Tensor) -> Value:
    """The numbers of a tensor that a reference writes down, as an expression of the place. Raises NoDraft."""
    if held.numel() > MOST_IN_TABLE or type(held) is not torch.Tensor:
        raise NoDraft(f"the reference writes a tensor of more than {MOST_IN_TABLE} numbers down")
    type_, numbers = COMPUTED[held.dtype], held.flatten().tolist()

    def element(position) -> Expr:
        return pick(index_value(flatten(position, held.shape)), [constant(number, type_) for number in numbers])

    return program.formula(held.shape, held.dtype, element, "table")


MOST_COST = 4096
"""Instructions of an operand's element: a table that doubled seven times was an expression of 16384 branches, and its product 200,000 lines."""


MANY = 1024
"""Rows or columns from which on what is computed of an operand's element is computed once."""


def _product(before, low: Lowering, a: Value, b: Value):
    """A product of matrices as sums: of vectors it is a reduction like any other; what else it is part of says its kernel."""
    found = before(low, a, b)
    if found is not None or low.program.settles or len(a.shape) != len(b.shape) or len(a.shape) < 2:
        return found
    if max(low.probe(one).cost for one in (a, b)) > MOST_COST:
        return None
    batch, rows, columns, depth = a.shape[:-2], a.shape[-2], b.shape[-1], a.shape[-1]
    type = COMPUTED[low.dtype]
    left, right = (a.at, b.at) if 1 in (rows, columns) else (_operand(low, a, columns), _operand(low, b, rows))

    def element(position) -> Expr:
        *lead, row, column, step = position
        return binary("mul", cast(left([*lead, row, step]), type), cast(right([*lead, step, column]), type))

    whole = low.program.formula((*batch, rows, columns, depth), low.dtype, element, low.name)
    (made,) = low.program.fold("sum", whole, [len(batch) + 2], [low.dtype])
    if made.buffer is not None and isinstance(summed := made.buffer.written_by, Definition):  # else it is an expression
        summed.is_product = rows != 1 and columns != 1
    return made


def _operand(low: Lowering, side: Value, uses: Index) -> Callable[[Position], Expr]:
    """The operand's element: of memory where more than a load is done for it and many tiles read it, as its loads lie."""
    program = low.program
    at = program.ranges.probe(side.shape)
    value = side.at(at)
    loads = loads_of([value])
    sums = any(getattr(load.args[0].written_by, "is_product", False) for load in loads)
    kinds = {
        load.args[0].dtype for load in loads
    }  # tensor cores take computed bfloat16s as such, too (ProductKernel.narrow)
    once = value.op not in ("load", "masked") and kinds in ({torch.float32}, {torch.bfloat16})
    if program.in_memory or program.estimate(uses) < MANY or sums or not once:
        return side.at
    turned = any(
        load.op == "load" and {at[-1], at[-2]} <= load.args[1].free_symbols and load.args[1].coeff(at[-2]) == 1
        for load in loads
    )
    order = [*range(len(at) - 2), len(at) - 1, len(at) - 2] if turned else list(range(len(at)))
    made = low.formula(lambda p: side.at([p[axis] for axis in order]), [side.shape[axis] for axis in order])
    buffer = program.realise(made)
    (buffer.dtype,) = kinds
    program.copied.add(buffer)
    return lambda p: made.at([p[axis] for axis in order])


def _columns(low: Lowering, a: Value, window, dilation, padding, stride):
    """Windows of an image, each a column: their places follow from where one stands, and none is looked up."""
    if low.program.settles:
        return None
    told = list(zip(a.shape[-2:], window, dilation, padding, stride, strict=True))
    counts = [
        divide(size + 2 * p - d * (k - 1) - 1, sympy.Integer(s), low.program.ranges) + 1 for size, k, d, p, s in told
    ]
    lead, ranges = len(a.shape) - 3, low.program.ranges

    def element(position) -> Expr:
        channel, *steps = unflatten(position[lead], [a.shape[lead], *window], ranges)
        outs = unflatten(position[lead + 1], counts, ranges)
        places, inside = [], []
        for at, step, (size, _, d, p, s) in zip(outs, steps, told, strict=True):
            places.append(sympy.expand(at * s + step * d - p))
            if p:
                inside.append(compare("ge", index_value(places[-1]), index_value(sympy.Integer(0))))
                inside.append(compare("lt", index_value(places[-1]), index_value(size)))
        found = cast(a.at([*position[:lead], channel, *places]), COMPUTED[low.dtype])
        return masked(all_of(inside), found, constant(0, COMPUTED[low.dtype])) if inside else found

    return low.formula(element)


MOST_FRAMES = 16
"""Windows that an element lies in, each a term of its sum."""


def _frames(low: Lowering, a: Value, size, window, dilation, padding, stride):
    """What windows hold of each element of an image, summed where it stands: nothing is added in memory."""
    told = list(zip(size, window, dilation, padding, stride, strict=True))
    each = [-(-k // s) for _, k, _, _, s in told]
    if low.program.settles or any(d != 1 for _, _, d, _, _ in told) or math.prod(each) > MOST_FRAMES:
        return None
    ranges, lead = low.program.ranges, len(low.shape) - 3
    counts = [divide(number(n) + 2 * p - k, sympy.Integer(s), ranges) + 1 for n, k, _, p, s in told]
    type = COMPUTED[low.dtype]

    def element(position) -> Expr:
        found = constant(0, type)
        for backs in itertools.product(*map(range, each)):
            steps, frames, inside = [], [], []
            for at, back, count, (_, k, _, p, s) in zip(position[lead + 1 :], backs, counts, told, strict=True):
                steps.append(modulo(at + p, sympy.Integer(s), ranges) + s * back)
                frames.append(sympy.expand(divide(sympy.expand(at + p), sympy.Integer(s), ranges) - back))
                inside += [compare("lt", index_value(steps[-1]), index_value(sympy.Integer(k)))] if k % s else []
                inside.append(compare("ge", index_value(frames[-1]), index_value(sympy.Integer(0))))
                inside.append(compare("lt", index_value(frames[-1]), index_value(count)))
            row = flatten([position[lead], *steps], [low.shape[lead], *window])
            own = cast(a.at([*position[:lead], row, flatten(frames, counts)]), type)
            found = binary("add", found, masked(all_of(inside), own, constant(0, type)))
        return found

    return low.formula(element)


def extend_table() -> None:
    lowers("aten.col2im.default")(_frames)
    lowers("aten.im2col.default")(_columns)
    for op, names in INTEGERS.items():
        for name in names:
            extend(functools.partial(_integer, op, name == "pow.Scalar"), f"aten.{name}")
    extend(_integer_quotient, "aten.div.Tensor_mode", "aten.div.Scalar_mode")
    extend(_bit_not, "aten.bitwise_not.default")
    extend(_product, "aten.bmm.default", "aten.mm.default")
