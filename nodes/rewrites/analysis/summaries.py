"""Whether state that a loop carries along could be the same in the end whatever order the elements come in.

A running maximum with its sum, the largest and its place, a mean with its variance could. What tells one round from another
could not: a sign that turns, a count that is asked for, a number that fades (`e = 0.9f * e + v`), a hash, the element
before. Some that could are taken for such; none of these forms is taken for a summary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tree_sitter import Node

from nodes.rewrites.analysis.device_code import Code, Definition, inside
from nodes.rewrites.analysis.kernels import Kernel
from nodes.rewrites.syntax.algebra import Symbol
from nodes.rewrites.syntax.tree import children_of, field_of, same

_ELEMENT = "[]"
"""Stands for all that differs from element to element."""
_BITS = {"%", "^", "|", "&", "<<", ">>"}
_PRODUCTS = {"fmaf", "fma", "__fmaf_rn", "__fmul_rn"}
_ASKS = {
    "if_statement",
    "for_statement",
    "while_statement",
    "do_statement",
    "conditional_expression",
    "switch_statement",
}


@dataclass(frozen=True)
class _Change:
    """`target sign right;`, with what decides whether it happens."""

    node: Node
    target: str
    sign: str
    right: Node | None
    """None for `++` and `--`."""
    asked: frozenset[str]


def is_summary(kernel: Kernel, name: str, body: list[Node]) -> bool:
    """`name` is what the elements are counted by, `body` the loop's statements."""
    return _Rounds(kernel, name, body).are_alike()


def begins_alike(kernel: Kernel, found: Definition, body: list[Node]) -> bool:
    """Whether every thread begins a loop with the same in a variable: what it is declared with, what it is set to afterwards
    (`md.m = -FLT_MAX;`), or nothing, where only the loop uses it."""
    code, source, thread = kernel.code, kernel.source, Symbol("threadIdx.x")
    if found.value is not None:
        return not code.polynomial(found.value).depends_on(thread)
    set_before = used_behind = False
    for use in code.uses(found, kernel.body):
        if inside(use, found.declaration) or any(inside(use, s) for s in body):
            continue
        if use.start_byte > body[-1].end_byte:
            used_behind = True
            continue
        target = use
        while target.parent is not None and target.parent.type == "field_expression":
            target = target.parent
        owner = target.parent
        if owner is None or owner.parent is None or source.set_by(target) != "=":
            return False
        alike = owner.parent.type == "expression_statement" and same(owner.parent.parent, found.declaration.parent)
        if not alike or code.polynomial(field_of(owner, "right")).depends_on(thread):
            return False
        set_before = True
    return set_before or not used_behind


