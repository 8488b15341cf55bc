"""Steps through a syntax tree that take None for a node that is not there, so that a path needs no questions in between."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tree_sitter import Node

_INTEGER = re.compile(r"((unsigned|signed|long|int|short|size_t|ptrdiff_t|u?int\d+_t)\s*)+")


def is_integer(kind: str) -> bool:
    """Whether a type's text is that of an integer an index may have; not `auto`, whose value says it."""
    return _INTEGER.fullmatch(kind) is not None


def field_of(node: Node | None, *path: str) -> Node | None:
    """What the grammar calls so below the node, `field_of(function, "declarator", "parameters")`; None where there is none."""
    for name in path:
        if node is None:
            return None
        node = node.child_by_field_name(name)
    return node


def children_of(node: Node | None, *path: str) -> list[Node]:
    """Named nodes right below, less comments: a call's arguments, a block's statements; [] where there is no such node."""
    found = field_of(node, *path)
    return [child for child in found.named_children if child.type != "comment"] if found is not None else []


def upward(node: Node | None, until: Node | None = None) -> Iterator[Node]:
    """The node and those around it, outwards, up to `until`, which is not among them."""
    while node is not None and not (until is not None and node.id == until.id):
        yield node
        node = node.parent


def enclosing(node: Node | None, *types: str, until: Node | None = None) -> Node | None:
    """The innermost of these types among the node and those around it; None where there is none."""
    return next((here for here in upward(node, until) if here.type in types), None)
