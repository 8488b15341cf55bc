"""Patterns in C++ with holes, so that a rule reads as what it looks for.

    found = match(source, node, "$total += $value", "$total = $total + $value")
    found["total"], found["value"]        nodes, of the first pattern that fits

A hole stands for any expression, type, name or statement, twice for two that are written alike; parentheses around an
expression and comments do not count. A pattern that ends in `;` or `}` is a statement. What it cannot say (that a name
is a certain variable's, which function is called) is asked of the nodes.
"""

from __future__ import annotations

import re
from functools import cache

from tree_sitter import Node

from nodes.rewrites.syntax.source import Source
from nodes.rewrites.syntax.tree import children_of

_HOLE = "hole_"


class Found(dict[str, Node]):
    """By hole: the first node that stands for it; `every` has all of them, in source order."""

    def __init__(self) -> None:
        super().__init__()
        self.every: dict[str, list[Node]] = {}
        self.pattern = ""


def match(source: Source, node: Node | None, *patterns: str) -> Found | None:
    """What stands for the holes of the first pattern that the node has the form of, None where it has none of them."""
    for pattern in patterns:
        found = Found()
        if node is not None and _fits(source, node, *_parsed(pattern), found):
            found.pattern = pattern
            return found
    return None


def bare(node: Node) -> Node:
    """An expression without parentheses around it."""
    while node.type in {"parenthesized_expression", "condition_clause"} and len(inner := children_of(node)) == 1:
        node = inner[0]
    return node


@cache
def _parsed(pattern: str) -> tuple[Source, Node]:
    text = re.sub(r"\$(\w+)", rf"{_HOLE}\1", pattern)
    statement = pattern.endswith((";", "}"))
    source = Source(f"void f() {{ {text if statement else f'auto v = ({text});'} }}", "cuda")
    body = next(source.walk(None, "compound_statement"))
    if body.has_error or body.named_child_count != 1:
        raise ValueError(f"no C++: {pattern}")
    found = body.named_children[0]
    return source, found if statement else bare(next(source.walk(found, "init_declarator")).named_children[-1])


def _fits(source: Source, node: Node, pattern: Source, form: Node, found: Found) -> bool:
    hole = form.named_children[0] if form.type == "expression_statement" else bare(form)
    if (name := pattern.of(hole)).startswith(_HOLE) and not hole.child_count:
        name, node = name.removeprefix(_HOLE), node if form.type == "expression_statement" else bare(node)
        found.setdefault(name, node)
        found.every.setdefault(name, []).append(node)
        return source.of(found[name]).split() == source.of(node).split()
    node, form = bare(node), bare(form)
    mine, theirs = ([c for c in n.children if c.type != "comment"] for n in (node, form))
    if node.type != form.type or len(mine) != len(theirs):
        return False
    if not mine:
        return source.of(node) == pattern.of(form)
    return all(_fits(source, a, pattern, b, found) for a, b in zip(mine, theirs, strict=True))
