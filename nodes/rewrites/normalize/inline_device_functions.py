"""A small device function through whose pointers or references a kernel reads and writes is written out where it is called.

`rotate(row + head, cos, sin, i);` becomes its statements, the parameters variables that are set once, names that mean
something else in the kernel replaced by new ones; `load.at(row, i)`, `epilogue(x[i])` and `op(i)` become what the method or the
lambda returns, the object's members by their own names or what they were made from. Only functions that no step can follow otherwise
(anything may happen behind a pointer that is handed on, or that an object holds), and of these only such as end with their last
statement: no recursion, no return before the end, no barriers or shuffles, no memory of their own. Changes nothing by itself.
"""

from __future__ import annotations

import re

from tree_sitter import Node

from harness.records import Outcome
from nodes.rewrites.analysis.device_code import Code, code_of
from nodes.rewrites.analysis.insertions import drop_unused
from nodes.rewrites.analysis.structs import called_object
from nodes.rewrites.normalize.inlining import Inlined
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.source import Edits, Source, Unsupported
from nodes.rewrites.syntax.tree import children_of

MOST = 24
"""Calls of one file."""


@rule(
    "cuda",
    expected="nothing by itself: later steps see the loads and stores that a function had hidden",
    normalizes=True,
    after=("resolve_struct_templates",),
    risks=(Outcome.INCORRECT,),
)
def rewrite(source: Source, facts: Facts) -> str | None:
    text, gone, objects = source.text, set[str](), set[str]()
    for _ in range(MOST):
        step = _next(code_of(source.reparsed(text)))
        if step is None:
            break
        text = step[0]
        (objects if step[2] else gone).add(step[1])
    source = source.reparsed(text)
    return drop_unused(source, _without(source, gone), objects) if gone | objects else None


def _next(code: Code) -> tuple[str, str, bool] | None:
    """The text with one call less, what was called, and whether that was an object."""
    for kernel in code.kernels:
        calls = code.source.walk(kernel.body, "call_expression")
        for call in [*(call for call, _ in kernel.escapes), *(call for call in calls if _with_object(code, call))]:
            try:
                inlined = Inlined(code, kernel, call)
                edits = Edits(code.source)
                inlined.write(edits)
                return edits.apply(), inlined.name, inlined.object is not None
            except Unsupported:
                continue
    return None


def _without(source: Source, names: set[str]) -> str:
    """Without the functions of these names that nothing calls any more."""
    for name in sorted(names):
        code = code_of(source)
        function = code.functions.get(name)
        mentions = sum(source.of(n) == name for n in source.walk(None, "identifier"))
        words = sum(name in re.findall(r"\w+", source.of(m)) for m in code.macros.values())
        if function is None or mentions != 1 or words:
            continue
        outer = function.parent if function.parent is not None else function
        edits = Edits(source)
        edits.remove(outer if outer.type == "template_declaration" else function, comment=True, blank=True)
        source = source.reparsed(edits.apply())
    return source.text


def _with_object(code: Code, call: Node) -> bool:
    """Whether a call is of an object, or hands on a lambda."""
    lent = any(argument.type == "lambda_expression" for argument in children_of(call, "arguments"))
    return lent or called_object(code, call) is not None
