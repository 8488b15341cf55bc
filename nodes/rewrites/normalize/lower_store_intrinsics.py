"""A store through an intrinsic, `__stcs(out + i, value);`, is written as `out[i] = value;`.

The hint that it drops is worth little where elements are stored one by one, and other steps follow assignments only.
"""

from __future__ import annotations

from tree_sitter import Node

from nodes.rewrites.analysis.device_code import Code, code_of
from nodes.rewrites.analysis.vectors import ELEMENT_BYTES
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.source import Edits, Source
from nodes.rewrites.syntax.tree import children_of, field_of

STORES = ("__stcs", "__stcg", "__stwb", "__stwt")


@rule(
    "cuda",
    expected="nothing by itself: later steps can follow the store",
    normalizes=True,
    after=("single_assignment_pointers",),
)
def rewrite(source: Source, facts: Facts) -> str | None:
    code, edits = code_of(source), Edits(source)
    for kernel in code.kernels:
        for call in kernel.calls(*STORES):
            target = _target(code, call)
            if target is not None:
                listed = field_of(call, "arguments")
                edits.replace(call, f"{target} = {source.of(listed.named_children[-1])}")
    return edits.apply()


def _target(code: Code, call: Node) -> str | None:
    """The element that a call which is a statement of its own stores to, as an lvalue."""
    text, listed = code.source.of, field_of(call, "arguments")
    arguments = children_of(listed)
    if len(arguments) != 2 or call.parent is None or call.parent.type != "expression_statement":
        return None
    pointer = arguments[0]
    base = code.pointer_base(code.polynomial(pointer))
    if base is None or code.plain_type(code.element_of(base)) not in ELEMENT_BYTES:
        return None
    if pointer.type == "pointer_expression" and text(pointer.children[0]) == "&":
        return text(pointer, "argument")
    left, right = field_of(pointer, "left"), field_of(pointer, "right")
    adds = pointer.type == "binary_expression" and text(pointer, "operator") == "+"
    named = (
        adds and left is not None and left.type == "identifier" and code.pointer_base(code.polynomial(left)) is not None
    )
    if named:
        return f"{text(left)}[{text(right)}]"
    return f"*{text(pointer)}" if pointer.type == "identifier" else f"*({text(pointer)})"
