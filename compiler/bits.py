"""Tensors seen as another type, bit by bit: codes in bytes, exponents, floats that lie in a struct of bytes."""

from __future__ import annotations

import functools
import math

import sympy
import torch

from compiler.draft.expressions import COMPUTED, Expr, binary, cast, compare, constant, index_value, make, unary, where
from compiler.draft.index import divide, modulo
from compiler.draft.lower_pointwise import _stored
from compiler.draft.lowering import Lowering, lowers
from compiler.draft.tensors import Value

SHORT = {torch.float16: (15, 10), torch.float8_e4m3fn: (7, 3)}
"""Floats whose exponent is narrower than float's: (what is added to it, bits behind it)."""
FLOATS = (torch.float32, torch.bfloat16, *SHORT)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool)


def _word_of(value: Expr, dtype: torch.dtype, type: str) -> Expr:
    """The bits of an element, of the narrow ones with zeros before."""
    number = functools.partial(constant, type=type)
    op = lambda name, a, by: make(name, a, number(by), type=type)  # noqa: E731
    if dtype in INTEGERS:
        return cast(value, type) if dtype.itemsize == 8 else op("bit_and", cast(value, type), 256**dtype.itemsize - 1)
    whole = cast(make("bits_of", cast(value, "float"), type="int32_t"), type)
    if dtype == torch.float32:
        return whole if type == "int32_t" else op("bit_and", whole, 2**32 - 1)
    if dtype == torch.bfloat16:
        return op("bit_and", op("shift_right", whole, 16), 0xFFFF)
    bias, behind = SHORT[dtype]
    sign = op("shift_left", op("bit_and", op("shift_right", whole, 31), 1), dtype.itemsize * 8 - 1)
    size, absolute = op("bit_and", whole, 0x7FFFFFFF), unary("abs", cast(value, "float"))
    normal = op("shift_right", op("sub", size, (127 - bias) << 23), 23 - behind)
    tiny = cast(binary("mul", absolute, constant(2.0 ** (bias - 1 + behind), "float")), type)
    found = where(compare("lt", absolute, constant(2.0 ** (1 - bias), "float")), tiny, normal)
    not_finite = op("bit_or", op("shift_right", op("bit_and", size, 0x7FFFFF), 13), 0x7C00)
    top = number(0x7F) if dtype == torch.float8_e4m3fn else not_finite
    found = where(compare("ge", size, number(0x7F800000)), top, found)
    return make("bit_or", sign, found, type=type)


def _of_word(word: Expr, dtype: torch.dtype) -> Expr:
    """The element that these bits are."""
    type = word.type
    op = lambda name, a, by: make(name, a, constant(by, type), type=type)  # noqa: E731
    as_float = lambda bits: make("of_bits", cast(bits, "int32_t"), type="float")  # noqa: E731
    if dtype == torch.bool:
        return compare("ne", word, constant(0, type))
    if dtype in INTEGERS:
        return cast(_stored(word, dtype), COMPUTED[dtype])
    if dtype == torch.float32:
        return as_float(word)
    if dtype == torch.bfloat16:
        return as_float(op("shift_left", word, 16))
    bias, behind = SHORT[dtype]
    last = dtype.itemsize * 8 - 1
    sign, size = op("shift_left", op("shift_right", word, last), 31), op("bit_and", word, (1 << last) - 1)
    bits = make("bit_or", sign, op("shift_left", size, 23 - behind), type=type)
    found = binary("mul", as_float(bits), constant(2.0 ** (127 - bias), "float"))
    if dtype == torch.float8_e4m3fn:
        return where(compare("eq", size, constant(0x7F, type)), constant(math.nan, "float"), found)
    return where(compare("ge", size, constant(0x7C00, type)), as_float(op("bit_or", bits, 0x7F800000)), found)


@lowers("aten.view.dtype")
def bit_view(low: Lowering, a: Value, dtype: torch.dtype):
    """Elements of another size are parts of a last axis, or several of it are one."""
    if low.program.settles or not {a.dtype, dtype} <= {*FLOATS, *INTEGERS}:
        return None
    own, other, ranges = a.dtype.itemsize, dtype.itemsize, low.program.ranges
    type = "int64_t" if max(own, other) == 8 else "int32_t"

    def element(position) -> Expr:
        if own == other:
            return _of_word(_word_of(a.at(position), a.dtype, type), dtype)
        *lead, last = position
        if own > other:
            parts = sympy.Integer(own // other)
            word = _word_of(a.at([*lead, divide(last, parts, ranges)]), a.dtype, type)
            by = cast(index_value(8 * other * modulo(last, parts, ranges)), type)
            word = make("shift_right", word, by, type=type)
            return _of_word(make("bit_and", word, constant(256**other - 1, type), type=type), dtype)
        count = other // own
        pieces = [_word_of(a.at([*lead, count * last + at]), a.dtype, type) for at in range(count)]
        if other == COMPUTED_BYTES[type]:  # the highest bit is the sign
            top = 256**own // 2
            pieces[-1] = make(
                "sub", make("bit_xor", pieces[-1], constant(top, type), type=type), constant(top, type), type=type
            )
        shifted = [make("shift_left", one, constant(8 * own * at, type), type=type) for at, one in enumerate(pieces)]
        return _of_word(functools.reduce(lambda one, more: make("bit_or", one, more, type=type), shifted), dtype)

    return low.formula(element)


COMPUTED_BYTES = {"int32_t": 4, "int64_t": 8}
