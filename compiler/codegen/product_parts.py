"""What kernels of tiles of both kinds share: what a side brings, and the launch of what a plan has chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import sympy
import torch

from compiler.codegen.levels import StoreStatement
from compiler.codegen.printer import print_lines
from compiler.codegen.text import Text, element_type
from compiler.draft.expressions import Expr, indices_of, loads_of, make, put
from compiler.draft.index import FloorDiv, Index, Modulo, divide, unflatten
from compiler.draft.lower_convolutions import ImageWindow
from compiler.draft.printing import branch, indent, index_text
from compiler.products import BYTES, HALVES, ProductKernel, without_quotients

PACKED = (*HALVES, *BYTES, torch.float32, torch.int16, torch.int32)
"""What eight neighbours of are read at once where an operand is made of them."""
FARTHEST = {1: 65535, 2: 255, 3: 31}
"""Places that a box of a window may be moved by, by its axes."""


@dataclass(frozen=True)
class SideLines:
    """Lambdas: one that brings a side's part of a stage, and, of a side made of packs, what it has read by then and the one that reads that."""

    bring: list[str]
    structs: list[str] = field(default_factory=list)
    member: str = ""
    fetch: list[str] = field(default_factory=list)


class OperandSide:
    """One operand: `which` of the kernel's loops, m or n, counts its places."""

    def __init__(self, text: Text, kernel: ProductKernel, value: Expr, which: int) -> None:
        self.text, self.kernel, self.value = text, kernel, value
        self.place, self.step = kernel.loops_of[which], kernel.loops_of[3]
        self.ends = kernel.ends[which], kernel.ends[3]
        self.end, self.depth = map(index_text, self.ends)
        self.along = kernel.along(value)

    @property
    def guarded(self) -> tuple[Expr, Expr | None]:
        """The side, and when it counts, where it is zero otherwise."""
        zero = self.value.op == "masked" and self.value.args[2].op == "const" and self.value.args[2].args[0] == 0
        return (self.value.args[1], self.value.args[0]) if zero else (self.value, None)

    def apart(self, count: int, dtype: torch.dtype) -> list[str] | None:
        """Conditions under which `count` neighbours are one aligned copy, all inside or all outside; None where that never is."""
        load, when = self.guarded
        if load.op != "load" or load.args[0].dtype != dtype or (when is not None and loads_of([when])):
            return None
        buffer, index = load.args
        fast, end = (self.step, self.ends[1]) if self.along else (self.place, self.ends[0])
        rest, ends = sympy.expand(index - fast), [end]
        for one in (rest, *(() if when is None else indices_of([when]))):
            quotients = [q for q in one.atoms(FloorDiv) if q.args[0] == fast]  # the same for all of a pack
            ends += [q.args[1] for q in quotients]
            if fast in one.xreplace(dict.fromkeys(quotients, sympy.S.Zero)).free_symbols:
                return None
        return whole_packs(buffer.text, rest, ends, count, set(self.kernel.loops_of))

    def box(self, dtype: torch.dtype) -> tuple[Index, Index, Index] | None:
        """Where its matrix begins, and how far apart lines and batches are, where boxes of it can be asked for."""
        if self.value.op != "load" or self.value.args[0].dtype != dtype:
            return None
        batch, loops = self.kernel.loops_of[0], {s for s in self.kernel.loops_of if s.is_Symbol}
        fast, slow = (self.step, self.place) if self.along else (self.place, self.step)
        rest = sympy.expand(self.value.args[1] - fast)
        line, matrix = (rest.coeff(axis) if axis.is_Symbol else sympy.S.Zero for axis in (slow, batch))
        begin = sympy.expand(rest - line * slow - matrix * batch)
        return None if loops & (begin.free_symbols | line.free_symbols | matrix.free_symbols) else (begin, line, matrix)

    def window(self, dtype: torch.dtype) -> ImageWindow | None:
        """Of which boxes can be asked for."""
        load, window = self.guarded[0], self.kernel.window
        if window is None or load.op != "load" or load.args[0] is not window.image or load.args[0].dtype != dtype:
            return None
        farthest = max(abs(step) * (taps - 1) for _, _, step, taps in window.axes)
        return window if farthest <= FARTHEST.get(len(window.axes), -1) else None

    def ask_for_window(self, window: ImageWindow, name: str, to: str, first: str) -> list[str]:
        """Lines that ask for a stage by the map `name`."""
        ranges, wide = self.text.program.lowered.ranges, self.text.wide
        tap = divide(self.step, window.channels, ranges)
        columns = unflatten(self.place, window.columns, ranges)
        taps = unflatten(tap, [many for *_, many in window.axes], ranges)
        places, moved = [], []
        for (stride, ahead, step, many), column, at in zip(window.axes, columns, taps, strict=True):
            places.append(sympy.expand(stride * column + ahead + min(step, 0) * (many - 1)))
            moved.append(sympy.expand(step * at - min(step, 0) * (many - 1)))
        channel = sympy.expand(self.step - window.channels * tap)

        def listed(type: str, indices: list[Index]) -> str:
            return ", ".join(f"static_cast<{type}>({self.text.index(index)})" for index in reversed(indices))

        return [
            "{", f"    const {wide} {self.place} = {first}, {self.step} = start;",
            f"    ask_for_window<{len(places)}>({name}, {to}, barrier, {listed('int', [channel])}, {{{listed('int', places)}}}, static_cast<int>(batch), {{{listed('uint16_t', moved)}}});",
            "}",
        ]  # fmt: skip

    def element(self, depth: int, at: str = "") -> list[str]:
        """Lines that set `theValue`; `at` is added to the axis along which neighbours lie."""
        lines, printed = print_lines(self.text, self.value)
        wide = self.text.wide
        place, step = (
            f"firstPlace + ofPlace{'' if self.along else at}",
            f"firstStep + ofStep{at if self.along else ''}",
        )
        return indent([
            f"const {wide} {self.place} = {place}, {self.step} = {step};", "float theValue = 0.0f;",
            f"if ({self.place} < {self.end} && {self.step} < {self.depth}) {{", *indent([*lines, f"theValue = {printed};"], 1), "}",
        ], depth)  # fmt: skip

    def copied(self, call: str, load: Expr, when: Expr | None, at: str = "") -> list[str]:
        """Lines that ask for the element that `load` is of, zero where `when` does not hold; `at` as in `element`."""
        buffer, index = load.args
        lines, holds = ([], "") if when is None else print_lines(self.text, when)
        inside = f"{self.place} < {self.end} && {self.step} < {self.depth}{holds and f' && ({holds})'}"
        return [
            f"const {self.text.wide} {self.place} = firstPlace + ofPlace{'' if self.along else at}, {self.step} = firstStep + ofStep{at if self.along else ''};",
            *lines,
            f"{call}({buffer.text} + ({self.text.index(index)}), {inside});".replace("(", "(toHere, ", 1),
        ]

    def by_element(self, type: str, places: str, unroll: int = 8) -> list[str]:
        """Lines that bring eight by eight what is loaded one by one."""
        return [
            f"bring_side<{places}, {str(self.along).lower()}>(toStage, ofThread, ofThreads, [&](int ofPlace, int ofStep, char* toHere) {{",
            f"    Pack<{type}, 8> eightOf;", f"    #pragma unroll {unroll}", "    for (int ofEight = 0; ofEight < 8; ++ofEight) {", *self.element(2, " + ofEight"),
            f"        eightOf.at[ofEight] = to<{type}>(theValue);", "    }", f"    *reinterpret_cast<Pack<{type}, 8>*>(toHere) = eightOf;", "});",
        ]  # fmt: skip

    def halved(self, name: str, type: str, places: str, dtype: torch.dtype) -> SideLines:
        """How it is brought: (what was read, first place, first step, to, thread, threads)."""
        along, wide = str(self.along).lower(), self.text.wide
        at_once = 8 if wide == "int" else 2  # places of 64 bits take twice the registers
        bring = f"bring_side<{places}, {along}, {at_once}>(toStage, ofThread, ofThreads, [&](int ofPlace, int ofStep, char* toHere) {{"
        stored = [f"    *reinterpret_cast<Pack<{type}, 8>*>(toHere) = eightOf;", "});"]
        fast = self.apart(8, dtype)
        axis, end = (self.step, self.ends[1]) if self.along else (self.place, self.ends[0])
        flags, packs, (value,) = packs_along(self.text, self.kernel, [self.value], axis, end)
        only = fast is None and not packs  # then eight loads are on their way together
        slow = self.by_element(type, places, 8 if only else 1)
        more = "char* toStage, int ofThread, int ofThreads"
        if fast is not None or not packs:
            quick = [] if fast is None else [bring, *indent(self.copied("copy_eight", *self.guarded), 1), "});"]
            return SideLines(self.bringing(name, "Eight", more, fast, quick, slow))
        lines, printed = print_lines(self.text, value)
        at = f"const {wide} {self.place} = firstPlace + ofPlace{{}}, {self.step} = firstStep + ofStep{{}};"
        inside = [at.format("", ""), f"if ({self.place} < {self.end} && {self.step} < {self.depth}) {{"]
        struct = f"ReadOf{name[0].upper()}{name[1:]}"
        each = [
            "#pragma unroll", "for (int ofEight = 0; ofEight < 8; ++ofEight) {",
            f"    [[maybe_unused]] {at.format(*(('', ' + ofEight') if self.along else (' + ofEight', '')))}", *indent(lines, 1),
            f"    eightOf.at[ofEight] = to<{type}>({printed});", "}",
        ]  # fmt: skip
        of_bytes = {f"float_of({packs[0][1]}, ofEight)"}
        of_bytes |= {f"to_float({packs[0][1]}.at[ofEight])"} if packs[0][0] == "__nv_fp8_e4m3" else set()
        if printed in of_bytes:
            each = [f"eightOf = eight_of<{type}>({packs[0][1]});"]
        quick = [
            f"store_side<{places}, {along}>(read.{name}, toStage, ofThread, ofThreads, [&](const {struct}& packsRead, int ofPlace, int ofStep, char* toHere) {{",
            f"    Pack<{type}, 8> eightOf = {{}};", *indent(inside, 1), *(f"        const auto {pack} = unpack(packsRead.{pack});" for _, pack, _ in packs),
            *indent(each, 2), "    }", *stored,
        ]  # fmt: skip
        own = batch_parameter(self.kernel.loops_of[0], wide)
        fetch = [
            f"const auto {name}Fetch = [&](StageRead& read, {own}, {wide} firstPlace, {wide} firstStep, int ofThread, int ofThreads) {{",
            f"    {f'if ({name}ByEight) ' if flags else ''}fetch_side<{places}, {along}>(read.{name}, ofThread, ofThreads, [&](int ofPlace, int ofStep) {{",
            f"        {struct} packsRead = {{}};", *indent(inside, 2), *(f"            packsRead.{pack} = load_words<8>({address});" for _, pack, address in packs), "        }",
            "        return packsRead;", "    });", "};",
        ]  # fmt: skip
        structs = [f"struct {struct} {{", *(f"    PackInWords<{of}, 8> {pack};" for of, pack, _ in packs), "};"]
        brings = self.bringing(name, "Eight", more, flags, quick, slow, "const StageRead& read, ")
        return SideLines(brings, structs, f"{struct} {name}[kReads<{places}>];", fetch)

    def exact(self, name: str, type: str) -> list[str]:
        """A lambda that asks for the side's part of a stage: (its first place, its first step, to)."""
        fast = self.apart(4, torch.float32)

        def rounds(whole: bool) -> list[str]:
            """Four neighbours at a time, `whole`: by one copy; else what their places have in common is computed once."""
            at = "" if whole else " + ofFour"
            load, when = self.guarded
            if load.op == "load" and load.args[0].dtype == torch.float32:
                brought = self.copied(f"copy_ahead<{4 if whole else 1}>", load, when, at)
            else:
                brought = [*self.element(0, at), "*toHere = theValue;"]
            place, step = ("ofPlace", f"ofStep{at}") if self.along else (f"ofPlace{at}", "ofStep")
            brought = [f"float* const toHere = toStage + {type}::at({place}, {step});", *brought]
            if not whole:
                brought = ["#pragma unroll", "for (int ofFour = 0; ofFour < 4; ++ofFour) {", *indent(brought, 1), "}"]
            return [
                "#pragma unroll", f"for (int ofRound = 0; ofRound < {type}::template kRounds<4>; ++ofRound) {{",
                f"    const int ofStep = {type}::template step<4>(ofRound), ofPlace = {type}::template place<4>(ofRound);",
                f"    if (!{type}::template brings<4>()) break;", *indent(brought, 1), "}",
            ]  # fmt: skip

        quick = [] if fast is None else rounds(True)
        return self.bringing(name, "Four", "float* toStage", fast, quick, rounds(False))

    def bringing(
        self,
        name: str,
        count: str,
        more: str,
        fast: list[str] | None,
        quick: list[str],
        slow: list[str],
        before: str = "",
    ) -> list[str]:
        """The lambda `name`, which brings `quick` where the conditions `fast` hold, `slow` where one does not; None: they never do. `count`: of
        a pack, in words. `more`: its parameters behind the first place and step."""
        wide, batch, flag = self.text.wide, self.kernel.loops_of[0], f"{name}By{count}"
        body = slow if fast is None else quick
        if fast:
            body = [f"if ({flag}) {{", *indent(quick, 1), "} else {", *indent(slow, 1), "}"]
        own = batch_parameter(batch, wide)
        return [
            *([f"const bool {flag} = {' && '.join(fast)};"] if fast else []),
            f"const auto {name} = [&]({before}{own}, {wide} firstPlace, {wide} firstStep, {more}) {{",
            *indent(body, 1),
            "};",
        ]


