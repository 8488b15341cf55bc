"""Kernels of the sketches `elements` and `rows`: their loops around the passes of levels.py."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from compiler.codegen.batches import loads_of_steps, run_batches
from compiler.codegen.firsts import first_groups, open_keys, print_firsts
from compiler.codegen.levels import (
    StoreStatement,
    hoist,
    hoist_replaced,
    load_kept,
    load_numbers,
    parts_of,
    run_held,
    run_pass,
    windows_within,
)
from compiler.codegen.online import (
    below_maximum,
    groups_that_meet_once,
    online_groups,
    print_pass,
    print_results,
    print_shares,
    print_sums,
)
from compiler.codegen.passes import bytes_between, holds_few, keep_for_later, window_bytes
from compiler.codegen.printer import Printer
from compiler.codegen.ragged import RaggedText
from compiler.codegen.text import Text, Window
from compiler.draft.expressions import Expr, indices_of, loads_of, walk
from compiler.draft.index import FloorDiv, Index, estimate, index_is_divided
from compiler.draft.partition import Member
from compiler.draft.printing import Scope, _bare, indent, index_text
from compiler.draft.tensors import Buffer
from compiler.lookups import fetches
from compiler.program import KernelProgram, PackedKernel
from compiler.strides import row_read_across


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
    ring: int = 0
    """Of streams: bytes of a block for what is on its way."""
    ring_of_tiles: int = 0
    """The same where tensor cores multiply; 0: they never do."""
    staged: bool = False
    """Whether a block begins with a table in shared memory."""
    online: int = 0
    """Of rows: whether one pass over memory makes several stages' reductions (1), and nothing is left to do for an element (2)."""


def open_text(program: KernelProgram, kernel: PackedKernel, narrow: bool, ragged: int = 0, edges: bool = False) -> Text:
    """`ragged`: elements of a pack of rows that packs do not divide; 0: packs are the program's. `edges`: see ragged.py."""
    fast = may_approximate(program)
    text = (
        RaggedText(program, kernel, fast, ragged, edges)
        if ragged
        else Text(program, kernel, "int" if narrow else "int64_t", fast)
    )
    text.staged = {}
    return text


def may_approximate(program: KernelProgram) -> bool:
    """Whether exact functions may be the device's fast ones; not where whole numbers wider than a byte are all that comes out, which they decide."""
    if program.exact:
        return False
    large = _large(program)
    if not large:
        return all(b.dtype.itemsize == 1 for b in program.outputs.values())
    return all(b.dtype not in (torch.float32, torch.float64) for b in large)


class TileText(Text):
    """Of a kernel that reads some buffers from tiles in shared memory, never through windows of their own."""

    def __init__(self, program: KernelProgram, kernel: PackedKernel, wide: str, tiles: Collection[Buffer]) -> None:
        super().__init__(program, kernel, wide, may_approximate(program))
        self.tiles, self.staged = tiles, {}

    def window(self, buffer: Buffer, place: Index, by=None, lanes=None) -> tuple[Window, Index] | None:
        return None if buffer in self.tiles else super().window(buffer, place, by, lanes)


SMALL_SHARE = 16
"""A float for that many others: a group's scale beside its elements."""


def _large(program: KernelProgram) -> list[Buffer]:
    """Outputs of floats that are not reductions' small ones: they say how exact functions must be."""
    floats = [b for b in program.outputs.values() if b.dtype.is_floating_point]
    rank = max((len(b.shape) for b in floats), default=0)
    count = {b: estimate(b.elements, program.lowered.hints) for b in floats}
    large = [b for b in floats if len(b.shape) == rank and b.shape[-1] != 1]
    return [b for b in large if SMALL_SHARE * count[b] > max(count.values())] or floats


