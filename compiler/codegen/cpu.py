"""The C++ file of a program: loops over rows, packs or tiles of columns, lanes that g++ vectorises, OpenMP around them.

Every function does a range of its outermost loop, so that `in_parallel` (cpu/prelude.h) shares it among threads.
"""

from __future__ import annotations

import re

import sympy
import torch

from compiler.codegen.firsts import FirstGroup, first_groups
from compiler.codegen.kernels import KernelFunction, last_write, row_stores, signature
from compiler.codegen.levels import hoist, hoist_replaced, parts_of, run_pass
from compiler.codegen.passes import find_recomputed
from compiler.codegen.printer import Printer
from compiler.codegen.text import Text, Window
from compiler.draft.expressions import Expr, indices_of, loads_of, symbols_of
from compiler.draft.index import FloorDiv, Index, Modulo
from compiler.draft.packing import _is_multiple
from compiler.draft.partition import ROW, Member
from compiler.draft.printing import STORED, Scope, _bare, indent, index_text, number_text
from compiler.draft.tensors import Buffer
from compiler.frontend import NoProgram
from compiler.program import KernelProgram, PackedKernel

HALVES = {torch.float16: "_Float16", torch.bfloat16: "bfloat16", torch.float8_e4m3fn: "fp8_e4m3"}
STRIP = 16
"""Lanes where packs are of one element."""
AHEAD = 8
"""Lines from which on what is to be read is asked for."""
MOST_AHEAD = 64
"""Rows of a line that are asked for at most."""
BLOCK = 64
"""Steps whose sum is made apart before it is added to the others': a million numbers are not added one by one."""


def element_type(dtype: torch.dtype) -> str:
    if dtype not in STORED and dtype not in HALVES:
        raise NoProgram(f"C++ has no type for {str(dtype).removeprefix('torch.')}")
    return STORED.get(dtype) or HALVES[dtype]


