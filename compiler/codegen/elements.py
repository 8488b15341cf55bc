"""Kernels of the sketch `elements`: a thread to some packs of neighbouring elements; independent ones share a launch."""

from __future__ import annotations

import sympy

from compiler.codegen.batches import loads_of_steps, run_batches
from compiler.codegen.kernels import (
    KernelFunction,
    Launch,
    accumulators,
    finish_function,
    in_axes,
    open_text,
    signature,
)
from compiler.codegen.levels import (
    hoist,
    load_numbers,
    parts_of,
    run_pass,
)
from compiler.codegen.printer import Printer
from compiler.codegen.ragged import RaggedText, extent_of
from compiler.codegen.text import Text, Window
from compiler.draft.expressions import Expr
from compiler.draft.index import FloorDiv
from compiler.draft.printing import Scope, branch, indent, index_text
from compiler.lookups import fetches
from compiler.program import KernelProgram, PackedKernel
from compiler.schedule import WARP, Elements, KernelPlan
from compiler.strides import row_read_across


def _ahead(
    text: Text, top: Scope, roots: list[Expr], pack, end: str, named: bool
) -> tuple[dict[Window, str], dict[int, str]]:
    """What is loaded for all a thread's packs before any of them is stored: windows whose places need nothing that is loaded (`named`: also those that
    do), and, by id, single numbers of a pack."""
    windows = [w for w in text.windows(roots) if w.by is None or named]
    found = {}
    loads = Scope(3, top)
    for window in windows:
        name = text.fresh(f"{window.buffer.name}_ahead")
        top.line(f"{text.type_of(window)} {name}[Items];")
        printer = Printer(text, loads, [window.by[0]], {}) if window.by else None
        loads.line(f"{name}[item] = {text.load(window, text.address(window, loads, printer))};")
        found[window] = f"{name}[item]"
    numbers = load_numbers(text, top, loads, roots, "Items")
    if windows or numbers:
        place = f"(static_cast<{text.wide}>(block) * Items + item) * Threads + threadIdx.x"
        top.lines += _over_items(text.wide, pack, place, end, [*indent(text.pack_opening(), 3), *loads.lines])
    return found, numbers


def _over_items(wide: str, pack: str, place: str, end: str, lines: list[str]) -> list[str]:
    """The lines for each of a thread's packs."""
    head = [f"        const {wide} {pack} = {place};", f"        if ({pack} < {end}) {{"]
    return ["    #pragma unroll", "    for (int item = 0; item < Items; ++item) {", *head, *lines, "        }", "    }"]


FEW_BLOCKS = 264
"""Blocks of elements, two to each multiprocessor of an H100, of which twice as many of half the width are sooner done."""

MANY_BLOCKS = 16384
"""Blocks that each begin with a table in shared memory, from which on a thread takes four times as many packs: 57 -> 52 us for MXFP4 (H200)."""

MOST_UNROLLED = 8
"""Steps up to which a loop whose end is known has none left."""


def kernel_function(
    program: KernelProgram, kernel: PackedKernel, name: str, narrow: bool, plan: KernelPlan
) -> KernelFunction:
    """`template <int Threads, int Items>`, a device function of a block's number: a thread to each pack."""
    ragged = plan.ragged
    text = open_text(program, kernel, narrow, ragged)
    stores, folds, roots = parts_of(text)
    row = row_read_across(program, kernel) if narrow and not ragged else None
    told = [] if row is None else [FloorDiv(kernel.pack, row)]
    parameters, arguments = signature(text, stores, roots, [kernel.rows, *told, *(end for _, end in kernel.inner)])
    if isinstance(text, RaggedText):
        parameters.append(f"Divisor {text.row_packs}")
        arguments.append(f"Divisor(({in_axes(program, text.length)} + {2 * ragged - 2}) / {ragged})")
    text.begin(roots)
    wide, pack, end = text.wide, text.counter, text.packs_text()
    top = Scope(1)
    top.lines += indent(text.opening(), 1)
    hoist(text, roots, 0, top, {})
    loaded, numbers = ({}, {}) if folds else _ahead(text, top, roots, pack, end, fetches(kernel))
    mark = 0 if text.tables or text.staged else len(top.lines)
    body = Scope(3, top)
    body.lines += indent(text.pack_opening(), 3)
    loops = [f"for ({wide} {loop} = 0; {loop} < {index_text(size)}; ++{loop}) {{" for loop, size in kernel.inner]
    inside = [store for store in stores if loops and not store.per_row]
    stores = [store for store in stores if store not in inside]
    # Nothing is read after it was written.
    final = max(*(s.stage for s in inside), *(m.stage for m in folds), -1) if inside else -1
    for stage in sorted({*(m.stage for m in folds), *([final] if inside else [])}):
        here = [m for m in folds if m.stage == stage]
        written = inside if stage == final else []
        hoist(text, [*(text.value(m) for m in here), *(store.value for store in written)], 1, body, {})
        body.lines += indent(accumulators(text, here, True), 3)
        ahead = loads_of_steps(text, kernel, here, written)
        made = run_pass(text, body, here, written, array=True, loaded=ahead)
        if ahead:
            body.lines += indent(run_batches(text, kernel, body, ahead, made.lines(0)), 3)
            continue
        for depth, loop in enumerate(loops):
            steps = kernel.inner[depth][1]
            whole = steps.is_Integer and steps <= MOST_UNROLLED
            unroll = [f"#pragma unroll{'' if whole else ' 4'}"] if depth == len(loops) - 1 else []
            body.lines += indent([*unroll, loop], 3 + depth)
        body.lines += made.lines(3 + len(loops))
        body.lines += indent(["}"] * len(loops), 3)
    made = run_pass(text, body, [], stores, loaded=loaded, kept=numbers)
    body.lines += made.lines(3)
    at = f"(static_cast<{wide}>(block) * Items + item) * Threads + threadIdx.x"
    if row is not None and not (loaded or numbers):
        at = f"turned_in_rows({at}, {end}, {text.index_names.get(row) or index_text(row)})"
    top.lines += _over_items(wide, pack, at, end, body.lines)
    head = ("template <int Threads, int Items>", "__device__ __forceinline__ void")
    return finish_function(text, name, head, parameters, arguments, top, mark, roots, stores, first="unsigned block")


