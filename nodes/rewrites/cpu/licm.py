"""What does not change inside a loop moves in front of it: declarations, `if (i == 0)` blocks, the reciprocal of a divisor, divisions and
calls within expressions; and where a loop computes the same for each of its rows by calls into the mathematical library, a table of it does:

    for (h ...) { for (i ...) { c = cosf(position[t] * frequency[i]); ... } }

takes the same cosines for every head. The declarations of the inner loop that do not depend on the one around it stand in a loop of
their own in front of that, which fills a vector.

The compiler does this only where it can prove that no store of the loop changes a load, which it cannot between two
pointer parameters. Here the spec says that they are different tensors. A loop is taken to run at least once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tree_sitter import Node

from harness.records import Outcome
from nodes.rewrites.analysis.host_dependence import steady
from nodes.rewrites.analysis.host_effects import effects
from nodes.rewrites.analysis.host_source import (
    changed_names,
    check_alone,
    counts_from_zero,
    declared_names,
    declared_type,
    enclosing_function,
    fresh,
    header,
    host_code,
    identifiers,
    is_float,
    loops,
    put_in_front,
    varying,
)
from nodes.rewrites.analysis.kernels import Loop
from nodes.rewrites.cpu.vector_math import VECTOR_FUNCTIONS
from nodes.rewrites.registry import rule
from nodes.rewrites.syntax.insert import free, include
from nodes.rewrites.syntax.match import match
from nodes.rewrites.syntax.source import Edits, Source, Unsupported, inside, lifted, one_by_one
from nodes.rewrites.syntax.tree import JUMPS, LOOPS, field_of, one_variable, pragma_of

_SOMETIMES = LOOPS | {"if_statement", "conditional_expression", "lambda_expression"}
"""What an iteration may not reach the inside of."""
_ROUNDS = re.compile("int|long|char|size_t|round|floor|ceil|trunc")


@rule(
    "cpu",
    expected="work per element falls by what was computed anew for every element of a row, or for every row",
    speedup=1.5,
    helps={"memory", "latency", "compute"},
    after=("unflatten_loop",),
    risks=(Outcome.INCORRECT,),
)
def rewrite(source: Source, facts: object) -> str | None:
    """From the innermost loops outwards, until nothing moves any more."""
    return one_by_one(source, lambda edits, left, move, *around: move(edits, left, *around), _places, 16)


def _places(source: Source) -> Iterator[tuple]:
    found = [loop for loop in loops(source) if loop.body.type == "compound_statement"]
    yield from ((source, _hoisted, loop) for loop in reversed(found))
    for inner in found:
        outer = next((loop for loop in found if inner.node.parent == loop.body), None)
        if (
            outer is not None
            and counts_from_zero(source, inner)
            and not pragma_of(inner.node)
            and not pragma_of(outer.node)
        ):
            yield source, _tabulated, outer, inner


class _Moves:
    """What of a loop's body gives the same in every iteration of that loop, or of one around it."""

    def __init__(self, source: Source, loop: Loop) -> None:
        self.source, self.loop, self.effects = source, loop, effects(source, loop)
        self.variant = varying(source, loop) | {carried.name for carried in self.effects.carried}

    def steady(self, node: Node) -> bool:
        return steady(self.source, node, self.variant, self.effects)

    def declaration(self, node: Node, body: Node) -> str:
        """The name that a declaration gives what is steady, which is steady from there on; "" for any other statement."""
        variable = one_variable(node) if node.type == "declaration" else None
        name = self.source.of(variable[0]) if variable is not None else ""
        if not name or name in changed_names(self.source, body) or not self.steady(variable[1]):
            return ""
        self.variant.discard(name)
        return name


def _hoisted(edits: Edits, source: Source, loop: Loop) -> bool:
    moves, lines, moved = _Moves(source, loop), list[str](), list[Node]()
    mentions = source.walk(enclosing_function(loop.node), "identifier")
    taken = {source.of(n) for n in mentions if not inside(n, loop.body)}
    for node in loop.body.named_children:
        first, block = _first_iteration(moves, node), [node]
        if first is not None:
            block = first.named_children
        elif declared_names(source, node) & taken or not (name := moves.declaration(node, loop.body)):
            continue
        else:
            taken.add(name)
        moved.append(node)
        for statement in block:
            check_alone(source, statement)
            lines += lifted(source, statement, source.of(statement)).split("\n")
    lines += [f"const float {new} = 1.0f / {name};" for name, new in _inverted(edits, moves).items()]
    lines += _values(edits, moves, [node for node in loop.body.named_children if node not in moved])
    put_in_front(edits, loop, lines)
    for node in moved:
        edits.remove(node)
    return bool(lines)


