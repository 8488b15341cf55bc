"""What does not change inside a loop moves in front of it: declarations, divisions, calls, and `if (i == 0)` blocks.

The compiler does this only where it can prove that no store of the loop changes a load, which it cannot between two
pointer parameters. Here the spec says that they are different tensors. A loop is taken to run at least once.
"""

from __future__ import annotations

from tree_sitter import Node

from nodes.rewrites.analysis.host_effects import effects
from nodes.rewrites.analysis.host_loops import Effects, Loop, loops
from nodes.rewrites.analysis.host_source import (
    PURE,
    assignments,
    enclosing_function,
    functions,
    identifiers,
    indentation,
    is_float,
    pragma_node,
)
from nodes.rewrites.registry import rule
from nodes.rewrites.syntax.source import Edits, Source, Unsupported, inside


@rule(
    "cpu",
    expected="work per element falls by what was computed anew for every element of a row",
    speedup=4.0,
    helps={"memory", "latency", "compute"},
    after=("loop_fusion",),
)
def rewrite(source: Source, facts: object) -> str | None:
    """From the innermost loops outwards, until nothing moves any more."""
    text = source.text
    for _ in range(8):
        current = Source(text, source.language)
        new = next(filter(None, (_hoisted(current, loop) for loop in reversed(loops(current)))), None)
        if new is None:
            break
        text = new
    return text if text != source.text else None


def _hoisted(source: Source, loop: Loop) -> str | None:
    if loop.body.type != "compound_statement":
        return None
    try:
        found = effects(source, loop)
        moves = _Moves(source, loop, found)
        moves.statements()
        moves.expressions()
        return moves.apply()
    except Unsupported:
        return None


