"""Integers that are known to be small, as codes of a few bits are: their difference as a float is one subtraction of what 2^23 raises them to."""

from __future__ import annotations

import torch

from compiler.draft.expressions import Expr, binary, cast, constant, make

RAISED = 1 << 23
"""Below it an integer's bits are those of a float's fraction. Of conversions from fewer than 32 bits a multiprocessor (sm_90) does 16 a cycle."""
MOST = {torch.uint8: 255, torch.bool: 1}


def highest(expr: Expr) -> int | None:
    """The largest value of an integer that is never negative; None where that is not known."""
    op, args = expr.op, expr.args
    if op == "const" and expr.type != "float" and args[0] >= 0:
        return int(args[0])
    if op in ("load", "load_at"):
        return MOST.get(args[0].dtype)
    if op in ("cast", "round_to") and args[0].type in ("bool", "int32_t", "int64_t"):
        found = highest(args[0])
        return found if op == "cast" or (found is not None and found <= 255) else 255 if args[1] == "uint8" else None
    if op == "bit_and":
        return min((one for one in map(highest, args) if one is not None), default=None)
    if op == "shift_right" and args[1].op == "const":
        return None if (found := highest(args[0])) is None else found >> args[1].args[0]
    if op in ("where", "masked"):
        one, other = map(highest, args[1:])
        return None if one is None or other is None else max(one, other)
    return None


def small_difference(a: Expr, b: Expr) -> Expr | None:
    """The difference of two small integers that are floats already; None where one of them is anything else."""
    if any(one.op != "cast" or (found := highest(one.args[0])) is None or found >= RAISED for one in (a, b)):
        return None
    raised = make("raised", cast(a.args[0], "int32_t"), type="float")
    return make("sub", raised, binary("add", constant(RAISED, "float"), b), type="float")