def launch_lines(launch: Launch) -> list[str]:
    """Independent kernels of elements share a launch: their blocks stand side by side."""
    program, together, plan = launch.program, launch.together, launch.plan
    name = "launch_" + "_and_".join(function.name for function, _ in together)
    given: dict[str, tuple[str, str]] = {}
    """Of a parameter's name."""
    counts: list[str] = []
    blocks: list[tuple[str, list[str]]] = []
    body = ["    wait_for_predecessor<1>();"] if plan.pdl else []
    sketch = plan.sketch
    assert isinstance(sketch, Elements)
    threads, items = sketch.texts(launch.searched)
    each, totals = f"({threads} * {items})", []
    for number, (function, _) in enumerate(together):
        kernel = function.kernel
        packs = in_axes(program, sympy.expand(kernel.rows / kernel.width))
        if sketch.ragged:
            rows, length = extent_of(kernel)
            packs = (
                f"{in_axes(program, rows)} * (({in_axes(program, length)} + {2 * sketch.vector - 2}) / {sketch.vector})"
            )
        count = f"blocks_{number + 1}"
        counts.append(count)
        totals.append(packs)
        for parameter, argument in zip(function.parameters, function.arguments, strict=True):
            own = parameter.split()[-1].lstrip("*")
            if own not in given or parameter.startswith("Divisor "):  # which serves as a number, too
                given[own] = (parameter, argument)
        call = f"{function.name}<Threads, Items>"
        before = " + ".join(counts[:-1])
        block = "blockIdx.x" if number == 0 else f"blockIdx.x - ({before})"
        statement = f"{call}({', '.join([block, *(p.split()[-1].lstrip('*') for p in function.parameters)])});"
        blocks.append((f"blockIdx.x < {' + '.join(counts)}", [statement]))
    body += indent(branch(blocks) if len(blocks) > 1 else blocks[0][1])
    extra = [f"unsigned {count}" for count in counts[:-1]]
    parameters, arguments = zip(*given.values(), strict=True)
    text = "\n".join([
        "template <int Threads, int Items>",
        f"__global__ void __launch_bounds__(Threads) {name}({', '.join([*parameters, *extra])}) {{", *body, "}", "",
    ])  # fmt: skip
    if text not in launch.file.texts:
        launch.file.texts.append(text)
    total = f"({' + '.join(totals)}) / {each}"
    arms = [("", threads, items)]
    if launch.narrow and any(function.staged for function, _ in together):
        arms.insert(0, (f"{total} >= {MANY_BLOCKS}", threads, f"{items} * 4"))
    if launch.narrow and sketch.threads >= 2 * WARP:
        fetched = any(fetches(function.kernel) for function, _ in together)
        arms.insert(0, (f"{total} < {FEW_BLOCKS}", *((threads, "1") if fetched else (f"{threads} / 2", items))))
    launches = []
    for condition, width, most in arms:
        each = f"({width} * {most})"
        made = [
            f"const unsigned {count} = static_cast<unsigned>(({packs} + {each} - 1) / {each});"
            for count, packs in zip(counts, totals, strict=True)
        ]
        all_given = [*arguments, *counts[:-1]]
        made.append(launch.by(f"{name}<{width}, {most}>", " + ".join(counts), width, all_given))
        launches.append((condition, made))
    return branch(launches) if len(launches) > 1 else launches[0][1]


def are_independent(together, following) -> bool:
    """Whether a kernel of elements may run beside those before it."""
    function, plan = following
    if not all(isinstance(p.sketch, Elements) for _, p in [*together, following]):
        return False
    if any((p.sketch, p.pdl) != (plan.sketch, plan.pdl) for _, p in together):
        return False
    writes = {
        p.split()[-1].lstrip("*") for f, _ in together for p in f.parameters if "*" in p and not p.startswith("const")
    }
    return not writes & {p.split()[-1].lstrip("*") for p in function.parameters}
