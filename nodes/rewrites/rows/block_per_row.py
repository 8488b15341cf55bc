"""Threads that each take a row by themselves become blocks that each take one: the plainest form of a row kernel.

    const int row = blockIdx.x * blockDim.x + threadIdx.x;         const int row = blockIdx.x;
    if (row >= rows) return;
    float sum = 0.0f;                                              float sum = 0.0f;
    for (int i = 0; i < n; ++i) sum += x[row * n + i];             for (int i = threadIdx.x; i < n; i += blockDim.x) ...
                                                                   const float sum_of_row = block_sum<0>(sum);
    total[row] = sum;                                              if (threadIdx.x == 0) total[row] = sum_of_row;

Neighbouring threads then read neighbouring elements, and a row has a block's threads to itself. What comes of it is the
form that canonicalize_reductions leaves, from which the other steps go on.

Applies to rows that a guard or a loop over the grid hands out one a thread, whose loops run over their elements one by one
and leave behind sums and extremes only, and where an element is read and written by the step of its own alone. Many rows
of a few dozen elements are slower this way, for most of a block idles and each reduction waits for all of it; several_rows_per_block
lets such rows share a block, and what measures slower is not kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from tree_sitter import Node

from harness.records import Outcome
from nodes.rewrites.analysis.block_shape import extent_of, value_in
from nodes.rewrites.analysis.device_code import Code, Definition, code_of, inside
from nodes.rewrites.analysis.insertions import require, without_unused
from nodes.rewrites.analysis.kernels import Access, Loop
from nodes.rewrites.analysis.launches import Launch, host_text
from nodes.rewrites.analysis.regions import (
    BLOCK,
    BLOCK_DIM,
    GRID_DIM,
    THREAD,
    Region,
    check_coordinates,
    fold_of,
    is_return,
    regions,
)
from nodes.rewrites.prelude.block_reductions import NAMES
from nodes.rewrites.reductions.shares import check_block_shares
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.rows.row_kernels import ELEMENT, check_own
from nodes.rewrites.syntax.algebra import Polynomial, Symbol
from nodes.rewrites.syntax.match import match
from nodes.rewrites.syntax.source import Edits, Source, Unsupported
from nodes.rewrites.syntax.tree import LOOPS, children_of, declared_name, field_of, same, statement_around, statements

WIDTH = 256
"""Threads of a block where the launch has fewer than four warps or its own number is not known."""
SHORTEST = 64
"""Shorter rows, where their length is a constant, stay with one thread: its own few elements, most likely a pack."""
FARTHEST = 16
"""Elements from one step of a loop to the next, at most, for which neighbouring threads still share cache lines."""
TOTALS = frozenset({
    "float", "double", "int", "unsigned", "unsigned int", "long", "long long", "int32_t", "uint32_t", "int64_t", "uint64_t",
    "unsigned long", "unsigned long long", "size_t",
})  # fmt: skip
"""Types that shuffles take and that have a `max`; those of loops' variables among them."""
_LARGER = ("$v > $top", "$v >= $top", "$top < $v", "$top <= $v")
_SMALLER = ("$v < $top", "$v <= $top", "$top > $v", "$top >= $v")
_FLOATS = {"float": "f{}f", "double": "f{}"}


@rule(
    "cuda",
    expected="neighbouring threads read neighbouring elements, and each row has a whole block of them",
    speedup=3.0,
    helps={"memory", "latency", "compute"},
    risks=(Outcome.INCORRECT, Outcome.RUNTIME_ERROR),
)
def rewrite(source: Source, facts: Facts) -> str | None:
    changed = source
    for number in range(len(code_of(source).kernels)):
        with suppress(Unsupported):
            changed = changed.reparsed(_with_compared(changed, number))
    return changed.text


def _with_compared(source: Source, number: int) -> str:
    """One kernel rewritten; `if (v > top) top = v;` becomes `top = fmaxf(top, v);` first, as the other steps know it."""
    code, edits = code_of(source), Edits(source)
    kernel = code.kernels[number]
    for loop in kernel.loops:
        for statement in source.walk(loop.body, "if_statement", "expression_statement"):
            chosen = _extreme(code, statement)
            if chosen is not None and (statement.start_byte, statement.end_byte, chosen) not in edits.changes:
                edits.replace(statement, chosen)
    source = source.reparsed(edits.apply()) if edits.changes else source
    return _Rows(code_of(source), number).rewritten()