def signature(
    text: Text,
    stores: list[StoreStatement],
    roots: list[Expr],
    counts: list[Index],
    plain: bool = False,
    leaves: Collection[str] = (),
) -> tuple[list[str], list[str]]:
    """Parameters and arguments: pointers in the spec's order, sizes, scalars. `plain`: sizes are numbers, no divisors. `leaves`: scalars that the
    kernel makes itself."""
    program = text.program
    indices = indices_of(roots)
    indices += [store.place for store in stores] + [store.by[1] for store in stores if store.by] + counts
    if isinstance(text, RaggedText):
        indices += [window.buffer.elements for window in text.windows(roots) if not window.aligned]
    elif text.width > 1 and not plain:
        indices += [window.buffer.elements for window in text.windows(roots) if window.edged]
    known = set(program.lowered.hints)
    sizes = sorted({s for index in indices for s in index.free_symbols & known}, key=str)
    read = {e.args[0].text: e.args[0] for e in walk(roots) if e.op in ("load", "load_at")}
    written = {store.buffer.text: store.buffer for store in stores}
    parameters, arguments = [], []
    for name in (*(tensor.name for tensor in program.spec.tensors), *(buffer.text for buffer in program.scratch)):
        buffer = written.get(name) or read.get(name)
        if buffer is None:
            continue
        const = "" if name in written else "const "
        restrict = "" if name in written and name in read else "__restrict__ "
        parameters.append(f"{const}{text.element(buffer.dtype)}* {restrict}{name}")
        arguments.append(name)
    divisors = set() if plain else text.take_divisors(indices, known)
    for size in sizes:
        given, divides = _size_text(program, size), size in divisors
        parameters.append(f"{'Divisor' if divides else text.wide} {size}")
        arguments.append(f"Divisor({given})" if divides else f"static_cast<{text.wide}>({given})")
    for product, name in text.index_names.items():
        parameters.append(f"Divisor {name}")
        arguments.append(f"Divisor({in_axes(program, product)})")
    scalars = dict.fromkeys((e.args[0], e.type) for e in walk(roots) if e.op == "scalar" and e.args[0] not in leaves)
    parameters += [f"{type} {name}" for name, type in scalars]
    arguments += [name for name, _ in scalars]
    return parameters, arguments


def _size_text(program: KernelProgram, size: sympy.Symbol) -> str:
    """A size symbol by the entry's axes: cols_8 is cols / 8."""
    if size in program.quotients:
        return in_axes(program, size)
    axis, by = program.symbols[size]
    return axis if by == 1 else f"{axis} / {by}"


def in_axes(program: KernelProgram, index: Index) -> str:
    """An index of sizes in the entry's names."""
    index = index.xreplace(program.quotients)
    if index_is_divided([index]):
        symbols = sorted(index.free_symbols, key=str)
        return index_text(index, {symbol: f"({_size_text(program, symbol)})" for symbol in symbols})
    named = {axis: sympy.Symbol(axis, integer=True, positive=True) for axis in program.sizes}
    back = {s: named[axis] / (by if isinstance(by, int) else named[by]) for s, (axis, by) in program.symbols.items()}
    expression = sympy.cancel(index.xreplace(back))
    top, bottom = expression.as_numer_denom()
    text = index_text(sympy.expand(top))
    return text if bottom == 1 else f"({text}) / {bottom}"


def last_write(text: Text, stores: list[StoreStatement], folds: list[Member]) -> int:
    """The stage in which elements are written: no reduction may read them after that."""
    written = {store.buffer.text for store in stores}
    reading = [m.stage for m in folds if any(load.args[0].text in written for load in loads_of([text.value(m)]))]
    return max([store.stage for store in stores] + (reading if stores else []), default=-1)


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