class _Rounds:
    def __init__(self, kernel: Kernel, name: str, body: list[Node]) -> None:
        self.code: Code = kernel.code
        self.source, self.name, self.body = kernel.source, name, body
        self.targets = [(node, target) for node in self._walk("assignment_expression", "update_expression")
                        if (target := self._target(node)) is not None]  # fmt: skip
        self.state = {target for _, target in self.targets}
        self.changes = [self._change(node, target) for node, target in self.targets]

    def are_alike(self) -> bool:
        if any(True for _ in self._lent()):
            return False
        if any(change.node.parent.type not in {"expression_statement", "comma_expression"} for change in self.changes):
            return False  # whose value something else takes
        clocks = self._clocks()
        return (
            all(self._counts(change) for change in self.changes if change.target in clocks)
            and all(self._gathers(change) for change in self.changes if change.target not in clocks)
            and all(self._divides(use) for use in self._uses(clocks))
            and not any(
                self.source.of(node, "operator") in _BITS and self._mentions(node) & self.state
                for node in self._walk("binary_expression")
            )
        )

    def _walk(self, *types: str) -> Iterator[Node]:
        for statement in self.body:
            yield from self.source.walk(statement, *types)

    def _is_outer(self, identifier: Node) -> bool:
        found = self.code.definition(identifier)
        return found is None or not any(inside(found.declaration, s) for s in self.body)

    def _target(self, node: Node) -> str | None:
        place = field_of(node, "left" if node.type == "assignment_expression" else "argument")
        base = place
        while base is not None and base.type != "identifier":
            base = field_of(base, "argument")
        return self.source.of(place) if base is not None and self._is_outer(base) else None

    def _change(self, node: Node, target: str) -> _Change:
        asked, here = set[str](), node
        while here.parent is not None and not any(same(here, s) for s in self.body):
            inner, here = here, here.parent
            for field in ("condition", "value") if here.type in _ASKS else ():
                condition = field_of(here, field)
                if condition is not None and not same(condition, inner):
                    asked |= self._mentions(condition)
        operator = field_of(node, "operator")
        right = field_of(node, "right")
        return _Change(node, target, self.source.of(operator), right, frozenset(asked))

    def _mentions(self, node: Node | None, depth: int = 0) -> frozenset[str]:
        """State that a value is made of, and whether it is made of the element."""
        if node is None:
            return frozenset()
        if depth > 16:
            return frozenset({_ELEMENT})
        found = set[str]()
        if node.type in {"identifier", "field_expression"} and self.source.of(node) in self.state:
            return frozenset({self.source.of(node)})
        if node.type == "subscript_expression":
            found.add(_ELEMENT)
        if node.type == "identifier":
            if self.source.of(node) == self.name:
                return frozenset({_ELEMENT})
            definition = self.code.definition(node)
            if definition is None or self._is_outer(node):
                return frozenset()
            if definition.value is None or self.code.mutated(definition):
                return frozenset({_ELEMENT, *self.state})
            return self._mentions(definition.value, depth + 1)
        for child in node.named_children:
            found |= self._mentions(child, depth + 1)
        return frozenset(found)

    def _lent(self) -> Iterator[Node]:
        """State that a function may change."""
        for call in self._walk("call_expression"):
            for argument in children_of(call, "arguments"):
                held = field_of(argument, "argument") if argument.type == "pointer_expression" else argument
                if held is None or held.type != "identifier" or not self._is_outer(held):
                    continue
                address = argument.type == "pointer_expression" and self.source.of(argument.children[0]) == "&"
                if address or (argument.type == "identifier" and self.code.lends(call, argument)[0]):
                    yield argument

    def _clocks(self) -> set[str]:
        """State that changes alike in every round."""
        clocks = set(self.state)
        while True:
            told = {c.target for c in self.changes if (self._mentions(c.right) | c.asked) - clocks}
            if not told & clocks:
                return clocks
            clocks -= told

    def _counts(self, change: _Change) -> bool:
        """`count += 1`"""
        if change.asked or change.right is None or change.sign == "+=":
            return not change.asked and not self._mentions(change.right)
        right = change.right
        if change.sign != "=" or right.type != "binary_expression":
            return False
        sides = [field_of(right, field) for field in ("left", "right")]
        rest = [side for side in sides if self.source.of(side) != change.target]
        plus = self.source.of(right, "operator") == "+"
        return plus and len(rest) == 1 and not self._mentions(rest[0])

    def _uses(self, clocks: set[str]) -> Iterator[Node]:
        own = [change.node for change in self.changes if change.target in clocks]
        for node in self._walk("identifier", "field_expression"):
            if self.source.of(node) in clocks and not any(inside(node, change) for change in own):
                yield node

    def _divides(self, use: Node) -> bool:
        """Whether a count is only what something is divided by, as for a mean."""
        here = use
        while here.parent is not None and here.parent.type in {"parenthesized_expression", "cast_expression"}:
            here = here.parent
        owner = here.parent
        if owner is None or owner.type != "binary_expression" or self.source.of(owner.children[1]) != "/":
            return False
        return same(field_of(owner, "right"), here)

    def _gathers(self, change: _Change) -> bool:
        """Whether the element comes to what there was, which does not fade and is not simply replaced."""
        made = self._mentions(change.right)
        if change.sign in {"*=", "/="} and not made:
            return False
        if change.right is not None and any(self._fades(node, change.target) for node in self._below(change.right)):
            return False
        return change.sign != "=" or bool((made | change.asked) & self.state) or (not made and bool(change.asked))

    def _below(self, node: Node) -> Iterator[Node]:
        return self.source.walk(node, "binary_expression", "call_expression")

    def _fades(self, node: Node, target: str) -> bool:
        """`0.9f * target`: how much is left of an element tells how long ago it was."""
        if node.type == "call_expression":
            listed = field_of(node, "arguments")
            factors = listed.named_children[:2] if listed is not None else []
            product = self.source.of(node, "function") in _PRODUCTS
        else:
            factors = [field_of(node, field) for field in ("left", "right")]
            product = self.source.of(node, "operator") in {"*", "/"}
        mine = [factor for factor in factors if self.source.of(factor) == target]
        rest = [factor for factor in factors if self.source.of(factor) != target]
        return product and bool(mine) and not any(self._mentions(factor) for factor in rest)