def packs_along(
    text: Text, kernel: ProductKernel, values: list[Expr], axis: Index, end: Index
) -> tuple[list[str], list[tuple[str, str, str]], list[Expr]]:
    """Conditions under which eight neighbours along the axis are one pack of each load that has them beside one another, the packs (type,
    name, where), and the values made of them."""
    flags: list[str] = []
    packs: list[tuple[str, str, str]] = []
    names: dict[tuple, str] = {}
    for load in loads_of(values):
        if load.op != "load" or load.args[0].dtype not in PACKED or load.args[:2] in names:
            continue
        buffer, index = load.args
        rest = sympy.expand(index - axis)
        whole = None if axis in rest.free_symbols else whole_packs(buffer.text, rest, [end], 8, set(kernel.loops_of))
        if whole is not None:
            flags += whole
            names[buffer, index] = f"packOf{len(names)}"
            packs.append((text.element(buffer.dtype), names[buffer, index], f"{buffer.text} + ({index_text(index)})"))

    def packed(e: Expr) -> Expr | None:
        of = e.args[0] if e.op == "cast" and e.type == "float" else e
        name = names.get(of.args[:2]) if of.op == "load" else None
        dtype = of.args[0].dtype if name is not None else None
        if name is None or (of is not e and dtype not in BYTES):
            return None
        one = f"float_of({name}, ofEight)" if of is not e else f"{name}.at[ofEight]"
        return make("scalar", f"to_float({one})" if dtype in (*HALVES, torch.float8_e4m3fn) else one, type=e.type)

    return list(dict.fromkeys(flags)), packs, [put(value, packed) for value in values]


