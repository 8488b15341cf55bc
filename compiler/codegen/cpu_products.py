"""C++ of products of matrices: lambdas that say what an operand's element is and where a sum goes, for draft/cuda/cpu_products.h."""

from __future__ import annotations

from collections.abc import Sequence

import sympy

from compiler.codegen.cpu import CpuText
from compiler.codegen.kernels import KernelFunction, signature
from compiler.codegen.levels import StoreStatement
from compiler.codegen.printer import print_lines
from compiler.draft.expressions import Expr, replace_indices, runs_along, symbols_of
from compiler.draft.index import Index, Ranges, substitute
from compiler.draft.printing import indent, index_text
from compiler.phases import Phase
from compiler.products import ProductKernel
from compiler.program import KernelProgram


def product_function(program: KernelProgram, kernel: ProductKernel, name: str) -> KernelFunction:
    """All blocks of one product, which share threads by themselves."""
    text = CpuText(program, kernel)
    text.levels = [set(), set()]
    stores = [StoreStatement(s.definition.outs[0], s.places[0], kernel.leaf(s.value), 0, False) for s in kernel.stores]
    roots = kernel.read + [s.value for s in stores]
    parameters, arguments = signature(text, stores, roots, list(kernel.ends), plain=True, leaves=kernel.names.values())
    (made,) = kernel.names.values()
    goes = []
    for store in stores:
        before, value = print_lines(text, store.value)
        place = text.index(store.place)
        goes += [
            "{",
            *indent([*before, f"{text.pointer(store.buffer)}[{place}] = {text.stored_text(store.buffer, value)};"], 1),
            "}",
        ]
    lines = multiply_lines(text, kernel.sides[0], kernel.loops_of, kernel.ends, made, goes)
    whole = "\n".join([f"void {name}({', '.join(parameters)}) {{", *indent(lines, 1), "}", ""])
    return KernelFunction(name, whole, tuple(parameters), tuple(arguments), (), kernel)


def multiply_lines(
    text: CpuText, sides: Sequence[Expr], loops: Sequence[Index], ends: Sequence[Index], made: str, goes: list[str]
) -> list[str]:
    """The call, of operands at `loops` (batch, m, n, k); `goes` stores the float `made`."""
    batch, m, n, k = loops

    def given(*names: Index) -> str:
        return ", ".join(f"[[maybe_unused]] int64_t {name}" if name.is_Symbol else "int64_t" for name in names)

    lines = []
    for side, names in zip(sides, ((batch, m, k), (batch, k, n)), strict=True):
        before, value = print_lines(text, side)
        lines += [f"[=]({given(*names)}) {{", *indent([*before, f"return static_cast<float>({value});"], 1), "},"]
    lines += [f"[=]({given(batch, m, n)}, float {made}) {{", *indent(goes, 1), "});"]
    along = ", ".join(str(runs_along(side, k)).lower() for side in sides)
    return [f"multiply_panels<{along}>({', '.join(map(index_text, ends))},", *indent(lines, 1)]


def matrices_of(phase: Phase, ranges: Ranges, fresh) -> tuple[list[Expr], list[Index], list[Index], Index] | None:
    """(left, right, the loops, their ends, the phase's outer place) of a phase that multiplies matrices, else None."""
    definition = phase.definition
    if not definition.is_product or definition.type != "float" or not phase.outer.is_Symbol:
        return None
    rows, columns, depth = definition.ranges[-3:]
    batches = sympy.cancel(phase.outer_end / (rows * columns))
    if sympy.denom(batches) != 1 or phase.inner_end != depth:
        return None
    ends = [sympy.expand(batches), rows, columns, depth]
    batch, m, n = (ranges.named(fresh(word), end) for word, end in zip(("batch", "m", "n"), ends, strict=False))
    outer = sympy.expand((batch * rows + m) * columns + n)
    value = replace_indices(phase.value, lambda index: substitute(index, {phase.outer: outer}, ranges))
    while value.op == "cast":
        value = value.args[0]
    if value.op != "mul" or n in symbols_of(value.args[0]) or m in symbols_of(value.args[1]):
        return None
    return list(value.args), [batch, m, n, phase.inner], ends, outer
