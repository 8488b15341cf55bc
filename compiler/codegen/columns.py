"""Kernels of the sketch `columns`: reductions over outer axes, a thread to a pack of columns, a cluster to a tile of them."""

from __future__ import annotations

import sympy

from compiler.codegen.kernels import (
    KernelFunction,
    Launch,
    accumulators,
    finish_function,
    in_axes,
    open_text,
    signature,
    wait,
)
from compiler.codegen.levels import hoist, parts_of, run_pass
from compiler.codegen.text import FOLD_OF
from compiler.draft.expressions import loads_of
from compiler.draft.index import index_is_divided
from compiler.draft.partition import FLAT
from compiler.draft.printing import Scope, branch, indent, index_text
from compiler.program import KernelProgram, PackedKernel
from compiler.schedule import ALONE, TILES, WARP, Columns, KernelPlan


def takes(kernel: PackedKernel) -> bool:
    """Whether all of a kernel is one stage of reductions along one loop, and what follows from them for each column."""
    folds = [m for m in kernel.members if m.definition.reduced]
    one_loop = kernel.layout == FLAT and len(kernel.inner) == 1 and bool(folds)
    whole = any(not m.definition.reduced and not m.per_row for m in kernel.members)  # written row by row
    return one_loop and not whole and all(m.stage == 0 for m in folds) and not index_is_divided([kernel.rows])


def kernel_function(
    program: KernelProgram, kernel: PackedKernel, name: str, narrow: bool, plan: KernelPlan
) -> KernelFunction:
    """`template <int Lanes, int Deep, int Split, int Unroll>`: blockIdx.x over the blocks of a cluster is the tile, the rest
    the part of the rows."""
    text = open_text(program, kernel, narrow)
    stores, folds, roots = parts_of(text)
    (loop, length), packs = kernel.inner[0], sympy.expand(kernel.rows / text.width)
    parameters, arguments = signature(text, stores, roots, [packs, length])
    wide, pack, end, width = text.wide, kernel.pack, index_text(packs), text.width
    top = Scope(1)
    top.line(
        "const int tile_lane = threadIdx.x % Lanes, tile_row = threadIdx.x / Lanes, tile_blocks = blocks_of_cluster<Split>();"
    )
    top.line("const int tile_part = blockIdx.x % tile_blocks;")
    top.line(f"const {wide} {pack} = static_cast<{wide}>(blockIdx.x / tile_blocks) * Lanes + tile_lane;")
    wait(top, plan.pdl, "Split")
    mark = len(top.lines)
    hoist(text, [text.value(m) for m in folds], 0, top, {})
    top.lines += indent(accumulators(text, folds, True), 1)
    body, here = Scope(2, top), Scope(0, top)
    values = [text.value(m) for m in folds]
    windows = [w for w in text.windows(values) if w.by is None and loop in w.base.free_symbols]
    step = sum(window.width * window.buffer.dtype.itemsize for window in windows)
    # What is loaded beside packs, a row's mean, would be waited for row by row: nvcc brings it all forward in a plain loop alone.
    ahead = all(load.args[0] in [w.buffer for w in windows] for load in loads_of(values))
    loaded = {window: f"{text.fresh(f'{window.buffer.name}_ahead')}[item]" for window in windows}
    made = run_pass(text, body, folds, [], array=True, loaded=loaded if ahead else None, hold=ahead)
    batch, every = text.fresh("batch"), "for (int item = 0; item < Unroll; ++item) {"
    each = [f"const {wide} {loop} = {batch} + item * tile_blocks * Deep;", f"if ({loop} < {index_text(length)}) {{"]
    loads = [
        f"{name} = load_pack<{window.width}>({text.address(window, here, None)});" for window, name in loaded.items()
    ]
    top.line(f"if ({pack} < {end}) {{")
    top.lines += body.lines
    first = f"static_cast<{wide}>(tile_part) * Deep + tile_row"
    at, by = (batch, "Unroll * tile_blocks * Deep") if ahead else (loop, "tile_blocks * Deep")
    top.lines += [] if ahead else ["        #pragma unroll Unroll"]
    top.line(f"    for ({wide} {at} = {first}; {at} < {index_text(length)}; {at} += {by}) {{")
    if ahead:
        # All of a batch's loads are in flight before the first is used; an unrolled loop alone does not bring that about.
        top.lines += indent(
            [f"{text.type_of(window)} {name.replace('[item]', '[Unroll];')}" for window, name in loaded.items()], 3
        )
        for inner in ([*each, *indent(loads, 1)], [*each, *made.lines(1)]):
            top.lines += indent(["#pragma unroll", every, *indent([*inner, "}"], 1), "}"], 3)
    else:
        top.lines += made.lines(3)
    top.line("    }")
    top.line("}")
    for member in folds:
        held, type = text.fold_names[member], text.fold_type(member)
        join = FOLD_OF[member.definition.kind]
        top.line(f"column_reduce<Lanes, Deep, Split, {width}>({held}, []({type} a, {type} b) {{ return {join}; }});")
    top.line(f"if (tile_part == 0 && tile_row == 0 && {pack} < {end}) {{")
    last = Scope(2, top)
    made = run_pass(text, last, [], stores)
    top.lines += last.lines + made.lines(2)
    top.line("}")
    if folds:
        top.line("leave_cluster<Split>();")
    head = ("template <int Lanes, int Deep, int Split, int Unroll>", "__global__ void __launch_bounds__(Lanes * Deep)")
    return finish_function(
        text, name, head, parameters, arguments, top, mark, roots, stores, kept=step, waits=not ahead
    )