def rows_function(
    program: KernelProgram,
    kernel: PackedKernel,
    name: str,
    narrow: bool,
    resident: bool,
    pdl: bool,
    ragged: int = 0,
    held: bool = True,
    text: Text | None = None,
    brought: Iterable[Expr] = (),
    fill: Callable[[], list[str]] = list,
) -> KernelFunction:
    """`template <int Threads, int Team, int Split[, int Items]>`: `Team` threads to a row, a block (0), or a cluster of `Split`
    blocks, of as many as the launch says where that is 0. `text`: of what `fill` brings into shared memory, by the loads that are `brought`."""
    text = text or open_text(program, kernel, narrow, ragged, edges=resident)
    slots = "Items + 1" if resident and ragged else "Items"
    stores, folds, roots = parts_of(text)
    parts = kernel.parts
    apart = [store for store in stores if store.place.free_symbols & parts.keys()]
    full = [store for store in stores if not store.per_row and store not in apart]
    last_fold = max((member.stage for member in folds), default=-1)
    final = last_write(text, full, folds)
    stages = sorted({*(m.stage for m in folds), *([final] if full else [])})
    parameters, arguments = signature(text, stores, [*roots, *brought], [kernel.rows, kernel.length, *parts.values()])
    text.begin(roots)
    roots = [root for root in roots if all(root is not one for store in apart for one in store.roots)]
    wide, pack, end = text.wide, text.counter, text.packs_text()
    row = str(kernel.row) if kernel.row.is_Symbol else text.fresh("row")
    top = Scope(1)
    top.line(
        "const int row_blocks = blocks_of_cluster<Split>(), team_width = Team > 0 ? Team : blockDim.x, team_step = team_width * row_blocks;"
    )
    top.line("const int row_part = blockIdx.x % row_blocks, row_cluster = blockIdx.x / row_blocks;")
    top.line(
        "const int team_member = Team > 0 ? threadIdx.x % (Team > 0 ? Team : 1) : row_part * team_width + threadIdx.x;"
    )
    top.line(
        f"const {wide} team_row = Team > 0 ? static_cast<{wide}>(row_cluster) * (Threads / (Team > 0 ? Team : 1)) + threadIdx.x / (Team > 0 ? Team : 1) : row_cluster;"
    )
    top.line(f"const bool is_row = team_row < {index_text(kernel.rows)};")
    top.line(f"const {wide} {row} = is_row ? team_row : 0;")
    top.lines += indent(text.opening(), 1)
    if folds:
        top.line("enter_cluster<Split>();")
    wait(top, pdl, "Split")
    top.lines += indent(fill(), 1)
    hoist_replaced(text, roots, stores, top)
    waited = len(top.lines)
    loaded: dict[Window, str] = {}
    numbers: dict[int, str] = {}
    if resident:
        loaded, numbers = load_kept(text, top, roots, end, slots)
    mark = waited if text.tables or text.staged else len(top.lines)  # tables are fetched while packs are on their way
    several = any(window.width * window.buffer.dtype.itemsize > 16 for window in text.windows(roots))
    open_loop = (
        ["#pragma unroll", f"for (int item = 0; item < {slots}; ++item) {{", f"    const {wide} {pack} = team_member + item * team_step;",
         f"    if (is_row && {text.inside(str(pack), end)}) {{"]
        if resident
        else [f"#pragma unroll {2 if several else 4}", f"for ({wide} {pack} = is_row ? team_member : {end}; {pack} < {end}; {pack} += team_step) {{"]
    )  # fmt: skip
    close_loop = ["    }", "}"] if resident else ["}"]
    # What needs no reduction that comes later is written while that is waited for; nothing of it is read again.
    again = {
        load.args[0].text
        for load in loads_of(roots)
        if (found := text.load_window(load)) is None or found[0] not in loaded
    }
    selected = first_groups(text, folds) if resident and not ragged else []
    found_so = {member for group in selected for member in group.members}
    keyed = {group.best[0]: group for group in selected}
    early = {s: s.stage for s in full if s.stage in stages and s.buffer.text not in again} if resident else {}
    online = groups_that_meet_once(text, folds, {final, *early.values()}) if resident else online_groups(text, folds)
    online = [] if selected else online
    merged = {one for group in online for one in (*group.sums, *(made for made, _ in group.made))}
    passes = {
        stage: [
            *(text.value(m) for m in folds if m.stage == stage and (m in keyed or m not in found_so)),
            *(s.value for s in full if early.get(s, final) == stage),
        ]
        for stage in stages
    }
    again_by = keep_for_later(text, passes) if resident and held else {}
    for group in online if resident else ():
        stage = group.maximum.stage + 1
        again_by[stage] = below_maximum(text, group, again_by.get(stage, []))
    few = holds_few(text, passes, again_by)
    holds = {id(expr): text.fresh("held") for found in again_by.values() for expr in found}
    lane = f"[{text.lane_name}]" if text.width > 1 else ""
    kept = {at: f"{name}[item]{lane}" for at, name in holds.items()}
    top.lines += [f"    float {name}[{slots}]{f'[{text.width}]' if lane else ''};" for name in holds.values()]
    loops = 0
    for stage in sorted({*stages, last_fold + 1}):
        here = [m for m in folds if m.stage == stage and m not in merged and m not in found_so]
        firsts = [one for one in keyed if one.stage == stage]
        groups = [group for group in online if group.maximum.stage == stage]
        written = [store for store in full if early.get(store, final) == stage] if stage in stages else []
        if stage in stages and (here or firsts or written):
            loops += 1
            sums = [one for group in groups for one in group.sums]
            hoist(text, [*(text.value(m) for m in [*here, *firsts, *sums]), *(s.value for s in written)], 0, top, {})
            top.lines += indent(accumulators(text, [*here, *sums], False), 1)
            top.lines += indent([open_keys(text, keyed[one], slots) for one in firsts], 1)
            if groups and not resident:
                others = [m for m in here if all(m is not group.maximum for group in groups)]
                print_pass(text, top, groups, others, written, end)
            else:
                keep = [(expr, kept[id(expr)]) for expr in again_by.get(stage, [])]
                before = {id(expr) for at, found in again_by.items() if at < stage for expr in found}
                left = {at: name for at, name in kept.items() if at in before or at not in holds}
                body = run_held(text, top, [*here, *firsts], written, numbers, left, few, loaded=loaded, keep=keep)
                body = indent([*text.pack_opening(), *body], 2 if resident else 1)
                top.lines += indent([*open_loop, *body, *close_loop], 1)
            for group in groups if resident else ():
                keep = [(expr, kept[id(expr)]) for expr in again_by[stage + 1]]
                left = {id(expr): kept[id(expr)] for at, found in again_by.items() if at <= stage for expr in found}
                sums_below = print_sums(text, top, group, loaded, numbers | left, keep)
                top.lines += indent([*open_loop, *indent(sums_below, 2), *close_loop], 1)
            if loops == 1 and folds:
                top.line("await_cluster<Split>();")
            for member in here:
                if all(member is not group.maximum for group in groups):
                    folded = text.fold_names[member]
                    none = f"static_cast<{text.fold_type(member)}>({text.identity(member)})"
                    call = f"team_reduce<Threads, Team, Split>({folded}, {none}, {text.join(member)})"
                    top.line(f"{folded} = {call};")
            for group in groups:
                own = print_results(text, top, group, resident)
                held_below = {expr: kept[id(expr)] for expr in (again_by[stage + 1] if resident else ())}
                kept |= print_shares(text, top, group, own, held_below, [store.value for store in full])
            for one in firsts:
                print_firsts(text, top, keyed[one])
        row_stores(
            text, top, [s for s in stores if s.per_row and s.stage == stage + 1], "if (is_row && team_member == 0) {"
        )
    for at, count in parts.items():
        written = [store for store in apart if at in store.place.free_symbols]
        hoist(text, [store.value for store in written], 0, top, {})
        made = run_pass(text, top, [], written)
        last = index_text(sympy.expand(count))
        top.line(f"for ({wide} {at} = is_row ? team_member : {last}; {at} < {last}; {at} += team_step) {{")
        top.lines += [*made.lines(2), "    }"]
    head = (
        "template <int Threads, int Team, int Split, int Items>"
        if resident
        else "template <int Threads, int Team, int Split>"
    )
    opening = (head, "__global__ void __launch_bounds__(Threads)")
    beside = 8 if ragged else 0  # of the one element beside a row's packs
    bytes = max(
        window_bytes(loaded, beside) + 4 * len(numbers),
        bytes_between(text, passes, again_by, beside),
    )
    moved = [
        window for window in text.windows(roots) if window.by is None and window.base.free_symbols & text.levels[0]
    ]
    streams = (
        sum(window.width * window.buffer.dtype.itemsize for window in moved) >= 16
    )  # else a loop has few bytes on their way
    online = [] if resident else online
    made_at_once = int(bool(online)) if loops != 1 or parts else 3 if several else 2 if online or streams else 0
    return finish_function(
        text, name, opening, parameters, arguments, top, mark, roots, stores, kept=bytes, online=made_at_once
    )


