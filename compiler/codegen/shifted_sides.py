"""A product's side whose neighbours in a stage are neighbours in memory that begin anywhere, zeros beyond edges: a convolution's windows.

Eight of them are five words that are loaded a stage ahead and shifted together. Which of the eight lie inside is asked as they are put where
the tensor cores read them. Where a line is a multiple of eight, taps in a row are made of one line of halves, in which that is asked once.
"""

from __future__ import annotations

from dataclasses import dataclass

import sympy
import torch

from compiler.codegen.printer import print_lines
from compiler.codegen.product_parts import OperandSide, SideLines, batch_parameter
from compiler.draft.expressions import Expr, constant, indices_of, loads_of, make, replace_indices
from compiler.draft.index import FloorDiv, Index, Modulo
from compiler.draft.packing import _is_multiple
from compiler.draft.printing import indent, index_text


def window_of(side: OperandSide, dtype: torch.dtype) -> tuple[Expr, Expr] | None:
    """(the load, where it counts) of a side of such neighbours; None of any other."""
    value, holds = side.value, constant(True, "bool")
    while value.op == "masked" and value.args[2].op == "const" and value.args[2].args[0] == 0:
        holds, value = make("and", holds, value.args[0], type="bool"), value.args[1]
    axis = side.step if side.along else side.place
    if value.op != "load" or value.args[0].dtype != dtype or axis in sympy.expand(value.args[1] - axis).free_symbols:
        return None
    return value, holds


def elements_of_windows(sides: list[OperandSide], dtype: torch.dtype | None) -> list[Index]:
    """What a kernel has to know to stay inside the tensors."""
    return [found[0].args[0].elements for side in sides if dtype is not None and (found := window_of(side, dtype))]


def line_lengths(sides: list[OperandSide], dtype: torch.dtype | None) -> list[Index]:
    """What has to be a multiple of eight, so that taps are made of lines; nothing where they never are."""
    found: dict[Index, None] = {}
    if dtype is None:
        return []
    for side in sides:
        window = window_of(side, dtype) if side.box(dtype) is None and side.apart(8, dtype) is None else None
        taps = None if window is None else _taps_of(side, window[0].args[1], window[1])
        found |= dict.fromkeys(() if taps is None else (*sorted(taps.lengths, key=str), side.ends[0]))
    return list(found)


