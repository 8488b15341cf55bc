"""Operators that only the compiler lowers: bits and quotients of integers. Registered by being imported."""

from __future__ import annotations

import torch

from compiler.draft.expressions import COMPUTED, Expr, cast, make
from compiler.draft.lower_pointwise import _stored
from compiler.draft.lowering import LOWERINGS, Lowering

INTEGERS = {
    "bit_and": ("bitwise_and.Tensor", "bitwise_and.Scalar", "__and__.Tensor", "__and__.Scalar"),
    "bit_or": ("bitwise_or.Tensor", "bitwise_or.Scalar", "__or__.Tensor", "__or__.Scalar"),
    "bit_xor": ("bitwise_xor.Tensor", "bitwise_xor.Scalar", "__xor__.Tensor", "__xor__.Scalar"),
    "shift_right": ("bitwise_right_shift.Tensor", "bitwise_right_shift.Tensor_Scalar", "__rshift__.Scalar", "__rshift__.Tensor"),
    "shift_left": ("bitwise_left_shift.Tensor", "bitwise_left_shift.Tensor_Scalar", "__lshift__.Scalar", "__lshift__.Tensor"),
    "floor_quotient": ("floor_divide.default", "floor_divide.Scalar"),
    "floor_remainder": ("remainder.Tensor", "remainder.Scalar"),
}  # fmt: skip
"""Operation -> torch's operators, of integers; results of narrow ones wrap as torch's do."""


def _register(op: str, name: str) -> None:
    before = LOWERINGS.get(name)

    def lowered(low: Lowering, a, b):
        if before is not None and (found := before(low, a, b)) is not None:
            return found
        if low.dtype.is_floating_point or low.dtype == torch.bool:
            return None
        type, shape = COMPUTED[low.dtype], low.shape
        readers = [low.as_value(argument, type) for argument in (a, b)]

        def element(position) -> Expr:
            value = make(op, *(read(position, shape) for read in readers), type=type)
            return cast(_stored(value, low.dtype), type)

        return low.formula(element)

    LOWERINGS[name] = lowered


for _op, _names in INTEGERS.items():
    for _name in _names:
        _register(_op, f"aten.{_name}")
