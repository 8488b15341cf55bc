"""A tensor of the spec in the sizes that a program has for its axes."""

from __future__ import annotations

from collections.abc import Callable

import sympy
import torch

from compiler.draft.expressions import make
from compiler.draft.index import Index
from compiler.draft.tensors import Position
from compiler.frontend import extent
from kernels.spec import Tensor


def scalar_of(name: str, ctype: str):
    return lambda position: make("scalar", name, type=ctype)


def shape_of(tensor: Tensor, sizes: dict[str, Index]) -> tuple[Index, ...]:
    return tuple(extent(text, sizes) for text in tensor.shape)


def strides_of(tensor: Tensor, sizes: dict[str, Index]) -> tuple[Index, ...]:
    return tuple(extent(text, sizes) for text in tensor.strides)


def place_of(strides: tuple[Index, ...]) -> Callable[[Position], Index]:
    return lambda position: sympy.expand(sympy.Add(*(p * s for p, s in zip(position, strides, strict=True))))


def memory_of(tensor: Tensor, sizes: dict[str, Index]) -> tuple[Index, ...]:
    """Shape of a tensor's memory: its own, or of one with strides all elements from its first to its last."""
    shape = shape_of(tensor, sizes)
    if not tensor.strides:
        return shape
    ends = (n - 1 for n in shape)
    return (sympy.expand(1 + sympy.Add(*(e * s for e, s in zip(ends, strides_of(tensor, sizes), strict=True)))),)


def dtype_of(tensor: Tensor, dtype: str) -> torch.dtype:
    return getattr(torch, dtype if tensor.dtype == "T" else tensor.dtype)
