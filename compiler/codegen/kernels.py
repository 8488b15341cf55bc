"""Kernels of the sketches `elements` and `rows`: their loops around the passes of levels.py."""

from __future__ import annotations

from dataclasses import dataclass

import sympy
import torch

from compiler.codegen.levels import StoreStatement, folds_of, hoist, run_pass, stores_of
from compiler.codegen.ragged import RaggedText
from compiler.codegen.text import Printer, Text, Window
from compiler.draft.expressions import Expr, loads_of, walk
from compiler.draft.index import Index, index_is_divided
from compiler.draft.partition import Member
from compiler.draft.printing import Scope, _bare, index_text
from compiler.draft.tensors import Buffer
from compiler.program import KernelProgram, PackedKernel


@dataclass(frozen=True)
class KernelFunction:
    """A kernel's text and what it is called with."""

    name: str
    text: str
    parameters: tuple[str, ...]
    arguments: tuple[str, ...]
    """Text of each, in the entry's names."""
    packed: tuple[Buffer, ...]
    """What must be aligned."""
    kernel: PackedKernel
    kept: int = 0
    """Bytes of registers that a pack of a row takes which stays there; of columns, what a thread loads of a row."""
    waits: bool = False
    """Of columns: whether a row is loaded as the one before it is done, not ahead."""


def open_text(program: KernelProgram, kernel: PackedKernel, narrow: bool, ragged: int = 0) -> Text:
    """`ragged`: elements of a pack of rows that packs do not divide; 0: packs are the program's."""
    fast = all(b.dtype not in (torch.float32, torch.float64) for b in _large(program))
    if ragged:
        return RaggedText(program, kernel, fast, ragged)
    return Text(program, kernel, "int" if narrow else "int64_t", fast)


def _large(program: KernelProgram) -> list[Buffer]:
    """Outputs of floats that are not reductions' small ones: they say how exact functions must be."""
    floats = [b for b in program.outputs.values() if b.dtype.is_floating_point]
    rank = max((len(b.shape) for b in floats), default=0)
    return [b for b in floats if len(b.shape) == rank and b.shape[-1] != 1] or floats


def signature(
    text: Text, stores: list[StoreStatement], roots: list[Expr], counts: list[Index]
) -> tuple[list[str], list[str]]:
    """Parameters and arguments: pointers in the spec's order, sizes, scalars."""
    program = text.program
    indices = [a for e in walk(roots) for a in e.args if isinstance(a, sympy.Expr)]
    indices += [store.place for store in stores] + [store.by[1] for store in stores if store.by] + counts
    known = set(program.lowered.hints)
    sizes = sorted({s for index in indices for s in index.free_symbols & known}, key=str)
    read = {e.args[0].text: e.args[0] for e in walk(roots) if e.op in ("load", "load_at")}
    written = {store.buffer.text: store.buffer for store in stores}
    parameters, arguments = [], []
    for tensor in program.spec.tensors:
        name = tensor.name
        buffer = written.get(name) or read.get(name)
        if buffer is None:
            continue
        const = "" if name in written else "const "
        restrict = "" if name in written and name in read else "__restrict__ "
        parameters.append(f"{const}{text.element(buffer.dtype)}* {restrict}{name}")
        arguments.append(name)
    parameters += [f"{text.wide} {size}" for size in sizes]
    arguments += [f"static_cast<{text.wide}>({_size_text(program, size)})" for size in sizes]
    scalars = dict.fromkeys((e.args[0], e.type) for e in walk(roots) if e.op == "scalar")
    parameters += [f"{type} {name}" for name, type in scalars]
    arguments += [name for name, _ in scalars]
    return parameters, arguments


def _size_text(program: KernelProgram, size: sympy.Symbol) -> str:
    """A size symbol by the entry's axes: cols_8 is cols / 8."""
    axis, by = program.symbols[size]
    return axis if by == 1 else f"{axis} / {by}"