def put_eight(text: Text, kernel: ProductKernel, stores: list[StoreStatement]) -> list[str]:
    """A lambda that makes and stores what eight neighbouring columns of a row become. What it reads is read whether the row is inside or not, so that
    many reads are under way."""
    batch, m, n, _ = kernel.loops_of
    wide, count, (_, rows, columns, _) = text.wide, len(kernel.sides), kernel.ends
    named = [f"[[maybe_unused]] const float sumOf{at} = theSums[{at}][ofEight];" for at in range(count)]
    slow: list[str] = []
    quick: list[str] = []
    kept: list[tuple[str, str]] = []
    by_packs = True
    flags, packs, values = packs_along(text, kernel, [store.value for store in stores], n, columns)
    for at, (store, value) in enumerate(zip(stores, values, strict=True)):
        out, type, place = store.buffer.text, element_type(store.buffer.dtype), index_text(store.place)
        lines, printed = print_lines(text, store.value)
        slow += ["{", *indent([*lines, f"{out}[{place}] = {text.stored_text(store.buffer, printed)};"], 1), "}"]
        rest = sympy.expand(store.place - n)
        whole = None if n in rest.free_symbols else whole_packs(out, rest, [columns], 8, set(kernel.loops_of))
        by_packs = by_packs and whole is not None
        flags += whole or []
        lines, printed = print_lines(text, value)
        quick += [
            "{",
            *indent([*lines, f"eightOf{at}.at[ofEight] = {text.stored_text(store.buffer, printed)};"], 1),
            "}",
        ]
        kept += [(f"Pack<{type}, 8> eightOf{at};", f"store_pack({out} + ({place}), eightOf{at});")]
    inside = f"firstM < {index_text(rows)} && firstN < {index_text(columns)}"
    each = f"const {wide} {n} = {{}} + ofEight;"
    slow = [
        "#pragma unroll", "for (int ofEight = 0; ofEight < 8; ++ofEight) {", f"    const {wide} {m} = firstM, {n} = firstN + ofEight;",
        *indent(named, 1), f"    if ({m} < {index_text(rows)} && {n} < {index_text(columns)}) {{", *indent(slow, 2), "    }", "}",
    ]  # fmt: skip
    quick = [
        f"const bool isInside = {inside};", f"const {wide} {m} = isInside ? firstM : 0, firstColumn = isInside ? firstN : 0;",
        *(f"const auto {name} = [&]({wide} {n}) {{ return load_pack<8>({where}); }}(firstColumn);" for _, name, where in packs),
        *(declared for declared, _ in kept), "#pragma unroll", "for (int ofEight = 0; ofEight < 8; ++ofEight) {",
        f"    [[maybe_unused]] {each.format('firstColumn')}", *indent([*named, *quick], 1), "}",
        "if (isInside) {", f"    const {wide} {n} = firstColumn;", *(f"    {stored}" for _, stored in kept), "}",
    ]  # fmt: skip
    body = slow
    if by_packs:
        body = ["if (byEight) {", *indent(quick, 1), "} else {", *indent(slow, 1), "}"] if flags else quick
    return [
        *([f"const bool byEight = {' && '.join(dict.fromkeys(flags))};"] if by_packs and flags else []),
        f"const auto putEight = [&]({batch_parameter(batch, wide)}, {wide} firstM, {wide} firstN, const float (&theSums)[{count}][8]) {{",
        *indent(body, 1), "};",
    ]  # fmt: skip


