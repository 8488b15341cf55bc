"""A branch that every launch of the kernel decides alike when it is compiled goes; the side that is taken stays.

`if constexpr (kWithBias) { ... } else { ... }` with `kernel<T, true><<<...>>>` becomes its first side, and
`kWidth == 0 ? blockDim.x : kWidth` with `kernel<0><<<...>>>` becomes `blockDim.x`. Changes nothing by itself, but other
steps must take what stands in a branch for something that some elements skip.
"""

from __future__ import annotations

from collections.abc import Iterator

from tree_sitter import Node

from nodes.rewrites.analysis.block_shape import value_in
from nodes.rewrites.analysis.device_code import Code, one_by_one
from nodes.rewrites.analysis.kernels import Kernel
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.source import Edits, Source, Unsupported
from nodes.rewrites.syntax.tree import field_of, statements


@rule(
    "cuda",
    expected="nothing by itself: later steps see which loads and stores every element has",
    normalizes=True,
    after=("fuse_kernels",),
)
def rewrite(source: Source, facts: Facts) -> str | None:
    return one_by_one(source, _decide, _branches, 64)  # one at a time: they nest


def _branches(code: Code) -> Iterator[tuple[Kernel, Node]]:
    kinds = ("if_statement", "conditional_expression")
    return ((kernel, node) for kernel in code.kernels for node in code.source.walk(kernel.body, *kinds))


def _decide(edits: Edits, code: Code, kernel: Kernel, node: Node) -> bool:
    condition = field_of(node, "condition")
    if condition is not None and condition.type == "condition_clause":
        condition = field_of(condition, "value")
    if condition is None or not kernel.launches or not _names_template(code, condition):
        return False
    values = {_truth(value_in(code, kernel, launch, condition)) for launch in kernel.launches}
    if len(values) != 1 or None in values:
        return False
    taken = field_of(node, "consequence" if True in values else "alternative")
    if node.type == "conditional_expression":
        if taken is None:
            return False
        plain = taken.type in {
            "identifier",
            "number_literal",
            "field_expression",
            "call_expression",
            "subscript_expression",
        }
        edits.replace(node, code.source.of(taken) if plain else f"({code.source.of(taken)})")
        return True
    if taken is not None and taken.type == "else_clause":
        taken = taken.named_children[-1]
    if node.parent is not None and node.parent.type == "else_clause":
        if taken is None:
            raise Unsupported("an else without anything behind it")
        edits.replace(node, code.source.of(taken))
    elif taken is None:
        edits.remove(node, instead=";")
    elif taken.type == "compound_statement" and not any(s.type == "declaration" for s in statements(taken)):
        inner = taken.named_children
        if not inner:
            edits.remove(node, instead=";")
        else:
            text = code.source.data[inner[0].start_byte : inner[-1].end_byte].decode()
            deeper, here = code.source.indent(inner[0]), code.source.indent(node)
            edits.replace(
                node, "\n".join(here + x.removeprefix(deeper) if n else x for n, x in enumerate(text.split("\n")))
            )
    else:
        edits.replace(node, code.source.of(taken))
    return True


def _names_template(code: Code, condition: Node) -> bool:
    for identifier in code.source.walk(condition, "identifier"):
        found = code.definition(identifier)
        if found is not None and found.kind == "template":
            return True
    return condition.type in {"true", "false"}  # inline_device_functions leaves what a call named


def _truth(value: int | None) -> bool | None:
    return None if value is None else bool(value)