def in_axes(program: KernelProgram, index: Index) -> str:
    """An index of sizes in the entry's names."""
    if index_is_divided([index]):
        symbols = sorted(index.free_symbols, key=str)
        return index_text(index, {symbol: f"({_size_text(program, symbol)})" for symbol in symbols})
    named = {axis: sympy.Symbol(axis, integer=True, positive=True) for axis in program.sizes}
    back = {s: named[axis] / (by if isinstance(by, int) else named[by]) for s, (axis, by) in program.symbols.items()}
    expression = sympy.cancel(index.xreplace(back))
    top, bottom = expression.as_numer_denom()
    text = index_text(sympy.expand(top))
    return text if bottom == 1 else f"({text}) / {bottom}"


def accumulators(text: Text, folds: list[Member], array: bool) -> list[str]:
    lines = []
    for member in folds:
        name = text.fold_names[member] = text.fresh(f"{member.definition.origin}_{member.definition.kind}")
        start = f"{text.fold_type(member)} {name}"
        if array:
            lines += [
                f"{start}[{text.width}];",
                "#pragma unroll",
                f"for (auto& one : {name}) {{ one = {text.identity(member)}; }}",
            ]
        else:
            lines.append(f"{start} = {text.identity(member)};")
    return lines


def wait(top: Scope, pdl: bool, split: str) -> None:
    """Of a kernel that may be set up early: nothing before it may touch memory, and every thread comes here."""
    if pdl:
        top.line(f"wait_for_predecessor<{split}>();")


def indent(lines: list[str], by: int) -> list[str]:
    return ["    " * by + line for line in lines]


def rows_function(
    program: KernelProgram, kernel: PackedKernel, name: str, narrow: bool, resident: bool, pdl: bool, ragged: int = 0
) -> KernelFunction:
    """`template <int Threads, int Team, int Split[, int Items]>`: `Team` threads to a row, a block (0), or a cluster of `Split`
    blocks, of as many as the launch says where that is 0."""
    text = open_text(program, kernel, narrow, ragged)
    stores = stores_of(text)
    folds = folds_of(text, stores)
    full = [store for store in stores if not store.per_row]
    last_fold = max((member.stage for member in folds), default=-1)
    final = max((store.stage for store in full), default=-1)
    stages = sorted({*(m.stage for m in folds), *([final] if full else [])})
    roots = [*(text.value(m) for m in folds), *(root for s in stores for root in s.roots)]
    parameters, arguments = signature(text, stores, roots, [kernel.rows, kernel.length])
    text.begin(roots)
    wide, pack, end = text.wide, text.counter, text.packs_text()
    row = str(kernel.row) if kernel.row.is_Symbol else text.fresh("row")
    top = Scope(1)
    top.line(
        "const int row_blocks = blocks_of_cluster<Split>(), team_width = Team > 0 ? Team : blockDim.x, team_step = team_width * row_blocks;"
    )
    top.line("const int team_member = blockIdx.x % row_blocks * team_width + threadIdx.x % team_width;")
    top.line(
        f"const {wide} team_row = static_cast<{wide}>(blockIdx.x / row_blocks) * (Team > 0 ? Threads / (Team > 0 ? Team : 1) : 1) + threadIdx.x / team_width;"
    )
    top.line(f"const bool is_row = team_row < {index_text(kernel.rows)};")
    top.line(f"const {wide} {row} = is_row ? team_row : 0;")
    top.lines += indent(text.opening(), 1)
    wait(top, pdl, "Split")
    loaded: dict[Window, str] = {}
    if resident:
        loaded = _resident(text, top, roots, pack, end)
    open_loop = (
        ["#pragma unroll", "for (int item = 0; item < Items; ++item) {", f"    const {wide} {pack} = team_member + item * team_step;",
         f"    if (is_row && {pack} < {end}) {{"]
        if resident
        else ["#pragma unroll 4", f"for ({wide} {pack} = is_row ? team_member : {end}; {pack} < {end}; {pack} += team_step) {{"]
    )  # fmt: skip
    close_loop = ["    }", "}"] if resident else ["}"]
    # What needs no reduction that comes later is written while that is waited for; nothing of it is read again.
    again = {
        load.args[0].text
        for load in loads_of(roots)
        if (found := text.load_window(load)) is None or found[0] not in loaded
    }
    early = {s: s.stage for s in full if s.stage in stages and s.buffer.text not in again} if resident else {}
    for stage in sorted({*stages, last_fold + 1}):
        here = [m for m in folds if m.stage == stage]
        written = [store for store in full if early.get(store, final) == stage] if stage in stages else []
        if stage in stages and (here or written):
            values = [*(text.value(m) for m in here), *(s.value for s in written)]
            hoist(text, values, 0, top, {})
            top.lines += indent(accumulators(text, here, False), 1)
            made = run_pass(text, top, here, written, loaded=loaded, hold=True)
            deep = 3 if resident else 2
            body = indent(text.pack_opening(), deep) + made.lines(deep)
            top.lines += indent(open_loop, 1) + body + indent(close_loop, 1)
            for member in here:
                held = text.fold_names[member]
                call = f"team_reduce<Threads, Team, Split>({held}, {_typed(text, member)}, {text.join(member)})"
                top.line(f"{held} = {call};")
        row_stores(
            text, top, [s for s in stores if s.per_row and s.stage == stage + 1], "if (is_row && team_member == 0) {"
        )
    if folds:
        top.line("leave_cluster<Split>();")
    head = (
        "template <int Threads, int Team, int Split, int Items>"
        if resident
        else "template <int Threads, int Team, int Split>"
    )
    lines = [
        head, f"__global__ void __launch_bounds__(Threads) {name}({', '.join(parameters)}) {{", *top.lines, "}", ""
    ]  # fmt: skip
    beside = 12 if ragged else 0  # which of a pack's lanes are inside a row
    kept = sum(max(4, window.width * window.buffer.dtype.itemsize) + beside for window in loaded)
    return KernelFunction(
        name, "\n".join(lines), tuple(parameters), tuple(arguments), _packed(text, roots, stores), kernel, kept
    )