def _first_iteration(moves: _Moves, node: Node) -> Node | None:
    """The block of `if (i == 0) { ... }` that does not depend on the rest of the iteration."""
    source, loop, found = moves.source, moves.loop, match(moves.source, node, "if ($a == $b) $block;")
    if found is None or {source.of(found["a"]), source.of(found["b"])} != {loop.name, source.of(loop.start_node)}:
        return None
    block = found["block"]
    plain = block.type == "compound_statement" and not declared_names(source, block)
    if not plain or identifiers(source, block) & moves.variant:
        return None
    mine = [a for a in moves.effects.accesses if inside(a.node, node)]
    others = [a for a in moves.effects.accesses if not inside(a.node, node)]
    clash = {a.root for a in mine if a.writes} & {a.root for a in others}
    clash |= {a.root for a in mine} & {a.root for a in others if a.writes}
    changes = any(inside(carried.node, node) for carried in moves.effects.carried)
    return None if clash or changes else block


def _inverted(edits: Edits, moves: _Moves) -> dict[str, str]:
    """Multiplies by the reciprocal of what all elements are divided by, but where values are rounded to integers, as the quotient may
    differ in its last bit; what is called how. A vector division holds the divider for ten cycles, a multiplication for one."""
    source, body, names = moves.source, moves.loop.body, dict[str, str]()
    made = source.walk(body, "call_expression", "cast_expression")
    rounds = any(_ROUNDS.search(source.of(n, "function") or source.of(n, "type")) for n in made)
    if rounds or source.has(body, *LOOPS):
        return {}
    for node in source.walk(body, "binary_expression"):
        found = match(source, node, "$a / $b")
        name = source.of(found["b"]) if found is not None and declared_type(source, found["b"]) == "float" else ""
        if name and name not in moves.variant and identifiers(source, found["a"]) & moves.variant:
            names[name] = fresh(source, body, f"inverse_{name}")
            edits.replace(field_of(node, "operator"), "*")
            edits.replace(field_of(node, "right"), names[name])
    return names


def _values(edits: Edits, moves: _Moves, left: list[Node]) -> list[str]:
    """Names for the largest floats that cost a division or a call and give the same in every iteration, where all iterations take
    them. g++ does not see it in a loop over lanes, and does not move what a vectorised loop has added up."""
    source, names = moves.source, dict[str, str]()
    taken = identifiers(source, enclosing_function(moves.loop.node))
    if source.has(moves.loop.body, *JUMPS):
        return []
    while left:
        node = left.pop(0)
        if node.type in _SOMETIMES or source.of(node, "operator") in {"&&", "||"}:
            continue
        plain = node.type in {"binary_expression", "call_expression"} and is_float(source, node)
        if plain and _costs(source, node) and moves.steady(node):
            name = names.setdefault(source.of(node), free("constant", taken | set(names.values())))
            edits.replace(node.parent if node.parent.type == "parenthesized_expression" else node, name)
        else:
            left = [*node.named_children, *left]
    return [f"const float {name} = {value};" for value, name in names.items()]


def _costs(source: Source, node: Node) -> bool:
    """Whether it divides, or calls more than a conversion."""
    called = {source.called(call) for call in source.walk(node, "call_expression")}
    signs = {source.of(each, "operator") for each in source.walk(node, "binary_expression")}
    return bool(called - {"static_cast"}) or "/" in signs


def _tabulated(edits: Edits, source: Source, outer: Loop, inner: Loop) -> None:
    moves = _Moves(source, outer)
    moves.variant.discard(inner.name)
    bound = inner.bound_node
    plain = not source.has(bound, "call_expression", "subscript_expression", "field_expression")
    if source.has(outer.body, *JUMPS) or not plain or not moves.steady(bound):
        raise Unsupported("a loop that may end early, or a length that changes")
    fixed = {name: node for node in inner.body.named_children if (name := moves.declaration(node, inner.body))}
    used, slow = identifiers(source, *(n for n in inner.body.named_children if n not in fixed.values())), set[str]()
    for name, node in fixed.items():
        slow |= {name} if identifiers(source, node) & slow or _takes_long(source, node) else set()
    tables = [name for name, node in fixed.items() if name in used & slow and source.of(node, "type") == "float"]
    if not tables:
        raise Unsupported("nothing to put into a table")
    names, lines = {name: fresh(source, inner.node, f"{name}_table") for name in tables}, list[str]()
    for node in fixed.values():
        lines += lifted(source, node, source.of(node)).split("\n")
    lines += [f"{table}[{inner.name}] = {name};" for name, table in names.items()]
    unit = source.unit(outer.node)
    vectors = [f"std::vector<float> {table}({source.of(bound)});" for table in names.values()]
    put_in_front(edits, outer, [*vectors, f"{header(source, inner)} {{", *(unit + line for line in lines), "}"])
    for name, node in reversed(fixed.items()):
        value = one_variable(node)[1]
        if name not in used:
            edits.remove(node)
        elif name in names:
            edits.replace(value, f"{names[name]}[{inner.name}]")
        else:
            used |= identifiers(source, value)
    include(source, edits, "vector")


def _takes_long(source: Source, node: Node) -> bool:
    """Whether it calls what takes long, itself or by way of functions of the file."""
    reached = host_code(source).reached(*map(source.called, source.walk(node, "call_expression")))
    calls = (source.called(call) for body in (node, *reached) for call in source.walk(body, "call_expression"))
    return any(name in VECTOR_FUNCTIONS or f"{name}f" in VECTOR_FUNCTIONS for name in calls)
