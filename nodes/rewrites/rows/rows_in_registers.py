"""Which elements of a row, and which rows in shared memory, a kernel's threads may keep in registers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from tree_sitter import Node

from nodes.rewrites.analysis.device_code import Code, inside
from nodes.rewrites.analysis.kernels import Access, Kernel, Loop
from nodes.rewrites.analysis.regions import carries_state, sums_up
from nodes.rewrites.analysis.vectors import seen_through
from nodes.rewrites.rows.row_kernels import ELEMENT
from nodes.rewrites.syntax.algebra import Polynomial, Symbol
from nodes.rewrites.syntax.insert import free
from nodes.rewrites.syntax.source import Unsupported
from nodes.rewrites.syntax.tree import children_of, field_of, names_declared, one_variable, same, statements


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
        self.values = [v for n, loop in enumerate(self.loops) for v in self._values(n, loop)]
        self.kept = self._kept()
        self.gone: list[Node] = []
        """Declarations that the new kernel does not need: of shared memory, and of pointers there."""
        self.rows = self._rows()
        if not self.kept and not self.rows:
            raise Unsupported("nothing is read twice")
        self.moved: list[Node] = []
        """Declarations from between the loops that early loads need: they go in front of these."""
        self.early = self._early() if early else []
        self.names: dict[tuple[Symbol, Polynomial], str] = {}
        taken = code.names()
        for value in [*(v for v in self.values if v.address in self.kept), *self.early, *self._first_loads()]:
            if value.address not in self.names:
                stem = value.variable.removesuffix("_pack")
                name = free(f"{stem}_row", taken)
                taken.add(name)
                self.names[value.address] = name
        """Whether packs are held in whole registers, see hold_packed.cuh."""
        self.item = code.fresh("item")
        self.count = code.fresh("ITEMS")

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

    def _within(self) -> list[Node]:
        """Where an address must not change."""
        return [self.loops[0].node.parent or self.kernel.body]

    def _canonical(self, access: Access, loop: Loop) -> tuple[Symbol, Polynomial]:
        """Also of `*reinterpret_cast<const uint4*>(x + 8 * i)`, a vector that begins on an element of the parameter's."""
        node = access.base.node
        if node is not None and node.type != "identifier" and access.base.depends_on(loop.symbol):
            held = self.code.polynomial(seen_through(node))
            base = self.code.pointer_base(held)
            if base is None or access.offset.terms:
                raise Unsupported("an address through a cast")
            access = replace(access, base=base, offset=held - Polynomial.symbol(base))
        address = Polynomial.symbol(access.base) + access.offset.without(loop.symbol)
        if self.kernel.changes_within(address, self._within()):
            raise Unsupported("an address that changes on the way")
        # A base that moves with the element (a cast of an address) would hide the element in an opaque term.
        if access.base.depends_on(loop.symbol) or any(
            s.parts and s.depends_on(loop.symbol) for s in access.offset.symbols
        ):
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
        text, loop, whole = self.source.of, self.loops[number], access.node
        address = self._canonical(access, loop)
        if access.address and whole.parent is not None and whole.parent.parent is not None:
            whole = whole.parent.parent  # the call of the helper that loads or stores
        variable = one_variable(statement) if statement.type == "declaration" else None
        if variable is not None and access.reads and not access.writes and same(variable[1], whole):
            kind = text(statement, "type")
            kind = access.element if kind == "auto" and not access.address else kind
            return None if kind == "auto" else Value(number, text(variable[0]), kind, access, statement, address, True)
        if statement.type != "expression_statement" or access.reads or not access.writes:
            return None
        expression, last = statement.named_children[0], None
        if access.address and same(expression, whole):
            last = children_of(expression, "arguments")[-1]
        elif expression.type == "assignment_expression" and same(field_of(expression, "left"), whole):
            last = field_of(expression, "right")
        declared = self.code.variable(last)
        if declared is None or not any(same(declared.declaration, s) for s in statements(loop.body)):
            return None
        kind, declarator = text(declared.declaration, "type"), declared.declarator.type
        if kind == "auto" or declarator not in {"identifier", "init_declarator"}:
            return None
        return Value(number, text(last), kind, access, statement, address, False, declarator == "identifier")

    def _kept(self) -> set[tuple[Symbol, Polynomial]]:
        """Addresses that a later loop loads and an earlier one has already had in a variable of the same type."""
        kept = set()
        for later in self.values:
            if not later.loads or later.loop == 0:
                continue
            before = [v for v in self.values if v.address == later.address and v.loop < later.loop]
            if not before or len({v.type for v in [*before, later]}) != 1:
                continue
            # Every write to the array must be one of the stores that we follow, and of one variable a loop.
            writes = [a for a in self.kernel.accesses if a.root == later.access.root and a.writes]
            stores = [v for v in self.values if v.address == later.address and not v.loads]
            if not all(self._is_slot(store) for store in stores):
                continue
            if len(writes) != len(stores) or any(root in {later.access.root, "?"} for _, root in self.kernel.escapes):
                continue
            if any(a.root == "?" and a.writes for a in self.kernel.accesses):
                continue
            by_loop: dict[int, set[str]] = {}
            for value in self.values:
                if value.address == later.address:
                    by_loop.setdefault(value.loop, set()).add(value.variable)
            if all(len(names) == 1 for names in by_loop.values()):
                kept.add(later.address)
        return kept

    def _is_slot(self, store: Value) -> bool:
        """Whether the variable that is stored can be the element's register: declared without a value or loaded from there, and
        no other element's."""
        mine = [v for v in self.values if v.loop == store.loop and v.variable == store.variable]
        return mine[0].address == store.address and (mine[0].loads or store.bare)

    def _rows(self) -> list[Row]:
        """All that is kept in shared memory. Raises Unsupported where that is more than rows, or not the thread's own elements."""
        found: dict[str, Row] = {}
        shared, source = self._shared_names(), self.source
        for access in self.kernel.accesses:
            name = source.of(access.node, "argument")
            loop = next((o for o in self.loops if inside(access.node, o.body)), None)
            if name in shared and loop is not None:
                width, index = self._slot(access, loop)
                row = found.setdefault(name, Row(name, access.element, width, []))
                if row.width != width:
                    raise Unsupported("a row of several widths")
                row.uses.append((access.node, index))
        known = [*shared.values(), *(node for row in found.values() for node, _ in row.uses)]
        for node in source.walk(self.kernel.body, "identifier"):
            if source.of(node) in shared and not any(inside(node, part) for part in known):
                raise Unsupported("shared memory for more than the rows")
        self.gone = list(shared.values())
        return list(found.values())

    def _shared_names(self) -> dict[str, Node]:
        """Arrays in shared memory and pointers into it, by name, with their declarations."""
        found: dict[str, Node] = {}
        for node in self.source.walk(self.kernel.body, "declaration"):
            names, declarator = names_declared(node), field_of(node, "declarator")
            if len(names) != 1:
                continue
            words = {self.source.of(n) for n in self.source.walk(node, "identifier")}
            inner = field_of(declarator, "declarator") if declarator.type == "init_declarator" else None
            pointer = inner is not None and inner.type == "pointer_declarator"
            array = self.source.says(node, "__shared__") and declarator.type == "array_declarator"
            if array or (pointer and words & set(found)):
                found[self.source.of(names[0])] = node
        return found

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

    def _first_loads(self) -> list[Value]:
        """Loads of the first loop that stand before anything else happens there: they are taken out in front."""
        found = []
        for statement in self._leading():
            value = self._load_at(0, statement)
            if value is not None:
                # A name of its own is only safe where no store of another variable claims the address.
                same_address = {v.variable for v in self.values if v.address == value.address and v.loop == 0}
                if len(same_address) == 1 or value.address not in self.kept:
                    found.append(value)
        return found

    def _load_at(self, number: int, statement: Node) -> Value | None:
        return next((v for v in self.values if v.loads and v.loop == number and same(v.statement, statement)), None)

    def _leading(self) -> list[Node]:
        """The declarations that the first loop begins with, as far as none needs what one before it loads."""
        found, loaded = list[Node](), set[str]()
        for statement in statements(self.loops[0].body):
            value = self._load_at(0, statement)
            names = {self.source.of(n) for n in self.source.walk(statement, "identifier")}
            plain = statement.type == "declaration" and (value is not None or not self._has_access(statement))
            if not plain or names & loaded:
                break
            found.append(statement)
            loaded |= {value.variable} if value is not None else set()
        return found

    def _has_access(self, statement: Node) -> bool:
        return any(inside(a.node, statement) for a in self.kernel.accesses) or any(
            inside(call, statement) for call, _ in self.kernel.escapes
        )

    def _early(self) -> list[Value]:
        """Loads of later loops that depend on nothing computed in between, from arrays that nobody writes."""
        written = {a.root for a in self.kernel.accesses if a.writes} | {root for _, root in self.kernel.escapes}
        if "?" in written:
            return []
        first = self.loops[0]
        found = []
        for value in self.values:
            if value.loop == 0 or not value.loads or value.address in self.kept or value.access.root in written:
                continue
            if any(v.address == value.address for v in found):
                continue
            variables = set()
            for polynomial in (value.access.offset, Polynomial.symbol(value.access.base)):
                variables |= polynomial.variables()
            loop = self.loops[value.loop]
            late = [s for s in variables if s != loop.symbol and s.where >= first.node.start_byte]
            between = self._between(value.statement, loop, written)
            if not late and between is not None and self._spelled_in_first(value):
                found.append(value)
                self.moved += [d for d in between if not any(same(d, other) for other in self.moved)]
        self.moved.sort(key=lambda declaration: declaration.start_byte)
        return found

    def _between(self, node: Node, loop: Loop, written: set[str]) -> list[Node] | None:
        """Declarations between the loops that the node's names need, directly or not; None where they cannot move in front
        of the first loop, as they are computed from what it leaves or from memory that is written."""
        first, found, stack = self.loops[0].node, list[Node](), [node]
        while stack:
            for name in self.source.walk(stack.pop(), "identifier"):
                held = self.code.definition(name)
                if held is None or held.kind != "local" or held.declaration.start_byte < first.start_byte:
                    continue
                declaration = held.declaration
                if inside(declaration, loop.body):
                    if not same(declaration, node) and not inside(name, declaration):
                        stack.append(declaration)
                    continue
                if any(same(declaration, other) for other in found):
                    continue
                if not same(declaration.parent, first.parent) or not self._can_move(declaration, held.name, written):
                    return None
                found.append(declaration)
                stack.append(declaration)
        return found

    def _can_move(self, declaration: Node, name: str, written: set[str]) -> bool:
        source, first = self.source, self.loops[0].node
        declarators = declaration.children_by_field_name("declarator")
        if len(declarators) != 1 or declarators[0].type != "init_declarator":
            return False
        before = [n for n in source.walk(first.parent, "identifier") if source.of(n) == name]
        if any(first.start_byte <= n.start_byte < declaration.start_byte for n in before):
            return False
        if any(source.of(t) == name for t in self.code.assigned(self.kernel.body)):
            return False
        for call in source.walk(declaration, "call_expression", "assignment_expression", "update_expression"):
            called = source.of(call, "function")
            if not self.code.loads(called) and not called.startswith(("static_cast<", "reinterpret_cast<")):
                return False
        if any(n.start_byte > first.start_byte for n in source.walk(self.kernel.body, "return_statement")):
            return False  # which may be there so that nothing behind it is read
        changed = {source.of(t) for t in self.code.assigned(self.kernel.body) if t.start_byte >= first.start_byte}
        names = {source.of(n) for n in source.walk(declaration, "identifier")}
        accesses = [a for a in self.kernel.accesses if inside(a.node, declaration)]
        return not names & changed and all(a.root and a.root not in written for a in accesses)

    def _spelled_in_first(self, value: Value) -> bool:
        """Whether the load's own words mean the same in the first loop."""
        loop, first = self.loops[value.loop], self.loops[0]
        if loop.name != first.name:
            return False
        declared = {self.source.of(statement).strip() for statement in self._leading()}
        for identifier in self.source.walk(value.statement, "identifier"):
            found = self.code.definition(identifier)
            if found is None or not inside(found.declaration, loop.body) or same(found.declaration, value.statement):
                continue
            if self.source.of(found.declaration).strip() not in declared:
                return False
        return True


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
    bare: bool = False
    """A stored variable that is declared without a value."""


@dataclass
class Row:
    """A row in shared memory of which each thread uses only its own elements."""

    name: str
    element: str
    width: str
    """Elements for each step."""
    uses: list[tuple[Node, str]]
    """Accesses, each with its index within the step."""