def _typed(text: Text, member: Member) -> str:
    return f"static_cast<{text.fold_type(member)}>({text.identity(member)})"


def row_stores(text: Text, top: Scope, stores: list[StoreStatement], who: str) -> None:
    """What is written once a row, in a block that `who` opens."""
    if not stores:
        return
    roots = [root for store in stores for root in store.roots]
    hoist(text, roots, 0, top, {})
    top.line(who)
    inner = Scope(top.indent + 1, top)
    printer = Printer(text, inner, roots, {})
    for store in stores:
        value = text.stored_text(store.buffer, printer.text(store.value, inner))
        stored = f"{text.place(store, inner, printer)} = {value};"
        inner.line(stored if store.when is None else f"if ({_bare(printer.text(store.when, inner))}) {{ {stored} }}")
    top.lines += inner.lines
    top.line("}")


def _resident(text: Text, top: Scope, roots: list[Expr], pack, end: str) -> dict[Window, str]:
    """Every window that the kernel reads, loaded before anything else: a row's bytes are in flight at once."""
    windows = [w for w in text.windows(roots) if w.by is None or text.level(w.by[0]) == 0]
    hoist(text, [w.by[0] for w in windows if w.by], 0, top, {})
    found = {}
    loads = Scope(3, top)
    printer = Printer(text, loads, [w.by[0] for w in windows if w.by], {})
    for window in windows:
        name = text.fresh(f"{window.buffer.name}_kept")
        top.line(f"{text.type_of(window)} {name}[Items];")
        loads.line(f"{name}[item] = {text.load(window, text.address(window, loads, printer))};")
        found[window] = f"{name}[item]"
    if windows:
        top.lines += [
            "    #pragma unroll", "    for (int item = 0; item < Items; ++item) {",
            f"        const {text.wide} {pack} = team_member + item * team_step;", f"        if (is_row && {pack} < {end}) {{",
            *indent(text.pack_opening(), 3), *loads.lines, "        }", "    }",
        ]  # fmt: skip
    return found


