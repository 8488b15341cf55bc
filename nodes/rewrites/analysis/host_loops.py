"""Loops of a C++ candidate that count, and what its names and indices come to: as in a kernel (device_code.py, indices.py), but
for what is only known when it runs.

The order of the CPU rewrites: other people's forms come first (what is called is in the text, variables live in the loop that
uses them, what walked is indexed), then a flat loop becomes rows, passes are joined, what does not change leaves its loop or
goes into a table, calls into libm get their vector forms, rows are shared out while the loops are still plain, transposed ones are
cut into tiles, what is left is marked for the compiler's vectoriser, and vectors are written out by hand with their stores.
Any other order gives right code, if less of it.

Taken for granted, as the contract between spec and candidate says so: two pointer parameters of an entry point never
overlap, and sizes are at least 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from tree_sitter import Node

from nodes.rewrites.analysis.device_code import Code
from nodes.rewrites.analysis.host_source import INTEGERS, aliases, constants, identifiers, pragma_node, vector_of
from nodes.rewrites.analysis.kernels import Loop, counting_loop
from nodes.rewrites.syntax.algebra import Polynomial, Symbol
from nodes.rewrites.syntax.source import Source, Unsupported
from nodes.rewrites.syntax.tree import children_of, field_of, upward


class HostCode(Code):
    """C++ with names resolved. A value that is read from memory is not known where it is read, and fixed where a variable that
    never changes has it."""

    def __init__(self, source: Source) -> None:
        others = {name for name in aliases(source) if is_integer(source, name)}
        super().__init__(source, integers=frozenset(others | {f"std::{name}" for name in INTEGERS}))
        self._loops: dict[int, Loop | None] = {}
        self._polynomials: dict[int, Polynomial] = {}

    def polynomial(self, node: Node, depth: int = 0) -> Polynomial:
        """Kept, as every loop around a place asks for it again."""
        if node.id not in self._polynomials:
            self._polynomials[node.id] = super().polynomial(node, depth)
        return self._polynomials[node.id]

    def _variable(self, node: Node, depth: int) -> Polynomial:
        found, value = self.definition(node), super()._variable(node, depth)
        if found is not None and self.source.says(found.declaration, "static", "thread_local"):
            value = Polynomial.symbol(Symbol(found.name, found.where, node=node))  # of the first call
        number = constants(self.source).get(self.source.of(node))
        if number is not None and (found is None or found.kind in {"macro", "global"}):
            return Polynomial.constant(number)
        unknown = [s for s in value.symbols if not is_known(s) and not self.element_of(s)]
        if found is None or not unknown:
            return value
        around = (self.loop(n) for n in upward(found.declaration) if n.type == "for_statement")
        varies = frozenset(loop.symbol for loop in around if loop is not None)
        for symbol in unknown:
            fixed = Symbol(f"{found.name}: {symbol.text}", found.where, varies)
            value = value.substitute(symbol, Polynomial.symbol(fixed))
        return value

    def _opaque(self, node: Node, depth: int) -> Polynomial:
        given = children_of(node, "arguments")
        if self.source.called(node) in {"min", "max"} and len(given) == 2:
            return self.divided(node, self.source.called(node), *(self.polynomial(n, depth + 1) for n in given))
        return super()._opaque(node, depth)

    def element_of(self, symbol: Symbol) -> str:
        found = self.definition(symbol.node) if symbol.node is not None and symbol.node.type == "identifier" else None
        vector = vector_of(self.source.of(found.declaration, "type")) if found is not None else ""
        return vector or super().element_of(symbol)

    def assigned(self, node: Node) -> Iterator[Node]:
        """Also what a function of the file takes by reference and may change."""
        yield from super().assigned(node)
        for call in self.source.walk(node, "call_expression"):
            given = (argument for argument in children_of(call, "arguments") if argument.type == "identifier")
            yield from (argument for argument in given if self.lends(call, argument)[0])

    def loop(self, node: Node) -> Loop | None:
        if node.id not in self._loops:
            self._loops[node.id] = self._loop(node)
        return self._loops[node.id]

    def _loop(self, node: Node) -> Loop | None:
        source, sign = self.source, self.source.of(node, "condition", "operator")
        found = counting_loop(self, node, sign) if sign in {"<", "<=", "!="} and not node.has_error else None
        if found is None or not is_integer(source, found.type):
            return None
        found = replace(found, bound_node=field_of(node, "condition", "right"))  # as it is written
        if found.step_node is not None and source.of(found.step_node) == "1":
            found = replace(found, step_node=None)
        if found.step_node is not None and sign == "!=":
            return None
        fixed = identifiers(source, found.bound_node) | identifiers(source, found.step_node)
        return found if not fixed & {source.of(n) for n in self.assigned(found.body)} else None


def is_known(symbol: Symbol) -> bool:
    """Whether a symbol stands for one value: it is a variable, or made of such. What is read from memory is not."""
    if symbol.operator:
        return all(is_known(part) for operand in symbol.operands for part in operand.symbols)
    return symbol.where >= 0 or not symbol.parts


@lru_cache(maxsize=4)
def host_code(source: Source) -> HostCode:
    """One for all that is asked of a source. Raises Unsupported as Code does."""
    return HostCode(source)


def canonical(source: Source, node: Node) -> Loop | None:
    """The loop, if it counts one integer of its own upwards by a fixed step and its body does not assign it, or what it ends at."""
    try:
        return host_code(source).loop(node)
    except Unsupported:
        return None


def is_integer(source: Source, kind: str) -> bool:
    return set(aliases(source).get(kind, kind).replace("std::", "").split()) <= INTEGERS


def loops(source: Source, node: Node | None = None) -> list[Loop]:
    """Every canonical loop under `node`, in source order."""
    found = [canonical(source, here) for here in source.walk(node, "for_statement")]
    return [loop for loop in found if loop is not None]


def loop_at(source: Source, start: int) -> Loop | None:
    """The canonical loop that starts at a byte."""
    node = source.root.descendant_for_byte_range(start, start + 3)
    while node is not None and node.type != "for_statement":
        node = node.parent
    return canonical(source, node) if node is not None else None


def header(source: Source, loop: Loop) -> str:
    """`for (...)`."""
    return source.data[loop.node.start_byte : loop.body.start_byte].decode().strip()


def counts_from_zero(source: Source, loop: Loop) -> bool:
    """Whether it counts 0, 1, 2 and stops before its bound."""
    return loop.step_node is None and not loop.inclusive and source.of(loop.start_node) == "0"


def has_pragma(source: Source, loop: Loop) -> bool:
    return pragma_node(source, loop.node) is not None
