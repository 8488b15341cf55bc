"""Where the largest element of a row is gets looked up in the one block of the row that holds it.

    for (i ...) { if (x[i] > best) { best = x[i]; place = i; } }

carries two variables from element to element, and keeps the loop scalar. The maximum of a block of elements is a reduction
that has vectors; only a block whose maximum is larger than all before it can hold the place, and the last such block is
searched once. Equal elements, infinities, NaN and zeros of either sign give the same place as before.
"""

from __future__ import annotations

from dataclasses import dataclass

from tree_sitter import Node

from nodes.rewrites._insert import free, include
from nodes.rewrites._loops import (
    Loop,
    declared_names,
    declared_type,
    effects,
    enclosing_function,
    identifiers,
    indentation,
    is_float,
    loops,
    over_lanes,
    pragma_node,
)
from nodes.rewrites.cpu_lanes import Conversions
from nodes.rewrites.source import Edits, Source, Unsupported, repeated

LANGUAGES = frozenset({"cpu"})
HELPS = frozenset({"compute", "latency", "memory", "unknown"})
EXPECTED = "the search for a row's largest element becomes a vector maximum and a look at one block"
SPEEDUP = 1.5
ORDER = 21

BLOCK = 256
"""Elements: the search through one costs less than the vector maximum of a row of a few thousand."""
_EXACT = frozenset({"fabsf", "std::fabs", "std::abs", "static_cast<float>", "float"})
"""Calls whose value is the same to the bit in every form of a loop."""


@dataclass(frozen=True)
class _Search:
    """`if (value > best) { best = value; place = where; }`."""

    value: Node
    largest: bool
    best: str
    """"" where only the place is kept, and `value` at that place is compared."""
    place: str
    where: Node
    local: Node | None
    """The declaration in the body that names the value."""


def rewrite(source: Source, facts: object) -> str | None:
    return repeated(source, _next, 32)


def _next(source: Source) -> str | None:
    for loop in loops(source):
        edits = Edits(source)
        try:
            _blocks(source, loop, edits)
        except Unsupported:
            continue
        include(source, edits, "algorithm")
        return edits.apply()
    return None


def _blocks(source: Source, loop: Loop, edits: Edits) -> None:
    if loop.step is not None or loop.inclusive or over_lanes(source, loop.node):
        raise Unsupported("a loop that does not count by 1")
    if pragma_node(source, loop.node) is not None or loop.bound.type == "call_expression":
        raise Unsupported("a loop of another form")
    found = _search(source, loop)
    seen = effects(source, loop)
    if any(access.writes for access in seen.accesses) or {c.name for c in seen.carried} - {found.best, found.place}:
        raise Unsupported("a loop that does more")
    fixed = identifiers(source, loop.bound) | identifiers(source, loop.start)
    if fixed & {found.best, found.place}:
        raise Unsupported("a length that changes")
    names = identifiers(source, enclosing_function(loop.node))
    most, top, block, begin, end, at = (
        _fresh(name, names)
        for name in ("highest" if found.largest else "lowest", "top", "block", "begin", "end", "found")
    )
    kind = source.of(loop.node.child_by_field_name("initializer").child_by_field_name("type"))
    indent, unit = indentation(source, loop.node), source.unit(loop.node)
    variable, start, bound = loop.variable, source.of(loop.start), source.of(loop.bound)
    bound = bound if loop.bound.type in {"identifier", "number_literal"} else f"({bound})"
    value, more = source.of(found.value), ">" if found.largest else "<"
    first = found.best or _at(source, found.value, variable, found.place)

    def elements(of: str) -> tuple[str, str]:
        """The lines that open a loop over the elements of the block that starts there."""
        length = f"std::min<{kind}>({BLOCK}, {bound} - {of})"
        return (
            f"const {kind} {end} = {of} + {length};",
            f"for ({kind} {variable} = {of}; {variable} < {end}; ++{variable}) {{",
        )

    result = [f"{found.place} = {_at(source, found.where, variable, at)};"]
    if found.best:
        result.insert(0, f"{found.best} = {_at(source, found.value, variable, at)};")
    lines = [
        f"float {most} = {first};",
        f"{kind} {block} = {start};",
        f"for ({kind} {begin} = {start}; {begin} < {bound}; {begin} += {BLOCK}) {{",
        f"{unit}float {top} = {most};",
        *(f"{unit}{line}" for line in elements(begin)),
        f"{unit * 2}{top} = {value} {more} {top} ? {value} : {top};",
        f"{unit}}}",
        f"{unit}if ({top} {more} {most}) {{",
        f"{unit * 2}{most} = {top};",
        f"{unit * 2}{block} = {begin};",
        f"{unit}}}",
        "}",
        f"if ({most} {more} {first}) {{  // the first of them",
        f"{unit}{kind} {at} = {bound};",
        *(f"{unit}{line}" for line in elements(block)),
        f"{unit * 2}{at} = std::min<{kind}>({at}, {value} == {most} ? {variable} : {bound});",
        f"{unit}}}",
        *(f"{unit}{line}" for line in result),
        "}",
    ]
    edits.replace(loop.node, f"\n{indent}".join(lines))


