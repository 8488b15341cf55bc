"""What a kernel computes for one element: a tree of scalar operations over loads.

Types are C's: `float`, `double`, `int64_t`, `int32_t`, `bool`. Halves are loaded into `float` and stored from it, so that a
chain is rounded once where eager rounds after each operator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch

from .index import Index


class NoDraft(Exception):
    """There is no draft of this module; the text is one sentence that names the operator."""


class NothingOwn(NoDraft):
    """Every operator stays with a library."""


class SizeNeeded(NoDraft):
    """There is none for open leading sizes. `size`: the one that is in the way, where one is."""

    def __init__(self, text: str, size: Index = sympy.S.Zero) -> None:
        super().__init__(text)
        self.size = size


class _Computed(dict):
    def __missing__(self, dtype: torch.dtype) -> str:
        raise NoDraft(f"a kernel would have to compute in {dtype}, which no kernel does")


COMPUTED = _Computed({
    torch.float32: "float", torch.float64: "double", torch.float16: "float", torch.bfloat16: "float",
    torch.int64: "int64_t", torch.int32: "int32_t", torch.int16: "int32_t", torch.int8: "int32_t",
    torch.uint8: "int32_t", torch.bool: "bool", torch.float8_e4m3fn: "float",
})  # fmt: skip
"""The C type in which a value of a tensor's dtype is computed."""

RANK = {"bool": 0, "int32_t": 1, "int64_t": 2, "float": 3, "double": 4}

COST = {
    "exp": 8, "log": 8, "log1p": 10, "expm1": 10, "tanh": 10, "erf": 12, "pow": 20, "sin": 12, "cos": 12, "div": 4,
    "sqrt": 4, "pick": 4, "rsqrt": 4, "sigmoid": 10, "atan": 12, "load": 1, "load_at": 2, "const": 0, "index": 1, "cast": 0, "fmod": 12,
}  # fmt: skip
"""Instructions, roughly: whether a value is computed again or kept."""


@dataclass(frozen=True, eq=False)
class Expr:
    """One operation. `op` is `load` (args: buffer, element index), `const` (a number), `index` (an Index as a number),
    `scalar` (the name of a number that the call brings), `load_at` (buffer, element index,
    stride, place: the place is itself computed), `masked` (condition, value, otherwise: only the one that is chosen is looked at, so
    the other may lie out of bounds), `pick` (a place, numbers: the one at that place), `repeated` (kind, variable, end, value: a
    reduction that whoever needs it takes itself), `halved` (variable, end, condition: how many steps it holds for, the first ones), or an arithmetic operator over Exprs."""

    op: str
    args: tuple
    type: str
    cost: int = field(default=0)


class Interned:
    """Equal trees are one object, so that what is used twice can be named once. One to a draft."""

    def __init__(self) -> None:
        self._known: dict[tuple, Expr] = {}

    def __call__(self, op: str, *args, type: str) -> Expr:
        key = (op, type, *(id(arg) if isinstance(arg, Expr) else (arg.__class__, arg) for arg in args))
        found = self._known.get(key)
        if found is None:
            inner = sum(arg.cost for arg in args if isinstance(arg, Expr))
            found = self._known[key] = Expr(op, args, type, min(inner + COST.get(op, 1), 10**6))
        return found


make = Interned()


def constant(value: float | int | bool, type: str) -> Expr:
    # -0.0 == 0.0 and nan != nan, so the text is part of what is known.
    return make("const", _plain(value, type), repr(value), type=type)


def _plain(value, type: str):
    if type == "bool":
        return bool(value)
    return int(value) if type in ("int64_t", "int32_t") else float(value)


def index_value(index: Index, type: str = "int64_t") -> Expr:
    return make("index", index, type=type)


def cast(value: Expr, type: str) -> Expr:
    if value.type == type:
        return value
    if value.op == "const":
        return constant(value.args[0], type)
    if value.op == "index" and type != "bool":
        return index_value(value.args[0], type)
    return make("cast", value, type=type)


def common_type(*values: Expr) -> str:
    return max((value.type for value in values), key=RANK.__getitem__)


def binary(op: str, a: Expr, b: Expr) -> Expr:
    """`op` over both in their common type."""
    type = common_type(a, b)
    return make(op, cast(a, type), cast(b, type), type=type)


def unary(op: str, a: Expr) -> Expr:
    return make(op, a, type=a.type)