def finish_function(
    text: Text, name: str, head: tuple[str, str], parameters: list[str], arguments: list[str], top: Scope, mark: int, roots: list[Expr],
    stores: list[StoreStatement], first: str = "", **said: Any,
) -> KernelFunction:  # fmt: skip
    """The function that holds the lines of `top`, tables fetched in front of line `mark`. `first`: a parameter that the launch has by itself."""
    before, begin = text.tables_text(name)
    given = ", ".join([*([first] if first else []), *parameters])
    template, kind = head
    lines = [*before, template, f"{kind} {name}({given}) {{", *top.lines[:mark], *begin, *top.lines[mark:], "}", ""]
    packed = _packed(text, roots, stores)
    return KernelFunction(
        name, "\n".join(lines), tuple(parameters), tuple(arguments), packed, text.kernel, staged=bool(begin), **said
    )


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


def _packed(text: Text, roots: list[Expr], stores: list[StoreStatement]) -> tuple[Buffer, ...]:
    """Buffers that are moved by more than an element at a time."""
    windows = [*text.windows(roots), *windows_within(text, roots)]
    windows += [p[0] for s in stores if (p := text.window(s.buffer, s.place, s.by))]
    found = [window.buffer for window in windows if window.width > 1 and window.aligned]
    return tuple(dict.fromkeys(found))


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


MOST_UNROLLED = 8
"""Steps up to which a loop whose end is known has none left."""


def elements_function(
    program: KernelProgram, kernel: PackedKernel, name: str, narrow: bool, ragged: int = 0
) -> KernelFunction:
    """`template <int Threads, int Items>`, a device function of a block's number: a thread to each pack."""
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