class CpuText(Text):
    """Of C++: packs hold floats, every lane has an accumulator of its own, packs of one element go in strips."""

    over_lanes = "#pragma omp simd"
    bound, guards, guards_packs, on_a_gpu = "const auto&", False, False, False

    def __init__(self, program: KernelProgram, kernel: PackedKernel) -> None:
        super().__init__(program, kernel, "int64_t", False)
        self.lanes = self.width if self.width > 1 else STRIP
        self.lane_name = str(self.lane) if self.width > 1 else self.fresh("lane")
        self.locals: dict[str, str] = {}
        self.packs = sympy.expand((kernel.length if kernel.layout == ROW else kernel.rows) / self.width)

    def element(self, dtype: torch.dtype) -> str:
        return element_type(dtype)

    def type_of(self, window: Window) -> str:
        kind = window.buffer.dtype
        return f"Pack<{'float' if kind in HALVES else element_type(kind)}, {window.width}>"

    def stored_text(self, buffer: Buffer, text: str) -> str:
        return f"to<{element_type(buffer.dtype)}>({_bare(text)})"

    def store(self, window: Window, address: str, name: str) -> str:
        bytewise = any(load.args[0].dtype in (torch.int8, torch.uint8) for load in loads_of(self.kernel.roots))
        pieces = bytewise and window.width > 1 and window.buffer.dtype not in HALVES
        return f"{'store_pieces' if pieces else 'store_pack'}({address}, {name});"

    def rounds(self, window: Window) -> bool:
        return False

    def lane_stored(self, window: Window, text: str) -> str:
        return _bare(text) if window.buffer.dtype in HALVES else self.stored_text(window.buffer, text)

    def lane_loaded(self, buffer: Buffer, text: str) -> str:
        return text if self.width > 1 or buffer.dtype not in HALVES else f"to_float({text})"

    def window(self, buffer: Buffer, place: Index, by=None, lanes: frozenset[int] | None = None):
        if self.width == 1 and self.lines is not None and self.level_of_index(place) < 2:
            return None  # the same for the whole line
        return super().window(buffer, place, by, lanes)

    def over(self, lines: list[str], alone: bool) -> list[str]:
        """The lines for every lane; for the lanes of each remainder apart where that decides something, so that each is known."""
        lane = str(self.lane)
        steps = {int(step) for line in lines for step in re.findall(rf"\({lane} [%/] (\d+)\)", line)}
        by = max(steps, default=1)
        if by == 1 or by > 4 or self.width % by or any(by % step for step in steps):
            return super().over(lines, alone)
        group = self.fresh("group")
        apart = [
            line
            for k in range(by)
            for line in ("{", *indent([self._of_lane(one, lane, group, by, k) for one in lines], 1), "}")
        ]
        return [
            self.over_lanes,
            f"for (int {group} = 0; {group} < {self.width // by}; ++{group}) {{",
            *indent(apart, 1),
            "}",
        ]

    def _of_lane(self, line: str, lane: str, group: str, by: int, k: int) -> str:
        """A line of the lanes `by * group + k`."""
        line = re.sub(rf"\({lane} % (\d+)\)", lambda found: str(k % int(found[1])), line)
        whole = lambda found: f"({group} * {by // int(found[1])} + {k // int(found[1])})"  # noqa: E731
        line = re.sub(rf"\({lane} / (\d+)\)", whole, line)
        return re.sub(rf"\b{lane}\b", f"({group} * {by} + {k})", line)

    def picked(self, numbers: tuple[Expr, ...], place: str) -> str | None:
        return super().picked(
            numbers, place.removeprefix("static_cast<int64_t>")
        )  # places of 32 bits are looked up more together

    def tables_text(self, name: str) -> tuple[list[str], list[str]]:
        lines = []
        for numbers, table in self.tables.items():
            type = numbers[0].type
            values = ", ".join(number_text(number.args[0], type) for number in numbers)
            lines.append(f"    static const {type} {table}[{len(numbers)}] = {{{values}}};")
        return [], lines

    def operation(self, expr: Expr, parts: list[str]) -> str | None:
        if expr.op == "cast" and expr.args[0].type == "bool" and expr.type in ("float", "double"):
            return f"({parts[0]} ? 1.0f : 0.0f)"  # a conversion of bool keeps g++ 12 from vectorising
        if self.program.exact:
            return None
        if expr.op == "exp":
            return f"exponential({_bare(parts[0])})"
        if expr.op == "sigmoid":
            one = "1.0f" if expr.type == "float" else "1.0"
            return f"({one} / ({one} + exponential(-{parts[0]})))"
        return None

    # ------------------------------------------------------------------------------------------ loops

    def local(self, name: str) -> str:
        """A variable that every such text has: by another name where an axis or an argument has that one."""
        if name not in self.locals:
            self.locals[name] = self.fresh(name)
        return self.locals[name]

    @property
    def units(self) -> tuple[str, str]:
        """Parameters: the first unit of work and the end."""
        return f"int64_t {self.local('begin')}", f"int64_t {self.local('end')}"

    def in_lanes(self, made: list[str], count: str = "count") -> list[str]:
        """A pass of one pack; where packs are of one element, of each of the `count` lanes of the strip that begins at `first`."""
        if self.width > 1:
            return made
        lane, simd = self.lane_name, [] if count == "left" else [self.over_lanes]
        return [
            *simd, f"for (int64_t {lane} = 0; {lane} < {self.local(count)}; ++{lane}) {{",
            f"    const int64_t {self.place_in_line} = {self.local('first')} + {lane};", *indent(made, 1), "}",
        ]  # fmt: skip

    @property
    def place_in_line(self) -> Index:
        """The variable of the innermost loop over packs."""
        return self.lines[1] if self.lines is not None else self.kernel.pack

    def take_lines(self) -> None:
        """Packs of elements are counted in lines of the shortest length that places are divided by: a division a line, not a pack."""
        pack = self.kernel.pack
        indices = [
            *indices_of(self.kernel.roots),
            *(place for member in self.kernel.members for place in member.places),
        ]
        lengths = {a.args[1] for index in indices for a in index.atoms(FloorDiv, Modulo) if a.args[0] == pack}
        fits = [one for one in lengths if all(_divides(one, other) or _is_part(other, one) for other in lengths)]
        length = min(fits, key=_is_few, default=None)
        if length is not None:
            line, at = (sympy.Symbol(self.fresh(name), integer=True, nonnegative=True) for name in ("line", "at"))
            self.lines, self.levels[1:2] = (line, at, length), [{line}, {at}]

    def over_packs(
        self, made: list[str], begin: str, end: str, strips: bool = False, shared: list[str] | None = None
    ) -> list[str]:
        """The lines for each pack, or strip of lanes, from `begin` to `end`; `shared`: what a line of packs has in common."""
        if self.lines is None:
            return self._in_line(made, begin, end, strips)
        line, _, length = map(index_text, self.lines)
        left, at, line_end = map(self.local, ("left", "from", "line_end"))
        return [
            f"for (int64_t {left} = {end} - {begin}, {line} = {begin} / ({length}), {at} = {begin} % ({length}); {left} > 0; ++{line}, {at} = 0) {{",
            f"    const int64_t {line_end} = {left} < {length} - {at} ? {at} + {left} : {length};", f"    {left} -= {line_end} - {at};", *(shared or []),
            *indent(self._in_line(made, at, line_end, strips), 1), "}",
        ]  # fmt: skip

    def _in_line(self, made: list[str], begin: str, end: str, strips: bool) -> list[str]:
        if not strips or self.width > 1:
            simd, at = [self.over_lanes] if self.width == 1 else [], self.place_in_line
            return [*simd, f"for (int64_t {at} = {begin}; {at} < {end}; ++{at}) {{", *indent(made, 1), "}"]
        first, count = self.local("first"), self.local("count")
        return [
            f"for (int64_t {first} = {begin}; {first} < {end}; {first} += {STRIP}) {{",
            f"    const int64_t {count} = {end} - {first} < {STRIP} ? {end} - {first} : {STRIP};", *indent(made, 1), "}",
        ]  # fmt: skip

    def prefetches(self, roots: list[Expr], top: Scope) -> list[str]:
        """Of rows that numbers name, what a line some way on will read: it lies anywhere, and nothing else asks for it ahead."""
        assert self.lines is not None
        _, at, length = self.lines
        alone: list[str] = []
        together: list[str] = []
        for window in self.windows(roots):
            if window.by is None or at in symbols_of(window.by[0]):
                continue
            scope = Scope(0, top)
            first = {at: 0} | ({loop: 0 for loop, _ in self.kernel.inner} if self.level(window.by[0]) == 1 else {})
            begin = Window(window.buffer, window.base.subs(first), 1, window.by)
            place = self.address(begin, scope, Printer(self, scope, [window.by[0]], {}))
            row = index_text(sympy.expand(length * self.width * window.buffer.dtype.itemsize))
            made = [*scope.lines, f"prefetch_row({place}, {row});"]
            if self.level(window.by[0]) == 1:
                alone += ["{", *indent(made, 1), "}"]
            elif self.level(window.by[0]) == 3:
                for loop, size in reversed(self.kernel.inner):
                    head = (
                        f"for (int64_t {loop} = 0; {loop} < {MOST_AHEAD} && {loop} < {index_text(size)}; ++{loop}) {{"
                    )
                    made = [head, *indent(made, 1), "}"]
                together += made
        return [*self._ahead(alone, AHEAD), *self._ahead(together, 1)]

    def _ahead(self, lines: list[str], by: int) -> list[str]:
        if not lines:
            return []
        assert self.lines is not None
        line, _, length = map(index_text, self.lines)
        ahead = self.fresh("ahead")
        head = [f"if ({self.local('left')} > {by} * ({length})) {{", f"    const int64_t {ahead} = {line} + {by};"]
        return [*head, "    {", f"        const int64_t {line} = {ahead};", *indent(lines, 2), "    }", "}"]

    def accumulators(self, names: dict[Member, str], deep: str = "") -> list[str]:
        """Arrays of lanes, `deep` of them, at their starts."""
        return [
            line for member, name in names.items()
            for line in (f"{self.fold_type(member)} {name}{deep}[{self.lanes}];", self.restart(member, name, bool(deep)))
        ]  # fmt: skip

    def restart(self, member: Member, name: str, nested: bool) -> str:
        set_one = f"one = {self.identity(member)};"
        inner = f"for (auto& tile : {name}) {{ for (auto& one : tile) {{ {set_one} }} }}"
        return inner if nested else f"for (auto& one : {name}) {{ {set_one} }}"

    def add(self, member: Member, total: str, part: str) -> list[str]:
        """`total` of each lane gets what was made apart."""
        lane = "one"
        joined = f"{total}[{lane}] = ({self.join(member)})({total}[{lane}], {part}[{lane}]);"
        return [self.over_lanes, f"for (int {lane} = 0; {lane} < {self.lanes}; ++{lane}) {{ {joined} }}"]


