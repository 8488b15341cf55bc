"""A product's side whose neighbours in a stage are neighbours in memory that begin anywhere, zeros beyond edges: a convolution's windows.

Eight of them are five words that are loaded a stage ahead and shifted together. Which of the eight lie inside is asked as they are put where
the tensor cores read them; where a line is a multiple of eight, once for all that is not along it.
"""

from __future__ import annotations

import sympy
import torch

from compiler.codegen.printer import print_lines
from compiler.codegen.product_parts import OperandSide, SideLines, batch_parameter
from compiler.draft.expressions import Expr, constant, indices_of, make, replace_indices
from compiler.draft.index import FloorDiv, Index, Modulo
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


def bring_by_words(side: OperandSide, name: str, type: str, places: str, dtype: torch.dtype) -> SideLines | None:
    """How it is brought; one by one where words do not begin where the tensor does."""
    found = window_of(side, dtype)
    if found is None:
        return None
    load, holds = found
    buffer, index = load.args
    text, wide, along = side.text, side.text.wide, str(side.along).lower()
    axis, end = (side.step, side.ends[1]) if side.along else (side.place, side.ends[0])
    count = index_text(buffer.elements)
    begin = f"const {wide} {side.place} = firstPlace + ofPlace{{}}, {side.step} = firstStep + ofStep{{}};"
    first, each = begin.format("", ""), begin.format(*(("", " + ofEight") if side.along else (" + ofEight", "")))
    inside = [first, f"if ({side.place} < {side.end} && {side.step} < {side.depth}) {{"]

    def kept(holds: Expr) -> list[str]:
        lines, value = print_lines(text, holds)
        return [
            "#pragma unroll", "for (int ofEight = 0; ofEight < 8; ++ofEight) {", f"    [[maybe_unused]] {each}", *indent(lines, 1),
            f"    keep_half(eightOf, ofEight, {axis} < {index_text(end)} && ({value}));", "}",
        ]  # fmt: skip

    marked = kept(holds)
    lengths = {one.args[1] for index in indices_of([holds]) for one in _lines_of(index, axis)}
    by_lines = replace_indices(holds, lambda one: _in_lines(one, axis))
    if lengths and not any(one.has(axis) for index in indices_of([by_lines]) for one in index.atoms(FloorDiv, Modulo)):
        asked = " && ".join(f"({length}) % 8 == 0" for length in sorted(map(index_text, lengths)))
        start = f"const {wide} firstOfEight = {'firstStep + ofStep' if side.along else 'firstPlace + ofPlace'};"
        marked = [f"if ({asked}) {{", *indent([start, *kept(by_lines)], 1), "} else {", *indent(marked, 1), "}"]
    struct = f"ReadOf{name[0].upper()}{name[1:]}"
    quick = [
        f"store_side<{places}, {along}>(read.{name}, toStage, ofThread, ofThreads, [&](const {struct}& wordsRead, int ofPlace, int ofStep, char* toHere) {{",
        f"    PackInWords<{type}, 8> eightOf = {{}};", *indent(inside, 1), f"        shift_halves(wordsRead.words, ({index_text(index)}) & 1, eightOf.words);",
        *indent(marked, 2), "    }", f"    *reinterpret_cast<PackInWords<{type}, 8>*>(toHere) = eightOf;", "});",
    ]  # fmt: skip
    flags = [f"reinterpret_cast<uintptr_t>({buffer.text}) % 4 == 0", f"({count}) % 2 == 0"]
    own = batch_parameter(side.kernel.loops_of[0], wide)
    fetch = [
        f"const auto {name}Fetch = [&](StageRead& read, {own}, {wide} firstPlace, {wide} firstStep, int ofThread, int ofThreads) {{",
        f"    if ({name}ByEight) fetch_side<{places}, {along}>(read.{name}, ofThread, ofThreads, [&](int ofPlace, int ofStep) {{",
        f"        {struct} wordsRead = {{}};", *indent(inside, 2), f"            load_words_around(wordsRead.words, {buffer.text}, {index_text(index)}, {count});", "        }",
        "        return wordsRead;", "    });", "};",
    ]  # fmt: skip
    more = "char* toStage, int ofThread, int ofThreads"
    brings = side.bringing(
        name, "Eight", more, flags, quick, side.by_element(type, places, 1), "[[maybe_unused]] const StageRead& read, "
    )
    return SideLines(
        brings, [f"struct {struct} {{", "    uint32_t words[5];", "};"], f"{struct} {name}[kReads<{places}>];", fetch
    )


def _lines_of(index: Index, axis: Index) -> list[Index]:
    """What says the line that a place along the axis lies in, and where in it."""
    return [one for one in index.atoms(FloorDiv, Modulo) if one.args[0] == axis]


def _in_lines(index: Index, axis: Index) -> Index:
    """Where all eight that begin at `firstOfEight` lie in one line."""
    first, at = (sympy.Symbol(name, integer=True, nonnegative=True) for name in ("firstOfEight", "ofEight"))
    told = {
        one: FloorDiv(first, one.args[1]) if isinstance(one, FloorDiv) else Modulo(first, one.args[1]) + at
        for one in _lines_of(index, axis)
    }
    return index.xreplace(told)
