"""What does not change inside a loop moves in front of it: declarations, divisions, calls, and `if (i == 0)` blocks.

The compiler does this only where it can prove that no store of the loop changes a load, which it cannot between two
pointer parameters. Here the spec says that they are different tensors. A loop is taken to run at least once.
"""

from __future__ import annotations

from tree_sitter import Node

from nodes.rewrites.analysis.host_dependence import steady
from nodes.rewrites.analysis.host_effects import Effects, effects
from nodes.rewrites.analysis.host_loops import loops, put_in_front, varying
from nodes.rewrites.analysis.host_source import (
    called,
    changed_names,
    declared_names,
    enclosing_function,
    fields,
    identifiers,
    indentation,
    is_float,
    operator,
)
from nodes.rewrites.analysis.kernels import Loop
from nodes.rewrites.registry import rule
from nodes.rewrites.syntax.insert import free
from nodes.rewrites.syntax.match import match
from nodes.rewrites.syntax.source import Edits, Source, inside, lifted, one_by_one
from nodes.rewrites.syntax.tree import one_variable

_SOMETIMES = frozenset({"for_statement", "if_statement", "conditional_expression", "while_statement", "preproc_call"})


@rule(
    "cpu",
    expected="work per element falls by what was computed anew for every element of a row",
    speedup=4.0,
    helps={"memory", "latency", "compute"},
    after=("unflatten_loop",),
)
def rewrite(source: Source, facts: object) -> str | None:
    """From the innermost loops outwards, until nothing moves any more."""
    return one_by_one(source, _hoist, lambda left: ((left, loop) for loop in reversed(loops(left))), 8)


def _hoist(edits: Edits, source: Source, loop: Loop) -> bool:
    moves = _Moves(source, loop, effects(source, loop))
    if loop.body.type == "compound_statement":
        moves.statements()
        moves.expressions()
        moves.write(edits)
    return bool(moves.lines)


class _Moves:
    def __init__(self, source: Source, loop: Loop, found: Effects) -> None:
        self.source, self.loop, self.effects = source, loop, found
        self.variant = varying(source, loop) | {carried.name for carried in found.carried}
        mentions = source.walk(enclosing_function(loop.node), "identifier")
        self.taken = {source.of(n) for n in mentions if not inside(n, loop.body)}
        self.moved: list[Node] = []
        self.lines: list[str] = []
        self.replaced: list[tuple[Node, str]] = []

    def invariant(self, node: Node) -> bool:
        return steady(self.source, node, self.variant, self.effects)

    def statements(self) -> None:
        for child in self.loop.body.named_children:
            if child.type == "declaration":
                self._declaration(child)
            elif child.type == "if_statement":
                self._first_iteration(child)

    def _declaration(self, node: Node) -> None:
        source, variable = self.source, one_variable(node)
        name = source.of(variable[0]) if variable is not None else ""
        if not name or name in self.taken | changed_names(source, self.loop.body) or not self.invariant(variable[1]):
            return
        self.variant.discard(name)
        self.taken.add(name)
        self._move(node, [node])

    def _first_iteration(self, node: Node) -> None:
        """`if (i == 0) { ... }` whose block does not depend on the rest of the iteration."""
        source, loop, found = self.source, self.loop, match(self.source, node, "if ($a == $b) $block;")
        if found is None or {source.of(found["a"]), source.of(found["b"])} != {loop.name, source.of(loop.start_node)}:
            return
        block = found["block"]
        if (
            block.type != "compound_statement"
            or declared_names(source, block)
            or identifiers(source, block) & self.variant
        ):
            return
        mine = [a for a in self.effects.accesses if inside(a.node, node)]
        others = [a for a in self.effects.accesses if not inside(a.node, node)]
        clash = {a.root for a in mine if a.writes} & {a.root for a in others}
        clash |= {a.root for a in mine} & {a.root for a in others if a.writes}
        if not clash and not any(inside(carried.node, node) for carried in self.effects.carried):
            self._move(node, block.named_children)

    def _move(self, node: Node, written: list[Node]) -> None:
        """A statement to what stands in front of the loop, as these statements."""
        self.moved.append(node)
        for statement in written:
            indentation(self.source, statement)  # nothing else stands in front of it
            self.lines += lifted(self.source, statement, self.source.of(statement)).split("\n")

    def expressions(self) -> None:
        """The largest invariant floats that cost a division or a call, where every iteration evaluates them."""
        source, names = self.source, dict[str, str]()
        stack = [child for child in reversed(self.loop.body.named_children) if child not in self.moved]
        while stack:
            node = stack.pop()
            if node.type in _SOMETIMES:
                continue
            kind = node.type in {"binary_expression", "call_expression"} and is_float(source, node)
            if kind and self._costly(node) and self.invariant(node):
                text = source.of(node)
                if text not in names:
                    names[text] = self._name(node)
                    self.lines.append(f"const float {names[text]} = {text};")
                self.replaced.append((node, names[text]))
                continue
            stack.extend(reversed(node.named_children))

    def _costly(self, node: Node) -> bool:
        source = self.source
        divides = any(operator(source, n) == "/" for n in source.walk(node, "binary_expression"))
        return divides or any(called(source, n) != "static_cast" for n in source.walk(node, "call_expression"))

    def _name(self, node: Node) -> str:
        left, right = fields(node, "left", "right")
        base = "constant"
        if node.type == "call_expression":
            base = f"{called(self.source, node)}_value"
        elif operator(self.source, node) == "/" and right.type == "identifier":
            above = self.source.of(left) if left.type == "identifier" else ""
            base = f"{above}_over_{self.source.of(right)}".removeprefix("_")
        name = free(base, self.taken | self.variant)
        self.taken.add(name)
        return name

    def write(self, edits: Edits) -> None:
        put_in_front(edits, self.loop, self.lines)
        for node in self.moved:
            edits.remove(node)
        for node, name in self.replaced:
            edits.replace(node.parent if node.parent.type == "parenthesized_expression" else node, name)