def _divides(one: Index, other: Index) -> bool:
    return sympy.denom(sympy.cancel(other / one)) == 1


def _is_few(length: Index) -> bool:
    """Whether lines of that length are not worth a loop."""
    return length.is_Integer and int(length) < STRIP


def _is_part(one: Index, whole: Index) -> bool:
    return _is_few(one) and _divides(one, whole)


def _names(text: CpuText, folds: list[Member], word: str = "") -> dict[Member, str]:
    return {m: text.fresh(f"{m.definition.origin}_{m.definition.kind}{word}") for m in folds}


def make_function(
    text: CpuText, kernel: PackedKernel, name: str, lines: list[str], parameters, arguments
) -> KernelFunction:
    given = ", ".join([*parameters, *text.units])
    _, tables = text.tables_text(name)
    whole = "\n".join([f"void {name}({given}) {{", *tables, *lines, "}", ""])
    return KernelFunction(name, whole, tuple(parameters), tuple(arguments), (), kernel)


def rows_function(program: KernelProgram, kernel: PackedKernel, name: str) -> KernelFunction:
    """Rows from `begin` to `end`, each stage of reductions a loop over the row."""
    text = CpuText(program, kernel)
    stores, folds, roots = parts_of(text)
    full = [store for store in stores if not store.per_row]
    final = last_write(text, full, folds)
    last_fold = max((member.stage for member in folds), default=-1)
    parameters, arguments = signature(text, stores, roots, [kernel.rows, text.packs])
    row = str(kernel.row) if kernel.row.is_Symbol else text.fresh("row")
    end = index_text(text.packs)
    top = Scope(2)
    hoist_replaced(text, roots, stores, top)
    stages = range(max(final, last_fold + 1) + 1)
    selected = [group for group in first_groups(text, folds) if group.best[0].definition.kind == "max"]
    keyed = {group.best[0]: group for group in selected}
    found_so = {member for group in selected for member in group.members}
    passes = {
        s: [
            *(text.value(m) for m in folds if m.stage == s and (m in keyed or m not in found_so)),
            *(w.value for w in full if s == final),
        ]
        for s in stages
    }
    again = find_recomputed(text, passes)
    holds = {id(expr): text.fresh("held") for found in again.values() for expr in found}
    place = f"{kernel.pack} * {text.width} + {text.lane}" if text.width > 1 else str(kernel.pack)
    for stage in stages:
        keep = [(expr, f"{holds[id(expr)]}[{place}]") for expr in again.get(stage, [])]
        kept = {id(expr): f"{holds[id(expr)]}[{place}]" for at, found in again.items() if at < stage for expr in found}
        here = [m for m in folds if m.stage == stage and m not in found_so]
        firsts = [m for m in keyed if m.stage == stage]
        written = full if stage == final else []
        for one in firsts:
            name_ = text.fold_names[one] = text.fresh("firsts")
            holds[id(one)] = name_
            text.keys[one] = f"{name_}[{place}] = "
        if here or firsts:
            hoist(text, [text.value(m) for m in [*here, *firsts]], 0, top, {})
            totals, parts = _names(text, here, "_lanes"), _names(text, here, "_part")
            text.fold_names |= parts
            top.lines += indent(text.accumulators(totals), 2)
            made = run_pass(text, top, [*here, *firsts], [], array=True, kept=kept, keep=keep).lines(0)
            step = BLOCK * (1 if text.width > 1 else STRIP)
            joined = [line for m in here for line in text.add(m, totals[m], parts[m])]
            whole = end if text.width > 1 else f"({end}) / {STRIP} * {STRIP}"
            steps = text.over_packs(made, "block", "block_end")
            if text.width == 1:
                steps = [
                    f"for (int64_t first = block; first < block_end; first += {STRIP}) {{",
                    *indent(text.in_lanes(made, str(STRIP)), 1),
                    "}",
                ]
            top.lines += indent([
                f"for (int64_t block = 0; block < {whole}; block += {step}) {{",
                f"    const int64_t block_end = block + {step} < {whole} ? block + {step} : {whole};",
                *indent([*text.accumulators(parts), *steps, *joined], 1), "}",
            ], 2)  # fmt: skip
            if text.width == 1 and not _is_multiple(kernel.length, STRIP):
                rest = [
                    f"const int64_t {text.local('first')} = {whole}, {text.local('left')} = {end} - {text.local('first')};",
                    *text.accumulators(parts),
                    *text.in_lanes(made, "left"),
                    *joined,
                ]
                top.lines += indent([f"if ({end} % {STRIP} != 0) {{", *indent(rest, 1), "}"], 2)
            for member, held in _names(text, here).items():
                text.fold_names[member] = held
                type = text.fold_type(member)
                top.line(f"const {type} {held} = join_lanes({totals[member]}, {text.join(member)});")
            for one in firsts:
                print_firsts(text, top, keyed[one], index_text(kernel.length))
        if written:
            hoist(text, [s.value for s in written], 0, top, {})
            top.lines += indent(text.over_packs(run_pass(text, top, [], written, kept=kept).lines(0), "0", end), 2)
        row_stores(text, top, [s for s in stores if s.per_row and s.stage == stage + 1], "{")
    length = index_text(kernel.length)
    buffers = [line for name in holds.values() for line in (
        f"    std::vector<float> {name}_row({length});", f"    float* const {name} = {name}_row.data();"
    )]  # fmt: skip
    lines = [
        *buffers,
        f"    for (int64_t {row} = {text.local('begin')}; {row} < {text.local('end')}; ++{row}) {{",
        *top.lines,
        "    }",
    ]
    return make_function(text, kernel, name, lines, parameters, arguments)


