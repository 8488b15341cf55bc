"""Open sizes: conditions on them under which the exporter's graph is what the module does, and what keeps them open."""

from __future__ import annotations

import ast
import contextlib
import random
import sys
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils._sympy.printers import PythonPrinter


def limits_of(graph: ExportedProgram, text: str) -> list[str]:
    """What the exporter took for granted about open sizes: the module went this way because of it."""
    bounds, sizes = [], []
    for symbol, ends in graph.range_constraints.items():
        if not str(symbol).startswith("s"):
            continue
        sizes.append(str(symbol))
        if ends.lower.is_Integer and (ends.lower > 2 or _looks_at_one(text)):
            bounds.append(f"{symbol} >= {int(ends.lower)}")
        if ends.upper.is_Integer and int(ends.upper) < sys.maxsize - 1:
            bounds.append(f"{symbol} <= {int(ends.upper)}")
    env = _shape_env(graph)
    asked: list[str] = []
    for guard in [] if env is None else env.guards:
        names = {str(symbol) for symbol in guard.expr.free_symbols}
        # that sizes are none of 0 and 1 is what the exporter supposes, not the module
        if names and names <= set(sizes) and not isinstance(guard.expr, sympy.Ne) and 2 not in guard.expr.args:
            asked.append(PythonPrinter().doprint(guard.expr))
    asked.sort(key=lambda condition: "%" not in condition)
    tried = random.Random(0)
    draws = [{name: tried.randint(1, 4096 if at % 2 else 64) for name in sizes} for at in range(2000)]
    draws = [draw for draw in draws if all(eval(bound, {}, draw) for bound in bounds)]
    for condition in dict.fromkeys(asked):
        with contextlib.suppress(
            ArithmeticError, NameError
        ):  # what Python alone cannot evaluate is no condition on a batch
            left = [draw for draw in draws if eval(condition, {}, draw)]
            if len(left) < len(draws):
                bounds.append(condition)
                draws = left
    return bounds


def _shape_env(graph: ExportedProgram) -> Any:
    for node in graph.graph.nodes:
        value = node.meta.get("val")
        for size in value.shape if isinstance(value, torch.Tensor) else ():
            if isinstance(size, torch.SymInt):
                return size.node.shape_env
    return None


def _looks_at_one(text: str) -> bool:
    """Whether the module may do something else where a size is one, of which the exporter says nothing."""
    for method in ast.walk(ast.parse(text)):
        if not isinstance(method, ast.FunctionDef) or method.name in ("__init__", "get_inputs", "get_init_inputs"):
            continue
        sizes = {
            name.id for node in ast.walk(method) if isinstance(node, ast.Assign) and _names_size(node.value, set())
            for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)
        }  # fmt: skip
        for node in ast.walk(method):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "squeeze":
                if not node.args or getattr(node.args[0], "value", None) == 0:
                    return True
            elif isinstance(node, ast.Compare) and _names_size(node, sizes):
                sides = (node.left, *node.comparators)
                if any(isinstance(side, ast.Constant) and side.value in (1, 2) for side in sides):
                    return True
    return False


def _names_size(node: ast.AST, sizes: set[str]) -> bool:
    """Whether it names a tensor's size or length."""
    return any(
        (isinstance(part, ast.Attribute) and part.attr in ("shape", "size", "numel"))
        or (isinstance(part, ast.Name) and part.id in {"len", *sizes})
        for part in ast.walk(node)
    )


class _IntType(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, int)


class Int(int, metaclass=_IntType):
    """`int` as a problem sees it: of an open size divided without a rest it is an open size, and of a tensor a number that depends on values;
    Python's would fix both."""

    def __new__(cls, value: Any = 0, *base: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.to(torch.int64).item()
        if isinstance(value, torch.SymInt) and free_unbacked_symbols(value):
            return value
        whole = _whole(value) if isinstance(value, torch.SymFloat) else None
        return int(value, *base) if whole is None else whole


def _whole(value: torch.SymFloat) -> torch.SymInt | None:
    """A quotient of integers as the integer that it is for all sizes; None where it is none."""

    def exact(expr: sympy.Expr) -> sympy.Expr:
        parts = [exact(part) for part in expr.args]
        if type(expr).__name__ in ("FloatTrueDiv", "IntTrueDiv"):
            return parts[0] / parts[1]
        if type(expr).__name__ == "ToFloat":
            return parts[0]
        if expr.is_Float and float(expr).is_integer():
            return sympy.Integer(int(expr))
        return expr.func(*parts) if parts else expr

    found = sympy.expand(exact(value.node.expr))
    if not found.is_integer:
        return None
    return value.node.shape_env.create_symintnode(found, hint=int(value.node.hint))


def length(value: Any) -> Any:
    """`len` as a problem sees it: of a tensor an open size, where Python's would fix it."""
    return value.shape[0] if isinstance(value, torch.Tensor) and value.dim() else len(value)
