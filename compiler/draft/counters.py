"""A number that forward counts in an attribute of Model is an argument of what is drafted, and counted as it was written.

`self.calls += 1` in front of everything that reads `self.calls`, or right in front of the end and behind it, stays a statement of Python; the
rest is the forward of a problem of its own, which takes the number as a float.
"""

from __future__ import annotations

import ast
import copy
from typing import Any

import torch

from .drafting import drafted
from .exported import _model, load
from .loops import Loop, with_methods

OF_NUMBERS = (
    ast.AugAssign, ast.Assign, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.Constant, ast.Attribute, ast.Name, ast.expr_context,
)  # fmt: skip
"""What a statement that counts is made of."""


def counted(problem: str, device: str, dtype: str | None, numerics: str) -> dict[str, Any] | None:
    """A draft of the module with its counters outside; None where it has none that can be. Raises NoDraft as drafting.drafted does."""
    found = _split(problem.removeprefix("\ufeff"), getattr(torch, dtype) if dtype else None)
    if found is None:
        return None
    made = drafted(found.problem, device, dtype, numerics).answer()
    note = "what forward counts in an attribute is counted in Python and handed to the kernels as a float"
    return made | {"source": found.joined(made["source"]), "notes": [note, *made["notes"]]}


def _split(problem: str, dtype: torch.dtype | None) -> Loop | None:
    tree = ast.parse(problem)
    models = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Model"]
    forwards = [n for one in models for n in one.body if isinstance(n, ast.FunctionDef) and n.name == "forward"]
    if len(forwards) != 1 or forwards[0].decorator_list or forwards[0].args.vararg or forwards[0].args.kwarg:
        return None
    (forward,) = forwards
    itself = forward.args.args[0].arg
    counts = {name: at for at, one in enumerate(forward.body) if (name := _counter(one, itself)) is not None}
    parts = vars(_model(load(problem), dtype))
    if not counts or not all(type(parts.get(name)) in (int, float) for name in counts):
        return None
    places = sorted(counts.values())
    rest = [one for at, one in enumerate(forward.body) if at not in places]
    elsewhere = [
        n for n in ast.walk(tree)
        if (isinstance(n, ast.Attribute) and n.attr in counts) or (isinstance(n, ast.Constant) and n.value in counts)
    ]  # fmt: skip
    inside = [n for one in forward.body for n in ast.walk(one) if isinstance(n, ast.Attribute) and n.attr in counts]
    constructors = [one for one in models[0].body if getattr(one, "name", "") == "__init__"]
    begun = [n for one in constructors for n in ast.walk(one) if isinstance(getattr(n, "ctx", None), ast.Store)]
    if any(node not in inside and node not in begun for node in elsewhere):
        return None  # somebody else reads it
    last = len(forward.body) - 1
    before = not any(_reads(one, set(counts)) for one in forward.body[: places[-1]] if one not in _at(forward, places))
    behind = isinstance(forward.body[-1], ast.Return) and places == list(range(last - len(places), last))
    if not before and (not behind or _reads(forward.body[-1], set(counts))):
        return None
    names = {name: f"{name}_counted" for name in counts}
    step = [_AsArguments(itself, names).visit(copy.deepcopy(one)) for one in rest]
    own = [argument.arg for argument in (*forward.args.args[1:], *forward.args.kwonlyargs)]
    call = ", ".join([*own, *(f"float({itself}.{name})" for name in names)])
    counting = _at(forward, places)
    calling = ast.parse(f"made_by_step = {itself}.step({call})").body
    whole = [*counting, *calling] if before else [*calling, *counting]
    whole += ast.parse("return made_by_step", mode="exec").body
    inputs = ", ".join(repr(float(parts[name]) + 1.0) for name in names)
    taken = ast.parse(f"def f({', '.join([itself, *own, *names.values()])}): pass").body[0].args  # type: ignore[attr-defined]
    text = with_methods(tree, {"forward": (taken, step), "whole": (forward.args, whole)})
    return Loop(f"{text}\n\n\ndef get_inputs(given=get_inputs):\n    return [*given(), {inputs}]\n", 0)


def _at(forward: ast.FunctionDef, places: list[int]) -> list[ast.stmt]:
    return [forward.body[at] for at in places]


def _counter(statement: ast.stmt, itself: str) -> str | None:
    """The attribute that a statement counts in, by constants and Model's own numbers alone."""
    target = statement.target if isinstance(statement, ast.AugAssign) else None
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        (target,) = statement.targets  # type: ignore[assignment]
    if not isinstance(target, ast.Attribute) or not all(isinstance(n, OF_NUMBERS) for n in ast.walk(statement)):
        return None
    names = [n.id for n in ast.walk(statement) if isinstance(n, ast.Name)]
    reads = _reads(statement.value, {target.attr}) or isinstance(statement, ast.AugAssign)  # type: ignore[attr-defined]
    return target.attr if set(names) == {itself} and reads else None


def _reads(node: ast.AST, names: set[str]) -> bool:
    return any(isinstance(n, ast.Attribute) and n.attr in names and isinstance(n.ctx, ast.Load) for n in ast.walk(node))


class _AsArguments(ast.NodeTransformer):
    def __init__(self, itself: str, names: dict[str, str]) -> None:
        self.itself, self.names = itself, names

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if isinstance(node.value, ast.Name) and node.value.id == self.itself and node.attr in self.names:
            return ast.copy_location(ast.Name(self.names[node.attr], ast.Load()), node)
        return self.generic_visit(node)