def _extreme(code: Code, statement: Node) -> str | None:
    """What `if (v > top) top = v;` and `top = v > top ? v : top;` are called. As `fmaxf` they pass over a NaN in every
    place, where the comparison would never leave one that it began with."""
    for kind, taken, left in (("max", _LARGER, _SMALLER), ("min", _SMALLER, _LARGER)):
        forms = [
            form % asked
            for asked in taken
            for form in ("if (%s) $top = $v;", "if (%s) { $top = $v; }", "$top = %s ? $v : $top;")
        ]
        found = match(code.source, statement, *forms, *(f"$top = {asked} ? $top : $v;" for asked in left))
        top = code.definition(found["top"]) if found is not None and found["top"].type == "identifier" else None
        name = _FLOATS.get(code.source.of(top.declaration, "type")) if top is not None else None
        if name is not None:
            return f"{top.name} = {name.format(kind)}({top.name}, {code.source.of(found['v'])});"
    return None


class _Rows:
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
            if any(jump.type != "continue_statement" for jump in source.jumps_out_of(loop.body)):
                raise Unsupported("a row that is left early")
            found.append(loop)
        if not found:
            raise Unsupported("nothing but single elements")
        if rows is not None and any(source.jumps_out_of(rows.body)):
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
        accesses = {a.node.id for a in self.kernel.accesses}
        for node in source.walk(body, "assignment_expression", "update_expression"):
            target = field_of(node, "left") or field_of(node, "argument")
            while target.id not in accesses and source.of(target, "operator") == ".":
                target = field_of(target, "argument")
            found = code.variable(target)
            own = found is not None and found.kind in {"local", "loop", "parameter"}
            if not own and target.id not in accesses:
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

    def loop_of(self, node: Node) -> Loop | None:
        return next((loop for loop in self.loops if inside(node, loop.body)), None)

    def _check_memory(self) -> None:
        """What is written is written by the element's own thread, or by the first, and nobody else asks for it."""
        kernel = self.kernel
        if kernel.escapes:
            raise Unsupported("a helper that may write anywhere")
        check_own(kernel, self._place)
        written = {a.root for a in kernel.accesses if a.writes}
        for access in kernel.accesses:
            loop = self.loop_of(access.node)
            if not access.writes or not access.root:
                if access.writes:
                    raise Unsupported("an array of the thread's own")
            elif loop is None:
                if not self.region.holds(access.node):
                    raise Unsupported("a write beside the rows")
            else:
                step, rest = access.offset.coefficient(loop.symbol), access.offset.without(loop.symbol)
                known = not any(variable.text in written for variable in rest.variables())
                if access.wide or not step.value or rest.depends_on(loop.symbol) or not known:
                    raise Unsupported("an element of several steps")

    def _place(self, access: Access) -> Polynomial:
        loop, place = self.loop_of(access.node), Polynomial.symbol(access.base) + access.offset
        if loop is None:
            return place
        if any(self._changes(variable, loop) for variable in place.variables() - {self.row, loop.symbol}):
            raise Unsupported("a place that moves")
        return place.substitute(loop.symbol, loop.start + Polynomial.symbol(ELEMENT))

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
        rows, one, code = self.region.bound, Polynomial.constant(1), self.code
        for symbol in rows.symbols:
            names = [p.name for p in self.kernel.parameters]
            if symbol.text not in names:
                return False
            rows = rows.substitute(symbol, code.polynomial(launch.arguments[names.index(symbol.text)]))
        threads = code.polynomial(launch.along_x(launch.block)) if width is None else Polynomial.constant(width)
        grid, passed = self._written_out(code.polynomial(launch.along_x(launch.grid)))
        division = next((symbol for symbol in grid.symbols if symbol.operator == "/"), None)
        if division is None:
            return False
        more = grid - Polynomial.symbol(division)
        given = (operand.replaced(lambda s: passed.get(s.text, Polynomial.symbol(s))) for operand in division.operands)
        of, by = (self._known(launch, operand, threads) for operand in given)
        up = more == Polynomial() and of == rows + by - one
        return by == threads and (up or (more == one and of in (rows, rows - one)))

    def _written_out(self, grid: Polynomial) -> tuple[Polynomial, dict[str, Polynomial]]:
        """What a function of the file that only returns something, `ceil_div(rows, 256)`, stands for, and its parameters' values."""
        call = next((s.node for s in grid.symbols if s.node is not None and s.node.type == "call_expression"), None)
        found = self.code.overloads.get(self.source.called(call), []) if call is not None else []
        returned = statements(field_of(found[0], "body")) if len(found) == 1 else []
        if len(returned) != 1 or returned[0].type != "return_statement" or grid != self.code.polynomial(call):
            return grid, {}
        parameters = children_of(found[0], "declarator", "parameters")
        names = [self.source.of(declared_name(field_of(p, "declarator"))) for p in parameters]
        values = map(self.code.polynomial, children_of(call, "arguments"))
        return self.code.polynomial(returned[0].named_children[0]), dict(zip(names, values, strict=False))

    def _known(self, launch: Launch, polynomial: Polynomial, threads: Polynomial) -> Polynomial:
        """With numbers in place of macros, and the block's width in that of `block.x` of `dim3 block(256)`."""
        for symbol in polynomial.symbols:
            number = value_in(self.code, self.kernel, None, symbol.node) if symbol.node is not None else None
            if number is not None:
                polynomial = polynomial.substitute(symbol, Polynomial.constant(number))
            elif self.source.of(symbol.node) == f"{self.source.of(launch.block)}.x":
                polynomial = polynomial.substitute(symbol, threads)
        return polynomial

    # What becomes of it.

    def rewritten(self) -> str:
        edits, rows = Edits(self.source), self.region.loop
        if rows is None:
            edits.replace(self.index(self.region), "blockIdx.x")
        else:
            edits.replace(rows.start_node, "blockIdx.x")
            edits.replace(rows.step_node, "gridDim.x")
        for loop in self.loops:
            update = field_of(loop.node, "update")
            edits.replace(loop.start_node, "threadIdx.x" if loop.start.value == 0 else self._from(loop.start_node))
            edits.replace(update, f"{loop.name} += blockDim.x")
        self._reduce(edits)
        self._write_once(edits)
        for launch in self.kernel.launches:
            self._launch(edits, launch)
        require(edits, self.code, *NAMES)
        for statement in self.steps:
            edits.remove(statement, comment=True)
        asked = field_of(self.region.guard, "condition", "value")
        if asked is not None and same(asked, self.region.condition) and is_return(self.source, self.region.guard):
            edits.remove(self.region.guard, comment=True)  # there is a block for every row and none behind them
        text = without_unused(self.code, edits.apply())
        code = code_of(self.source.reparsed(text))
        check_block_shares(code, next(kernel for kernel in code.kernels if kernel.name == self.kernel.name))
        return text

    def _from(self, start: Node) -> str:
        """A thread's first element, in signed numbers: the row may start below zero."""
        plain = {"identifier", "number_literal", "subscript_expression", "call_expression", "parenthesized_expression"}
        text = self.source.of(start)
        return f"{text if start.type in plain else f'({text})'} + static_cast<int>(threadIdx.x)"

    def _reduce(self, edits: Edits) -> None:
        """Behind each loop, what all of the block's threads have found. A name of its own where the total stays as it is."""
        source, rows = self.source, self.region.loop
        site = sum(len(kernel.calls(*NAMES)) for kernel in self.code.kernels)
        for loop, found, kind in self.folds:
            around = loop.node.parent
            later = [use for use in self.uses(found, self.kernel.body) if not inside(use, loop.body)]
            settled = all(
                use.start_byte > loop.node.end_byte and inside(use, around) and not source.set_by(use) for use in later
            )
            total = self.code.fresh(f"{found.name}_of_row") if settled else found.name
            type_ = source.of(found.declaration, "type")
            declared = f"const {type_} {total}" if settled else total
            edits.behind(loop.node, f"{declared} = block_{kind}<{site}>({found.name});")
            site += 1
            for use in later if settled else ():
                edits.replace(use, total)
        if rows is not None and self.folds:
            always = sum(same(loop.node.parent, rows.body) for loop, _, _ in self.folds)
            if rows.body.type != "compound_statement":
                raise Unsupported("no place behind the row")
            if always < 2:  # else a reduction's barrier keeps the next row's first one from overtaking this one's
                edits.behind(statements(rows.body)[-1], "__syncthreads();")

    def _write_once(self, edits: Edits) -> None:
        """What is written once a row is the first thread's to write."""
        source, written = self.source, list[Node]()
        for access in self.kernel.accesses:
            if not access.writes or not access.root or self.loop_of(access.node) is not None:
                continue
            here = statement_around(access.node)
            changes = list(source.walk(here, "assignment_expression", "update_expression"))
            holder = here.parent
            alone = holder.type == "compound_statement" or (
                holder.type == "if_statement" and field_of(holder, "alternative") is None
            )
            if here.type != "expression_statement" or len(changes) != 1 or not alone:
                raise Unsupported("a write that is not a statement of its own")
            if not any(same(here, other) for other in written):
                edits.insert(here.start_byte, "if (threadIdx.x == 0) ")
                written.append(here)

    def _launch(self, edits: Edits, launch: Launch) -> None:
        """A block for each row."""
        for node in (launch.grid, launch.block):
            if launch.extents(node)[1:] != ("1", "1"):
                raise Unsupported("a launch of more than one dimension")
        if launch.shared_text != "0":
            raise Unsupported("shared memory of unknown use")
        width = extent_of(self.code, self.kernel, launch.along_x(launch.block))
        if self.region.loop is None and not self.covers(launch, width):
            raise Unsupported("a grid that may leave rows out")
        block = None
        if width is None or width < WIDTH // 2 or width % 32 != 0:
            if self.kernel.launch_bounds is not None:
                raise Unsupported("a bound for another block")
            block = str(WIDTH)
        edits.replace(
            launch.node, launch.rendered(grid=host_text(self.kernel, launch, self.region.bound_node), block=block)
        )
