"""Steps through a syntax tree that take None for a node that is not there, so that a path needs no questions in between, and
what a node is, whatever the source."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tree_sitter import Node

LOOPS = frozenset({"for_statement", "while_statement", "do_statement", "for_range_loop"})
JUMPS = ("continue_statement", "return_statement", "break_statement", "goto_statement")
_DECLARATORS = {"pointer_declarator", "reference_declarator", "array_declarator", "init_declarator"}
_DECLARES = _DECLARATORS | {"function_declarator", "parenthesized_declarator"}
_INTEGER = re.compile(r"((unsigned|signed|long|int|short|(std::)?(s?size_t|ptrdiff_t|u?int\d+_t))\s*)+")


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


def conditions_of(node: Node | None, until: Node | None = None) -> Iterator[Node]:
    """What holds where the node stands: the conditions of the ifs that it is a consequence of, innermost first."""
    for here in upward(node, until):
        parent = here.parent
        if parent is not None and parent.type == "if_statement" and same(field_of(parent, "consequence"), here):
            yield field_of(parent, "condition", "value") or field_of(parent, "condition")


def same(a: Node | None, b: Node | None) -> bool:
    return a is not None and b is not None and a.id == b.id


def inside(node: Node, outer: Node) -> bool:
    return outer.start_byte <= node.start_byte and node.end_byte <= outer.end_byte


def declared_name(declarator: Node | None) -> Node | None:
    """The identifier in `*x`, `x[4]`, `x = 1`, `&x`."""
    while declarator is not None and declarator.type in _DECLARES:
        inner = next((c for c in declarator.named_children if c.type in _DECLARATORS | {"identifier"}), None)
        declarator = field_of(declarator, "declarator") or inner
    named = declarator is not None and declarator.type in {"identifier", "field_identifier", "type_identifier"}
    return declarator if named else None


def template_of(definition: Node) -> Node | None:
    """The template_declaration that a function, or a struct, is the inside of."""
    outer = definition.parent
    return outer if outer is not None and outer.type == "template_declaration" else None


def whole_of(place: Node | None) -> Node | None:
    """What a place is, or is a field of: `v` for `v`, `v.x` and `(v).x.y`, `p->x` for itself."""
    while place is not None and place.type in {"field_expression", "parenthesized_expression"}:
        if place.type == "field_expression" and place.children[1].type == "->":
            break
        place = field_of(place, "argument") or place.named_children[0]
    return place


def names_declared(node: Node) -> list[Node]:
    """The names of a declaration, or of a parameter's."""
    names = (declared_name(declarator) for declarator in node.children_by_field_name("declarator"))
    return [name for name in names if name is not None]


def one_variable(statement: Node | None) -> tuple[Node, Node] | None:
    """Name and value of `T name = value;`, of a statement that declares this variable alone; None for any other."""
    declarators = statement.children_by_field_name("declarator") if statement is not None else []
    if len(declarators) != 1 or declarators[0].type != "init_declarator":
        return None
    name, value = field_of(declarators[0], "declarator"), field_of(declarators[0], "value")
    return (name, value) if value is not None and name is not None and name.type == "identifier" else None


def left_by(jump: Node) -> Node | None:
    """The loop or switch that a `break` leaves, the loop whose round a `continue` does; None where a function is in between."""
    ends = LOOPS if jump.type == "continue_statement" else LOOPS | {"switch_statement"}
    found = enclosing(jump.parent, *ends, "lambda_expression", "function_definition")
    return found if found is not None and found.type in ends else None


def pragma_of(statement: Node) -> Node | None:
    """The directive in front of a statement, which is for that."""
    before = statement.prev_named_sibling
    while before is not None and before.type == "comment":
        before = before.prev_named_sibling
    return before if before is not None and before.type == "preproc_call" else None


def statement_around(node: Node) -> Node:
    """The declaration around a node, or the statement."""
    here = node
    while here.parent is not None and here.type != "declaration" and not here.type.endswith("_statement"):
        here = here.parent
    return here


def statements(body: Node | None) -> list[Node]:
    """The statements of a block, or the one statement that stands in its place. Comments are left out."""
    return [body] if body is not None and body.type != "compound_statement" else children_of(body)