def _packed(text: Text, roots: list[Expr], stores: list[StoreStatement]) -> tuple[Buffer, ...]:
    """Buffers that are moved by more than an element at a time."""
    windows = [*text.windows(roots), *(p[0] for s in stores if (p := text.window(s.buffer, s.place, s.by)))]
    found = [window.buffer for window in windows if window.width > 1 and window.aligned]
    return tuple(dict.fromkeys(found))


def _ahead(text: Text, top: Scope, roots: list[Expr], pack, end: str) -> dict[Window, str]:
    """Windows whose places need nothing that is loaded, of all a thread's packs, before any of them is stored."""
    windows = [w for w in text.windows(roots) if w.by is None]
    found = {}
    loads = Scope(3, top)
    for window in windows:
        name = text.fresh(f"{window.buffer.name}_ahead")
        top.line(f"{text.type_of(window)} {name}[Items];")
        loads.line(f"{name}[item] = {text.load(window, text.address(window, loads, None))};")
        found[window] = f"{name}[item]"
    if windows:
        place = f"(static_cast<{text.wide}>(block) * Items + item) * Threads + threadIdx.x"
        top.lines += [
            "    #pragma unroll", "    for (int item = 0; item < Items; ++item) {",
            f"        const {text.wide} {pack} = {place};", f"        if ({pack} < {end}) {{",
            *indent(text.pack_opening(), 3), *loads.lines, "        }", "    }",
        ]  # fmt: skip
    return found


def elements_function(
    program: KernelProgram, kernel: PackedKernel, name: str, narrow: bool, ragged: int = 0
) -> KernelFunction:
    """`template <int Threads, int Items>`, a device function of a block's number: a thread to each pack."""
    text = open_text(program, kernel, narrow, ragged)
    stores = stores_of(text)
    folds = folds_of(text, stores)
    roots = [*(text.value(m) for m in folds), *(root for s in stores for root in s.roots)]
    parameters, arguments = signature(text, stores, roots, [kernel.rows, *(end for _, end in kernel.inner)])
    text.begin(roots)
    wide, pack, end = text.wide, text.counter, text.packs_text()
    top = Scope(1)
    top.lines += indent(text.opening(), 1)
    hoist(text, roots, 0, top, {})
    loaded = {} if folds else _ahead(text, top, roots, pack, end)
    body = Scope(3, top)
    body.lines += indent(text.pack_opening(), 3)
    loops = [f"for ({wide} {loop} = 0; {loop} < {index_text(size)}; ++{loop}) {{" for loop, size in kernel.inner]
    for stage in sorted({m.stage for m in folds}):
        here = [m for m in folds if m.stage == stage]
        hoist(text, [text.value(m) for m in here], 1, body, {})
        body.lines += indent(accumulators(text, here, True), 3)
        made = run_pass(text, body, here, [], array=True)
        for depth, loop in enumerate(loops):
            unroll = ["#pragma unroll 4"] if depth == len(loops) - 1 else []
            body.lines += indent([*unroll, loop], 3 + depth)
        body.lines += made.lines(3 + len(loops))
        body.lines += indent(["}"] * len(loops), 3)
    made = run_pass(text, body, [], stores, loaded=loaded)
    body.lines += made.lines(3)
    lines = [
        "template <int Threads, int Items>",
        f"__device__ __forceinline__ void {name}(unsigned block{''.join(f', {p}' for p in parameters)}) {{",
        *top.lines,
        "    #pragma unroll",
        "    for (int item = 0; item < Items; ++item) {",
        f"        const {wide} {pack} = (static_cast<{wide}>(block) * Items + item) * Threads + threadIdx.x;",
        f"        if ({pack} < {end}) {{", *body.lines, "        }", "    }", "}", "",
    ]  # fmt: skip
    return KernelFunction(
        name, "\n".join(lines), tuple(parameters), tuple(arguments), _packed(text, roots, stores), kernel
    )
