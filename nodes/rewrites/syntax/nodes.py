"""What a node is, whatever the source: loops and their statements, declarators, literals."""

from __future__ import annotations

from tree_sitter import Node

from nodes.rewrites.syntax.source import Unsupported
from nodes.rewrites.syntax.tree import children_of, field_of

_DECLARATORS = {"pointer_declarator", "reference_declarator", "array_declarator", "init_declarator"}


LOOPS = frozenset({"for_statement", "while_statement", "do_statement", "for_range_loop"})


def same(a: Node | None, b: Node | None) -> bool:
    return a is not None and b is not None and a.id == b.id


def declared_name(declarator: Node) -> Node | None:
    """The identifier in `*x`, `x[4]`, `x = 1`, `&x`."""
    while declarator.type in _DECLARATORS | {"function_declarator", "parenthesized_declarator"}:
        inner = field_of(declarator, "declarator")
        if inner is None:
            inner = next((c for c in declarator.named_children if c.type in _DECLARATORS | {"identifier"}), None)
        if inner is None:
            return None
        declarator = inner
    return declarator if declarator.type in {"identifier", "field_identifier", "type_identifier"} else None


def is_zero(literal: str) -> bool:
    """Whether the text is a number, and that 0."""
    try:
        return float(literal.rstrip("fFlLuU")) == 0.0
    except ValueError:
        return False


def statement_around(node: Node) -> Node:
    """The declaration around a node, or the statement."""
    here = node
    while here.parent is not None and here.type != "declaration" and not here.type.endswith("_statement"):
        here = here.parent
    return here


def only_argument(call: Node) -> Node:
    """A call's one argument. Raises Unsupported for a call of several."""
    listed = field_of(call, "arguments")
    if listed is None or listed.named_child_count != 1:
        raise Unsupported("a call of more than one argument")
    return listed.named_children[0]


def statements(body: Node) -> list[Node]:
    """The statements of a block, or the one statement that stands in its place. Comments are left out."""
    if body.type != "compound_statement":
        return [body]
    return children_of(body)