def launch_lines(launch: Launch) -> list[str]:
    """The host asks `plan_columns` what suits the size at hand."""
    program, function, plan = launch.program, launch.function, launch.plan
    kernel, sketch = function.kernel, plan.sketch
    assert isinstance(sketch, Columns)
    packs, rows = in_axes(program, sympy.expand(kernel.rows / kernel.width)), in_axes(program, kernel.inner[0][1])
    clusters = sketch.split != 1
    threads, lanes, split, unroll = sketch.texts(launch.searched)
    lanes = str(sketch.lanes) if sketch.lanes or kernel.width == 1 else lanes
    narrowest = 4 if kernel.width > 1 else WARP
    counts = (sketch.lanes,) if sketch.lanes else tuple(count for count in TILES if count >= narrowest)
    calls = {
        across: f"{function.name}<{across}, {1 if across == ALONE else f'{threads} / {across}'}, {{}}, {unroll}>"
        for across in counts
    }
    tile, alone = (calls[8 if 8 in calls else counts[0]], calls.get(ALONE, calls[counts[0]]))
    step = 30 if function.waits and kernel.width == 1 else 12
    wanted = f"{narrowest}, {lanes}, {split if clusters else 1}"
    given = f"tile_registers, alone_registers, {function.kept}, {step}, {str(clusters).lower()}, {wanted}"
    lines = [
        f"static const int tile_registers = registers_of({tile.format(1)}), alone_registers = registers_of({alone.format(1)});",
        f"const ColumnPlan tile_plan = plan_columns({packs}, {rows}, {threads}, {given});",
        f"const unsigned grid_blocks = static_cast<unsigned>(({packs} + tile_plan.lanes - 1) / tile_plan.lanes) * tile_plan.split;",
    ]
    arms = []
    for across, parts in [(a, p) for a in counts for p in ((1, 0) if clusters and a != ALONE else (1,))]:
        width = str(ALONE) if across == ALONE else threads
        in_parts = "1" if parts else "tile_plan.split"
        call = calls[across].format(parts)
        launched = launch.by(call, "grid_blocks", width, function.arguments, in_parts)
        arms.append((f"tile_plan.lanes == {across} && tile_plan.split {'==' if parts else '>'} 1", [launched]))
    return [*lines, *branch(arms)]