def factor_lines(text: Text, kernel: ProductKernel) -> list[str]:
    """`factorsOf`: what the sums within some stages are multiplied by, by lambdas of (batch, row or column, first step)."""
    if kernel.factors is None:
        return ["constexpr NoFactors factorsOf;"]
    batch, m, n, k = kernel.loops_of
    lines = []
    for name, factor, place, end in zip(("ofRow", "ofColumn"), kernel.factors, (m, n), kernel.ends[1:3], strict=True):
        before, printed = print_lines(text, factor)
        lines += [
            f"const auto {name} = [&]({batch_parameter(batch, text.wide)}, [[maybe_unused]] {text.wide} {place}, [[maybe_unused]] {text.wide} {k}) {{",
            f"    if ({place} >= {index_text(end)}) return 0.0f;", *indent([*before, f"return {printed};"], 1), "};",
        ]  # fmt: skip
    indices = indices_of([kernel.factors[1]])
    blocks = [quotient for index in indices for quotient in index.atoms(FloorDiv) if n in quotient.free_symbols]
    shared = all(q.args[0] == n and q.args[1].is_Integer and q.args[1] % BROUGHT[1] == 0 for q in blocks)
    shared = shared and all(n not in without_quotients(index).free_symbols for index in indices)
    return [
        *lines,
        f"const Factors<{kernel.stages}, {str(shared).lower()}, decltype(ofRow), decltype(ofColumn)> factorsOf{{ofRow, ofColumn}};",
    ]


