"""Packs of rows that packs do not divide: they begin where 16 bytes are aligned, so a row's first and last one may be in part its own.

The program is that of packs of one element: the arithmetic of places assumes nothing. A thread takes a pack of `width` neighbours
all the same, from the row's element `pack_first` on, which may be before the row; lanes outside it are neither reduced nor stored.
A kernel of elements is taken as rows of its last axis.
"""

from __future__ import annotations

import math
import re

import sympy

from compiler.codegen.levels import windows_within
from compiler.codegen.text import Text, Window
from compiler.draft.expressions import Expr, loads_of, walk
from compiler.draft.index import Index, product
from compiler.draft.partition import ROW, Member
from compiler.draft.printing import index_text
from compiler.draft.tensors import Buffer
from compiler.program import KernelProgram, PackedKernel

INTEGERS = ("int64_t", "int32_t")
WORD_BYTES = 4
"""Of elements that a warp loads one by one as fast as in packs: those that are shifted take their time for it (five neighbouring channels of rows
of 55 floats: 95 us so, 60 by torch.compile's single elements; H200)."""


def _symbol(name: str) -> sympy.Symbol:
    return sympy.Symbol(name, integer=True, nonnegative=True)


def extent_of(kernel: PackedKernel) -> tuple[Index, Index]:
    """(rows, elements of a row)."""
    if kernel.layout == ROW:
        return kernel.rows, kernel.length
    kept = [size for axis, size in enumerate(kernel.ranges) if axis not in kernel.reduced and size != 1]
    return (product(kept[:-1]), kept[-1]) if kept else (sympy.Integer(1), sympy.Integer(1))


class RaggedText(Text):
    """Of a kernel of packs of one element, `width` of which a thread takes together."""

    guards = False

    def __init__(
        self, program: KernelProgram, kernel: PackedKernel, fast: bool, width: int, edges: bool = False
    ) -> None:
        """`edges`: rows whose packs stay in registers; each thread has, beside them, at most one of the row's elements before its first
        and behind its last whole pack."""
        super().__init__(program, kernel, "int", fast)
        self.edges = edges
        self.width, self.lane, self.counter = width, _symbol("lane"), _symbol("chunk")
        self.lane_name, self.first = "lane", _symbol("pack_first")
        self.rows, self.length = extent_of(kernel)
        self.row: Index = kernel.row
        self.column: Index = kernel.pack
        if kernel.layout == ROW:
            self.levels = [self.levels[0], {self.counter, self.first}, {self.column, self.lane}]
        else:
            self.row = _symbol("element_row") if self.rows != 1 else sympy.Integer(0)
            self.column = _symbol("column")
            known = {self.counter, self.first} | self.row.free_symbols
            self.levels = [set(), known, self.levels[2], {self.column, self.lane}]
            self.lines = (self.row, self.column, self.length)
        self.row_packs = "packs_of_" + re.sub(r"\W+", "_", index_text(self.length))
        """The parameter, of a kernel of elements, by which packs are told to rows."""
        self.guarded = False
        """Whether what a lane computes may be computed inside a row alone."""

    # ------------------------------------------------------------------------------------------ places by row and column

    def window(self, buffer: Buffer, place: Index, by=None, lanes=None) -> tuple[Window, Index] | None:
        if self.column not in place.free_symbols:
            return None
        rest = sympy.expand(place - self.column)
        if self.column in rest.free_symbols or (by is not None and self.level(by[0]) == len(self.levels) - 1):
            return None
        whole = sympy.expand(buffer.elements - self.rows * self.length) == 0
        aligned = by is None and whole and sympy.expand(rest - self.row * self.length) == 0
        if not aligned and not self._ends_where_known(buffer):
            return None
        return Window(buffer, rest + self.first, self.width, by, aligned), self.lane

    def _ends_where_known(self, buffer: Buffer) -> bool:
        """Whether the entry is told every size of it: aligned pieces of a gathered table may not reach beyond its end."""
        program, told = self.program, {argument.name for argument in self.program.spec.arguments}
        return all(program.symbols[size][0] in told for size in buffer.elements.free_symbols & set(program.symbols))

    def begin(self, roots: list[Expr]) -> None:
        together = {*self.windows(roots), *windows_within(self, roots)}
        apart = [e for e in walk(roots) if e.op in ("load", "load_at") and not self._is_shared(e, together)]
        divided = [
            e for e in walk(roots) if e.type in INTEGERS and e.op in ("div", "floor_quotient", "floor_remainder")
        ]
        self.guarded = bool(apart or divided) and not self.edges

    def _is_shared(self, expr: Expr, together: set[Window]) -> bool:
        found = self.load_window(expr)
        return self.level(expr) < len(self.levels) - 1 or (found is not None and found[0] in together)

    # ------------------------------------------------------------------------------------------ text

    def packs_text(self) -> str:
        return "row_packs" if self.kernel.layout == ROW else f"{self.row_packs} * element_rows"

    def opening(self) -> list[str]:
        by, length, rows = self.width, index_text(self.length), index_text(self.rows)
        found = [f"const int row_length = {length};"]
        if self.kernel.layout != ROW:
            return [*found, f"const int element_rows = {rows};"]
        first = index_text(sympy.expand(self.row * self.length))
        if self.edges:
            return [
                *found, f"const int row_gap = ({by} - ({first}) % {by}) % {by}, row_head = row_gap < row_length ? row_gap : row_length;",
                f"const int row_packs = (row_length - row_head) / {by}, row_edges = row_length - {by} * row_packs;",
            ]  # fmt: skip
        return [
            *found, f"const int row_skipped = ({first}) % {by}, row_packs = (row_length + row_skipped + {by - 1}) / {by};",
            f"const int row_reach = ({rows}) * row_length - ({first});",
        ]  # fmt: skip

    def pack_opening(self) -> list[str]:
        by = self.width
        if self.edges:
            return [
                f"const int pack_first = item < Items ? row_head + {by} * chunk : team_member < row_head ? team_member : team_member + {by} * row_packs;"
            ]
        if self.kernel.layout == ROW:
            return [f"const int pack_first = {by} * chunk - row_skipped;"]
        return [
            f"const int element_row = chunk / {self.row_packs};", "const int row_reach = (element_rows - element_row) * row_length;",
            f"const int pack_first = {by} * (chunk % {self.row_packs}) - element_row * row_length % {by};",
        ]  # fmt: skip

    def inside(self, pack: str, end: str) -> str:
        return f"(item < Items ? {pack} < {end} : team_member < row_edges)" if self.edges else super().inside(pack, end)

    def load(self, window: Window, address: str) -> str:
        how, given = f"load{'' if window.aligned else '_shifted'}", [address]
        if not window.aligned:
            terms = sympy.Add.make_args(sympy.expand(window.buffer.elements))
            given += [self.pointer(window.buffer), " + ".join(f"INT64_C(1) * {self.index(term)}" for term in terms)]
        if self.edges:
            return f"{how}_run<{window.width}>({', '.join(given)}, item < Items)"
        given += ["pack_first", "row_length", *(["row_reach"] if window.aligned else [])]
        return f"{how}_part<{window.width}>({', '.join(given)})"

    def store(self, window: Window, address: str, name: str) -> str:
        if self.edges:
            how = "store_rounded_run" if self.rounds(window) else "store_run"
            return f"{how}<{'true' if window.aligned else 'false'}>({address}, {name}, item < Items);"
        how = "store_rounded_part" if self.rounds(window) else "store_part"
        return f"{how}<{'true' if window.aligned else 'false'}>({address}, {name}, pack_first, row_length);"

    def over(self, lines: list[str], alone: bool) -> list[str]:
        within = f"static_cast<unsigned>({self.column}) < static_cast<unsigned>(row_length)"
        head = [
            self.over_lanes, f"for (int lane = 0; lane < {self.width}; ++lane) {{",
            f"    const int {self.column} = pack_first + lane;",
        ]  # fmt: skip
        if self.edges:
            return [*head, "    if (item < Items || lane == 0) {", *(f"    {line}" for line in lines), "    }", "}"]
        if self.guarded or alone:
            return [*head, f"    if ({within}) {{", *(f"    {line}" for line in lines), "    }", "}"]
        return [*head, f"    [[maybe_unused]] const bool is_inside = {within};", *lines, "}"]

    def within(self, member: Member, value: str) -> str:
        if self.guarded or self.edges or self.kernel.layout != ROW:
            return value
        type = self.fold_type(member)
        return f"select_inside<{type}>(is_inside, {value}, {self.identity(member)})"


