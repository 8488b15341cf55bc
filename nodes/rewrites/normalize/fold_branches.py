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
from nodes.rewrites.syntax.insert import as_factor
from nodes.rewrites.syntax.match import bare
from nodes.rewrites.syntax.source import Edits, Source, lifted
from nodes.rewrites.syntax.tree import field_of, statements


@rule(
    "cuda",
    expected="nothing by itself: later steps see which loads and stores every element has",
    normalizes=True,
    after=("split_template_instances",),
)
def rewrite(source: Source, facts: Facts) -> str | None:
    return one_by_one(source, _decide, _branches, 64)  # one at a time: they nest


def _branches(code: Code) -> Iterator[tuple[Kernel, Node]]:
    kinds = ("if_statement", "conditional_expression")
    return ((kernel, node) for kernel in code.kernels for node in code.source.walk(kernel.body, *kinds))


def _decide(edits: Edits, code: Code, kernel: Kernel, node: Node) -> bool:
    condition = bare(field_of(node, "condition"))
    if not kernel.launches or not _names_template(code, condition):
        return False
    values = {value_in(code, kernel, launch, condition) for launch in kernel.launches}
    sides = {"alternative" if value == 0 else "consequence" for value in values}
    taken = field_of(node, *sides) if len(sides) == 1 and None not in values else None
    if len(sides) != 1 or None in values or (taken is None and node.type == "conditional_expression"):
        return False
    taken = taken.named_children[-1] if taken is not None and taken.type == "else_clause" else taken
    source, listed = code.source, node.parent.type == "compound_statement"
    block, inner = taken is not None and taken.type == "compound_statement", statements(taken)
    if node.type == "conditional_expression":
        edits.replace(node, as_factor(source.of(taken)))
    elif not inner and listed:
        edits.remove(node, instead=";")
    elif listed and block and not any(s.type == "declaration" for s in inner):
        first = taken.named_children[0]
        text = source.data[first.start_byte : inner[-1].end_byte].decode()
        edits.write(node, lifted(source, first, text).split("\n"))
    else:
        edits.replace(node, source.of(taken) or ";")
    return True


def _names_template(code: Code, condition: Node) -> bool:
    found = [code.definition(name) for name in code.source.walk(condition, "identifier")]
    of_template = any(each is not None and each.kind == "template" for each in found)
    return of_template or condition.type in {"true", "false"}  # inline_device_functions leaves what a call named