class _Moves:
    def __init__(self, source: Source, loop: Loop, found: Effects) -> None:
        self.source, self.loop, self.effects = source, loop, found
        self.own = functions(source)
        self.variant = {loop.variable} | {carried.name for carried in found.carried} | _declared(source, loop.body)
        self.variant |= {name for name, _ in assignments(source, loop.body)}
        self.written = {access.root for access in found.accesses if access.writes}
        function = enclosing_function(loop.node)
        self.taken = _names_outside(source, function, loop.body)
        self.moved: list[Node] = []
        self.lines: list[str] = []
        self.replaced: list[tuple[Node, str]] = []

    def invariant(self, node: Node) -> bool:
        """Whether an expression gives the same value in every iteration and changes nothing."""
        source = self.source
        if identifiers(source, node) & self.variant:
            return False
        if any(True for _ in source.walk(node, "assignment_expression", "update_expression", "lambda_expression")):
            return False
        for call in source.walk(node, "call_expression"):
            called = source.of(call.child_by_field_name("function")).removeprefix("std::").partition("<")[0]
            group = self.own.get(called)
            if group is not None:
                if any(pointer for function in group for _, _, pointer in function.parameters):
                    return False
            elif called not in PURE and called not in {"static_cast"}:
                return False
        inside = [a for a in self.effects.accesses if node.start_byte <= a.node.start_byte < node.end_byte]
        return not any(access.root in self.written for access in inside)

    def statements(self) -> None:
        for child in self.loop.body.named_children:
            if child.type == "declaration":
                self._declaration(child)
            elif child.type == "if_statement":
                self._first_iteration(child)

    def _declaration(self, node: Node) -> None:
        source = self.source
        declarators = node.children_by_field_name("declarator")
        if len(declarators) != 1 or declarators[0].type != "init_declarator":
            return
        name, value = (declarators[0].child_by_field_name(field) for field in ("declarator", "value"))
        if name.type != "identifier" or source.of(name) in self.taken or not self.invariant(value):
            return
        if any(target == source.of(name) for target, _ in assignments(source, self.loop.body)):
            return
        self.variant.discard(source.of(name))
        self.taken.add(source.of(name))
        self.moved.append(node)
        self.lines.extend(_dedented(source, node))

    def _first_iteration(self, node: Node) -> None:
        """`if (i == 0) { ... }` whose block does not depend on the rest of the iteration."""
        source, loop = self.source, self.loop
        condition = node.child_by_field_name("condition").child_by_field_name("value")
        block = node.child_by_field_name("consequence")
        if (
            node.child_by_field_name("alternative") is not None
            or condition is None
            or block.type != "compound_statement"
        ):
            return
        if condition.type != "binary_expression" or source.of(condition.child_by_field_name("operator")) != "==":
            return
        sides = {source.of(condition.child_by_field_name(side)) for side in ("left", "right")}
        if sides != {loop.variable, source.of(loop.start)}:
            return
        if identifiers(source, block) & self.variant or any(_declared(source, block)):
            return
        mine = [a for a in self.effects.accesses if inside(a.node, node)]
        others = [a for a in self.effects.accesses if not inside(a.node, node)]
        clash = {a.root for a in mine if a.writes} & {a.root for a in others}
        clash |= {a.root for a in mine} & {a.root for a in others if a.writes}
        if clash or any(inside(carried.node, node) for carried in self.effects.carried):
            return
        self.moved.append(node)
        for child in block.named_children:
            self.lines.extend(_dedented(source, child))

    def expressions(self) -> None:
        """The largest invariant floats that cost a division or a call, where every iteration evaluates them."""
        names: dict[str, str] = {}
        stack = [child for child in reversed(self.loop.body.named_children) if child not in self.moved]
        while stack:
            node = stack.pop()
            if node.type in {
                "for_statement",
                "if_statement",
                "conditional_expression",
                "while_statement",
                "preproc_call",
            }:
                continue
            kind = node.type in {"binary_expression", "call_expression"} and is_float(self.source, node)
            if kind and self._costly(node) and self.invariant(node):
                text = self.source.of(node)
                if text not in names:
                    names[text] = self._name(node)
                    self.lines.append(f"const float {names[text]} = {text};")
                self.replaced.append((node, names[text]))
                continue
            stack.extend(reversed(node.named_children))

    def _costly(self, node: Node) -> bool:
        divides = any(
            self.source.of(n.child_by_field_name("operator")) == "/"
            for n in self.source.walk(node, "binary_expression")
        )
        calls = [self.source.of(n.child_by_field_name("function")) for n in self.source.walk(node, "call_expression")]
        return divides or any(not called.startswith("static_cast") for called in calls)

    def _name(self, node: Node) -> str:
        sides = [node.child_by_field_name(side) for side in ("left", "right")]
        base = "constant"
        if node.type == "binary_expression" and self.source.of(node.child_by_field_name("operator")) == "/":
            if sides[1].type == "identifier":
                base = f"{self.source.of(sides[0])}_over_{self.source.of(sides[1])}"
                if sides[0].type != "identifier":
                    base = f"over_{self.source.of(sides[1])}"
        elif node.type == "call_expression":
            called = self.source.of(node.child_by_field_name("function")).removeprefix("std::").partition("<")[0]
            base = f"{called}_value"
        name, count = base, 1
        while name in self.taken or name in self.variant:
            count += 1
            name = f"{base}_{count}"
        self.taken.add(name)
        return name

    def apply(self) -> str | None:
        if not self.lines:
            return None
        edits, source = Edits(self.source), self.source
        place = pragma_node(source, self.loop.node) or self.loop.node
        indent = indentation(source, self.loop.node)
        edits.insert(place.start_byte, "".join(f"{line}\n{indent}" for line in self.lines))
        for node in self.moved:
            start = source.data.rfind(b"\n", 0, node.start_byte) + 1
            end = source.data.find(b"\n", node.end_byte) + 1
            if source.data[start : node.start_byte].strip() or source.data[node.end_byte : end].strip():
                raise Unsupported("something else stands on the line")
            if node.has_error:
                raise Unsupported("the parser did not understand it")
            edits.changes.append((start, end, ""))
        for node, name in self.replaced:
            whole = node.parent if node.parent.type == "parenthesized_expression" else node
            edits.replace(whole, name)
        return edits.apply()


def _declared(source: Source, node: Node) -> set[str]:
    names: set[str] = set()
    for here in source.walk(node, "declaration"):
        for declarator in here.children_by_field_name("declarator"):
            while declarator is not None and declarator.type != "identifier":
                inner = declarator.child_by_field_name("declarator")
                declarator = inner or next(iter(reversed(declarator.named_children)), None)
            names.add(source.of(declarator))
    return names


def _names_outside(source: Source, function: Node, body: Node) -> set[str]:
    """Names used in the function anywhere but in this loop's body."""
    return {source.of(n) for n in source.walk(function, "identifier") if not inside(n, body)}


def _dedented(source: Source, node: Node) -> list[str]:
    """The lines of a statement with the indentation of its first line removed."""
    start = source.data.rfind(b"\n", 0, node.start_byte) + 1
    width = node.start_byte - start
    lines = source.of(node).split("\n")
    return [lines[0], *(line[width:] if not line[:width].strip() else line for line in lines[1:])]
