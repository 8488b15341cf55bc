"""Blocks take neighbouring rows of the index in which per-row values lie side by side, and no index is divided.

A thread finds its row in a flat order, `outer = row / inner_rows`, `inner = row % inner_rows`, and reads values of its row
from an array in which the outer index runs fastest, `lse[inner * outer_rows + outer]`: the rows of a block read 4 bytes here
and 4 bytes there. A second kernel, the same but for where its indices come from, takes NEIGHBOUR_ROWS outer rows of one
inner row a block. It applies to kernels whose threads do not talk to each other: one thread an element (`row = i / steps`,
behind a guard or in a grid-stride loop), or rows as spread lays them out. The host keeps the old kernel for other sizes.
"""

from __future__ import annotations

import re

from tree_sitter import Node

from harness.records import Outcome
from nodes.rewrites.analysis.device_code import code_of, inside
from nodes.rewrites.analysis.insertions import require
from nodes.rewrites.analysis.kernels import Kernel, Loop
from nodes.rewrites.analysis.launches import Launch, host_text
from nodes.rewrites.analysis.regions import carries_state
from nodes.rewrites.launch.drop_grid_stride_loop import declared_names, in_place
from nodes.rewrites.launch.grid_stride import SIDE_BY_SIDE, row_shape_of
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.rows.divided_rows import ROW_BLOCKS, DividedRows, Divisor, product_of
from nodes.rewrites.syntax.insert import renamed
from nodes.rewrites.syntax.source import Edits, Lines, Source, Unsupported, only_argument
from nodes.rewrites.syntax.tree import JUMPS, children_of, field_of, is_integer, left_by, same, statements

COMMENT = """\
// The same for NEIGHBOUR_ROWS neighbouring rows ({outer}) of one {inner} a block, a thread a step: what is read by row lies
// side by side, and no index is divided.
"""
BOUNDS = "__launch_bounds__(1024)"


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
    if not edits.changes:
        return None
    require(edits, code, "neighbours", includes=("cstdint",))
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
    if loop is None or loop.step != ROW_BLOCKS * product_of("blockDim.y"):
        return source
    if loop.node.prev_named_sibling is not None and loop.node.prev_named_sibling.type == "preproc_call":
        raise Unsupported("a pragma for the loop")
    if carries_state(kernel, statements(loop.body)):
        raise Unsupported("rows that depend on each other")
    for target in code.assigned(loop.body):
        found = code.definition(target)
        if found is None or not inside(found.declaration, loop.body):
            raise Unsupported("a variable that outlives its row")
    for jump in source.walk(loop.body, *JUMPS):
        if jump.type in {"return_statement", "goto_statement"} or same(left_by(jump), loop.node):
            raise Unsupported("a row that is left early")
    start, bound = source.of(loop.start_node), source.of(loop.bound_node)
    first = [f"const {loop.type} {loop.name} = {start};", f"if ({loop.name} >= {bound}) return;"]
    return source.reparsed(in_place(source, kernel, loop.node, loop.body, first, loop.name))


