"""Integer arithmetic of tensor indices: sums of products of loop variables and sizes, with floor division and modulo.

Everything is non-negative. `divide` and `modulo` simplify with the ranges of the loop variables, so that a reshape of a
reshape that comes back prints as the plain index. Sizes may be symbols (a leading size that the module leaves open).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, reduce
from typing import TypeAlias

import sympy

Index: TypeAlias = sympy.Expr
"""A non-negative integer expression."""


class FloorDiv(sympy.Function):
    """FloorDiv(a, b) = a // b."""

    nargs = 2
    is_integer = True
    is_nonnegative = True

    @classmethod
    def eval(cls, a, b):
        return sympy.Integer(int(a) // int(b)) if a.is_Integer and b.is_Integer else None


class Modulo(sympy.Function):
    """Modulo(a, b) = a % b."""

    nargs = 2
    is_integer = True
    is_nonnegative = True

    @classmethod
    def eval(cls, a, b):
        return sympy.Integer(int(a) % int(b)) if a.is_Integer and b.is_Integer else None


def number(value: int | Index) -> Index:
    return sympy.Integer(value) if isinstance(value, int) else value


def size_symbol(name: str) -> sympy.Symbol:
    """A size that is only known when the module is called; at least one."""
    return sympy.Symbol(name, integer=True, positive=True)


class Ranges:
    """The loop variables that exist, each with its exclusive upper end."""

    def __init__(self) -> None:
        self.ends: dict[sympy.Symbol, Index] = {}

    def variable(self, name: str, end: int | Index) -> Index:
        """A variable over [0, end); zero itself where the end is one."""
        if end == 1:
            return sympy.Integer(0)
        symbol = sympy.Symbol(name, integer=True, nonnegative=True)
        self.ends[symbol] = number(end)
        return symbol

    def named(self, name: str, end: int | Index) -> sympy.Symbol:
        """The same, with a name even where the end is one."""
        symbol = sympy.Symbol(name, integer=True, nonnegative=True)
        self.ends[symbol] = number(end)
        return symbol

    def probe(self, shape, word: str = "read") -> list[Index]:
        """A position that no kernel uses, to see what stands there."""
        return [self.variable(f"{word}{axis}", size) for axis, size in enumerate(shape)]

    def highest(self, expression: Index) -> Index | None:
        """The largest value that the expression can take, or None where a negative term leaves that open."""
        if expression.is_Integer:
            return expression
        if expression.is_Symbol:
            return self.ends[expression] - 1 if expression in self.ends else expression
        if isinstance(expression, Modulo):
            return expression.args[1] - 1
        if isinstance(expression, FloorDiv):
            top = self.highest(expression.args[0])
            ends = None if top is None else _quotient(sympy.expand(top + 1), expression.args[1])
            if ends is not None:  # (q * d - 1) // d
                return sympy.expand(ends - 1)
            return None if top is None else divide(sympy.expand(top), expression.args[1], self)
        if expression.is_Add or expression.is_Mul:
            parts = [self.highest(part) for part in expression.args]
            if any(part is None for part in parts) or (
                expression.is_Mul and any(_negative(p) for p in expression.args)
            ):
                return None
            return sympy.expand(expression.func(*parts))
        return None

    def below(self, expression: Index, end: Index) -> bool:
        """Whether 0 <= expression < end surely holds."""
        if any(_negative(term) for term in sympy.Add.make_args(expression)):
            return False
        top = self.highest(expression)
        return top is not None and surely_positive(end - top)


def _negative(term: Index) -> bool:
    return bool(term.as_coeff_Mul()[0] < 0)


REMEMBERED = 1 << 16
"""Answers kept of each question whose expressions alone decide it: a kernel's programs ask the same tens of thousands of times."""


@lru_cache(REMEMBERED)
def surely_positive(expression: Index) -> bool:
    """Whether a polynomial of sizes (each at least one) is above zero: its value at ones is, and no growing part is negative."""
    expression = sympy.expand(expression)
    if expression.is_Integer:
        return bool(expression > 0)
    symbols = expression.free_symbols
    if any(isinstance(node, (FloorDiv, Modulo)) for node in sympy.preorder_traversal(expression)):
        return False
    shifted = sympy.expand(expression.xreplace({symbol: symbol + 1 for symbol in symbols}))
    constant, *_ = shifted.as_coeff_Add()
    return bool(constant > 0) and not any(_negative(term) for term in sympy.Add.make_args(shifted - constant))


@lru_cache(REMEMBERED)
def _quotient(term: Index, divisor: Index) -> Index | None:
    """term / divisor where that is an integer for every value of the symbols."""
    ratio = term / divisor
    top, bottom = ratio.as_numer_denom()
    return ratio if bottom == 1 and top.is_integer is not False else None


@lru_cache(REMEMBERED)
def _split(expression: Index, divisor: Index) -> tuple[Index, Index]:
    """(q, r) with expression = q * divisor + r, where q gathers the terms that divide."""
    whole, rest = [], []
    for term in sympy.Add.make_args(sympy.expand(expression)):
        quotient = _quotient(term, divisor)
        if quotient is not None:
            whole.append(quotient)
            continue
        coefficient, factor = term.as_coeff_Mul()
        if divisor.is_Integer and coefficient.is_Integer and abs(coefficient) > divisor:
            whole.append(factor * (coefficient // divisor))
            term = factor * (coefficient % divisor)
        rest.append(term)
    return sympy.Add(*whole), sympy.Add(*rest)


@lru_cache(REMEMBERED)
def _split_by_sum(expression: Index, divisor: Index) -> tuple[Index, Index]:
    """The same for a sum of terms, such as cols + 3: q gathers what its largest one divides."""
    largest = max(sympy.Add.make_args(divisor), key=lambda term: (len(term.free_symbols), str(term)))
    quotients = (_quotient(term, largest) for term in sympy.Add.make_args(sympy.expand(expression)))
    whole = sympy.Add(*(quotient for quotient in quotients if quotient is not None))
    return whole, sympy.expand(expression - whole * divisor)


def _within(expression: Index, divisor: Index, ranges: Ranges) -> tuple[Index, Index] | None:
    """(q, r) with expression = q * divisor + r where 0 <= r < divisor surely holds."""
    for split in (_split, _split_by_sum) if divisor.is_Add else (_split,):
        whole, rest = split(expression, divisor)
        if rest == 0 or ranges.below(rest, divisor):
            return whole, rest
    return None


@lru_cache(REMEMBERED)
def _common(expression: Index, divisor: Index) -> tuple[Index, ...]:
    """Factors of the divisor to try: those that some term of the expression has as well, largest first."""
    found = set()
    for term in sympy.Add.make_args(expression):
        factor = sympy.gcd(term.as_coeff_Mul()[0], divisor) if divisor.is_Integer else sympy.gcd(term, divisor)
        if factor not in (1, divisor):
            found.add(factor)
    by_size = sorted(found, key=lambda f: (f.subs(dict.fromkeys(f.free_symbols, 64)), str(f)), reverse=True)
    return tuple(by_size)


def divide(expression: Index, divisor: Index | int, ranges: Ranges) -> Index:
    """expression // divisor."""
    divisor = number(divisor)
    if divisor == 1:
        return expression
    if isinstance(expression, FloorDiv):
        return divide(expression.args[0], sympy.expand(expression.args[1] * divisor), ranges)
    if (found := _within(expression, divisor, ranges)) is not None:
        return found[0]
    whole, rest = _split(expression, divisor)
    if any(_negative(term) for term in sympy.Add.make_args(rest)):
        return FloorDiv(sympy.expand(expression), divisor)
    for factor in _common(rest, divisor):
        # floor((f*x + r) / (f*d)) = floor(x / d) where 0 <= r < f
        upper, lower = _split(rest, factor)
        if ranges.below(lower, factor):
            return whole + divide(upper, sympy.cancel(divisor / factor), ranges)
    return whole + FloorDiv(rest, divisor)


def modulo(expression: Index, divisor: Index | int, ranges: Ranges) -> Index:
    """expression % divisor."""
    divisor = number(divisor)
    if divisor == 1:
        return sympy.Integer(0)
    if (found := _within(expression, divisor, ranges)) is not None:
        return found[1]
    _, rest = _split(expression, divisor)
    if any(_negative(term) for term in sympy.Add.make_args(rest)):
        return Modulo(sympy.expand(expression), divisor)
    for factor in _common(rest, divisor):
        # (f*x + r) % (f*d) = f*(x % d) + r where 0 <= r < f
        upper, lower = _split(rest, factor)
        if ranges.below(lower, factor):
            return factor * modulo(upper, sympy.cancel(divisor / factor), ranges) + lower
    if isinstance(rest, Modulo) and _quotient(rest.args[1], divisor) is not None:
        return modulo(rest.args[0], divisor, ranges)
    return Modulo(rest, divisor)


def joined(expression: Index) -> Index:
    """The expression with k*(x // k) + x % k put together again."""
    expression = sympy.expand(expression)
    while True:
        better = _join_once(expression)
        if better is None:
            return expression
        expression = better


def _join_once(expression: Index) -> Index | None:
    terms = list(sympy.Add.make_args(expression))
    for position, term in enumerate(terms):
        for atom in (a for a in sympy.Mul.make_args(term) if isinstance(a, Modulo)):
            value, end = atom.args
            factor = term / atom
            others = [t for at, t in enumerate(terms) if at != position]
            for at, other in enumerate(others):
                for high in (a for a in sympy.Mul.make_args(other) if isinstance(a, (FloorDiv, Modulo))):
                    if sympy.expand(other / high - factor * end) != 0:
                        continue
                    together = _together(high, value, end)
                    if together is not None:
                        return sympy.expand(sympy.Add(factor * together, *others[:at], *others[at + 1 :]))
    return None


def _together(high: Index, value: Index, end: Index) -> Index | None:
    """end * high + value % end as one term, if high is value // end or (value // end) % m."""
    if isinstance(high, FloorDiv):
        if isinstance(high.args[0], Modulo) and high.args[1] == end and high.args[0].args[0] == value:
            whole = high.args[0]  # value % end is that of value % m, if m is a multiple of end
            return whole if _quotient(whole.args[1], end) is not None else None
        return value if high.args == (value, end) else _deeper(high, value, end)
    inner, upper = high.args
    if inner == FloorDiv(value, end) or _deeper(inner, value, end) is not None:
        return Modulo(value, sympy.expand(end * upper))
    return None


def _deeper(high: Index, value: Index, end: Index) -> Index | None:
    """The same where value is itself x // k, so that value // end was folded into x // (k * end)."""
    if isinstance(high, FloorDiv) and isinstance(value, FloorDiv):
        base, step = value.args
        if high.args[0] == base and sympy.expand(step * end - high.args[1]) == 0:
            return value
    return None


def substitute(expression: Index, values: Mapping[Index, Index], ranges: Ranges) -> Index:
    """The expression with what stands for its variables in their places, divided anew: (128 + x - 128) % 2 becomes x % 2."""
    if not expression.free_symbols & values.keys():
        return expression
    if expression.is_Symbol:
        return values[expression]
    parts = [substitute(part, values, ranges) for part in expression.args]
    if isinstance(expression, FloorDiv | Modulo):
        return (divide if isinstance(expression, FloorDiv) else modulo)(sympy.expand(parts[0]), parts[1], ranges)
    return sympy.expand(expression.func(*parts))


def product(sizes) -> Index:
    return sympy.expand(reduce(lambda a, b: a * b, map(number, sizes), sympy.Integer(1)))


def strides_of(shape) -> tuple[Index, ...]:
    """Row-major strides, in elements."""
    return tuple(product(shape[axis + 1 :]) for axis in range(len(shape)))


def flatten(position, shape) -> Index:
    """The row-major element number at a position."""
    return sympy.expand(sympy.Add(*(p * s for p, s in zip(position, strides_of(shape), strict=True))))


def unflatten(element: Index, shape, ranges: Ranges) -> list[Index]:
    """The position of a row-major element number that lies within the shape."""
    position = []
    strides = strides_of(shape)
    for axis, (size, stride) in enumerate(zip(shape, strides, strict=True)):
        if size == 1:
            position.append(sympy.Integer(0))
            continue
        value = divide(element, stride, ranges)
        outermost = all(s == 1 for s in shape[:axis])
        position.append(value if outermost else modulo(value, size, ranges))
    return position


def estimate(size: int | Index, hints: dict[sympy.Symbol, int]) -> int:
    """The value of a size at the sizes that were shipped: for choices of speed, never for what is computed."""
    return int(number(size).subs(hints))


def divisions_in(index: Index) -> list[Index]:
    """Its quotients and remainders, inner ones first."""
    return [atom for atom in sympy.postorder_traversal(index) if isinstance(atom, (FloorDiv, Modulo))]


def index_is_divided(indices) -> bool:
    """Whether any of the indices divides."""
    return any(index.has(FloorDiv, Modulo) for index in indices)


def viewed_strides(old_shape, old_strides, new_shape) -> list[Index] | None:
    """Strides with which the new shape views the same memory, or None where that needs a copy (row-major order)."""
    chunks: list[tuple[Index, Index]] = []  # (elements, stride of the last one), innermost last
    for size, stride in zip(old_shape, old_strides, strict=True):
        if size == 1:
            continue
        if chunks and sympy.expand(chunks[-1][1] - size * stride) == 0:
            chunks[-1] = (sympy.expand(chunks[-1][0] * size), stride)
        else:
            chunks.append((size, stride))
    strides: list[Index] = []
    left, step = sympy.Integer(1), sympy.Integer(1)
    for size in reversed(new_shape):
        if size == 1:
            strides.append(step)
            continue
        if left == 1:
            if not chunks:
                return None
            left, step = chunks.pop()
        rest = sympy.cancel(left / size)
        if rest.as_numer_denom()[1] != 1 or (rest.is_number and not rest.is_Integer):
            return None
        strides.append(step)
        left, step = rest, sympy.expand(step * size)
    return list(reversed(strides)) if left == 1 and not chunks else None