def _fresh(name: str, taken: set[str]) -> str:
    found = free(name, taken)
    taken.add(found)
    return found


def _at(source: Source, node: Node, variable: str, place: str) -> str:
    """The text of an expression of the counter, for another place."""
    return source.render(node, [(n, place) for n in source.walk(node, "identifier") if source.of(n) == variable])


def _search(source: Source, loop: Loop) -> _Search:
    body = [loop.body] if loop.body.type != "compound_statement" else loop.body.named_children
    statements = [node for node in body if node.type != "comment"]
    local = statements.pop(0) if len(statements) == 2 and statements[0].type == "declaration" else None
    if len(statements) != 1 or statements[0].type != "if_statement":
        raise Unsupported("more than one choice")
    (choice,) = statements
    condition = choice.child_by_field_name("condition").child_by_field_name("value")
    if condition is None or condition.type != "binary_expression" or choice.child_by_field_name("alternative"):
        raise Unsupported("a choice of another form")
    operator = source.of(condition.child_by_field_name("operator"))
    left, right = (condition.child_by_field_name(side) for side in ("left", "right"))
    if operator not in {"<", ">"}:
        raise Unsupported("the last of several, or another comparison")
    assigned = _assigned(source, choice.child_by_field_name("consequence"))
    if loop.variable not in identifiers(source, left) | _names(source, local) & identifiers(source, left):
        left, right, operator = right, left, "<" if operator == ">" else ">"
    value = _value(source, left, local)
    if loop.variable not in identifiers(source, value) or not _exact(source, value):
        raise Unsupported("a value that may not be the same when it is looked up")
    if right.type == "identifier" and source.of(right) in assigned and len(assigned) == 2:
        best = source.of(right)
        (place,) = set(assigned) - {best}
        if source.of(assigned[best]) != source.of(left) or declared_type(source, right) != "float":
            raise Unsupported("what is kept is not what is compared")
    elif len(assigned) == 1:
        ((place, where),) = assigned.items()
        best = ""
        if source.of(where) != loop.variable or source.of(right) != _at(source, value, loop.variable, place):
            raise Unsupported("what is kept is not what is compared")
    else:
        raise Unsupported("a choice of another form")
    where = assigned[place]
    allowed = identifiers(source, where) <= {loop.variable} | identifiers(source, loop.bound)
    if not allowed or loop.variable not in identifiers(source, where) or place in identifiers(source, value):
        raise Unsupported("a place that is no expression of the counter")
    if any(source.walk(where, "call_expression", "subscript_expression")) or best in identifiers(source, value):
        raise Unsupported("a place that is no expression of the counter")
    return _Search(value, operator == ">", best, place, where, local)


def _names(source: Source, node: Node | None) -> set[str]:
    return declared_names(source, node) if node is not None else set()


def _value(source: Source, node: Node, local: Node | None) -> Node:
    """What a variable of the body stands for."""
    if local is None:
        return node
    declarator = local.child_by_field_name("declarator")
    names = declared_names(source, local)
    if len(names) != 1 or declarator.type != "init_declarator" or source.of(node) not in names:
        raise Unsupported("a variable of another form")
    if source.of(local.child_by_field_name("type")) not in {"float", "auto"} or "&" in source.of(local):
        raise Unsupported("a variable of another type")
    return declarator.child_by_field_name("value")


def _assigned(source: Source, node: Node) -> dict[str, Node]:
    """name -> value of the plain assignments that a branch consists of."""
    statements = node.named_children if node.type == "compound_statement" else [node]
    found: dict[str, Node] = {}
    for statement in statements:
        if statement.type == "comment":
            continue
        inner = statement.named_children[0] if statement.type == "expression_statement" else None
        if inner is None or inner.type != "assignment_expression":
            raise Unsupported("more than assignments")
        left, right = inner.child_by_field_name("left"), inner.child_by_field_name("right")
        if left.type != "identifier" or source.of(inner.child_by_field_name("operator")) != "=":
            raise Unsupported("more than assignments to variables")
        found[source.of(left)] = right
    return found


def _exact(source: Source, node: Node) -> bool:
    """Whether a value is a float from memory, its size, or a wider form of it: the same to the bit however it is computed."""
    while node.type == "parenthesized_expression":
        node = node.named_children[0]
    if node.type == "subscript_expression":
        return is_float(source, node)
    if node.type != "call_expression":
        return False
    called, arguments = source.of(node.child_by_field_name("function")), node.child_by_field_name("arguments")
    if len(arguments.named_children) != 1:
        return False
    (inner,) = arguments.named_children
    if called.partition("<")[0] in Conversions(source).widening or called in {"static_cast<float>", "float"}:
        return inner.type == "subscript_expression"
    return called in _EXACT and _exact(source, inner)
