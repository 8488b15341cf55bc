"""Early returns of a small function of floats become one choice: `return x <= -3 ? 0 : x >= 3 ? x : x * (x + 3) / 6;`.

Activations and clamps are written so. What is computed by one expression has a form for sixteen lanes; what jumps out on
the way has none. Each value is still computed only where it is chosen.
"""

from __future__ import annotations

from tree_sitter import Node

from nodes.rewrites.analysis.host_source import functions
from nodes.rewrites.registry import rule
from nodes.rewrites.syntax.source import Edits, Source
from nodes.rewrites.syntax.tree import children_of


@rule(
    "cpu",
    expected="nothing by itself: later steps see one value where there were several ways out",
    normalizes=True,
    after=("specialize_functors",),
)
def rewrite(source: Source, facts: object) -> str | None:
    edits = Edits(source)
    for group in functions(source).values():
        for function in group:
            # Between numbers that become a float anyway, the common type of a choice's sides changes nothing.
            if source.of(function.node, "type") in {"float", "double"}:
                _chosen(source, function.body, edits)
    return edits.apply() if edits.changes else None


def _chosen(source: Source, body: Node, edits: Edits) -> None:
    statements = children_of(body)
    value = _value(source, statements[-1]) if statements else None
    at = len(statements) - 1
    while value is not None and at > 0 and statements[at - 1].type == "if_statement":
        alone = statements[at - 1].child_by_field_name("alternative") is None
        early = _early(source, statements[at - 1]) if alone else None
        if early is None:
            break
        value, at = f"{early} : {value}", at - 1
    if value is None or " ? " not in value or statements[at].type != "if_statement":
        return
    for node in source.walk(body, "return_statement"):
        if node.start_byte >= statements[at].start_byte and any(source.walk(node, "initializer_list")):
            return
    edits.changes.append((statements[at].start_byte, statements[-1].end_byte, f"return {value};"))


def _value(source: Source, node: Node | None) -> str | None:
    """What `return e;`, a block of only that, or an if-else of two of them returns."""
    if node is not None and node.type in {"compound_statement", "else_clause"}:
        inside = children_of(node)
        return _value(source, inside[0]) if len(inside) == 1 else None
    if node is not None and node.type == "return_statement" and len(node.named_children) == 1:
        (value,) = node.named_children
        loose = value.type in {"assignment_expression", "comma_expression", "conditional_expression"}
        return f"({source.of(value)})" if loose else source.of(value)
    if node is not None and node.type == "if_statement" and node.child_by_field_name("alternative") is not None:
        first, second = _early(source, node), _value(source, node.child_by_field_name("alternative"))
        return f"{first} : {second}" if first is not None and second is not None else None
    return None


def _early(source: Source, node: Node) -> str | None:
    """`condition ? value` of `if (condition) return value;`."""
    condition = node.child_by_field_name("condition")
    inside = condition.child_by_field_name("value") if condition is not None else None
    value = _value(source, node.child_by_field_name("consequence"))
    if inside is None or value is None or node.has_error or inside.type == "declaration":
        return None
    loose = inside.type in {"assignment_expression", "comma_expression", "conditional_expression"}
    return f"({source.of(inside)}) ? {value}" if loose else f"{source.of(inside)} ? {value}"
