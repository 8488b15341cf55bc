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
    for function in (each for group in functions(source).values() for each in group):
        # Between numbers that become a float anyway, the common type of a choice's sides changes nothing.
        if source.of(function.node, "type") in {"float", "double"}:
            _chosen(source, children_of(function.body), edits)
    return edits.apply() if edits.changes else None


def _chosen(source: Source, lines: list[Node], edits: Edits) -> None:
    found = match(source, lines[-1], "return $value;") if lines else None
    text, first = _operand(source, found["value"]) if found is not None else "", len(lines) - 1
    while found is not None and first > 0 and (found := match(source, lines[first - 1], *_EARLY)) is not None:
        text = f"{_operand(source, found['condition'])} ? {_operand(source, found['value'])} : {text}"
        first -= 1
    loose = any(source.has(line, "initializer_list", "declaration") for line in lines[first:])
    if first < len(lines) - 1 and not loose:
        edits.span(lines[first], lines[-1], f"return {text};")


def _operand(source: Source, node: Node) -> str:
    loose = node.type in {"assignment_expression", "comma_expression", "conditional_expression"}
    return f"({source.of(node)})" if loose else source.of(node)
