"""Numbers that forward changes in attributes of Model and of its parts.

A count is an argument of what is drafted: while the module is followed it is a tensor of the graph and a text of Python at once, and what
forward leaves in its place is computed in Python behind the kernels. A choice that the first call settles is asked for in front of them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from .names import in_c
from .tensors import NoDraft

SUFFIX = "_counted"
"""Of the buffer that stands for a count while a module is followed, and of the argument."""
SIGNS = {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**"}
ASKING = ("bool", "int", "float", "index", "complex", "round", "eq", "ne", "lt", "le", "gt", "ge")


def count_name(path: str) -> str:
    """The argument that brings it."""
    return in_c(path.replace(".", "_") + SUFFIX)


class Counted(NoDraft):
    """Forward counts in an attribute, in a way that has no draft."""

    def __init__(self, names: set[str]) -> None:
        super().__init__(f"forward changes {', '.join(sorted(names))}, which a draft would take for a constant")


class Count:
    """What stands in the attribute."""

    def __init__(self, value: torch.Tensor, is_whole: bool, text: str = "{}") -> None:
        self.value, self.is_whole, self.text = value, is_whole, text
        """`value` in float64; `text` with a place for the attribute's own."""

    @property
    def tensor(self) -> torch.Tensor:
        return self.value.to(torch.int64) if self.is_whole else self.value

    @classmethod
    def __torch_function__(cls, function: Callable, types: Any, arguments: tuple = (), named: Any = None) -> Any:
        arguments, named = pytree.tree_map(_as_tensor, (arguments, named or {}))
        return function(*arguments, **named)


def _as_tensor(one: Any) -> Any:
    return one.tensor if isinstance(one, Count) else one


def _apply(name: str, sign: str, a: Any, b: Any) -> Any:
    apply = getattr(operator, name)
    if not all(isinstance(one, Count) or type(one) in (bool, int, float) for one in (a, b)):
        return apply(_as_tensor(a), _as_tensor(b))
    (one, left), (other, right) = ((n.value, n.text) if isinstance(n, Count) else (float(n), repr(n)) for n in (a, b))
    whole = name != "truediv" and all(n.is_whole if isinstance(n, Count) else type(n) is not float for n in (a, b))
    return Count(apply(one, other), whole, f"({left} {sign} {right})")


def _refuse(self: Count, *_: Any) -> Any:
    raise TypeError("a count is asked for its number")


for _name, _sign in SIGNS.items():
    setattr(Count, f"__{_name}__", lambda a, b, n=_name, s=_sign: _apply(n, s, a, b))
    setattr(Count, f"__r{_name}__", lambda b, a, n=_name, s=_sign: _apply(n, s, a, b))
for _name in ASKING:
    setattr(Count, f"__{_name}__", _refuse)