BROUGHT = 128, 128
"""Rows and columns of the tile where not all sides are boxes; no tile whose sums have factors has more columns."""


def batch_parameter(batch: Index, wide: str) -> str:
    """Of a lambda; it has no name where there is one product alone."""
    return f"[[maybe_unused]] {wide} {batch}" if batch.is_Symbol else wide


def whole_packs(buffer: str, rest: Index, ends: list[Index], count: int, variables: set[Index]) -> list[str] | None:
    """Conditions under which `rest` counts in packs of `count`, and so do the ends; None where they never hold."""
    sizes = list(ends)
    for term in sympy.Add.make_args(rest):
        factors = (f for f in sympy.Mul.make_args(term) if f not in variables and not isinstance(f, FloorDiv | Modulo))
        sizes.append(sympy.Mul(*factors) if term != 0 else sympy.S.Zero)
    open_sizes = [size for size in sizes if size.as_coeff_Mul()[0] % count]
    if any(size.is_Integer for size in open_sizes):
        return None
    asked = dict.fromkeys(map(index_text, open_sizes))
    return [f"reinterpret_cast<uintptr_t>({buffer}) % 16 == 0", *(f"({text}) % {count} == 0" for text in asked)]


def plan_lines(cuts: Sequence[tuple[int, int, int]], sizes: str, how: str) -> list[str]:
    return [
        f"constexpr TilePlan cuts[] = {{{', '.join('{' + ', '.join(map(str, cut)) + '}' for cut in cuts)}}};",
        f"TilePlan tile_plan = plan_tiles(cuts, {len(cuts)}, places, {sizes}, {how});",
    ]


def by_plan(arms: list[tuple[str, str, str, str, str]], grid: str, cluster: str, given: str) -> list[str]:
    """Of each arm: the condition, the kernel, its threads and shared memory, and the arguments that it takes more."""
    return branch([
        (condition, launch_shared(call, grid, cluster, threads, room, room, f"{given}{more}"))
        for condition, call, threads, room, more in arms
    ])  # fmt: skip


def launch_shared(call: str, grid: str, cluster: str, threads: str, most: str, bytes: str, given: str, pdl: bool = False) -> list[str]:  # fmt: skip
    """A launch with `bytes` of shared memory, of which it may take `most`."""
    return [
        f"static const int room = cudaFuncSetAttribute({call}, cudaFuncAttributeMaxDynamicSharedMemorySize, {most});",
        "static_cast<void>(room);",
        f"launch_with_shared<{str(pdl).lower()}>({call}, {grid}, {cluster}, {threads}, {bytes}, stream, {given});",
    ]
