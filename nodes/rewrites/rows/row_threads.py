"""Kernels whose threads each take one row by themselves, and where they are launched: what block_per_row asks of them.

Such a kernel has its row from a guard or from a loop over the grid, goes through the row's elements in loops of single
steps, and carries nothing from one element to the next but sums and extremes, so that the elements may be anybody's.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations_with_replacement

from tree_sitter import Node

from nodes.rewrites.analysis.block_shape import value_in
from nodes.rewrites.analysis.device_code import Code, Definition, inside
from nodes.rewrites.analysis.kernels import Access, Loop
from nodes.rewrites.analysis.launches import Launch
from nodes.rewrites.analysis.regions import (
    BLOCK,
    BLOCK_DIM,
    GRID_DIM,
    THREAD,
    Region,
    check_coordinates,
    fold_of,
    regions,
)
from nodes.rewrites.prelude.block_reductions import NAMES
from nodes.rewrites.syntax.algebra import Polynomial, Symbol
from nodes.rewrites.syntax.source import Unsupported
from nodes.rewrites.syntax.tree import LOOPS, children_of, declared_name, field_of, left_by, same, statements

SHORTEST = 64
"""Shorter rows, where their length is a constant, stay with one thread: its own few elements, most likely a pack."""
FARTHEST = 16
"""Elements from one step of a loop to the next, at most, for which neighbouring threads still share cache lines."""
ELEMENT = Symbol("element of the row")
TOTALS = frozenset({
    "float", "double", "int", "unsigned", "unsigned int", "long", "long long", "int32_t", "uint32_t", "int64_t", "uint64_t",
    "unsigned long", "unsigned long long", "size_t",
})  # fmt: skip
"""Types that shuffles take and that have a `max`; those of loops' variables among them."""


