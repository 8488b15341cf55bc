"""A kernel whose launches name different sides of a branch becomes one kernel for each side.

`if (IS_NEOX) { ... } else { ... }` with `rotate<T, true><<<...>>>` here and `rotate<T, false><<<...>>>` there: the second kernel
is called `rotate_not_is_neox`, so that fold_branches can leave either with its own statements. Changes nothing by itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tree_sitter import Node

from nodes.rewrites.analysis.device_code import Code, inside, one_by_one
from nodes.rewrites.analysis.kernels import Kernel
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.source import Edits, Source
from nodes.rewrites.syntax.tree import field_of

MOST = 8
"""Kernels that are added to a file."""


@rule(
    "cuda",
    expected="nothing by itself: later steps see which statements a launch runs",
    normalizes=True,
    after=("standard_alignas",),
)
def rewrite(source: Source, facts: Facts) -> str | None:
    return one_by_one(source, _part, _flags, MOST)


def _flags(code: Code) -> Iterator[tuple[Kernel, int, str]]:
    named = ((kernel, at, name) for kernel in code.kernels for at, name in enumerate(kernel.template_names))
    return (flag for flag in named if _is_flag(code, *flag[:2]) and _decides(code, flag[0], flag[2]))


def _is_flag(code: Code, kernel: Kernel, at: int) -> bool:
    """Whether a template parameter is a bool that every launch names, some true and some false."""
    parameters = kernel.template_parameters
    if at >= len(parameters) or code.source.of(parameters[at], "type") != "bool":
        return False
    mentions = sum(code.source.of(n) == kernel.name for n in code.source.walk(None, "identifier"))
    if mentions != 1 + len(kernel.launches):
        return False  # attributes that are set for it, a declaration in front
    passed = {
        launch.template_arguments[at] if at < len(launch.template_arguments) else "" for launch in kernel.launches
    }
    return passed == {"true", "false"}


def _decides(code: Code, kernel: Kernel, name: str) -> bool:
    """Whether the flag decides about statements that touch memory or set variables, and about no more than that branch."""
    source = code.source
    for node in source.walk(kernel.body, "if_statement"):
        condition = field_of(node, "condition")
        words = {source.of(n) for n in source.walk(condition, "identifier")} if condition is not None else set()
        if name not in words or field_of(node, "alternative") is None:
            continue
        if any(inside(a.node, node) for a in kernel.accesses) or any(True for _ in code.assigned(node)):
            return True
    return False


def _part(edits: Edits, code: Code, kernel: Kernel, at: int, name: str) -> None:
    """The kernel twice; launches that pass false get the second."""
    other = code.fresh(f"{kernel.name}_not_{name.lower()}")
    source, outer = code.source, kernel.outer
    edits.insert(outer.end_byte, "\n\n" + source.render(outer, [(kernel.name_node, other)]))
    for launch in kernel.launches:
        if launch.template_arguments[at] == "false":
            edits.replace(
                _named(launch.function), re.sub(rf"\b{kernel.name}\b", other, source.of(_named(launch.function)))
            )


def _named(function: Node) -> Node:
    inner = function
    while inner.type in {"template_function", "qualified_identifier"}:
        deeper = field_of(inner, "name")
        if deeper is None:
            break
        inner = deeper
    return inner
