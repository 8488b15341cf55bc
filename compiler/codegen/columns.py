"""Kernels of the sketch `columns`: reductions over outer axes, a thread to a pack of columns, a cluster to a tile of them."""

from __future__ import annotations

import sympy

from compiler.codegen.kernels import KernelFunction, _packed, accumulators, indent, open_text, signature, wait
from compiler.codegen.levels import folds_of, hoist, run_pass, stores_of
from compiler.codegen.text import FOLD_OF
from compiler.draft.index import index_is_divided
from compiler.draft.partition import FLAT
from compiler.draft.printing import Scope, index_text
from compiler.program import KernelProgram, PackedKernel


def takes(kernel: PackedKernel) -> bool:
    """Whether all of a kernel is one stage of reductions along one loop, and what follows from them for each column."""
    folds = [m for m in kernel.members if m.definition.reduced]
    one_loop = kernel.layout == FLAT and len(kernel.inner) == 1 and bool(folds)
    return one_loop and all(m.stage == 0 for m in folds) and not index_is_divided([kernel.rows])


def columns_function(
    program: KernelProgram, kernel: PackedKernel, name: str, narrow: bool, pdl: bool
) -> KernelFunction:
    """`template <int Lanes, int Deep, int Split, int Unroll>`: blockIdx.x / Split is the tile, the rest the part of the rows."""
    text = open_text(program, kernel, narrow)
    stores = stores_of(text)
    folds = folds_of(text, stores)
    (loop, length), packs = kernel.inner[0], sympy.expand(kernel.rows / text.width)
    roots = [*(text.value(m) for m in folds), *(s.value for s in stores)]
    parameters, arguments = signature(text, stores, roots, [packs, length])
    wide, pack, end, width = text.wide, kernel.pack, index_text(packs), text.width
    top = Scope(1)
    top.line("const int across = threadIdx.x % Lanes, down = threadIdx.x / Lanes, part = blockIdx.x % Split;")
    top.line(f"const {wide} {pack} = static_cast<{wide}>(blockIdx.x / Split) * Lanes + across;")
    wait(top, pdl, "Split")
    hoist(text, [text.value(m) for m in folds], 0, top, {})
    top.lines += indent(accumulators(text, folds, True), 1)
    body = Scope(2, top)
    made = run_pass(text, body, folds, [], array=True)
    top.line(f"if ({pack} < {end}) {{")
    top.lines += body.lines
    top.line("    #pragma unroll Unroll")
    first = f"static_cast<{wide}>(part) * Deep + down"
    top.line(f"    for ({wide} {loop} = {first}; {loop} < {index_text(length)}; {loop} += Split * Deep) {{")
    top.lines += made.lines(3)
    top.line("    }")
    top.line("}")
    for member in folds:
        held, type = text.fold_names[member], text.fold_type(member)
        join = FOLD_OF[member.definition.kind]
        top.line(f"column_reduce<Lanes, Deep, Split, {width}>({held}, []({type} a, {type} b) {{ return {join}; }});")
    top.line(f"if (part == 0 && down == 0 && {pack} < {end}) {{")
    last = Scope(2, top)
    made = run_pass(text, last, [], stores)
    top.lines += last.lines + made.lines(2)
    top.line("}")
    if folds:
        top.line("leave_cluster<Split>();")
    lines = [
        "template <int Lanes, int Deep, int Split, int Unroll>",
        f"__global__ void __launch_bounds__(Lanes * Deep) {name}({', '.join(parameters)}) {{", *top.lines, "}", "",
    ]  # fmt: skip
    return KernelFunction(
        name, "\n".join(lines), tuple(parameters), tuple(arguments), _packed(text, roots, stores), kernel
    )
