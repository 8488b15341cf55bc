"""Whether state that a loop carries along is the same in the end whatever order the elements come in.

A running maximum with its sum, the largest and its place, a mean with its variance are. What tells one round from another is not:
a sign that turns, a count that is asked for, a number that fades (`e = 0.9f * e + v`), a hash, the element before. It is tried:
the loop's statements run on numbers, for some elements in several orders, from other beginnings in every thread.
"""

from __future__ import annotations

import random
from itertools import pairwise

from tree_sitter import Node

from nodes.rewrites.analysis.block_arithmetic import Frame
from nodes.rewrites.analysis.block_values import WARP, Block
from nodes.rewrites.analysis.device_code import Definition
from nodes.rewrites.analysis.kernels import Kernel
from nodes.rewrites.analysis.numbers import close, fields_of
from nodes.rewrites.syntax.algebra import Symbol
from nodes.rewrites.syntax.source import Unsupported, inside
from nodes.rewrites.syntax.tree import declared_name, field_of, is_integer, names_declared, same

_ORDERS = ((0, 1, 2, 3, 4, 5), (5, 4, 3, 2, 1, 0), (2, 5, 0, 3, 1, 4))
_WIDTH = 4
"""What stands for a number that only the launch says, such as how many lanes a pack has."""


def is_summary(kernel: Kernel, name: str, body: list[Node], state: list[Definition]) -> bool:
    """`name` is what the elements are counted by, `body` the loop's statements, `state` what it changes of what outlives it."""
    rounds = _Rounds(kernel, name, body, state)
    try:
        ends = [rounds.end(order) for order in _ORDERS]
    except Unsupported:
        return False
    return all(_alike(a[name], b[name]) for a, b in pairwise(ends) for name in a)


def _alike(a: object, b: object) -> bool:
    if isinstance(a, list) and isinstance(b, list):
        return all(map(_alike, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_alike(a[part], b[part]) for part in a)
    return close(a, b)


def begins_alike(kernel: Kernel, found: Definition, body: list[Node]) -> bool:
    """Whether every thread begins a loop with the same in a variable: what it is declared with, what it is set to afterwards
    (`md.m = -FLT_MAX;`), or nothing, where only the loop uses it."""
    code, source, thread = kernel.code, kernel.source, Symbol("threadIdx.x")
    if found.value is not None:
        return not code.polynomial(found.value).depends_on(thread)
    set_before = used_behind = False
    for use in code.uses(found, kernel.body):
        if any(inside(use, s) for s in (found.declaration, *body)):
            continue
        if use.start_byte > body[-1].end_byte:
            used_behind = True
            continue
        target = use
        while target.parent.type == "field_expression":
            target = target.parent
        owner = target.parent
        if source.set_by(target) != "=":
            return False
        alike = owner.parent.type == "expression_statement" and same(owner.parent.parent, found.declaration.parent)
        if not alike or code.polynomial(field_of(owner, "right")).depends_on(thread):
            return False
        set_before = True
    return set_before or not used_behind


class _Rounds(Block):
    """Rounds of a loop, a beginning a thread. What the state takes no part in stands for numbers of its own."""

    def __init__(self, kernel: Kernel, name: str, body: list[Node], state: list[Definition]) -> None:
        super().__init__(kernel.code, WARP, self._drawn)
        self.counter, self.body, self.state, self.round = name, body, state, 0
        of = self.source.of
        self.local = {name} | {
            of(n) for s in body for d in self.source.walk(s, "declaration") for n in names_declared(d)
        }
        self.told = {found.name for found in state}
        """Names of what the state takes part in."""
        kinds = ("init_declarator", "assignment_expression")
        changes = [n for s in body for n in self.source.walk(s, *kinds) if self._left(n)]
        while more := {self._left(n) for n in changes if self.depends(n)} - self.told:
            self.told |= more

    def _left(self, node: Node) -> str:
        """The variable that a declaration or assignment sets, wholly or in part."""
        target = declared_name(node) or field_of(node, "left")
        while target is not None and target.type in {"field_expression", "subscript_expression"}:
            target = field_of(target, "argument")
        return self.source.of(target)

    def end(self, order: tuple[int, ...]) -> dict[str, object]:
        """What the state is after the elements have come in this order."""
        frame = self.frame()
        for found in self.state:
            kind = frame.held[found.name] = self.code.plain_type(self.source.of(found.declaration, "type"))
            parts = fields_of(self.code, kind)
            begun = {part: self._begun(found.name + part, kind) for part in parts} or {
                "": self._begun(found.name, kind)
            }
            whole = [{part: begun[part][t] for part in parts} for t in self.everyone]
            frame.scopes[0][found.name] = whole if parts else begun[""]
        for self.round in order:
            frame.scopes.append({self.counter: self.round})
            frame.held[self.counter] = "int"
            for statement in self.body:
                self.run(statement, frame, self.everyone)
            frame.scopes.pop()
        return dict(frame.scopes[0])

    def _begun(self, name: str, kind: str) -> list[object]:
        """What threads have of a variable at first: also numbers that the statements ask for are about to be reached."""
        numbers = random.Random(name)
        literals = [self._literal(n) for s in self.body for n in self.source.walk(s, "number_literal")]
        near = [0, 1, 2, 3, *(number - 2 for number in literals if number > 3)]
        if is_integer(kind) or kind == "bool":
            return [int(numbers.choice(near)) for _ in self.everyone]
        return [numbers.choice([float(numbers.choice(near)), numbers.gauss(0.5, 1.0)]) for _ in self.everyone]

    def depends(self, node: Node) -> bool:
        return any(self.source.of(n) in self.told for n in self.source.walk(node, "identifier"))

    def run(self, node: Node, frame: Frame, active: list[int]) -> None:
        try:
            super().run(node, frame, active)
        except Unsupported:
            if self.depth or self.depends(node):
                raise

    def value(self, node: Node | None, frame: Frame, active: list[int]) -> object:
        try:
            return super().value(node, frame, active)
        except Unsupported:
            if node is None or self.depth or self.depends(node):
                raise
            return self._drawn(node)

    def _drawn(self, node: Node) -> object:
        """A number for what is not computed here, another one for each element where it may differ from element to element."""
        text = self.source.of(node)
        mine = {self.source.of(n) for n in self.source.walk(node, "identifier")} & self.local
        found = self.code.variable(node)
        if found is not None and (
            found.kind in {"template", "macro"} or is_integer(self.source.of(found.declaration, "type"))
        ):
            value = self.code.polynomial(node).value
            return _WIDTH if value is None else value
        return random.Random(f"{self.round if mine else ''} {text}").gauss(0.0, 1.5)