def print_firsts(text: CpuText, top: Scope, group: FirstGroup, length: str) -> None:
    """All rounds of a selection by one search among the elements that a pass has left."""
    found, places = text.fresh("first_values"), text.fresh("first_places")
    count = len(group.places)
    top.line(f"float {found}[{count}];")
    top.line(f"int64_t {places}[{count}];")
    top.line(f"row_firsts({text.fold_names[group.best[0]]}, {length}, {found}, {places});")
    for members, of in ((group.best, found), (group.places, places)):
        for rank, member in enumerate(members):
            text.fold_names[member] = text.fresh(f"{member.definition.origin}_{member.definition.kind}")
            top.line(f"[[maybe_unused]] const {text.fold_type(member)} {text.fold_names[member]} = {of}[{rank}];")


def elements_function(program: KernelProgram, kernel: PackedKernel, name: str) -> KernelFunction:
    """Packs from `begin` to `end`; reductions of each element one after another."""
    text = CpuText(program, kernel)
    text.take_lines()
    stores, folds, roots = parts_of(text)
    parameters, arguments = signature(text, stores, roots, [text.packs, *(end for _, end in kernel.inner)])
    top = Scope(1)
    hoist(text, roots, 0, top, {})
    shared = top if text.lines is None else Scope(2, top)
    if text.lines is not None:
        hoist(text, roots, 1, shared, {})
        shared.lines += indent(text.prefetches([*roots, *(root for s in stores for root in s.where)], top), 2)
    body = Scope(0, shared)
    inside = [store for store in stores if kernel.inner and not store.per_row]
    stores = [store for store in stores if store not in inside]
    last = max([-1, *(m.stage for m in folds), *(s.stage for s in inside)])  # nothing is read after it was written
    strips = bool(folds or inside)
    whole = text.in_lanes if strips else lambda made: made
    for stage in sorted({*(m.stage for m in folds), *([last] if inside else [])}):
        here = [m for m in folds if m.stage == stage]
        written = inside if stage == last else []
        if text.width > 1:
            pack = 1 if text.lines is None else 2
            hoist(text, [*(text.value(m) for m in here), *(store.value for store in written)], pack, body, {})
        names = _names(text, here)
        text.fold_names |= names
        body.lines += text.accumulators(names)
        made = text.in_lanes(run_pass(text, body, here, written, array=True).lines(0))
        for loop, size in reversed(kernel.inner):
            head = f"for (int64_t {loop} = 0; {loop} < {index_text(size)}; ++{loop}) {{"
            made = [head, *indent(made, 1), "}"]
        body.lines += made
    body.lines += whole(run_pass(text, body, [], stores).lines(0))
    over = text.over_packs(
        body.lines,
        text.local("begin"),
        text.local("end"),
        strips,
        [] if text.lines is None else [line[4:] for line in shared.lines],
    )
    lines = [*top.lines, *indent(over, 1)]
    return make_function(text, kernel, name, lines, parameters, arguments)


