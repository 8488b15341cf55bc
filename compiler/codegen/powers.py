"""Powers by roots: of a quarter or a half, a general one is some hundred instructions."""

from __future__ import annotations

import math

from compiler.draft.expressions import Expr, binary, compare, constant, unary, where

MOST_POWER = 4


def power_of_quarters(x: Expr, exponent: Expr) -> Expr | None:
    """x ** exponent by products and square roots; None where the exponent is no number of quarters, or a falling one beyond -1."""
    number = exponent.args[0] if exponent.op == "const" else 0.0
    if not -1 <= number <= MOST_POWER or number == 0 or (4 * number) % 1:
        return None
    whole, quarters = divmod(round(4 * abs(number)), 4)
    root = unary("sqrt", x)
    if quarters != 2:  # the root of minus zero has a sign, such powers of it have none
        root = unary("abs", root)
    factors = [*[x] * whole, *[root] * (quarters // 2), *[unary("sqrt", root)] * (quarters % 2)]
    made = factors[0]
    for factor in factors[1:]:
        made = binary("mul", made, factor)
    made = made if number > 0 else binary("div", constant(1, x.type), made)
    if not quarters or (whole, quarters) == (0, 2):  # torch takes the root itself, which minus infinity has not
        return made
    lowest = compare("eq", x, constant(-math.inf, x.type))  # has no root, but such powers
    return where(lowest, constant(math.inf if number > 0 else 0.0, x.type), made)
