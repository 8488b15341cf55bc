"""Blocks take neighbouring rows of the index in which per-row values lie side by side, and no index is divided.

A thread finds its row in a flat order, `outer = row / inner_rows`, `inner = row % inner_rows`, and reads values of its row
from an array in which the outer index runs fastest, `lse[inner * outer_rows + outer]`: the rows of a block read 4 bytes here
and 4 bytes there. A second kernel, the same but for where its indices come from, takes NEIGHBOUR_ROWS outer rows of one
inner row a block. It applies to kernels whose threads do not talk to each other: one thread an element (`row = i / steps`,
behind a guard), or rows as spread lays them out. The host keeps the old kernel for other sizes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from tree_sitter import Node

from harness.records import Outcome
from nodes.rewrites.analysis.device_code import Code, code_of, inside
from nodes.rewrites.analysis.insertions import require
from nodes.rewrites.analysis.kernels import Kernel, Loop
from nodes.rewrites.analysis.launches import Launch, host_text
from nodes.rewrites.analysis.regions import carries_state, check_coordinates, is_return, waits
from nodes.rewrites.launch.drop_grid_stride_loop import in_place
from nodes.rewrites.launch.grid_stride import SIDE_BY_SIDE, row_shape_of
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.rows.row_kernels import edited
from nodes.rewrites.syntax.algebra import Polynomial, Symbol
from nodes.rewrites.syntax.insert import renamed
from nodes.rewrites.syntax.match import bare, match
from nodes.rewrites.syntax.source import Edits, Lines, Source, Unsupported, only_argument, operands
from nodes.rewrites.syntax.tree import children_of, field_of, is_integer, one_variable, pragma_of, same, statements

COMMENT = """\
// The same for NEIGHBOUR_ROWS neighbouring rows a block, a thread a step: what is read by row lies side by side, and no index
// is divided.
"""
OUTER, INNER = Symbol("the outer row"), Symbol("the inner row")
STRIDE_AT_LEAST = 8
"""Elements from one inner row to the next from which on they share no 32 bytes."""
BOUNDS = "__launch_bounds__(1024)"


def _product_of(*coordinates: str) -> Polynomial:
    product = Polynomial.constant(1)
    for name in coordinates:
        product = product * Polynomial.symbol(Symbol(name))
    return product


ROW_BLOCK = _product_of("blockIdx.z", "gridDim.y") + _product_of("blockIdx.y")
ROW_BLOCKS = _product_of("gridDim.z", "gridDim.y")
"""What spread calls a block's place in the order of rows, and how many there are (its SIDE_BY_SIDE)."""


@rule(
    "cuda",
    expected="whole sectors of what is read or written once a row, and no division of an index",
    speedup=1.15,
    helps={"memory", "latency"},
    after=("several_rows_per_block",),
    risks=(Outcome.INCORRECT, Outcome.RUNTIME_ERROR),
    once="NEIGHBOUR_ROWS",
)
def rewrite(source: Source, facts: Facts) -> str | None:
    code, edits = code_of(source), Edits(source)
    for kernel in code.kernels:
        with edits.attempt():
            found = _Rows(code_of(_one_row_a_thread(kernel), _integers(kernel)), kernel.name)
            name = code.fresh(f"{kernel.name}_neighbours")
            edits.insert(kernel.outer.end_byte, "\n\n" + found.new_kernel(name))
            for launch, place in zip(found.kernel.launches, kernel.launches, strict=True):
                edits.write(place.statement, found.choice(launch, name))
    require(edits, code, "neighbours")
    return edits.apply()


def _integers(kernel: Kernel) -> frozenset[str]:
    """Template parameters that are an integer type in every launch."""
    listed = [launch.template_arguments for launch in kernel.launches]
    complete = bool(listed) and all(len(arguments) == len(kernel.template_names) for arguments in listed)
    columns = zip(*listed, strict=True) if complete else ()
    return frozenset(
        name for name, given in zip(kernel.template_names, columns, strict=False) if all(map(is_integer, given))
    )


