"""Which elements of a row, and which rows in shared memory, a kernel's threads may keep in registers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from tree_sitter import Node

from nodes.rewrites.analysis.device_code import Code, inside
from nodes.rewrites.analysis.indices import is_pure
from nodes.rewrites.analysis.kernels import Access, Kernel, Loop
from nodes.rewrites.analysis.regions import carries_state, sums_up
from nodes.rewrites.rows.row_kernels import ELEMENT
from nodes.rewrites.syntax.algebra import Polynomial, Symbol
from nodes.rewrites.syntax.insert import free
from nodes.rewrites.syntax.match import match
from nodes.rewrites.syntax.source import Unsupported
from nodes.rewrites.syntax.tree import field_of, names_declared, one_variable, same, statements


class RowReader:
    """What is read of a kernel and its row loops. Raises Unsupported where a row is not the threads' own."""

    def __init__(self, code: Code, kernel: Kernel, shared_out: list[Loop], *, early: bool) -> None:
        """`shared_out`: the loops that those who share a row stride through together."""
        self.code, self.kernel, self.source = code, kernel, code.source
        if not kernel.launches:
            raise Unsupported("a kernel that is not launched here")
        self.loops = self._group(shared_out)
        for loop in shared_out:
            self._check_loop(loop)
        self.within = [self.loops[0].node.parent]
        """Where an address must not change."""
        self.values = [v for n, loop in enumerate(self.loops) for v in self._values(n, loop)]
        self.leading = self._leading()
        first = [v for v in self.values if v.loads and v.loop == 0 and any(same(v.statement, s) for s in self.leading)]
        self.kept = self._kept(first)
        self.gone: list[Node] = []
        """Declarations that the new kernel does not need: of shared memory, and of pointers there."""
        self.rows = self._rows()
        if not self.kept and not self.rows:
            raise Unsupported("nothing is read twice")
        self.moved: list[Node] = []
        """Declarations from between the loops that early loads need: they go in front of these."""
        later = self._early() if early else []
        self.front = [*first, *later]
        """Loads that are taken out in front of all else."""
        self.names: dict[tuple[Symbol, Polynomial], str] = {}
        taken = code.names()
        for value in [*(v for v in self.values if v.address in self.kept), *later, *first]:
            if value.address not in self.names:
                self.names[value.address] = free(f"{value.variable.removesuffix('_pack')}_row", taken)
                taken.add(self.names[value.address])
        self.item, self.count = code.fresh("item"), code.fresh("ITEMS")

    def _check_loop(self, loop: Loop) -> None:
        """Its elements may be anybody's, and all of them are visited."""
        if carries_state(self.kernel, statements(loop.body)) and not sums_up(self.kernel, loop):
            raise Unsupported("elements that depend on each other")
        if any(self.source.jumps_out_of(loop.body)):
            raise Unsupported("a loop that is left")

    def _group(self, loops: list[Loop]) -> list[Loop]:
        """The loops over the same range, neighbours in one list of statements."""
        for first in loops:
            group = [o for o in loops if o.bound == first.bound and same(o.node.parent, first.node.parent)]
            if len(group) >= 2:
                return group
        raise Unsupported("no two loops over the same range")

    def _canonical(self, access: Access, loop: Loop) -> tuple[Symbol, Polynomial]:
        address = Polynomial.symbol(access.base) + access.offset.without(loop.symbol)
        if self.kernel.changes_within(address, self.within):
            raise Unsupported("an address that changes on the way")
        # A base that moves with the element (a cast of an address) would hide the element in an opaque term.
        opaque = [symbol for symbol in access.offset.symbols if symbol.parts]
        if any(symbol.depends_on(loop.symbol) for symbol in (access.base, *opaque)):
            raise Unsupported("an address through a cast")
        return access.base, access.offset.substitute(loop.symbol, Polynomial.symbol(ELEMENT))

    def _values(self, number: int, loop: Loop) -> Iterator[Value]:
        """Declarations that only load, and statements that only store a variable, directly in the loop's body."""
        for statement in statements(loop.body):
            inner = [a for a in self.kernel.accesses if a.root and inside(a.node, statement)]
            with suppress(Unsupported):
                value = self._value(number, statement, inner[0]) if len(inner) == 1 else None
                if value is not None:
                    yield value

    def _value(self, number: int, statement: Node, access: Access) -> Value | None:
        text, loop, variable = self.source.of, self.loops[number], one_variable(statement)
        address = self._canonical(access, loop)
        whole = access.node.parent.parent if access.address else access.node  # the call of the helper that loads
        if variable is not None and access.reads and not access.writes and same(variable[1], whole):
            kind = text(statement, "type")
            kind = access.element if kind == "auto" and not access.address else kind
            return None if kind == "auto" else Value(number, text(variable[0]), kind, access, statement, address, True)
        stored = match(self.source, statement, "$place = $value;", "$store($place, $value);")
        if stored is None or access.reads or not access.writes or not same(stored["place"], access.node):
            return None
        found = self.code.variable(stored["value"])
        if found is None or not any(same(found.declaration, s) for s in statements(loop.body)):
            return None
        alone = same(found.form, found.declarator) and len(found.declaration.children_by_field_name("declarator")) == 1
        bare = found.declaration if alone and found.form.type == "identifier" else None
        return Value(number, found.name, text(found.declaration, "type"), access, statement, address, False, bare)

    def _kept(self, first: list[Value]) -> set[tuple[Symbol, Polynomial]]:
        """Addresses that a later loop loads and an earlier one has already had in a variable of the same type."""
        kept = set()
        written = [a.root for a in self.kernel.accesses if a.writes]
        escaped = {root for _, root in self.kernel.escapes}
        for later in self.values:
            mine = [v for v in self.values if v.address == later.address]
            before = [v for v in mine if v.loop < later.loop]
            if not later.loads or not before or len({v.type for v in mine}) != 1:
                continue
            # Every write to the array must be one of the stores that we follow.
            stores = [v for v in mine if not v.loads]
            if written.count(later.access.root) != len(stores) or not all(map(self._is_slot, stores)):
                continue
            if {later.access.root, "?"} & escaped or "?" in written:
                continue
            # What is loaded with nothing before it is loaded in front.
            begins = before[0].loop
            loaded = all(v in first for v in mine if v.loads and v.loop == begins)
            if loaded and all(
                len({v.variable for v in mine if v.loop == loop}) <= 1 for loop in range(len(self.loops))
            ):
                kept.add(later.address)
        return kept

    def _is_slot(self, store: Value) -> bool:
        """Whether the variable that is stored can be the element's register: declared without a value or loaded from there, and
        no other element's."""
        mine = [v for v in self.values if v.loop == store.loop and v.variable == store.variable]
        return mine[0].address == store.address and (mine[0].loads or store.bare is not None)

    def _rows(self) -> list[Row]:
        """All that is kept in shared memory. Raises Unsupported where that is more than rows, or not the thread's own elements."""
        source, shared, found = self.source, dict[str, Node](), dict[str, Row]()
        for node in source.walk(self.kernel.body, "declaration"):
            names, pointer = names_declared(node), field_of(node, "declarator", "declarator")
            words = {source.of(n) for n in source.walk(node, "identifier")}
            into = pointer is not None and pointer.type == "pointer_declarator" and not words.isdisjoint(shared)
            if len(names) == 1 and (into or source.says(node, "__shared__")):
                shared[source.of(names[0])] = node
        for access in self.kernel.accesses:
            name = source.of(access.node, "argument")
            loop = next((o for o in self.loops if inside(access.node, o.body)), None)
            if name in shared and loop is not None:
                width, index = self._slot(access, loop)
                row = found.setdefault(name, Row(name, access.element, width, []))
                if row.width != width:
                    raise Unsupported("a row of several widths")
                row.uses.append((access.node, index))
        self.gone = list(shared.values())
        known = [*self.gone, *(node for row in found.values() for node, _ in row.uses)]
        for node in source.walk(self.kernel.body, "identifier"):
            if source.of(node) in shared and not any(inside(node, part) for part in known):
                raise Unsupported("shared memory for more than the rows")
        return list(found.values())

    def _slot(self, access: Access, loop: Loop) -> tuple[str, str]:
        """Elements for each step and the index among them, of `row[i * width + k]` in a loop over `k < width`."""
        width = access.offset.coefficient(loop.symbol)
        rest = access.offset.without(loop.symbol)
        for inner in self.kernel.loops:
            if inside(inner.node, loop.body) and rest.only == inner.symbol:
                whole = inner.start.value == 0 and inner.bound == width and inner.step.value == 1
                if whole and self.code.is_constant(inner.bound_node, self.loops[0].node):
                    return self.source.of(inner.bound_node), inner.name
        raise Unsupported("an index that other threads may use")

    def _leading(self) -> list[Node]:
        """The declarations that the first loop begins with, as far as none needs what one before it loads."""
        found, loaded = list[Node](), set[str]()
        touches = [a.node for a in self.kernel.accesses] + [call for call, _ in self.kernel.escapes]
        for statement in statements(self.loops[0].body):
            value = next((v for v in self.values if v.loads and same(v.statement, statement)), None)
            names = {self.source.of(n) for n in self.source.walk(statement, "identifier")}
            plain = value is not None or not any(inside(node, statement) for node in touches)
            if statement.type != "declaration" or not plain or names & loaded:
                break
            found.append(statement)
            loaded |= {value.variable} if value is not None else set()
        return found

    def _early(self) -> list[Value]:
        """Loads of later loops that depend on nothing computed in between, from arrays that nobody writes."""
        written = {a.root for a in self.kernel.accesses if a.writes} | {root for _, root in self.kernel.escapes}
        first, found = self.loops[0], list[Value]()
        for value in self.values if "?" not in written else ():
            known = value.address in self.kept or any(v.address == value.address for v in found)
            if value.loop == 0 or not value.loads or known or value.access.root in written:
                continue
            loop = self.loops[value.loop]
            variables = (value.access.offset + Polynomial.symbol(value.access.base)).variables() - {loop.symbol}
            if any(s.where >= first.node.start_byte for s in variables) or loop.name != first.name:
                continue
            with suppress(Unsupported):
                self.moved += self._between(value.statement, loop, written)
                found.append(value)
        by_place = {declaration.start_byte: declaration for declaration in self.moved}
        self.moved = [by_place[at] for at in sorted(by_place)]
        return found

    def _between(self, node: Node, loop: Loop, written: set[str]) -> list[Node]:
        """Declarations between the loops that the node's names need, directly or not. Raises Unsupported where they cannot move
        in front of the first loop, or a name in the loop is none that the first loop begins with."""
        found, text = [], self.source.of
        for held in map(self.code.definition, self.source.walk(node, "identifier")):
            behind = held is not None and held.declaration.start_byte >= self.loops[0].node.start_byte
            if held is None or held.kind != "local" or not behind or same(held.declaration, node):
                continue
            found += self._between(held.declaration, loop, written)
            if not inside(held.declaration, loop.body):
                self._check_move(held.declaration, held.name, written)
                found.append(held.declaration)
            elif text(held.declaration) not in map(text, self.leading):
                raise Unsupported("another name in the first loop")
        return found

    def _check_move(self, declaration: Node, name: str, written: set[str]) -> None:
        """Raises Unsupported for a variable that is computed from what the first loop leaves or from memory that is written."""
        source, code, first, variable = self.source, self.code, self.loops[0].node, one_variable(declaration)
        named = [n for n in source.walk(first.parent, "identifier") if source.of(n) == name]
        early = any(first.start_byte <= n.start_byte < declaration.start_byte for n in named)
        if variable is None or early or not same(declaration.parent, first.parent) or not is_pure(source, declaration):
            raise Unsupported("a declaration of another kind")
        # A return may be there so that nothing behind it is read.
        left = any(n.start_byte > first.start_byte for n in source.walk(self.kernel.body, "return_statement"))
        changed = {source.of(t) for t in code.assigned(self.kernel.body) if t.start_byte >= first.start_byte}
        roots = {a.root for a in self.kernel.accesses if inside(a.node, declaration)}
        if left or changed & {source.of(n) for n in source.walk(declaration, "identifier")} or roots & {*written, ""}:
            raise Unsupported("what the first loop may change")


@dataclass
class Value:
    """A variable of a loop's body that is loaded from, or stored to, one address for each element."""

    loop: int
    variable: str
    type: str
    access: Access
    statement: Node
    address: tuple[Symbol, Polynomial]
    loads: bool
    bare: Node | None = None
    """Of a stored variable: its declaration, where that gives it no value."""


@dataclass
class Row:
    """A row in shared memory of which each thread uses only its own elements."""

    name: str
    element: str
    width: str
    """Elements for each step."""
    uses: list[tuple[Node, str]]
    """Accesses, each with its index within the step."""