def bring_by_words(side: OperandSide, name: str, type: str, places: str, dtype: torch.dtype) -> SideLines | None:
    """How it is brought; one by one where words do not begin where the tensor does."""
    found = window_of(side, dtype)
    if found is None:
        return None
    load, holds = found
    buffer, index = load.args
    text, wide, along = side.text, side.text.wide, str(side.along).lower()
    axis, end = (side.step, side.ends[1]) if side.along else (side.place, side.ends[0])
    count, taps = index_text(buffer.elements), _taps_of(side, index, holds)
    begin = f"const {wide} {side.place} = firstPlace + ofPlace{{}}, {side.step} = firstStep + ofStep{{}};"
    first, each = begin.format("", ""), begin.format(*(("", " + ofEight") if side.along else (" + ofEight", "")))
    inside = [first, f"if ({side.place} < {side.end} && {side.step} < {side.depth}) {{"]
    struct = f"ReadOf{name[0].upper()}{name[1:]}"
    lines, value = print_lines(text, holds)
    quick = [
        f"store_side<{places}, {along}>(read.{name}, toStage, ofThread, ofThreads, [&](const {struct}& wordsRead, int ofPlace, int ofStep, char* toHere) {{",
        f"    PackInWords<{type}, 8> eightOf = {{}};", *indent(inside, 1), f"        shift_halves(wordsRead.words, ({index_text(index)}) & 1, eightOf.words);",
        "        #pragma unroll", "        for (int ofEight = 0; ofEight < 8; ++ofEight) {", f"            [[maybe_unused]] {each}", *indent(lines, 3),
        f"            keep_half(eightOf.words, ofEight, {axis} < {index_text(end)} && ({value}));", "        }", "    }",
        f"    *reinterpret_cast<PackInWords<{type}, 8>*>(toHere) = eightOf;", "});",
    ]  # fmt: skip
    fetched = [
        f"fetch_side<{places}, {along}>(read.{name}, ofThread, ofThreads, [&](int ofPlace, int ofStep) {{", f"    {struct} wordsRead = {{}};",
        *indent(inside, 1), f"        load_words_around(wordsRead.words, {buffer.text}, {index_text(index)}, {count});", "    }", "    return wordsRead;", "});",
    ]  # fmt: skip
    flags = [f"reinterpret_cast<uintptr_t>({buffer.text}) % 4 == 0", f"({count}) % 2 == 0"]
    reads = f"kReads<{places}>"
    if taps is not None:
        lines, value = print_lines(text, taps.holds)
        at = f"[[maybe_unused]] const {wide} {side.place} = firstPlace + ofPlace;"
        lined = [
            f"store_lines<{places}, {taps.count}>(read.{name}, firstStep, toStage, ofThread, ofThreads, [&](const uint32_t (&wordsRead)[{(8 + taps.count) // 2 + 1}], uint32_t (&halves)[{(8 + taps.count) // 2}], int ofPlace, {wide} ofGroup) {{",
            f"    {at}", f"    shift_halves(wordsRead, ({index_text(taps.index)}) & 1, halves);", "    #pragma unroll",
            f"    for (int ofLine = 0; ofLine < {7 + taps.count}; ++ofLine) {{", *indent(lines, 2), f"        keep_half(halves, ofLine, {value});", "    }", "});",
        ]  # fmt: skip
        ahead = [
            f"fetch_lines<{places}, {taps.count}>(read.{name}, firstStep, ofThread, ofThreads, [&](uint32_t (&wordsRead)[{(8 + taps.count) // 2 + 1}], int ofPlace, {wide} ofGroup) {{",
            f"    {at}", f"    if ({side.place} < {side.end} && ofGroup * {taps.count} < {side.depth}) {{",
            f"        load_words_around(wordsRead, {buffer.text}, {index_text(taps.index)}, {count});", "    }", "});",
        ]  # fmt: skip
        either = lambda one, other: ["if constexpr (Lines) {", *indent(one, 1), "} else {", *indent(other, 1), "}"]  # noqa: E731
        quick, fetched = either(lined, quick), either(ahead, fetched)
        reads = f"Lines ? (kLines<{places}, {taps.count}> * kLineWords<{taps.count}> + kEightWords - 1) / kEightWords : {reads}"
    own = batch_parameter(side.kernel.loops_of[0], wide)
    fetch = [
        f"const auto {name}Fetch = [&](StageRead& read, {own}, {wide} firstPlace, {wide} firstStep, int ofThread, int ofThreads) {{",
        f"    if ({name}ByEight) {{", *indent(fetched, 2), "    }", "};",
    ]  # fmt: skip
    more = "char* toStage, int ofThread, int ofThreads"
    one_by_one = side.by_element(type, places, 1)
    brings = side.bringing(name, "Eight", more, flags, quick, one_by_one, "[[maybe_unused]] const StageRead& read, ")
    structs = [f"struct {struct} {{", "    uint32_t words[kEightWords];", "};"]
    return SideLines(brings, structs, f"{struct} {name}[{reads}];", fetch)


@dataclass(frozen=True)
class TapLine:
    """Steps in a row that read one half further each, of places that lie in lines of a multiple of eight: `ofGroup` counts them by `count`, `ofLine` the
    halves that all of them read."""

    count: int
    index: Index
    """Of the first half."""
    holds: Expr
    """Whether a half counts."""
    lengths: set[Index]
    """Of lines."""


MOST_TAPS = 8


def _taps_of(side: OperandSide, index: Index, holds: Expr) -> TapLine | None:
    """How a window is read so; None where what counts is not a matter of the line and the half in it."""
    group, tap, line, first = (
        sympy.Symbol(name, integer=True, nonnegative=True) for name in ("ofGroup", "ofTap", "ofLine", str(side.place))
    )
    counts = {one.args[1] for one in index.atoms(Modulo) if one.args[0] == side.step and one.args[1].is_Integer}
    count = min(counts, default=sympy.S.Zero)
    if side.along or not 2 <= count <= MOST_TAPS or not _is_multiple(side.ends[1], int(count)) or loads_of([holds]):
        return None
    lengths: set[Index] = set()

    def told(of: Index) -> Index:
        """A place by group, tap and half."""
        made: dict[Index, Index] = {}
        for one in of.atoms(FloorDiv, Modulo):
            number, by = one.args
            if number == side.step and by.is_Integer and by % count == 0:
                made[one] = tap if isinstance(one, Modulo) else FloorDiv(group, by / count) if by != count else group
            elif number == side.place:
                lengths.add(by)
                made[one] = FloorDiv(first, by) if isinstance(one, FloorDiv) else Modulo(first, by) + line
        return sympy.expand(of.xreplace(made))

    start = told(index)
    rest = sympy.expand(start - tap)
    seen = [told(one) for one in indices_of([holds])]
    joint = all(sympy.expand(one.subs(tap, 0).subs(line, line + tap) - one) == 0 for one in seen)
    own = {side.step, tap}
    if (
        not joint
        or own & rest.free_symbols
        or any(side.step in one.free_symbols for one in seen)
        or line in rest.free_symbols
    ):
        return None
    return TapLine(int(count), rest, replace_indices(holds, lambda one: told(one).subs(tap, 0)), lengths)
