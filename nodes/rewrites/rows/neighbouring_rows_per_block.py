"""Blocks take neighbouring rows of the index in which per-row values lie side by side, and no index is divided.

A thread finds its row in a flat order, `outer = row / inner_rows`, `inner = row % inner_rows`, and reads values of its row
from an array in which the outer index runs fastest, `lse[inner * outer_rows + outer]`: the rows of a block read 4 bytes here
and 4 bytes there. A second kernel, the same but for where its indices come from, takes NEIGHBOUR_ROWS outer rows of one
inner row a block. It applies to kernels whose threads do not talk to each other: one thread an element (`row = i / steps`,
behind a guard), or rows as grid_stride lays them out. The host keeps the old kernel for other sizes.
"""

from __future__ import annotations

import re

from tree_sitter import Node

from harness.records import Outcome
from nodes.rewrites.analysis.device_code import Code, code_of, inside
from nodes.rewrites.analysis.insertions import require
from nodes.rewrites.analysis.kernels import Kernel
from nodes.rewrites.analysis.launches import Launch, host_text
from nodes.rewrites.analysis.regions import check_coordinates, is_return, waits
from nodes.rewrites.launch.drop_grid_stride_loop import in_place, leaves, one_row
from nodes.rewrites.launch.grid_stride import row_shape_of
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.rows.row_kernels import edited
from nodes.rewrites.syntax.algebra import Polynomial, Symbol
from nodes.rewrites.syntax.insert import renamed
from nodes.rewrites.syntax.match import bare, match
from nodes.rewrites.syntax.source import Edits, Lines, Source, Unsupported
from nodes.rewrites.syntax.tree import field_of, is_integer, one_variable, same, statements

COMMENT = """\
// The same for NEIGHBOUR_ROWS neighbouring rows a block, a thread a step: what is read by row lies side by side, and no index
// is divided.
"""
ONE = Polynomial.constant(1)
OUTER, INNER, COLUMN = (Polynomial.symbol(Symbol(f"the {name}")) for name in ("outer row", "inner row", "column"))
ROW_BLOCK = Polynomial.product("blockIdx.z", "gridDim.y") + Polynomial.product("blockIdx.y")
"""What grid_stride calls a block's place in the order of rows (its ROW_BLOCK)."""


@rule(
    "cuda",
    expected="whole sectors of what is read or written once a row, and no division of an index",
    speedup=1.15,
    helps={"memory", "latency"},
    risks=(Outcome.INCORRECT, Outcome.RUNTIME_ERROR),
    once="NEIGHBOUR_ROWS",
)
def rewrite(source: Source, facts: Facts) -> str | None:
    code, edits = code_of(source), Edits(source)
    for number, kernel in enumerate(code.kernels):
        with edits.attempt():
            found = _Rows(code_of(_without_loops(source, number), _integers(kernel)), number)
            name = code.fresh(f"{kernel.name}_neighbours")
            edits.insert(kernel.outer.end_byte, "\n\n" + found.new_kernel(name))
            for launch, place in zip(found.kernel.launches, kernel.launches, strict=True):
                edits.write(place.statement, found.choice(launch, name))
    require(edits, code, "neighbours")
    return edits.apply()


def _integers(kernel: Kernel) -> frozenset[str]:
    """Template parameters that are an integer type in every launch."""
    given = zip(kernel.template_names, *(launch.template_arguments for launch in kernel.launches), strict=False)
    return frozenset(name for name, *types in given if all(map(is_integer, types)))


def _without_loops(source: Source, number: int) -> Source:
    """Without the loops that grid_stride lays over rows and over the steps of a row: a thread for each of them."""
    source = one_row(source, number)
    code = code_of(source)
    kernel, start = (
        code.kernels[number],
        Polynomial.product("blockIdx.x", "blockDim.x") + Polynomial.product("threadIdx.x"),
    )
    for loop in kernel.loops:
        strided = (loop.start, loop.step) == (start, Polynomial.product("gridDim.x", "blockDim.x"))
        if strided and not leaves(source, loop):
            if any(host_text(kernel, a, loop.bound_node) != row_shape_of(code, a)[2] for a in kernel.launches):
                raise Unsupported("a loop over something else")
            return source.reparsed(in_place(source, kernel, loop, "threadIdx.x"))
    return source


