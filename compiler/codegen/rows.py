"""Kernels of the sketch `rows`: reductions of the innermost axes, a team of threads, a block or a cluster of blocks to a row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import sympy

from compiler.codegen.firsts import first_groups, open_keys, print_firsts
from compiler.codegen.kernels import (
    KernelFunction,
    Launch,
    accumulators,
    finish_function,
    in_axes,
    last_write,
    open_text,
    packs_of_row,
    row_stores,
    signature,
    wait,
)
from compiler.codegen.levels import (
    hoist,
    hoist_replaced,
    load_kept,
    parts_of,
    run_held,
    run_pass,
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
from compiler.codegen.text import Text, Window
from compiler.draft.expressions import Expr, loads_of, walk
from compiler.draft.partition import Member
from compiler.draft.printing import Scope, branch, indent, index_text
from compiler.program import KernelProgram, PackedKernel
from compiler.schedule import WARP, KernelPlan, Rows, row_team


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
    if kernel.chunked is not None:
        rest = index_text(sympy.expand((kernel.chunked - kernel.row * kernel.length) / text.width))
        top.line(f"const {wide} chunk_packs = minimum<{wide}>({rest}, {end});")
        end = "chunk_packs"
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
    sought = {member: best for member in folds if (best := _sought(text, member)) is not None}
    own_best: dict[Member, str] = {}
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
                loop = [*open_loop, *body, *close_loop]
                best = sought.get(here[0]) if here and len({sought.get(member) for member in here}) == 1 else None
                own = None if best is None else own_best.get(best)
                if best is not None and own is not None and not (firsts or written or groups or keep):
                    loop = [f"if ({own} == {text.fold_names[best]} || {own} != {own}) {{", *indent(loop, 1), "}"]
                top.lines += indent(loop, 1)
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
                    if member in sought.values():
                        own_best[member] = text.fresh(f"{folded}_own")
                        top.line(f"const {text.fold_type(member)} {own_best[member]} = {folded};")
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


def _sought(text: Text, member: Member) -> Member | None:
    """The extreme whose first place a reduction seeks, as that of argmax: a thread whose own extreme is another has no such place."""
    value = text.value(member)
    if member.definition.kind != "min" or value.op != "where" or value.args[2].op != "const":
        return None
    compared = [expr for expr in walk(value.args[:1]) if expr.op in ("eq", "ne")]
    bests = [expr.args[1].args[0] for expr in compared if expr.op == "eq" and expr.args[1].op == "fold"]
    if len(bests) != 1 or bests[0].definition.kind not in ("max", "min") or bests[0].definition.type != "float":
        return None
    of, best = text.value(bests[0]), text.fold(bests[0])
    known = all(expr.args in ((of, best), (of, of), (best, best)) for expr in compared)
    plain = all(expr.op in ("or", "and", "eq", "ne") or expr in (of, best) for expr in _above(value.args[0], of))
    return bests[0] if known and plain and bests[0].stage < member.stage else None


def _above(expr: Expr, leaf: Expr) -> Iterator[Expr]:
    """The expressions of a condition down to what it compares."""
    yield expr
    if expr is not leaf and expr.op in ("or", "and", "eq", "ne"):
        for arg in expr.args:
            yield from _above(arg, leaf)


def kernel_function(
    program: KernelProgram, kernel: PackedKernel, name: str, narrow: bool, plan: KernelPlan
) -> KernelFunction:
    sketch = plan.sketch
    assert isinstance(sketch, Rows)
    return rows_function(program, kernel, name, narrow, sketch.items > 0, plan.pdl, plan.ragged, sketch.held)


def launch_lines(launch: Launch) -> list[str]:
    sketch = launch.plan.sketch
    assert isinstance(sketch, Rows)
    if not sketch.by_size:
        return _launch_planned(launch)
    plan = launch.plan.model_copy(update={"sketch": sketch.model_copy(update={"items": 0})})
    return _launch_by_size(launch, launch.file.function(launch.program, launch.at, plan, launch.narrow))


def _launch_by_size(launch: Launch, loops: KernelFunction) -> list[str]:
    """The host asks `plan_rows` what suits the size at hand; `loops` takes the rows that no register holds."""
    program, function, plan = launch.program, launch.function, launch.plan
    kernel, sketch = function.kernel, plan.sketch
    assert isinstance(sketch, Rows)
    rows, packs = in_axes(program, kernel.rows), packs_of_row(program, kernel, plan)
    kept = f"{function.name}<row_width({{0}}, {function.kept}), 0, {{1}}, {{0}}>"
    counts = [sketch.unit << choice for choice in range(4)]
    asked = ", ".join(f"registers_of({kept.format(items, 1)})" for items in counts)
    wanted, split, resident = sketch.texts(launch.searched)
    given = f"{wanted}, {split if sketch.clusters else 0}{f', {resident}' if loops.online else ''}"
    lines = [
        f"static const int row_registers[] = {{{asked}}};",
        f"const RowPlan row_plan = plan_rows<{sketch.unit}, {function.kept}, {str(sketch.clusters).lower()}{f', {loops.online}' if loops.online else ''}>({rows}, {packs}, row_registers, {given});",
        f"const unsigned grid_blocks = static_cast<unsigned>({rows}) * row_plan.split;",
    ]
    cuts = [(1, items) for items in counts] + [(0, items) for items in counts[1::2] if sketch.clusters]
    cuts += [(1, 0), *([(0, 0)] if sketch.clusters else [])]
    arms = []
    if loops.online == 3:
        by_warps = launch.by(
            f"{loops.name}<128, {WARP}, 1>", f"static_cast<unsigned>(({rows} + 3) / 4)", "128", loops.arguments
        )
        arms.append(("row_plan.items == kByWarps", [by_warps]))
    for parts, items in cuts:
        call = kept.format(items, parts) if items else f"{loops.name}<{sketch.threads}, 0, {parts}>"
        launched = launch.by(
            call,
            "grid_blocks",
            "row_plan.threads",
            function.arguments if items else loops.arguments,
            "1" if parts else "row_plan.split",
        )
        arms.append((f"row_plan.split {'==' if parts else '>'} 1 && row_plan.items == {items}", [launched]))
    return [*lines, *branch(arms)]


def _launch_planned(launch: Launch) -> list[str]:
    program, function, plan = launch.program, launch.function, launch.plan
    kernel, sketch = function.kernel, plan.sketch
    assert isinstance(sketch, Rows)
    rows, packs = in_axes(program, kernel.rows), packs_of_row(program, kernel, plan)
    lines: list[str] = []
    numbers: list[int | str] = [sketch.threads, sketch.team, 1]
    threads, longest = str(sketch.threads), sketch.longest
    each = str(sketch.threads // sketch.team if sketch.team else 1)
    if sketch.items and launch.file.open and not sketch.few:
        assert longest is not None
        least = 2 * sketch.vector if sketch.ragged else 1
        teams = {
            items: row_team(longest, items, sketch.unit, 0, least) for items in launch.file.open.get("ITEMS", (0,))
        }

        def picked(part: int) -> str:
            """What `row_team` says for the number that ITEMS is."""
            said = {
                items: str(found[part]) if part < 2 or found[1] == 0 else "THREADS" for items, found in teams.items()
            }
            default = said.pop(0)
            return "".join(f"ITEMS == {items} ? {text} : " for items, text in said.items() if text != default) + default

        lines = [
            f"constexpr int kItems = {picked(0)}, kTeam = {picked(1)}, kThreads = {picked(2)};",
            f"const int threads = kTeam > 0 ? kThreads : static_cast<int>(({packs} + kItems * 32 - 1) / (kItems * 32)) * 32;",
        ]
        numbers, threads = ["kThreads", "kTeam", 1, "kItems"], "threads"
        each = "(kTeam > 0 ? kThreads / (kTeam > 0 ? kTeam : 1) : 1)"
    elif sketch.items:
        numbers.append(sketch.items)
    grid = f"static_cast<unsigned>(({rows} + {each} - 1) / {each})"
    call = f"{function.name}<{', '.join(map(str, numbers))}>"
    return [*lines, launch.by(call, grid, threads, function.arguments)]
