"""Rows that a kernel counts over the whole tensor: threads whose row is a number of elements divided by its length."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from tree_sitter import Node

from nodes.rewrites.analysis.device_code import Code, inside
from nodes.rewrites.analysis.regions import check_coordinates, is_return, waits
from nodes.rewrites.launch.grid_stride import SIDE_BY_SIDE
from nodes.rewrites.syntax.algebra import Polynomial, Symbol
from nodes.rewrites.syntax.match import bare, match
from nodes.rewrites.syntax.source import Unsupported, operands
from nodes.rewrites.syntax.tree import field_of, is_integer, one_variable, same, statements

OUTER, INNER = Symbol("the outer row"), Symbol("the inner row")
STRIDE_AT_LEAST = 8
"""Elements from one inner row to the next from which on they share no 32 bytes."""


def product_of(*coordinates: str) -> Polynomial:
    product = Polynomial.constant(1)
    for name in coordinates:
        product = product * Polynomial.symbol(Symbol(name))
    return product


ROW_BLOCK = product_of("blockIdx.z", "gridDim.y") + product_of("blockIdx.y")
ROW_BLOCKS = product_of("gridDim.z", "gridDim.y")
"""What spread calls a block's place in the order of rows, and how many there are (its SIDE_BY_SIDE)."""


