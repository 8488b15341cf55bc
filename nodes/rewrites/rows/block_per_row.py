"""Threads that each take a row by themselves become blocks that each take one: the plainest form of a row kernel.

    const int row = blockIdx.x * blockDim.x + threadIdx.x;         const int row = blockIdx.x;
    if (row >= rows) return;
    float sum = 0.0f;                                              float sum = 0.0f;
    for (int i = 0; i < n; ++i) sum += x[row * n + i];             for (int i = threadIdx.x; i < n; i += blockDim.x) ...
                                                                   sum = block_sum<0>(sum);
    total[row] = sum;                                              if (threadIdx.x == 0) total[row] = sum;

Neighbouring threads then read neighbouring elements, and a row has a block's threads to itself. What comes of it is the
form that canonicalize_reductions leaves, from which the other steps go on.

Applies to rows that a guard or a loop over the grid hands out one a thread, whose loops run over their elements one by one
and leave behind sums and extremes only, and where an element is read and written by the step of its own alone. Many rows
of a few dozen elements are slower this way, for most of a block idles and each reduction waits for all of it; what
measures slower is not kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from tree_sitter import Node

from harness.records import Outcome
from nodes.rewrites.analysis.block_shape import extent_of
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
from nodes.rewrites.prelude import NAMES
from nodes.rewrites.reductions.shares import check_block_shares
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.rows.row_kernels import ELEMENT, check_own
from nodes.rewrites.syntax.algebra import Polynomial, Symbol
from nodes.rewrites.syntax.match import match
from nodes.rewrites.syntax.source import Edits, Source, Unsupported
from nodes.rewrites.syntax.tree import (
    LOOPS,
    children_of,
    field_of,
    is_integer,
    names_declared,
    one_variable,
    same,
    statement_around,
    statements,
    whole_of,
)

WIDTH = 256
"""Threads of a block where the launch has fewer than four warps or its own number is not known."""
FARTHEST = 16
"""Elements from one step of a loop to the next, at most, for which neighbouring threads still share cache lines."""
_EXTREMES = {
    "if ($v > $top) $top = $v;": "fmaxf",
    "if ($v < $top) $top = $v;": "fminf",
    "$top = $v > $top ? $v : $top;": "fmaxf",
    "$top = $v < $top ? $v : $top;": "fminf",
}


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
            changed = changed.reparsed(_Rows(code_of(_with_extremes(changed, number)), number).rewritten())
    return changed.text


def _with_extremes(source: Source, number: int) -> Source:
    """With `top = fmaxf(top, v);` in place of `if (v > top) top = v;`, as the other steps know it. It passes over a NaN in every
    place, where the comparison would never leave one that it began with."""
    code, edits = code_of(source), Edits(source)
    for statement in source.walk(code.kernels[number].body, "if_statement", "expression_statement"):
        found = match(source, statement, *_EXTREMES)
        top = code.variable(found["top"]) if found is not None else None
        if top is not None and source.of(top.declaration, "type") == "float":
            edits.replace(statement, f"{top.name} = {_EXTREMES[found.pattern]}({top.name}, {source.of(found['v'])});")
    return source.reparsed(edits.apply())


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

    # What the kernel is.

    def _region(self) -> Region:
        found = regions(self.kernel)
        if len(found) != 1 or found[0].kind in {"block", "team"} or found[0].axis != "x":
            raise Unsupported("no row a thread")
        (region,) = found
        rows, whole = region.loop, Polynomial.product(BLOCK, BLOCK_DIM) + Polynomial.symbol(THREAD)
        if rows is not None:
            header, start = [rows.start_node, rows.step_node], rows.start
            if rows.step != Polynomial.product(BLOCK_DIM, GRID_DIM) or not same(rows.node.parent, self.kernel.body):
                raise Unsupported("a loop over rows of another kind")
        else:
            header, start = [region.definition], self.code.polynomial(one_variable(region.definition)[1])
            if region.name in {self.source.of(n) for n in self.code.assigned(self.kernel.body)}:
                raise Unsupported("a row that changes")
        if start != whole:
            raise Unsupported("a width by another name")
        check_coordinates(self.kernel, header)
        return region

    def _loops(self) -> list[Loop]:
        """The loops over a row's elements: all that are in no other."""
        source, rows = self.source, self.region.loop
        found: list[Loop] = []
        for node in source.walk(self.kernel.body, *LOOPS):
            if (rows is not None and same(node, rows.node)) or any(inside(node, loop.node) for loop in found):
                continue
            loop = next((o for o in self.kernel.loops if same(o.node, node)), None)
            plain = loop is not None and loop.step.value == 1 and is_integer(loop.type) and self.region.holds(node)
            # A few elements, as many as the compiler knows, are a pack most likely.
            short = plain and self.code.is_constant(loop.bound_node)
            if not plain or short or self.kernel.changes_within(loop.bound, [loop.body]):
                raise Unsupported("a loop of another kind")
            found.append(loop)
            if any(jump.type != "continue_statement" for jump in source.jumps_out_of(loop.body)):
                raise Unsupported("a row that is left early")
        if rows is not None and any(source.jumps_out_of(rows.body)):
            raise Unsupported("a row that is left early")  # the loop over rows ends with a barrier
        return found

    # What a loop leaves behind.

    def _folds(self, loop: Loop) -> Iterator[tuple[Loop, Definition, str]]:
        """Each variable that the loop changes and that outlives an element, and whether it is a sum, max or min."""
        changed = filter(None, map(self.code.definition, self.code.assigned(loop.body)))
        outer = {found.where: found for found in changed if not inside(found.declaration, loop.body)}
        for found in outer.values():
            kinds = {fold_of(self.kernel, use) for use in self.code.uses(found, loop.body)}
            kind, type_ = kinds.pop(), self.source.of(found.declaration, "type")
            number = found.form.type == "identifier" and (type_ in {"float", "double"} or is_integer(type_))
            if kinds or f"block_{kind}" not in NAMES or not number:
                raise Unsupported("elements that depend on each other")
            if not self.region.holds(found.declaration) or loop.node.parent.type != "compound_statement":
                raise Unsupported("a total of several rows, or no place behind the loop")
            yield loop, found, kind

    # What must hold.

    def _check_names(self) -> None:
        """A variable is the thread's own, and changes where an assignment names it and in no other way."""
        source, code, body = self.source, self.code, self.kernel.body
        if source.has(body, "lambda_expression", "reference_declarator"):
            raise Unsupported("a second name for a variable")
        accesses = {a.node.id for a in self.kernel.accesses}
        for node in source.walk(body, "assignment_expression", "update_expression"):
            target = whole_of(field_of(node, "left") or field_of(node, "argument"))
            found = code.variable(target)
            if (found is None or found.kind not in {"local", "loop"}) and target.id not in accesses:
                raise Unsupported("an assignment to something of unknown origin")
        for call in source.walk(body, "call_expression"):
            macro = source.of(call, "function") in code.macros
            method = field_of(call, "function").type == "field_expression"
            if macro or method or any(code.lends(call, given)[0] for given in children_of(call, "arguments")):
                raise Unsupported("a function that may change a variable")

    def _loop_of(self, node: Node) -> Loop | None:
        return next((loop for loop in self.loops if inside(node, loop.body)), None)

    def _check_memory(self) -> None:
        """What is written is written by the element's own thread, or by the first, and nobody else asks for it. The elements of
        a row lie side by side."""
        kernel, of_row = self.kernel, False
        if kernel.escapes:
            raise Unsupported("a helper that may write anywhere")
        check_own(kernel, self._place)
        for access in kernel.accesses:
            loop = self._loop_of(access.node)
            if access.writes and (not access.root or not self.region.holds(access.node)):
                raise Unsupported("an array of the thread's own, or a write beside the rows")
            if loop is None or not (access.writes or access.offset.depends_on(loop.symbol)):
                continue
            step, rest = access.offset.coefficient(loop.symbol).value, access.offset.without(loop.symbol)
            moves = access.wide or not all(map(self._is_the_same, {*rest.symbols, access.base}))
            if not step or abs(step) > FARTHEST or (access.writes and moves):
                raise Unsupported("elements that are not side by side, or of several steps")
            of_row = of_row or self._place(access).depends_on(self.row)
        if not of_row:
            raise Unsupported("no elements of a row")

    def _is_the_same(self, symbol: Symbol) -> bool:
        """Whether it has one value for all of a row's elements."""
        found = self.code.variable(symbol.node)
        return symbol in {self.row, BLOCK, BLOCK_DIM} or (found is not None and found.kind in {"parameter", "template"})

    def _place(self, access: Access) -> Polynomial:
        loop, place = self._loop_of(access.node), Polynomial.symbol(access.base) + access.offset
        return place if loop is None else place.substitute(loop.symbol, loop.start + Polynomial.symbol(ELEMENT))

    def _covers(self, launch: Launch) -> bool:
        """Whether the grid is the number of rows over the block's width, rounded up, also by a function of the file."""
        code, source, names = self.code, self.source, [p.name for p in self.kernel.parameters]
        passed = dict(zip(names, map(code.polynomial, launch.arguments), strict=False))
        rows = self.region.bound.replaced(lambda s: passed.get(s.text))
        threads = code.polynomial(launch.along_x(launch.block))
        grid, values = code.settled(launch.along_x(launch.grid)), {}
        function = code.functions.get(source.called(grid))
        if (made := match(source, field_of(function, "body"), "{ return $made; }")) is not None:
            taken = (name for p in children_of(function, "declarator", "parameters") for name in names_declared(p))
            given = map(code.polynomial, children_of(grid, "arguments"))
            grid, values = made["made"], dict(zip(map(source.of, taken), given, strict=False))
        sides = code.polynomial(grid).division("/")
        of, by = (side.replaced(lambda s: values.get(s.text, Polynomial.symbol(s))) for side in sides)
        return rows is not None and (of, by) == (rows + threads - Polynomial.constant(1), threads)

    # What becomes of it.

    def rewritten(self) -> str:
        edits, rows = Edits(self.source), self.region.loop
        if rows is None:
            edits.replace(one_variable(self.region.definition)[1], "blockIdx.x")
            asked = field_of(self.region.guard, "condition", "value")
            if same(asked, self.region.condition) and is_return(self.source, self.region.guard):
                edits.remove(self.region.guard, comment=True)  # there is a block for every row and none behind them
        else:
            edits.replace(rows.start_node, "blockIdx.x")
            edits.replace(rows.step_node, "gridDim.x")
        for loop in self.loops:
            # In signed numbers: a row may start below zero.
            first = f"({self.source.of(loop.start_node)}) + static_cast<int>(threadIdx.x)"
            edits.replace(loop.start_node, "threadIdx.x" if loop.start.value == 0 else first)
            edits.replace(field_of(loop.node, "update"), f"{loop.name} += blockDim.x")
        self._reduce(edits)
        self._write_once(edits)
        for launch in self.kernel.launches:
            self._launch(edits, launch)
        require(edits, self.code, *NAMES)
        text = without_unused(self.code, edits.apply())
        code = code_of(self.source.reparsed(text))
        check_block_shares(code, next(kernel for kernel in code.kernels if kernel.name == self.kernel.name))
        return text

    def _reduce(self, edits: Edits) -> None:
        """Behind each loop, what all of the block's threads have found."""
        rows = self.region.loop
        for site, (loop, found, kind) in enumerate(self.folds):
            edits.behind(loop.node, f"{found.name} = block_{kind}<{site}>({found.name});")
        # A second reduction's barrier keeps the next row's first one from overtaking this one's.
        always = sum(same(loop.node.parent, rows.body) for loop, *_ in self.folds) if rows is not None else 2
        if self.folds and always < 2:
            edits.behind(statements(rows.body)[-1], "__syncthreads();")

    def _write_once(self, edits: Edits) -> None:
        """What is written once a row is the first thread's to write."""
        for access in self.kernel.accesses:
            if not access.writes or self._loop_of(access.node) is not None:
                continue
            here = statement_around(access.node)
            changes = list(self.source.walk(here, "assignment_expression", "update_expression"))
            alone = here.parent.type == "compound_statement" or field_of(here.parent, "alternative") is None
            if here.type != "expression_statement" or len(changes) != 1 or not alone:
                raise Unsupported("a write that is not a statement of its own")
            edits.insert(here.start_byte, "if (threadIdx.x == 0) ")

    def _launch(self, edits: Edits, launch: Launch) -> None:
        """A block for each row."""
        wide = any(launch.extents(node)[1:] != ("1", "1") for node in (launch.grid, launch.block))
        if wide or launch.shared_text != "0" or (self.region.loop is None and not self._covers(launch)):
            raise Unsupported("a launch of another kind, or a grid that may leave rows out")
        width, block = extent_of(self.code, self.kernel, launch.along_x(launch.block)), None
        if width is None or width < WIDTH // 2 or width % 32 != 0:
            if self.kernel.launch_bounds is not None:
                raise Unsupported("a bound for another block")
            block = str(WIDTH)
        rows = host_text(self.kernel, launch, self.region.bound_node)
        edits.replace(launch.node, launch.rendered(grid=rows, block=block))