class RowThreads:
    """A kernel that this rewrite fits. Raises Unsupported for any other."""

    def __init__(self, code: Code, number: int) -> None:
        self.code, self.source, self.kernel = code, code.source, code.kernels[number]
        if self.kernel.synchronises or self.kernel.has_defaults or not self.kernel.launches:
            raise Unsupported("threads that talk to each other")
        self.region = self._region()
        self.row = self.region.symbol if self.region.loop is not None else THREAD
        self.loops = self._loops()
        self._check_names()
        self.folds = [fold for loop in self.loops for fold in self._folds(loop)]
        self._check_memory()
        self._check_neighbours()

    # What the kernel is.

    def _region(self) -> Region:
        found = regions(self.kernel)
        if len(found) != 1 or found[0].kind in {"block", "team"} or found[0].axis != "x":
            raise Unsupported("no row a thread")
        (region,) = found
        if region.loop is not None:
            header = [region.loop.start_node, region.loop.step_node]
            if not same(region.loop.node.parent, self.kernel.body):
                raise Unsupported("a loop over rows in another one")
        else:
            header = [region.definition]
            if region.name in {self.source.of(n) for n in self.code.assigned(self.kernel.body)}:
                raise Unsupported("a row that changes")
        whole = Polynomial.symbol(BLOCK) * Polynomial.symbol(BLOCK_DIM) + Polynomial.symbol(THREAD)
        stride = Polynomial.symbol(BLOCK_DIM) * Polynomial.symbol(GRID_DIM)
        start = region.loop.start if region.loop is not None else self.code.polynomial(self.index(region))
        if start != whole or (region.loop is not None and region.loop.step != stride):
            raise Unsupported("a width by another name")
        self.steps = self._steps([node for node in header if node is not None])
        check_coordinates(self.kernel, [*(node for node in header if node is not None), *self.steps])
        if self.kernel.changes_within(region.bound, [self.kernel.body]):
            raise Unsupported("a number of rows that changes")
        return region

    def _steps(self, headers: list[Node]) -> list[Node]:
        """Declarations in front of the row that nothing but its own reads: `const int tid = threadIdx.x;`."""
        found: list[Node] = []
        for statement in reversed(statements(self.kernel.body)):
            declared = field_of(statement, "declarator") if statement.type == "declaration" else None
            name = declared_name(declared)
            alone = len(statement.children_by_field_name("declarator")) == 1
            if name is None or not alone or any(same(statement, h) for h in headers):
                continue
            named = self.source.of(name)
            uses = [n for n in self.source.walk(self.kernel.body, "identifier") if self.source.of(n) == named]
            beside = [n for n in uses if not any(inside(n, part) for part in [*headers, *found])]
            if len(uses) > 1 and all(same(n, name) for n in beside):
                found.append(statement)
        return found

    def index(self, region: Region) -> Node:
        return field_of(region.definition, "declarator", "value")

    def _loops(self) -> list[Loop]:
        """The loops over a row's elements: all that are in no other."""
        source, rows = self.source, self.region.loop
        found: list[Loop] = []
        for node in source.walk(self.kernel.body, *LOOPS):
            if (rows is not None and same(node, rows.node)) or any(inside(node, loop.node) for loop in found):
                continue
            loop = next((o for o in self.kernel.loops if same(o.node, node)), None)
            plain = loop is not None and loop.step.value == 1 and loop.type in TOTALS - {"float", "double"}
            if loop is None or not plain or not self.region.holds(node):
                raise Unsupported("a loop of another kind")
            if self.kernel.changes_within(loop.bound, [loop.body]) or not self._is_long(loop):
                raise Unsupported("a loop that is not over a row")
            for jump in source.walk(loop.body, "break_statement", "return_statement", "goto_statement"):
                if jump.type != "break_statement" or same(left_by(jump), node):
                    raise Unsupported("a row that is left early")
            found.append(loop)
        if not found:
            raise Unsupported("nothing but single elements")
        jumps = "break_statement", "continue_statement", "return_statement"
        for jump in source.walk(rows.body, *jumps) if rows is not None else ():
            if not any(inside(jump, loop.node) for loop in found):
                raise Unsupported("a row that is left early")  # the loop over rows ends with a barrier
        return found

    def _is_long(self, loop: Loop) -> bool:
        """Whether the bound is only known at run time, or large."""
        lengths = [
            loop.bound.value or value_in(self.code, self.kernel, launch, loop.bound_node)
            for launch in self.kernel.launches
        ]
        found = [self.code.definition(v.node) if v.node is not None else None for v in loop.bound.variables()]
        kinds = {definition.kind if definition is not None else "" for definition in found}
        constant = loop.bound.value is not None or not kinds & {"parameter", "local", "loop", ""}
        return not constant or all(length is not None and length >= SHORTEST for length in lengths)

    # What a loop leaves behind.

    def _folds(self, loop: Loop) -> Iterator[tuple[Loop, Definition, str]]:
        """Each variable that the loop changes and that outlives an element, and whether it is a sum, max or min."""
        outer: dict[int, Definition] = {}
        for target in self.code.assigned(loop.body):
            found = self.code.definition(target)
            if found is not None and not inside(found.declaration, loop.body):
                outer[found.where] = found
        for found in outer.values():
            kinds = {fold_of(self.kernel, use) for use in self.uses(found, loop.body)}
            kind = kinds.pop()
            plain = found.declarator is not None and found.declarator.type in {"identifier", "init_declarator"}
            type_ = self.source.of(found.declaration, "type")
            if kinds or f"block_{kind}" not in NAMES or found.kind != "local" or not plain or type_ not in TOTALS:
                raise Unsupported("elements that depend on each other")
            if not self.region.holds(found.declaration) and self.region.loop is not None:
                raise Unsupported("a total of several rows")
            if loop.node.parent is None or loop.node.parent.type != "compound_statement":
                raise Unsupported("no place behind the loop")
            yield loop, found, kind

    def uses(self, found: Definition, within: Node) -> list[Node]:
        """Where a variable is named, beside its declaration."""
        itself = declared_name(found.declarator)
        return [node for node in self.code.uses(found, within) if not same(node, itself)]

    def starts_from_first(self, loop: Loop) -> bool:
        """Whether extremes begin with element 0 and go on from 1: `top = in[0]; for (i = 1; ...) top = fmaxf(top, in[i]);`.
        From 0 on it comes to the same."""
        inner = [a for a in self.kernel.accesses if inside(a.node, loop.body)]
        if loop.start.value != 1 or len(inner) != 1 or inner[0].writes:
            return False
        (element,) = inner
        place = Polynomial.symbol(element.base) + element.offset.substitute(loop.symbol, Polynomial())
        if any(self._changes(variable, loop) for variable in place.variables() - {self.row}):
            return False
        folds = [(found, kind) for of, found, kind in self.folds if of is loop]
        return bool(folds) and all(
            kind != "sum" and self._begins_with(found, element, place, loop) for found, kind in folds
        )

    def _begins_with(self, found: Definition, element: Access, place: Polynomial, loop: Loop) -> bool:
        """Whether an extreme's first value is made of the element at a place as the others are of theirs."""
        first = [a for a in self.kernel.accesses if found.value is not None and inside(a.node, found.value)]
        if len(first) != 1 or Polynomial.symbol(first[0].base) + first[0].offset != place:
            return False
        calls = [use for use in self.uses(found, loop.body) if use.parent.type == "argument_list"]
        joined = [v for use in calls for v in children_of(use.parent) if not same(v, use)]
        named = [self.code.variable(value) for value in joined]
        own = [d is not None and not self.code.mutated(d) and inside(d.declaration, loop.body) for d in named]
        values = [d.value if mine and d.value is not None else v for v, d, mine in zip(joined, named, own, strict=True)]
        return len(values) == 1 and self._without(found.value, first[0]) == self._without(values[0], element)

    def _without(self, value: Node, access: Access) -> list[str]:
        """A value's words, less those of the element in it."""
        return self.source.render(value, [(access.node, "_")]).replace("(", " ( ").replace(")", " ) ").split()

    # What must hold.

    def _check_names(self) -> None:
        """A variable is the thread's own, and changes where an assignment names it and in no other way."""
        source, code, body = self.source, self.code, self.kernel.body
        for node in source.walk(body, "lambda_expression", "goto_statement", "pointer_expression", "init_declarator"):
            argument, declarator = field_of(node, "argument"), field_of(node, "declarator")
            address = node.type == "pointer_expression" and source.of(node.children[0]) == "&"
            bound = node.type == "init_declarator" and code.binds(node.parent, declarator)
            named = address and argument is not None and argument.type == "identifier"
            if node.type in {"lambda_expression", "goto_statement"} or bound or named:
                raise Unsupported("a second name for a variable")
        accesses = {(a.node.start_byte, a.node.end_byte) for a in self.kernel.accesses}
        for node in source.walk(body, "assignment_expression", "update_expression"):
            target = field_of(node, "left" if node.type == "assignment_expression" else "argument")
            if not self._is_own(target, accesses):
                raise Unsupported("an assignment to something of unknown origin")
        for call in source.walk(body, "call_expression"):
            function, listed = field_of(call, "function"), field_of(call, "arguments")
            name = source.of(function)
            if name in code.macros and not code.loads(name):
                raise Unsupported("a macro that may do anything")
            if function is not None and function.type == "field_expression":
                raise Unsupported("an object that may keep something")
            for argument in children_of(listed):
                found = code.variable(argument)
                if found is not None and found.kind in {"local", "loop"} and code.lends(call, argument)[0]:
                    raise Unsupported("a function that may change a variable")

    def _is_own(self, target: Node | None, accesses: set[tuple[int, int]]) -> bool:
        """Whether an assignment is to a variable of the thread's, a field of it, or to memory that is looked at; elements
        of a struct's array only where it lives no longer than the row's element."""
        deep = False
        while target is not None and (target.start_byte, target.end_byte) not in accesses:
            if target.type == "identifier":
                found, loop = self.code.definition(target), self.loop_of(target)
                if found is None or found.kind not in {"local", "loop", "parameter"}:
                    return False
                plain = found.declarator is not None and found.declarator.type in {"identifier", "init_declarator"}
                return not deep or (plain and loop is not None and inside(found.declaration, loop.body))
            deep = deep or target.type == "subscript_expression"
            arrow = target.type == "field_expression" and target.children[1].type == "->"
            if arrow or target.type not in {"field_expression", "subscript_expression"}:
                return False
            target = field_of(target, "argument")
        return target is not None

    def loop_of(self, node: Node) -> Loop | None:
        return next((loop for loop in self.loops if inside(node, loop.body)), None)

    def _check_memory(self) -> None:
        """What is written is written by the element's own thread, or by the first, and nobody else asks for it."""
        kernel = self.kernel
        if any(True for _ in kernel.escapes):
            raise Unsupported("a helper that may write anywhere")
        written = {a.root for a in kernel.accesses if a.writes}
        if "?" in written or (written - {""} and any(a.root == "?" for a in kernel.accesses)):
            raise Unsupported("a pointer of unknown origin")
        for access in kernel.accesses:
            loop = self.loop_of(access.node)
            if not access.root:  # an array of the thread's own
                found = self.code.definition(access.base.node) if access.base.node is not None else None
                outlives = loop is not None and found is not None and not inside(found.declaration, loop.body)
                if access.writes and (found is None or found.kind != "local" or outlives):
                    raise Unsupported("an array that outlives the element")
            elif loop is None and access.root in written:
                shared = access.reads and not access.writes
                if shared or any(self.loop_of(a.node) for a in kernel.accesses if a.root == access.root):
                    raise Unsupported("a read of what other threads may have written")
                if not self.region.holds(access.node):
                    raise Unsupported("a write beside the rows")
        for root in written - {""}:
            accesses = [a for a in kernel.accesses if a.root == root and self.loop_of(a.node) is not None]
            for a, b in combinations_with_replacement(accesses, 2):
                if (a.writes or b.writes) and not self._are_apart(a, b, written):
                    raise Unsupported("an element of several steps")

    def _are_apart(self, a: Access, b: Access, written: set[str]) -> bool:
        """Whether two accesses mean the same element only in the same step, which is one thread's, or never."""
        first, second = self.loop_of(a.node), self.loop_of(b.node)
        step, rests = a.offset.coefficient(first.symbol).value, []
        if a.wide or b.wide or first.start != second.start or not step:
            return False
        for access, loop in ((a, first), (b, second)):
            rest = access.offset - Polynomial.symbol(loop.symbol) * Polynomial.constant(step)
            base = Polynomial.symbol(access.base)
            if rest.depends_on(loop.symbol) or base.depends_on(loop.symbol):
                return False
            if any(self._changes(variable, loop) for variable in (rest + base).variables() - {self.row}):
                return False
            if any(variable.text in written for variable in rest.variables()):
                return False
            rests.append(rest + base)
        away = rests[1] - rests[0]
        if away.value is not None:
            return away.value == 0 or away.value % step != 0
        length = (first.bound - first.start) * Polynomial.constant(step)
        return first.bound == second.bound and away in (length, -length)

    def _changes(self, variable: Symbol, loop: Loop) -> bool:
        """Whether a variable may have several values in a row, as one that belongs to an element has."""
        found = self.code.definition(variable.node) if variable.node is not None else None
        return found is not None and (self.code.mutated(found) or inside(found.declaration, loop.body))

    def _check_neighbours(self) -> None:
        """The elements of a row lie side by side, and those of neighbouring rows do not."""
        found = False
        for access in self.kernel.global_accesses():
            loop = self.loop_of(access.node)
            if loop is None or not access.offset.depends_on(loop.symbol):
                continue
            step = access.offset.coefficient(loop.symbol).value
            fixed = step is not None and 0 < abs(step) <= FARTHEST
            others = [s for s in access.offset.symbols if not s.depends_on(loop.symbol) and s != self.row]
            beside = access.offset.coefficient(self.row).value not in {None, 0} or any(
                s.depends_on(self.row) for s in others
            )
            if beside and not fixed:
                raise Unsupported("neighbouring threads have neighbouring elements")
            place = Polynomial.symbol(access.base) + access.offset.substitute(
                loop.symbol, loop.start + Polynomial.symbol(ELEMENT)
            )
            found = found or (fixed and place.depends_on(self.row))
        if not found:
            raise Unsupported("no elements side by side")

    # Where it is launched.

    def covers(self, launch: Launch, width: int | None) -> bool:
        """Whether the grid is the number of rows over the block's width, rounded up, or one more than rounded down."""
        grid = self._divided(launch.along_x(launch.grid))
        rows, one = self.region.bound, Polynomial.constant(1)
        for symbol in rows.symbols:
            names = [p.name for p in self.kernel.parameters]
            if symbol.text not in names:
                return False
            rows = rows.substitute(symbol, self.code.polynomial(launch.arguments[names.index(symbol.text)]))
        threads = self.code.polynomial(launch.along_x(launch.block)) if width is None else Polynomial.constant(width)
        if grid is None:
            return False
        more, of, by = grid
        for symbol in of.symbols | by.symbols:  # `dim3 block(256); ... / block.x`
            if symbol.node is not None and self.source.of(symbol.node) == f"{self.source.of(launch.block)}.x":
                of, by = of.substitute(symbol, threads), by.substitute(symbol, threads)
        up = more == Polynomial() and of == rows + by - one
        return by == threads and (up or (more == one and of in (rows, rows - one)))

    def _divided(self, node: Node) -> tuple[Polynomial, Polynomial, Polynomial] | None:
        """`more + of / by`, seen through a function of the file that divides, as numbers where they are macros."""
        grid = self.code.polynomial(node)
        for symbol in grid.symbols:
            more, inner, passed = grid - Polynomial.symbol(symbol), symbol, {}
            call = symbol.node if symbol.node is not None and symbol.node.type == "call_expression" else None
            if call is not None:
                name = self.source.of(call, "function")
                function = self.code.functions.get(name) if len(self.code.overloads.get(name, [])) == 1 else None
                returned = list(self.source.walk(function, "return_statement")) if function is not None else []
                body = field_of(function, "body")
                if body is None or len(returned) != 1 or len(statements(body)) != 1:
                    continue
                value = self.code.polynomial(returned[0].named_children[0])
                inner = next((s for s in value.symbols if s.operator == "/"), symbol)
                more = more + value - Polynomial.symbol(inner)
                parameters = field_of(function, "declarator", "parameters")
                names = [self.source.of(declared_name(field_of(p, "declarator"))) for p in parameters.named_children]
                arguments = field_of(call, "arguments").named_children
                passed = {name: self.code.polynomial(a) for name, a in zip(names, arguments, strict=False)}
            if inner.operator == "/":
                of, by = (self._known(operand, passed) for operand in inner.operands)
                return more, of, by
        return None

    def _known(self, polynomial: Polynomial, passed: dict[str, Polynomial]) -> Polynomial:
        """With what a function is passed in place of its parameters, then numbers in place of macros."""
        for symbol in [s for s in polynomial.symbols if s.text in passed]:
            polynomial = polynomial.substitute(symbol, passed[symbol.text])
        for symbol in polynomial.symbols:
            number = value_in(self.code, self.kernel, None, symbol.node) if symbol.node is not None else None
            if number is not None:
                polynomial = polynomial.substitute(symbol, Polynomial.constant(number))
        return polynomial