def takes(program: KernelProgram, kernel: PackedKernel, width: int) -> bool:
    """Whether most of what a kernel moves lies side by side, and some of it where packs of `width` begin."""
    if width < 2 or kernel.width > 1 or not kernel.pack.is_Symbol or kernel.parts or kernel.chunked is not None:
        return False
    text = RaggedText(program, kernel, True, width)
    stored = program.stored(kernel)
    outs = [(b, p, m) for m in kernel.members for b, p in zip(m.definition.outs, m.places, strict=True) if b in stored]
    by = lambda m: None if m.by is None else (text.resolve(m.by[0]), m.by[1])  # noqa: E731
    written = {
        (b, p): text.window(b, text.placed(p), by(m)) for b, p, m in outs if not (m.definition.reduced or m.per_row)
    }
    loads = [e for e in loads_of([text.value(m) for m in kernel.members]) if text.level(e) == len(text.levels) - 1]
    read = {e.args[:2]: text.load_window(e) for e in loads}
    windows = [found[0] for found in [*written.values(), *read.values()] if found]
    looped = {inner for inner, _ in kernel.inner} if kernel.layout != ROW else set()
    again = math.prod(int(end) for _, end in kernel.inner if end.is_Integer) if looped else 1
    shifted = [
        (buffer, again if looped & place.free_symbols else 1)
        for (buffer, place), found in read.items()
        if found and not found[0].aligned
    ]
    if sum(times for buffer, times in shifted if buffer.dtype.itemsize >= WORD_BYTES) > 2 * sum(
        w.aligned for w in windows
    ):
        return False
    return any(window.aligned for window in windows) and 2 * len(windows) >= len(written) + len(read)