def compare(op: str, a: Expr, b: Expr) -> Expr:
    type = common_type(a, b)
    return make(op, cast(a, type), cast(b, type), type="bool")


def where(condition: Expr, a: Expr, b: Expr) -> Expr:
    type = common_type(a, b)
    return make("where", condition, cast(a, type), cast(b, type), type=type)


FEWEST_IN_TABLE = 8
"""Numbers that are looked up; fewer are chosen by comparisons."""


def pick(place: Expr, parts: list[Expr]) -> Expr:
    """The part at a place."""
    if place.op == "index" and place.args[0].is_Integer:
        return parts[int(place.args[0])]
    if len(parts) < FEWEST_IN_TABLE or any(part.op != "const" for part in parts):
        return chosen(place, parts)
    return make("pick", place, *parts, type=parts[0].type)


def chosen(place: Expr, parts: list[Expr], first: int = 0) -> Expr:
    """The part at a place, by halves; `first`: the place of the first of these."""
    if len(parts) == 1:
        return parts[0]
    half = len(parts) // 2
    here = compare("lt", place, constant(first + half, "int64_t"))
    return where(here, chosen(place, parts[:half], first), chosen(place, parts[half:], first + half))


def all_of(conditions: list[Expr]) -> Expr | None:
    """Their conjunction; None where there is none."""
    whole = None
    for condition in conditions:
        whole = condition if whole is None else make("and", whole, condition, type="bool")
    return whole


def masked(condition: Expr | None, value: Expr, otherwise: Expr) -> Expr:
    if condition is None:
        return value
    type = common_type(value, otherwise)
    return make("masked", condition, cast(value, type), cast(otherwise, type), type=type)


def walk(roots: Iterable[Expr]) -> Iterator[Expr]:
    """Every expression from the roots down, in order, once each."""
    seen: set[int] = set()
    stack = list(reversed(list(roots)))
    while stack:
        expr = stack.pop()
        if id(expr) in seen:
            continue
        seen.add(id(expr))
        yield expr
        stack.extend(arg for arg in reversed(expr.args) if isinstance(arg, Expr))


def indices_of(roots: Iterable[Expr]) -> list[Index]:
    """Every index below the roots."""
    return [arg for expr in walk(roots) for arg in expr.args if isinstance(arg, sympy.Expr)]


def symbols_of(expr: Expr) -> set[sympy.Symbol]:
    """The variables and sizes that it is read at or counted from."""
    return {symbol for index in indices_of([expr]) for symbol in index.free_symbols}


def put(
    expr: Expr,
    other: Callable[[Expr], Expr | None],
    done: dict[int, Expr] | None = None,
    change: Callable[[Index], Index] = lambda index: index,
) -> Expr:
    """The expression with what `other` says in place of some of its parts, None where they stay, and with what `change` makes of indices.

    `done`: what parts have become, by id, where several expressions have the same.
    """
    known: dict[int, Expr] = {} if done is None else done

    def visit(one: Any) -> Any:
        if isinstance(one, sympy.Expr):
            return change(one)
        if not isinstance(one, Expr):
            return one
        if id(one) not in known:
            new = other(one)
            if new is None:
                args = [visit(arg) for arg in one.args]
                same = all(a is b for a, b in zip(args, one.args, strict=True))
                new = one if same else make(one.op, *args, type=one.type)
            known[id(one)] = new
        return known[id(one)]

    return visit(expr)


def replace_indices(expr: Expr, change: Callable[[Index], Index], done: dict[int, Expr] | None = None) -> Expr:
    """The expression with what `change` makes of each index in its place. `done`: see put."""
    return put(expr, lambda one: None, done, change)


def by_name(expr: Expr, names: Mapping[Any, str]) -> Expr:
    """The expression with the names that buffers have in a text in place of their loads."""
    leaf = lambda one: make("scalar", names[one.args[0]], type=one.type)  # noqa: E731
    return put(expr, lambda one: leaf(one) if one.op == "load" and one.args[0] in names else None)


def loads_of(roots: Iterable[Expr]) -> list[Expr]:
    """Every load below the roots, in order, once each."""
    return [expr for expr in walk(roots) if expr.op in ("load", "load_at")]


def runs_along(expr: Expr, variable: Index) -> bool:
    """Whether neighbours in memory differ in the variable."""
    return any(load.op == "load" and load.args[1].coeff(variable) == 1 for load in loads_of([expr]))
