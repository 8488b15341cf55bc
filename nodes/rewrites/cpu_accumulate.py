"""An element that a loop adds to again and again is kept in a variable: `y[r] += x[r * n + i]` for every i.

Each addition waits for the one before to have been stored and loaded again, and a sum in memory is no reduction to the
compiler. The element is read before the loop and written behind it; pointers of an entry point do not overlap.
"""

from __future__ import annotations

from tree_sitter import Node

from nodes.rewrites._insert import free, remove
from nodes.rewrites._loops import (
    Loop,
    assignments,
    declared_names,
    effects,
    element_type,
    enclosing_function,
    identifiers,
    indentation,
    loops,
    over_lanes,
    pragma_node,
)
from nodes.rewrites.source import Edits, Source, Unsupported, inside, repeated

LANGUAGES = frozenset({"cpu"})
HELPS = frozenset({"compute", "latency", "unknown"})
EXPECTED = "a sum is kept in a register instead of memory, and can be kept per vector lane"
SPEEDUP = 1.5
ORDER = 18

_SCALARS = frozenset({"float", "double", "int", "int32_t", "int64_t"})


def rewrite(source: Source, facts: object) -> str | None:
    return repeated(source, _next, 32)


def _next(source: Source) -> str | None:
    for loop in loops(source):  # an outer loop before those in it
        edits = Edits(source)
        try:
            _keep(source, loop, edits)
            return edits.apply()
        except Unsupported:
            continue
    return None


def _keep(source: Source, loop: Loop, edits: Edits) -> None:
    placed = loop.node.parent.type == "compound_statement"  # where something can stand in front and behind
    if over_lanes(source, loop.node) or pragma_node(source, loop.node) is not None or not placed:
        raise Unsupported("a loop of another form")
    if any(source.walk(loop.body, "return_statement", "goto_statement", "lambda_expression", "preproc_call")):
        raise Unsupported("a loop that may be left")
    found = effects(source, loop)
    changed = {name for name, _ in assignments(source, loop.body)} | declared_names(source, loop.body)
    changed |= {loop.variable, *(carried.name for carried in found.carried)}
    for root in {access.root for access in found.accesses if access.writes}:
        mine = [access for access in found.accesses if access.root == root]
        texts = {source.of(access.node) for access in mine}
        first = mine[0].node
        if len(texts) != 1 or any(access.call is not None for access in mine) or first.type != "subscript_expression":
            continue
        if identifiers(source, first) & changed or any(source.walk(first, "call_expression", "update_expression")):
            continue
        # What the place is worked out from must not change either.
        indices = list(source.walk(first.child_by_field_name("indices"), "subscript_expression"))
        kind = element_type(source, first)
        header = identifiers(source, loop.bound) | identifiers(source, loop.start)
        base = source.of(first.child_by_field_name("argument"))
        if not indices and kind in _SCALARS and base not in header and _adds_up(source, loop, first):
            _put(source, loop, first, kind, edits)
            return
    raise Unsupported("nothing is added to one element")


def _adds_up(source: Source, loop: Loop, element: Node) -> bool:
    """Whether some iteration reads what one before it wrote."""
    text = source.of(element)
    for node in source.walk(loop.body, "assignment_expression", "update_expression"):
        target = node.child_by_field_name("left") or node.child_by_field_name("argument")
        if source.of(target) == text:
            operator, right = source.of(node.child_by_field_name("operator")), node.child_by_field_name("right")
            again = right is not None and any(source.of(n) == text for n in source.walk(right, "subscript_expression"))
            if operator != "=" or again:
                return True
    return False


def _put(source: Source, loop: Loop, element: Node, kind: str, edits: Edits) -> None:
    text, base = source.of(element), source.of(element.child_by_field_name("argument"))
    name = free(f"{base}_value", {source.of(n) for n in source.walk(enclosing_function(loop.node), "identifier")})
    indent = indentation(source, loop.node)
    start = text
    before = loop.node.prev_named_sibling
    assignment = before.named_children[0] if before is not None and before.type == "expression_statement" else None
    if assignment is not None and assignment.type == "assignment_expression":
        plain = source.of(assignment.child_by_field_name("operator")) == "="
        if plain and source.of(assignment.child_by_field_name("left")) == text:
            start = source.of(assignment.child_by_field_name("right"))
            remove(source, before, edits)
    edits.insert(loop.node.start_byte, f"{kind} {name} = {start};\n{indent}")
    for node in source.walk(loop.body, "subscript_expression"):
        if source.of(node) == text and inside(node, loop.body):
            edits.replace(node, name)
    edits.insert(loop.node.end_byte, f"\n{indent}{text} = {name};")