def columns_function(program: KernelProgram, kernel: PackedKernel, name: str, tile: int) -> KernelFunction:
    """Tiles of `tile` packs of columns, from `begin` to `end`: the rows go by once, every column has its accumulator."""
    text = CpuText(program, kernel)
    stores, folds, roots = parts_of(text)
    (loop, length), end = kernel.inner[0], index_text(text.packs)
    parameters, arguments = signature(text, stores, roots, [text.packs, length])
    top = Scope(2)
    tiles, left, columns, column, block, block_end, first, count = map(
        text.local, ("tile", "left", "columns", "column", "block", "block_end", "first", "count")
    )
    hoist(text, [text.value(m) for m in folds], 0, top, {})
    totals, parts = _names(text, folds, "_lanes"), _names(text, folds, "_part")

    def over_tile(lines: list[str]) -> list[str]:
        return [f"for (int64_t {column} = 0; {column} < {columns}; ++{column}) {{", *indent(lines, 1), "}"]

    def placed(lines: list[str]) -> list[str]:
        if text.width > 1:
            return [f"const int64_t {kernel.pack} = {tiles} * {tile} + {column};", *lines]
        from_ = f"({tiles} * {tile} + {column}) * {STRIP}"
        count_ = f"{end} - {first} < {STRIP} ? {end} - {first} : {STRIP}"
        return [f"const int64_t {first} = {from_}, {count} = {count_};", *lines]

    text.fold_names |= {member: f"{part}[{column}]" for member, part in parts.items()}
    made = placed(text.in_lanes(run_pass(text, Scope(2, top), folds, [], array=True).lines(0)))
    added = [line for m in folds for line in text.add(m, f"{totals[m]}[{column}]", f"{parts[m]}[{column}]")]
    deep, length_text = f"[{tile}]", index_text(length)
    text.fold_names |= {member: f"{total}[{column}]" for member, total in totals.items()}
    last = placed(text.in_lanes(run_pass(text, Scope(2, top), [], stores).lines(0)))
    whole = f"{end}" if text.width > 1 else f"({end} + {STRIP - 1}) / {STRIP}"
    lines = [
        f"for (int64_t {tiles} = {text.local('begin')}; {tiles} < {text.local('end')}; ++{tiles}) {{",
        f"    const int64_t {left} = {whole} - {tiles} * {tile}, {columns} = {left} < {tile} ? {left} : {tile};", *(line[4:] for line in top.lines),
        *indent(text.accumulators(totals, deep), 1),
        f"    for (int64_t {block} = 0; {block} < {length_text}; {block} += {BLOCK}) {{",
        f"        const int64_t {block_end} = {block} + {BLOCK} < {length_text} ? {block} + {BLOCK} : {length_text};",
        *indent(text.accumulators(parts, deep), 2),
        f"        for (int64_t {loop} = {block}; {loop} < {block_end}; ++{loop}) {{", *indent(over_tile(made), 3), "        }",
        *indent(over_tile(added), 2), "    }", *indent(over_tile(last), 1), "}",
    ]  # fmt: skip
    return make_function(text, kernel, name, indent(lines, 1), parameters, arguments)