class _Rows:
    """A kernel whose threads divide to find their row, that this rewrite fits. Raises Unsupported for any other."""

    def __init__(self, code: Code, number: int) -> None:
        self.code, self.source, self.kernel = code, code.source, code.kernels[number]
        kernel = self.kernel
        if kernel.synchronises or kernel.has_defaults or not kernel.launches:
            raise Unsupported("threads that talk to each other")
        self.by_row = any(self.source.of(n) == "threadIdx.y" for n in self.source.walk(kernel.body, "field_expression"))
        """Threads are laid out in rows, as grid_stride does; else each has one element of a flat order."""
        axis, block = ("y", ROW_BLOCK) if self.by_row else ("x", Polynomial.product("blockIdx.x"))
        self.thread = Symbol(f"threadIdx.{axis}")
        self.index = block * Polynomial.product(f"blockDim.{axis}") + Polynomial.symbol(self.thread)
        self.anchor, self.name = self._anchor()
        self.inner_rows, self.columns, self.lanes = self._split()
        self.row = OUTER * self.inner_rows + INNER
        self.element = self.row * self.columns + (Polynomial() if self.by_row else COLUMN)
        self.comparison, self.outer_rows = self._guard()
        apart = INNER * self.outer_rows + OUTER
        if not any(self._resolved(access.offset) == apart for access in kernel.global_accesses()):
            raise Unsupported("nothing that lies side by side for neighbouring rows")

    def _anchor(self) -> tuple[Node, str]:
        """Where a thread learns what is its own, `const int i = blockIdx.x * blockDim.x + threadIdx.x;`: nowhere else."""
        for statement in statements(self.kernel.body):
            variable = one_variable(statement)
            if variable is not None and self.code.polynomial(variable[1]) == self.index:
                check_coordinates(self.kernel, [variable[1]], {"threadIdx.x"} if self.by_row else ())
                return statement, self.source.of(variable[0])
        raise Unsupported("no thread an element and no row a thread")

    def _split(self) -> tuple[Polynomial, Polynomial, Polynomial]:
        """What rows are split by, how many elements a row has, and how many of these a thread, a constant of the kernel's:
        `i = thread * LANES`, `row = i / columns`, `inner = row % inner_rows`."""
        for node in self.source.walk(self.kernel.body, "binary_expression"):
            row, inner_rows = self.code.polynomial(node).division("%")
            if self.by_row and row == self.index:
                return self._known(inner_rows), ONE, ONE
            element, columns = row.division("/")
            lanes = element.coefficient(self.thread)
            if lanes.terms and element == self.index * lanes:
                return self._known(inner_rows), self._known(columns), self._known(lanes)
        raise Unsupported("a row that is not split")

    def _known(self, size: Polynomial) -> Polynomial:
        """Raises Unsupported where a size is no parameter of the kernel's, or of its template's, and not 1."""
        found = self.code.variable(self._name(size)) if size != ONE else None
        parameter = found is not None and found.kind in {"parameter", "template"} and not self.code.mutated(found)
        if size != ONE and not parameter:
            raise Unsupported("a size that only the device knows")
        return size

    def _name(self, size: Polynomial) -> Node | None:
        return size.only.node if size.only is not None else None

    def _resolved(self, value: Polynomial) -> Polynomial:
        """With OUTER, INNER and COLUMN in place of the thread's index, and of what that is divided into."""
        factor = value.coefficient(self.thread).over(self.lanes)
        if factor is not None:
            value = value - factor * self.lanes * self.index + factor * self.element
        return value.replaced(self._resolved_symbol)

    def _resolved_symbol(self, symbol: Symbol) -> Polynomial:
        rests = ((INNER, self.inner_rows), (COLUMN, self.columns),
                 (INNER * self.columns + COLUMN, self.inner_rows * self.columns))  # fmt: skip
        for rest, below in rests if symbol.operator else ():
            dividend, divisor = symbol.operands
            quotient = (self._resolved(dividend) - rest).over(divisor) if divisor == below else None
            if quotient is not None and symbol.operator in "/%":
                return quotient if symbol.operator == "/" else rest
        return Polynomial.symbol(symbol)

    def _guard(self) -> tuple[Node, Polynomial]:
        """The comparison that says how many there are, in front of all memory, and how many outer rows that makes."""
        touches = [a.node for a in self.kernel.accesses] + [call for call, _ in self.kernel.escapes]
        for statement in (s for s in statements(self.kernel.body) if s.start_byte >= self.anchor.end_byte):
            if is_return(self.source, statement):
                return self._compared(field_of(statement, "condition", "value"))
            passes = statement.type == "declaration" or waits(self.source, statement)
            if not passes or any(inside(node, statement) for node in touches):
                break
        raise Unsupported("no guard before memory is touched")

    def _compared(self, condition: Node) -> tuple[Node, Polynomial]:
        asked = match(self.source, condition, "$index >= $bound")
        if asked is None:
            raise Unsupported("a guard that compares otherwise")
        index, bound = (self.code.polynomial(asked[side]) for side in ("index", "bound"))
        elements, lanes = bound.division("/")
        if index == self.index and lanes == self.lanes:  # the elements are cut into packs, all of them whole
            index, bound = index * lanes, elements
        apiece = {OUTER: ONE, self.row: self.inner_rows, self.element: self.inner_rows * self.columns}
        count = bound.over(apiece.get(self._resolved(index), Polynomial.constant(0)))
        if count is None or count == ONE:
            raise Unsupported("a guard for something else")
        return bare(condition), self._known(count)

    # What it becomes.

    def new_kernel(self, name: str) -> str:
        """The kernel for neighbouring rows, with a comment that says so."""
        kernel, source, edits = self.kernel, self.source, Edits(self.source)
        text, kind = source.of, source.of(self.anchor, "type")
        inner_rows, columns, lanes, count = (
            text(self._name(size)) for size in (self.inner_rows, self.columns, self.lanes, self.outer_rows)
        )
        edits.replace(kernel.name_node, name)
        edits.replace(*kernel.bounded("__launch_bounds__(1024)"))
        outer, inner = self.code.fresh("outer_row"), self.code.fresh("inner_row")
        row = f"{outer} * {inner_rows} + {inner}"
        steps = f"({columns} / {lanes})" if lanes else columns
        own = row if self.by_row else f"({row}) * {steps} + threadIdx.x"
        lines = [
            f"const {kind} {outer} = blockIdx.y * NEIGHBOUR_ROWS + threadIdx.y, {inner} = blockIdx.x;",
            f"const {kind} {self.name} = {own};",
        ]
        edits.write(self.anchor, lines)
        edits.replace(self.comparison, f"{outer} >= {count}")
        column = f"threadIdx.x * {lanes}" if lanes else "threadIdx.x"
        known = {OUTER: outer, INNER: inner, self.row: row, COLUMN: column}
        for node in source.walk(kernel.body, "init_declarator"):
            value = field_of(node, "value")
            if value is None or value.type == "identifier" or same(node.parent, self.anchor):
                continue
            if (short := known.get(self._resolved(self.code.polynomial(value)))) is not None:
                edits.replace(value, short)
        for node in source.walk(kernel.body, "binary_expression"):
            place = (match(source, node, "$place == 0") or {}).get("place")
            written = place is not None and place.type == "binary_expression"
            if written and self._resolved(self.code.polynomial(place)) == COLUMN:
                edits.replace(place, "threadIdx.x")
        return COMMENT + edited(kernel, edits)

    # Where it is launched.

    def choice(self, launch: Launch, name: str) -> Lines:
        """The launch, in a choice between the new kernel and the old one."""
        source, conditions = self.source, []
        inner, columns, lanes, count = (
            self._on_host(launch, size) for size in (self.inner_rows, self.columns, self.lanes, self.outer_rows)
        )
        steps = row_shape_of(self.code, launch)[2] if self.by_row else columns
        if not self.by_row and any(launch.extents(n)[1:] != ("1", "1") for n in (launch.grid, launch.block)):
            raise Unsupported("a launch of more than one dimension")
        if lanes:
            conditions.append(f"{columns} % {lanes} == 0")
            steps = f"{columns} / {lanes}"
        conditions.append(f"neighbours_fit({steps}, {count})")
        call = launch.rendered(
            function=renamed(source.of(launch.function), self.kernel.name, name),
            grid=f"dim3({inner}, neighbour_groups({count}))",
            block=f"dim3({steps}, NEIGHBOUR_ROWS)",
        )
        return [f"if ({' && '.join(conditions)}) {{", [f"{call};"], "} else {", [source.of(launch.statement)], "}"]

    def _on_host(self, launch: Launch, size: Polynomial) -> str:
        """A size as the host writes it, without the cast that the launch gives it; "" for 1."""
        name = self._name(size)
        text = host_text(self.kernel, launch, name) if name is not None else ""
        return re.sub(r"static_cast<u?int\d+_t>\((\w+)\)", r"\1", text)