def _one_row_a_thread(kernel: Kernel) -> Source:
    """The source with a return behind the last row in place of a loop over rows, as spread leaves it, at the kernel's end."""
    source, code = kernel.source, kernel.code
    body = statements(kernel.body)
    loop = next((o for o in kernel.loops if body and same(o.node, body[-1])), None)
    if loop is None or loop.step != ROW_BLOCKS * _product_of("blockDim.y"):
        return source
    if pragma_of(loop.node) is not None:
        raise Unsupported("a pragma for the loop")
    if carries_state(kernel, statements(loop.body)):
        raise Unsupported("rows that depend on each other")
    for target in code.assigned(loop.body):
        found = code.definition(target)
        if found is None or not inside(found.declaration, loop.body):
            raise Unsupported("a variable that outlives its row")
    if any(source.jumps_out_of(loop.body)):
        raise Unsupported("a row that is left early")
    start, bound = source.of(loop.start_node), source.of(loop.bound_node)
    first = [f"const {loop.type} {loop.name} = {start};", f"if ({loop.name} >= {bound}) return;"]
    return source.reparsed(in_place(source, kernel, loop.node, loop.body, first, loop.name))


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


class _Rows:
    """A kernel whose threads divide to find their row, that this rewrite fits. Raises Unsupported for any other."""

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

    def _anchor(self) -> Anchor:
        axis, block = ("y", ROW_BLOCK) if self.by_row else ("x", _product_of("blockIdx.x"))
        start = block * _product_of(f"blockDim.{axis}") + _product_of(f"threadIdx.{axis}")
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
            row = _symbol_of(self.code.polynomial(node))
            if row is None:
                continue
            element = _symbol_of(row.operands[0])
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
        division = _symbol_of(polynomial)
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
        return ""

    def _resolved(self, polynomial: Polynomial) -> Polynomial:
        """With the row, and what it is divided into, as OUTER and INNER."""
        outer, inner = Polynomial.symbol(OUTER), Polynomial.symbol(INNER)
        values = {"outer": outer, "inner": inner, "row": outer * self.inner_rows.value + inner}
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

    # What it becomes.

    def new_kernel(self, name: str) -> str:
        """The kernel for neighbouring rows, with a comment that says so."""
        kernel, source, edits = self.kernel, self.source, Edits(self.source)
        edits.replace(kernel.name_node, name)
        edits.replace(*kernel.bounded(BOUNDS))
        anchor, indent = self.anchor, source.indent(self.anchor.node)
        outer, inner = self.code.fresh("outer_row"), self.code.fresh("inner_row")
        row = own = f"{outer} * {self.inner_rows.text} + {inner}"
        if self.columns is not None:
            steps = self.columns.text if self.lanes is None else f"({self.columns.text} / {self.lanes.text})"
            own = f"({row}) * {steps} + threadIdx.x"
        axis = "z" if self.by_row else "y"
        lines = [
            f"const {anchor.type} {outer} = blockIdx.{axis} * NEIGHBOUR_ROWS + threadIdx.y, {inner} = blockIdx.x;",
            f"const {anchor.type} {anchor.name} = {own};",
        ]
        edits.replace(anchor.node, f"\n{indent}".join(lines))
        factors = [source.of(f) if f.child_count == 0 else f"({source.of(f)})" for f in self._outer_rows()]
        edits.replace(self.guard.comparison, f"{outer} >= {' * '.join(factors)}")
        column = "threadIdx.x" if self.lanes is None else f"threadIdx.x * {self.lanes.text}"
        for node, text in self._undivided({"outer": outer, "inner": inner, "row": row, "column": column}):
            edits.replace(node, text)
        text = edited(kernel, edits)
        for _ in self.kernel.loops if self.by_row else ():
            text = self._without_loop(text)
        return COMMENT + text

    def _without_loop(self, text: str) -> str:
        """The kernel's text with one of its loops over the steps of a row less: the block has a thread for each of them."""
        code = code_of(self.source.reparsed(text))
        source, (kernel,) = code.source, code.kernels
        whole = {(o.name, self.source.of(o.bound_node)) for o in self.kernel.loops if self._is_the_row(o)}
        cuts = SIDE_BY_SIDE.cuts
        start = _product_of(f"blockIdx.{cuts}", "blockDim.x") + _product_of("threadIdx.x")
        for loop in kernel.loops:
            if (loop.start, loop.step) != (start, _product_of(f"gridDim.{cuts}", "blockDim.x")):
                continue
            jumps = source.has(loop.body, "break_statement", "continue_statement")
            if (loop.name, source.of(loop.bound_node)) in whole and not jumps:
                first = [f"const {loop.type} {loop.name} = threadIdx.x;"]
                return in_place(source, kernel, loop.node, loop.body, first, loop.name)
        return text

    def _is_the_row(self, loop: Loop) -> bool:
        """Whether a loop takes as many steps as every launch gives the block threads in a row."""
        try:
            return all(
                host_text(self.kernel, launch, loop.bound_node) == self._steps_of_rows(launch)
                for launch in self.kernel.launches
            )
        except Unsupported:
            return False

    def _undivided(self, texts: dict[str, str]) -> list[tuple[Node, str]]:
        """Divisions in what stays, with what takes their place: values of declarations, and `i % columns == 0`."""
        source, found = self.source, []
        for node in source.walk(self.kernel.body, "init_declarator"):
            value, holder = field_of(node, "value"), node.parent
            if value is None or holder is None or same(holder, self.anchor.node):
                continue
            kind = self._kind(self.code.polynomial(value))
            if kind in texts and value.type != "identifier" and self._is_integer(self._type(holder)):
                found.append((value, texts[kind]))
        for node in source.walk(self.kernel.body, "binary_expression"):
            left, right = field_of(node, "left"), field_of(node, "right")
            asks = source.of(node, "operator") in {"==", "!="} and source.of(right) == "0"
            written = left is not None and left.type in {"binary_expression", "parenthesized_expression"}
            if asks and left is not None and written and self._kind(self.code.polynomial(left)) == "column":
                found.append((left, "threadIdx.x"))
        return found

    # Where it is launched.

    def choice(self, launch: Launch, name: str) -> Lines:
        """The launch, in a choice between the new kernel and the old one."""
        source, conditions = self.source, []
        if launch.node.start_byte < self.kernel.outer.end_byte:
            raise Unsupported("a launch in front of the kernel")
        if self.columns is None:
            steps = self._steps_of_rows(launch)
        else:
            if launch.extents(launch.grid)[1:] != ("1", "1") or launch.extents(launch.block)[1:] != ("1", "1"):
                raise Unsupported("a launch of more than one dimension")
            steps = self._host_factor(launch, self.columns)
            if self.lanes is not None:
                lanes = self._host_factor(launch, self.lanes)
                conditions.append(f"{steps} % {lanes} == 0")
                steps = f"{steps} / {lanes}"
        inner = self._host_factor(launch, self.inner_rows)
        count = " * ".join(self._host(launch, factor) for factor in self._outer_rows())
        conditions.append(f"neighbours_fit({steps}, {count})")
        groups = f"neighbour_groups({count})"
        call = launch.rendered(
            function=renamed(source.of(launch.function), self.kernel.name, name),
            grid=f"dim3({inner}, 1, {groups})" if self.by_row else f"dim3({inner}, {groups})",
            block=f"dim3({steps}, NEIGHBOUR_ROWS)",
        )
        return [f"if ({' && '.join(conditions)}) {{", [f"{call};"], "} else {", [source.of(launch.statement)], "}"]

    def _steps_of_rows(self, launch: Launch) -> str:
        """The second argument of spread's `row_shape(rows, steps)`, which the block is taken from."""
        _, call = row_shape_of(self.code, launch)
        arguments = children_of(call, "arguments")
        if len(arguments) != 2:
            raise Unsupported("a shape of other dimensions, too")
        return self.source.of(arguments[1])

    def _host_factor(self, launch: Launch, divisor: Divisor) -> str:
        return divisor.text if divisor.node is None else self._host(launch, divisor.node)

    def _host(self, launch: Launch, node: Node) -> str:
        """The node as the host writes it; an integer of the host without the cast that the launch gives it."""
        text = host_text(self.kernel, launch, node)
        names = [p.name for p in self.kernel.parameters]
        if node.type == "identifier" and self.source.of(node) in names:
            given = launch.arguments[names.index(self.source.of(node))]
            cast = self.source.of(given, "function").startswith("static_cast<")
            found = self.code.variable(only_argument(given) if cast else given)
            if found is not None and is_integer(self._type(found.declaration)):
                return found.name
        return text if re.fullmatch(r"[\w.]+|(\w|[<>])+\([^()]*\)|\([^()]*\)", text) else f"({text})"


def _symbol_of(polynomial: Polynomial) -> Symbol | None:
    """The division that the polynomial is, where it is one."""
    return polynomial.only if polynomial.only is not None and polynomial.only.operator else None
