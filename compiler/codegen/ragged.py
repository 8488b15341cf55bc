"""Packs of rows that packs do not divide: they begin where 16 bytes are aligned, so a row's first and last one may be in part its own.

The program is that of packs of one element: the arithmetic of places assumes nothing. A thread takes a pack of `width` neighbours
all the same, where a row lies in it as `row_skipped` says, and lanes outside the row are neither loaded, reduced nor stored.
"""

from __future__ import annotations

import sympy

from compiler.codegen.text import Text, Window
from compiler.draft.expressions import Expr, loads_of, walk
from compiler.draft.index import Index
from compiler.draft.packing import _is_multiple
from compiler.draft.partition import ROW, Member
from compiler.draft.printing import index_text
from compiler.draft.tensors import Buffer
from compiler.program import KernelProgram, PackedKernel

INTEGERS = ("int64_t", "int32_t")


def _symbol(name: str) -> sympy.Symbol:
    return sympy.Symbol(name, integer=True, nonnegative=True)


class RaggedText(Text):
    """Of a kernel of packs of one element, `width` of which a thread takes together."""

    def __init__(self, program: KernelProgram, kernel: PackedKernel, fast: bool, width: int) -> None:
        super().__init__(program, kernel, "int", fast)
        self.width, self.lane, self.counter = width, _symbol("lane"), _symbol("chunk")
        self.lane_name = "lane"
        self.skipped: Index = sympy.Integer(0)
        if kernel.layout == ROW:
            self.skipped = _symbol("row_skipped")
            self.levels = [self.levels[0] | {self.skipped}, {self.counter}, {kernel.pack, self.lane}]
        else:
            self.levels = [set(), {self.counter}, self.levels[2], {kernel.pack, self.lane}]
        self.guarded = False
        """Whether what a lane computes may be computed inside a row alone."""

    @property
    def length(self) -> Index:
        """Elements of a row, or of a kernel of elements."""
        return self.kernel.length if self.kernel.layout == ROW else self.kernel.rows

    def window(self, buffer: Buffer, place: Index, by=None) -> tuple[Window, Index] | None:
        pack = self.kernel.pack
        if pack not in place.free_symbols:
            return None
        rest = sympy.expand(place - pack)
        if pack in rest.free_symbols or (by is not None and self.level(by[0]) == len(self.levels) - 1):
            return None
        before = self.kernel.row * self.length if self.kernel.layout == ROW else 0
        aligned = by is None and _is_multiple(sympy.expand(rest - before), self.width)
        base = sympy.expand(self.width * self.counter - self.skipped + rest)
        return Window(buffer, base, self.width, by, aligned), self.lane

    def begin(self, roots: list[Expr]) -> None:
        """Settles, before anything is printed, whether lanes outside a row may compute."""
        apart = [e for e in walk(roots) if e.op in ("load", "load_at") and not self._is_shared(e)]
        divided = [
            e for e in walk(roots) if e.type in INTEGERS and e.op in ("div", "floor_quotient", "floor_remainder")
        ]
        self.guarded = bool(apart or divided)

    def _is_shared(self, expr: Expr) -> bool:
        return self.level(expr) < len(self.levels) - 1 or self.load_window(expr) is not None

    # ------------------------------------------------------------------------------------------ text

    def packs_text(self) -> str:
        return "row_packs"

    def opening(self) -> list[str]:
        by, length = self.width, index_text(self.length)
        found = [f"const int row_length = {length};"]
        if self.kernel.layout == ROW:
            first = index_text(sympy.expand(self.kernel.row * self.length))
            found.append(f"const int row_skipped = ({first}) % {by};")
            return [*found, f"const int row_packs = (row_length + row_skipped + {by - 1}) / {by};"]
        return [*found, f"const int row_packs = (row_length + {by - 1}) / {by};"]

    def pack_opening(self) -> list[str]:
        skipped = "" if self.skipped == 0 else " - row_skipped"
        return [f"const int pack_first = {self.width} * {self.counter}{skipped};"]

    def load(self, window: Window, address: str) -> str:
        whole = "true" if window.aligned else "false"
        return f"load_part<{window.width}, {whole}>({address}, pack_first, row_length)"

    def store(self, window: Window, address: str, name: str) -> str:
        how = "store_rounded_part" if self.rounds(window) else "store_part"
        return f"{how}<{'true' if window.aligned else 'false'}>({address}, {name}, pack_first, row_length);"

    def over(self, lines: list[str], alone: bool) -> list[str]:
        pack = self.kernel.pack
        head = [
            self.over_lanes,
            f"for (int lane = 0; lane < {self.width}; ++lane) {{",
            f"    const int {pack} = pack_first + lane;",
        ]
        within = f"static_cast<unsigned>({pack}) < static_cast<unsigned>(row_length)"
        if self.guarded or alone:
            return [*head, f"    if ({within}) {{", *(f"    {line}" for line in lines), "    }", "}"]
        return [*head, f"    [[maybe_unused]] const bool is_inside = {within};", *lines, "}"]

    def within(self, member: Member, value: str) -> str:
        return (
            value if self.guarded or self.kernel.layout != ROW else f"(is_inside ? {value} : {self.identity(member)})"
        )


def takes(program: KernelProgram, kernel: PackedKernel, width: int) -> bool:
    """Whether most of what a kernel moves lies side by side where packs of `width` begin."""
    if width < 2 or kernel.width > 1 or not kernel.pack.is_Symbol:
        return False
    text = RaggedText(program, kernel, True, width)
    stored = program.stored(kernel)
    outs = [(b, p, m) for m in kernel.members for b, p in zip(m.definition.outs, m.places, strict=True) if b in stored]
    written = {(b, p): text.window(b, p, m.by) for b, p, m in outs if not (m.definition.reduced or m.per_row)}
    roots = [text.value(m) for m in kernel.members]
    loads = [e for e in loads_of(roots) if text.level(e) == len(text.levels) - 1]
    read = {e.args[:2]: text.load_window(e) for e in loads}
    windows = [found and found[0].aligned for found in [*written.values(), *read.values()]]
    return any(windows) and 2 * sum(map(bool, windows)) >= len(windows)
