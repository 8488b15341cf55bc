"""A flat loop that takes row and column from its counter by `/` and `%` becomes two loops.

A division per element costs some 10 ns where the arithmetic costs 0.3, and an index that goes round keeps the loop
scalar. Only where the counter runs over a product that the divisor divides, so that every row is whole.
"""

from __future__ import annotations

from tree_sitter import Node

from nodes.rewrites._loops import (
    Loop,
    assignments,
    canonical,
    enclosing_function,
    identifiers,
    indentation,
    pragma_node,
)
from nodes.rewrites.source import Edits, Source, Unsupported

LANGUAGES = frozenset({"cpu"})
HELPS = frozenset({"compute", "latency", "memory", "unknown"})
EXPECTED = "no division per element, and an inner loop over consecutive elements that can be vectorised"
SPEEDUP = 2.0
ORDER = 10


def rewrite(source: Source, facts: object) -> str | None:
    edits = Edits(source)
    for node in source.walk(None, "for_statement"):
        loop = canonical(source, node)
        if loop is None or loop.step is not None or loop.inclusive or source.of(loop.start) != "0":
            continue
        try:
            _nest(source, loop, edits)
        except Unsupported:
            continue
    return edits.apply() if edits.changes else None


def _nest(source: Source, loop: Loop, edits: Edits) -> None:
    if loop.body.type != "compound_statement" or pragma_node(source, loop.node) is not None:
        raise Unsupported("a pragma or no braces")
    rows = _declarations(source, loop, "/")
    columns = _declarations(source, loop, "%")
    if len(rows) != 1 or len(columns) != 1 or rows[0][2] != columns[0][2]:
        raise Unsupported("no pair of / and % by one divisor")
    (row_node, row, width), (column_node, column, _) = rows[0], columns[0]
    height = _quotient(source, loop, width)
    kind = source.of(loop.node.child_by_field_name("initializer").child_by_field_name("type"))
    indent = indentation(source, loop.node)
    inside = f"{indent}        "
    start = loop.body.start_byte + 1
    kept = []
    for node in (row_node, column_node):
        before = source.data.rfind(b"\n", 0, node.start_byte) + 1 - start
        after = source.data.find(b"\n", node.end_byte) + 1 - start
        kept.append((before, after))
    data = source.data[loop.body.start_byte + 1 : loop.body.end_byte - 1]
    for before, after in sorted(kept, reverse=True):
        data = data[:before] + data[after:]
    lines = [f"    {line}" if line.strip() else line for line in data.decode().strip("\n").rstrip().split("\n")]
    text = "\n".join(
        [
            f"for ({kind} {row} = 0; {row} < {height}; ++{row}) {{",
            f"{indent}    for ({kind} {column} = 0; {column} < {width}; ++{column}) {{",
            f"{inside}const {kind} {loop.variable} = {row} * {width} + {column};",
            *lines,
            f"{indent}    }}",
            f"{indent}}}",
        ]
    )
    edits.replace(loop.node, text)


def _declarations(source: Source, loop: Loop, operator: str) -> list[tuple[Node, str, str]]:
    """(declaration, name, divisor) of every `const T name = counter <operator> divisor;` of the body."""
    found = []
    for node in loop.body.named_children:
        if node.type != "declaration" or len(node.children_by_field_name("declarator")) != 1:
            continue
        declarator = node.child_by_field_name("declarator")
        value = declarator.child_by_field_name("value") if declarator.type == "init_declarator" else None
        if value is None or value.type != "binary_expression":
            continue
        sides = [value.child_by_field_name(side) for side in ("left", "right")]
        if source.of(value.child_by_field_name("operator")) == operator and source.of(sides[0]) == loop.variable:
            found.append((node, source.of(declarator.child_by_field_name("declarator")), source.of(sides[1])))
    return found


def _quotient(source: Source, loop: Loop, width: str) -> str:
    """The loop's bound divided by `width`, where the bound is a product of names that holds it once."""
    bound = loop.bound
    if bound.type == "identifier":
        bound = _constant(source, loop, source.of(bound))
    factors: list[str] = []
    stack = [bound]
    while stack:
        node = stack.pop()
        if node.type == "parenthesized_expression":
            stack.append(node.named_children[0])
        elif node.type == "binary_expression" and source.of(node.child_by_field_name("operator")) == "*":
            stack.extend([node.child_by_field_name("right"), node.child_by_field_name("left")])
        elif node.type in {"identifier", "number_literal"}:
            factors.append(source.of(node))
        else:
            raise Unsupported("a bound that is no product")
    if width not in factors or len(factors) < 2:
        raise Unsupported("a divisor that does not divide the bound")
    factors.remove(width)
    return " * ".join(factors)


def _constant(source: Source, loop: Loop, name: str) -> Node:
    """The initial value of a `const` of the function whose factors cannot change either."""
    function = enclosing_function(loop.node)
    for node in source.walk(function, "declaration"):
        declarator = node.child_by_field_name("declarator")
        if node.start_byte > loop.node.start_byte or declarator.type != "init_declarator":
            continue
        if source.of(declarator.child_by_field_name("declarator")) != name or not source.of(node).startswith("const "):
            continue
        value = declarator.child_by_field_name("value")
        if {target for target, _ in assignments(source, function)} & identifiers(source, value):
            break
        return value
    raise Unsupported(f"{name} is not a constant product")