class _Rows(DividedRows):
    """A kernel that this rewrite fits. Raises Unsupported for any other."""

    # What it becomes.

    def _names(self) -> dict[str, tuple[str, str, Node | None]]:
        """Name, type and declaration of each index: the kernel's own where it has one by itself, else a new one."""
        found: dict[str, tuple[str, str, Node | None]] = {}
        holders = self.source.walk(self.kernel.node, "declaration", "parameter_declaration")
        declared = declared_names(self.source, holders)
        for statement in statements(self.kernel.body):
            pair = self._declared(statement)
            if pair is None or same(statement, self.anchor.node):
                continue
            kind, name = self._kind(self.code.polynomial(pair[1])), self.source.of(pair[0])
            if kind in {"outer", "inner", "row", "column"} - set(found) and declared.count(name) == 1:
                found[kind] = (name, self._type(statement), statement)
        kind = self._kind(self.anchor.index)
        found[kind] = (self.anchor.name, self.anchor.type, None)
        for kind in ("outer", "inner"):
            found.setdefault(kind, (self.code.fresh(f"{kind}_row"), self.anchor.type, None))
        return found

    def _definitions(self) -> list[str]:
        names = self.names
        axis = "z" if self.by_row else "y"
        (outer, outer_type, _), (inner, inner_type, _) = names["outer"], names["inner"]
        lines = [
            f"const {outer_type} {outer} = blockIdx.{axis} * NEIGHBOUR_ROWS + threadIdx.y;",
            f"const {inner_type} {inner} = blockIdx.x;",
        ]
        row_type, row = names["row"][1] if "row" in names else self.anchor.type, self._row_text()
        if "row" in names:
            lines.append(f"const {row_type} {names['row'][0]} = {row};")
            first = names["row"][0]
            row = first if row_type == self.anchor.type else f"static_cast<{self.anchor.type}>({first})"
        else:
            row = f"({row})"
        if self.columns is not None:
            steps = self.columns.text if self.lanes is None else f"({self.columns.text} / {self.lanes.text})"
            lines.append(f"const {self.anchor.type} {self.anchor.name} = {row} * {steps} + threadIdx.x;")
        if "column" in names:
            each = "" if self.lanes is None else f" * {self.lanes.text}"
            lines.append(f"const {names['column'][1]} {names['column'][0]} = threadIdx.x{each};")
        return lines

    def _row_text(self) -> str:
        kind = self.names["row"][1] if "row" in self.names else self.anchor.type
        outer, outer_type, _ = self.names["outer"]
        first = outer if outer_type == kind else f"static_cast<{kind}>({outer})"
        return f"{first} * {self.inner_rows.text} + {self.names['inner'][0]}"

    def new_kernel(self, name: str) -> str:
        """The kernel for neighbouring rows, with a comment that says so."""
        kernel, source, edits = self.kernel, self.source, Edits(self.source)
        edits.replace(kernel.name_node, name)
        edits.replace(*kernel.bounded(BOUNDS))
        for _, _, declaration in self.names.values():
            if declaration is not None:
                edits.remove(declaration, comment=True)
        anchor = self.anchor.node
        indent = source.indent(anchor)
        text = f"\n{indent}".join(self._definitions())
        edits.replace(anchor, text)
        left = " * ".join(map(source.of, self._outer_rows()))
        edits.replace(self.guard.comparison, f"{self.names['outer'][0]} >= {left}")
        for node, text in self._undivided():
            edits.replace(node, text)
        comment = COMMENT.format(outer=self.names["outer"][0], inner=self.names["inner"][0])
        data, end = source.data, kernel.outer.end_byte
        changed = edits.apply().encode()
        text = changed[kernel.outer.start_byte : len(changed) - (len(data) - end)].decode()
        for _ in self.kernel.loops if self.by_row else ():
            text = self._without_loop(text)
        return comment + text

    def _without_loop(self, text: str) -> str:
        """The kernel's text with one of its loops over the steps of a row less: the block has a thread for each of them."""
        code = code_of(self.source.reparsed(text))
        source, (kernel,) = code.source, code.kernels
        whole = {(o.name, self.source.of(o.bound_node)) for o in self.kernel.loops if self._is_the_row(o)}
        cuts = SIDE_BY_SIDE.cuts
        start = product_of(f"blockIdx.{cuts}", "blockDim.x") + product_of("threadIdx.x")
        for loop in kernel.loops:
            if (loop.start, loop.step) != (start, product_of(f"gridDim.{cuts}", "blockDim.x")):
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

    def _undivided(self) -> list[tuple[Node, str]]:
        """Divisions in what stays, with what takes their place: values of declarations, and `i % columns == 0`."""
        source, found = self.source, []
        texts = {kind: self.names[kind][0] for kind in ("outer", "inner", "row", "column") if kind in self.names}
        texts.setdefault("row", self._row_text())
        texts.setdefault("column", "threadIdx.x" if self.lanes is None else f"threadIdx.x * {self.lanes.text}")
        gone = [d for _, _, d in self.names.values() if d is not None] + [self.anchor.node]
        for node in source.walk(self.kernel.body, "init_declarator"):
            value, holder = field_of(node, "value"), node.parent
            if value is None or holder is None or any(same(holder, d) for d in gone):
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
