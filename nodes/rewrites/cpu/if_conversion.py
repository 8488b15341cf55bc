"""Early returns of a small function of floats become one choice: `return x <= -3 ? 0 : x >= 3 ? x : x * (x + 3) / 6;`.

Activations and clamps are written so. What is computed by one expression has a form for sixteen lanes; what jumps out on
the way has none. Each value is still computed only where it is chosen.
"""

from __future__ import annotations

from tree_sitter import Node

from nodes.rewrites.analysis.host_source import functions
from nodes.rewrites.registry import rule
from nodes.rewrites.syntax.match import match
from nodes.rewrites.syntax.source import Edits, Source
from nodes.rewrites.syntax.tree import children_of

_EARLY = ("if ($condition) return $value;", "if ($condition) { return $value; }")


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
    *before, last = children_of(body) or [body]
    first, found = last, match(source, last, "return $value;")
    text = _operand(source, found["value"]) if found is not None else ""
    while found is not None and before and (found := match(source, before[-1], *_EARLY)) is not None:
        if found["condition"].type == "declaration":
            return
        first = before.pop()
        text = f"{_operand(source, found['condition'])} ? {_operand(source, found['value'])} : {text}"
    if first is not last and not source.has(body, "initializer_list"):
        edits.span(first, last, f"return {text};")


def _operand(source: Source, node: Node) -> str:
    loose = node.type in {"assignment_expression", "comma_expression", "conditional_expression"}
    return f"({source.of(node)})" if loose else source.of(node)
