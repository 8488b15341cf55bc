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

from contextlib import suppress
from itertools import pairwise

from tree_sitter import Node

from harness.records import Outcome
from nodes.rewrites.analysis.block_shape import extent_of
from nodes.rewrites.analysis.device_code import Code, code_of, inside
from nodes.rewrites.analysis.insertions import require, without_unused
from nodes.rewrites.analysis.launches import Launch, host_text
from nodes.rewrites.analysis.regions import is_return
from nodes.rewrites.launch.drop_grid_stride_loop import in_place
from nodes.rewrites.prelude.block_reductions import NAMES
from nodes.rewrites.reductions.shares import check_block_shares
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.rows.row_threads import RowThreads
from nodes.rewrites.syntax.match import match
from nodes.rewrites.syntax.source import Edits, Source, Unsupported
from nodes.rewrites.syntax.tree import field_of, same, statements

WIDTH = 256
"""Threads of a block where the launch has fewer than four warps or its own number is not known."""
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
    return _Blocks(code_of(source), number).rewritten()


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


class _Blocks(RowThreads):
    """What becomes of it."""

    def rewritten(self) -> str:
        edits, rows = Edits(self.source), self.region.loop
        if rows is None:
            edits.replace(self.index(self.region), "blockIdx.x")
        else:
            edits.replace(rows.start_node, "blockIdx.x")
            edits.replace(rows.step_node, "gridDim.x")
        for loop in self.loops:
            update = field_of(loop.node, "update")
            first = loop.start.value == 0 or self.starts_from_first(loop)
            edits.replace(loop.start_node, "threadIdx.x" if first else self._from(loop.start_node))
            edits.replace(update, f"{loop.name} += blockDim.x")
        self._reduce(edits)
        self._write_once(edits)
        for launch in self.kernel.launches:
            self._launch(edits, launch)
        for kind in sorted({kind for _, _, kind in self.folds}):
            require(edits, self.code, f"block_{kind}")
        for statement in self.steps:
            edits.remove(statement, comment=True)
        text = self._without_guard(without_unused(self.code, edits.apply()))
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
            around, indent = loop.node.parent, source.indent(loop.node)
            later = [use for use in self.uses(found, self.kernel.body) if not inside(use, loop.body)]
            settled = all(
                use.start_byte > loop.node.end_byte and inside(use, around) and not source.set_by(use) for use in later
            )
            total = self.code.fresh(f"{found.name}_of_row") if settled else found.name
            type_ = source.of(found.declaration, "type")
            declared = f"const {type_} {total}" if settled else total
            edits.insert(loop.node.end_byte, f"\n{indent}{declared} = block_{kind}<{site}>({found.name});")
            site += 1
            for use in later if settled else ():
                edits.replace(use, total)
        if rows is not None and self.folds:
            always = sum(same(loop.node.parent, rows.body) for loop, _, _ in self.folds)
            if rows.body.type != "compound_statement":
                raise Unsupported("no place behind the row")
            if always < 2:  # else a reduction's barrier keeps the next row's first one from overtaking this one's
                last = statements(rows.body)[-1]
                edits.insert(last.end_byte, f"\n{source.indent(last)}__syncthreads();")

    def _write_once(self, edits: Edits) -> None:
        """What is written once a row is the first thread's to write."""
        source, writing = self.source, []
        for access in self.kernel.accesses:
            if not access.writes or not access.root or self.loop_of(access.node) is not None:
                continue
            here: Node | None = access.node
            while here is not None and here.type != "expression_statement":
                here = here.parent if not here.type.endswith(("statement", "declaration")) else None
            changes = list(source.walk(here, "assignment_expression", "update_expression")) if here is not None else []
            if here is None or here.parent is None or len(changes) != 1:
                raise Unsupported("a write that is not a statement of its own")
            if not any(same(here, other) for other in writing):
                writing.append(here)
        while writing:
            group = [writing.pop(0)]
            while writing and same(group[-1].next_named_sibling, writing[0]):
                group.append(writing.pop(0))
            first, last = group[0], group[-1]
            indent, unit = source.indent(first), source.unit(first)
            alone = first.parent.type == "compound_statement" or (
                first.parent.type == "if_statement" and field_of(first.parent, "alternative") is None
            )
            if len(group) == 1 and alone:
                edits.insert(first.start_byte, "if (threadIdx.x == 0) ")
                continue
            edits.insert(first.start_byte, f"if (threadIdx.x == 0) {{\n{indent}{unit}")
            for before, statement in pairwise(group):
                if "\n" in source.data[before.end_byte : statement.start_byte].decode():
                    edits.insert(statement.start_byte, unit)
            edits.insert(last.end_byte, f"\n{indent}}}")

    def _without_guard(self, text: str) -> str:
        """There is a block for every row and none behind them. What else a guard asks stays."""
        if self.region.guard is None:
            return text
        kept = [s for s in statements(self.kernel.body) if not any(same(s, step) for step in self.steps)]
        number = next(n for n, s in enumerate(kept) if same(s, self.region.guard))
        code = code_of(self.source.reparsed(text))
        source, kernel = code.source, next(k for k in code.kernels if k.name == self.kernel.name)
        guard = statements(kernel.body)[number]
        holder, body = field_of(guard, "condition"), field_of(guard, "consequence")
        if source.of(holder, "value") != self.source.of(self.region.condition):
            return text
        if is_return(source, guard):
            edits = Edits(source)
            edits.remove(guard, comment=True)
            return edits.apply()
        return in_place(source, kernel, guard, body, [])

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