class DividedRows:
    """What is read of a kernel whose threads divide to find their row. Raises Unsupported where rows are not told so."""

    def __init__(self, code: Code, name: str) -> None:
        self.code, self.source = code, code.source
        self.kernel = next(k for k in code.kernels if k.name == name)
        kernel = self.kernel
        if kernel.synchronises or kernel.has_defaults or not kernel.launches:
            raise Unsupported("threads that talk to each other")
        self.by_row = any(self.source.of(n) == "threadIdx.y" for n in self.source.walk(kernel.body, "field_expression"))
        """Threads are laid out in rows, as spread does; else each has one element of a flat order."""
        self.anchor = self._anchor()
        # Which thread does what is decided at the anchor alone; in a row, spread's strides work for any width.
        cuts = SIDE_BY_SIDE.cuts
        steps = {"threadIdx.x", "blockDim.x", f"blockIdx.{cuts}", f"gridDim.{cuts}"} if self.by_row else set()
        check_coordinates(kernel, [self.anchor.value], steps)
        for split in self._splits():
            self.inner_rows, self.columns, self.lanes = split
            if any(self._is_side_by_side(access.offset) for access in kernel.global_accesses()):
                break
        else:
            raise Unsupported("nothing that lies side by side for neighbouring rows")
        self.guard = self._guard()
        self.names = self._names()

    def _anchor(self) -> Anchor:
        axis, block = ("y", ROW_BLOCK) if self.by_row else ("x", product_of("blockIdx.x"))
        start = block * product_of(f"blockDim.{axis}") + product_of(f"threadIdx.{axis}")
        for statement in statements(self.kernel.body):
            declared = self._declared(statement)
            if declared is not None and self.code.polynomial(declared[1]) == start:
                name, value = declared
                return Anchor(statement, value, self.source.of(name), self._type(statement), start)
        raise Unsupported("no thread an element and no row a thread")

    def _declared(self, statement: Node) -> tuple[Node, Node] | None:
        """Name and value of `const int name = value;`, where that is for good and the only one declared."""
        variable = one_variable(statement) if statement.type == "declaration" else None
        if variable is None or not self._is_integer(self._type(statement)):
            return None
        assigned = {self.source.of(n) for n in self.code.assigned(self.kernel.body)}
        return variable if self.source.of(variable[0]) not in assigned else None

    def _type(self, declaration: Node) -> str:
        return self.source.of(declaration, "type")

    def _is_integer(self, kind: str) -> bool:
        return is_integer(kind) or kind in self.code.integers

    def _splits(self) -> list[tuple[Divisor, Divisor | None, Divisor | None]]:
        """What rows may be split by, with how many elements a row has, and how many of them a thread has where these are
        several: `i = thread * LANES`, `row = i / columns`, `outer = row / inner_rows`."""
        found = []
        for node in self.source.walk(self.kernel.body, "binary_expression"):
            row = symbol_of(self.code.polynomial(node))
            if row is None:
                continue
            element = symbol_of(row.operands[0])
            if self.by_row:
                if row.operands[0] == self.anchor.index:
                    found.append((self._divisor(row), None, None))
            elif element is not None and element.operator == "/":
                lanes = self._lanes(element.operands[0])
                if lanes is not None:
                    several = lanes if lanes.value.value != 1 else None
                    found.append((self._divisor(row), self._divisor(element), several))
        return [split for n, split in enumerate(found) if split not in found[:n]]

    def _lanes(self, element: Polynomial) -> Divisor | None:
        """What the anchor's index is multiplied by to be the element, a constant of the kernel's."""
        index = self.anchor.index
        one = next(symbol for symbol in index.symbols if index.coefficient(symbol).value == 1)
        factor = element.coefficient(one)
        if element != index * factor:
            return None
        if factor.value is not None:
            return Divisor(str(factor.value), factor, None)
        symbol = next(iter(factor.symbols))
        found = self.code.definition(symbol.node) if symbol.node is not None else None
        if factor != Polynomial.symbol(symbol) or found is None or found.kind not in {"template", "global", "macro"}:
            return None
        return Divisor(symbol.text, factor, symbol.node)

    def _divisor(self, division: Symbol) -> Divisor:
        divisor, node = division.operands[1], division.node
        right = field_of(node, "right")
        if right is None:
            raise Unsupported("a division that is not written out")
        for name in self.source.walk(right, "identifier"):
            self._check_known(name)
        text = self.source.of(right)
        if divisor.value is not None:
            return Divisor(str(divisor.value), divisor, None)
        return Divisor(text if re.fullmatch(r"\w+|\(.*\)", text) else f"({text})", divisor, right)

    def _check_known(self, name: Node) -> None:
        """The name means the same where the anchor stands."""
        if same(field_of(name.parent, "function"), name):
            return
        found = self.code.definition(name)
        if found is None or found.kind in {"template", "macro", "global"}:
            return
        before = found.declaration.end_byte <= self.anchor.node.start_byte
        if self.code.mutated(found) or (found.kind != "parameter" and not (found.kind == "local" and before)):
            raise Unsupported(f"{found.name} is not known before the rows are")

    def _kind(self, polynomial: Polynomial) -> str:
        """thread, element, row, outer, inner, column: which of the kernel's indices an expression is; "" for others."""
        if polynomial == self.anchor.index:
            return "row" if self.by_row else "element" if self.lanes is None else "thread"
        if self.lanes is not None and polynomial == self.anchor.index * self.lanes.value:
            return "element"
        division = symbol_of(polynomial)
        inner_rows, columns = self.inner_rows.value, self.columns.value if self.columns is not None else None
        if division is not None:
            of, divisor = self._kind(division.operands[0]), division.operands[1]
            if of == "row" and divisor == inner_rows:
                return "outer" if division.operator == "/" else "inner"
            if of == "element" and divisor == columns:
                return "row" if division.operator == "/" else "column"
            if of == "element" and columns is not None and divisor == columns * inner_rows and division.operator == "/":
                return "outer"
            return ""
        named = {Polynomial.symbol(OUTER): "outer", Polynomial.symbol(INNER): "inner", self._row: "row"}
        kind = named.get(self._resolved(polynomial), "")
        if not kind and columns is not None:
            element = self.anchor.index if self.lanes is None else self.anchor.index * self.lanes.value
            kind = "column" if self._resolved(element - polynomial) == self._row * columns else ""
        return kind

    @property
    def _row(self) -> Polynomial:
        return Polynomial.symbol(OUTER) * self.inner_rows.value + Polynomial.symbol(INNER)

    def _resolved(self, polynomial: Polynomial) -> Polynomial:
        """With the row, and what it is divided into, as OUTER and INNER."""
        values = {"outer": Polynomial.symbol(OUTER), "inner": Polynomial.symbol(INNER), "row": self._row}
        for symbol in polynomial.symbols:
            one = Polynomial.symbol(symbol)
            kind = self._kind(one) if symbol.operator or one == self.anchor.index else ""
            if kind in values:
                polynomial = polynomial.substitute(symbol, values[kind])
        return polynomial

    def _is_side_by_side(self, offset: Polynomial) -> bool:
        """Whether an access has the outer index with factor 1, the inner one with a large factor, and else only what all
        threads agree on."""
        place = self._resolved(offset)
        apart = place.coefficient(INNER)
        if place.coefficient(OUTER).value != 1 or not apart.terms:
            return False
        if apart.value is not None and abs(apart.value) < STRIDE_AT_LEAST:
            return False
        for symbol in place.variables() - {OUTER, INNER}:
            found = self.code.definition(symbol.node) if symbol.node is not None else None
            settled = found is not None and found.kind in {"parameter", "template", "global", "macro"}
            if not settled or self.code.mutated(found):
                return False
        return not any(s.depends_on(OUTER) or s.depends_on(INNER) for s in place.symbols - {OUTER, INNER})

    def _guard(self) -> RowGuard:
        for statement in (s for s in statements(self.kernel.body) if s.start_byte >= self.anchor.node.end_byte):
            if is_return(self.source, statement):
                return self._comparison(field_of(statement, "condition", "value"))
            touches = [a.node for a in self.kernel.accesses] + [call for call, _ in self.kernel.escapes]
            passes = statement.type == "declaration" or waits(self.source, statement)
            if not passes or any(inside(node, statement) for node in touches):
                break
        raise Unsupported("no guard before memory is touched")

    def _comparison(self, condition: Node) -> RowGuard:
        asked = match(self.source, condition, "$index >= $bound")
        if asked is None:
            raise Unsupported("a guard that compares otherwise")
        level, bound = self._kind(self.code.polynomial(asked["index"])), asked["bound"]
        if level == "thread":  # the elements are cut into packs, all of them whole
            cut = match(self.source, bound, "$elements / $lanes")
            if cut is None or self.lanes is None or self.code.polynomial(cut["lanes"]) != self.lanes.value:
                raise Unsupported("packs of another width")
            level, bound = "element", cut["elements"]
        if level not in {"element", "row", "outer"}:
            raise Unsupported("a guard for something else")
        return RowGuard(bare(condition), level, bound)

    def _divided(self) -> list[Divisor]:
        """What the guard's bound has to be divided by to be the number of outer rows."""
        parts = {"outer": [], "row": [self.inner_rows], "element": [self.inner_rows, self.columns]}[self.guard.level]
        return [part for part in parts if part is not None]

    def _outer_rows(self) -> list[Node]:
        """The factors of the guard's bound that are the number of outer rows, of what is known before the rows are."""
        factors = operands(self.source, self.guard.bound, "*")
        for divisor in self._divided():
            factor = next((one for one in factors if self.code.polynomial(one) == divisor.value), None)
            if factor is None:
                raise Unsupported("a bound that is no product of what a row is divided by")
            factors.remove(factor)
        for factor in factors:
            for name in self.source.walk(factor, "identifier"):
                self._check_known(name)
        return factors


def symbol_of(polynomial: Polynomial) -> Symbol | None:
    """The division that the polynomial is, where it is one."""
    only = next(iter(polynomial.symbols), None)
    return only if only is not None and only.operator and polynomial == Polynomial.symbol(only) else None


@dataclass(frozen=True)
class Divisor:
    """What an index is divided by, or multiplied: `text` as a factor, `node` where the kernel has it, None for a number."""

    text: str
    value: Polynomial
    node: Node | None = field(compare=False)


@dataclass(frozen=True)
class Anchor:
    """Where a thread learns what is its own: `const int i = blockIdx.x * blockDim.x + threadIdx.x;`."""

    node: Node
    value: Node
    """The only place that may ask which thread and block it is."""
    name: str
    type: str
    index: Polynomial


@dataclass(frozen=True)
class RowGuard:
    """The comparison that says how many there are."""

    comparison: Node
    level: str
    """element, row, outer: what is compared"""
    bound: Node
