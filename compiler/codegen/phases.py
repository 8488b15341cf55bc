"""Kernels of the sketch `phases`: each definition is a call of the prelude's (cuda/phases.cuh, cpu/phases.h) with what an element is."""

from __future__ import annotations

from collections.abc import Callable

import sympy

from compiler.codegen.cpu import CpuText
from compiler.codegen.cpu_products import matrices_of, multiply_lines
from compiler.codegen.kernels import KernelFunction, Launch, in_axes, signature
from compiler.codegen.levels import StoreStatement
from compiler.codegen.printer import Printer, print_lines
from compiler.codegen.text import FOLD_OF, Text, Window
from compiler.draft.accumulators import _extreme
from compiler.draft.expressions import COMPUTED, Expr, loads_of, make, put, symbols_of
from compiler.draft.packing import _is_multiple
from compiler.draft.printing import STORED, Scope, _bare, indent, index_text, number_text
from compiler.phases import FOLDS, MADE, NTHS, REACH, SCANS, SCATTERS, SORTS, Phase, PhasesKernel
from compiler.program import KernelProgram
from compiler.schedule import KernelPlan, Phases
from compiler.strides import strides_along

SHORT_SCAN = 4096
"""Steps that a thread adds up in float."""
LINE = 64
"""Bytes on which each tensor of a unit's memory begins."""


def kernel_function(
    program: KernelProgram, kernel: PhasesKernel, name: str, narrow: bool, plan: KernelPlan
) -> KernelFunction:
    assert isinstance(plan.sketch, Phases)
    return phases_function(program, kernel, name, cpu=False, narrow=narrow, clusters=plan.sketch.clusters)


def phases_function(
    program: KernelProgram, kernel: PhasesKernel, name: str, cpu: bool, narrow: bool = False, clusters: bool = False
) -> KernelFunction:
    text = CpuText(program, kernel) if cpu else Text(program, kernel, "int" if narrow else "int64_t", False)
    text.names |= {"step": 1, "span": 1}
    text.levels = [set(), set()]
    stores = [
        StoreStatement(out, place, value, 0, False, p.by, p.when)
        for p in kernel.phases for out, place, value in p.stores if out not in kernel.held
    ]  # fmt: skip
    roots = [root for phase in kernel.phases for root in phase.roots]
    counts = [index for p in kernel.phases for index in (p.outer_end, p.inner_end, *(at for _, at, _ in p.stores))]
    counts += [*kernel.held.values(), kernel.units, *(p.definition.outs[0].elements for p in kernel.phases)]
    parameters, arguments = signature(text, stores, roots, counts, plain=not narrow, leaves=(MADE,))
    memory, units, workspace, bytes = map(text.fresh, ("memory", "units", "workspace", "unit_bytes"))
    sizes, pointers, taken = [], [], "0"
    for buffer, count in kernel.held.items():
        type, size = STORED[buffer.dtype], text.fresh(f"{buffer.name}_bytes")
        sizes.append(f"const int64_t {size} = {memory_bytes(buffer, index_text(count))};")
        pointers.append(f"{type}* const {buffer.text} = reinterpret_cast<{type}*>({memory} + {taken});")
        taken = size if taken == "0" else f"{taken} + {size}"
    alone = not cpu and kernel.units == 1
    shared = not clusters and has_teams(kernel)
    body = []
    for number, phase in enumerate(kernel.phases):
        lines = _call(text, phase)
        body += [f"if constexpr (Only < 0 || Only == {number}) {{", *indent(lines, 1), "}"] if alone else lines
    unit = str(kernel.unit) if kernel.unit.is_Symbol else text.fresh("unit")
    turn = text.fresh("turn")
    if isinstance(text, CpuText):
        head = f"void {name}({', '.join([*parameters, *text.units])}) {{"
        room = [f"unsigned char* const {memory} = kept_memory<0, unsigned char>({taken});"] if kernel.held else []
        loop = f"for (int64_t {unit} = {text.local('begin')}; {unit} < {text.local('end')}; ++{unit}) {{"
    else:
        lanes = text.fresh("lanes")
        given = [*(["int step"] if alone else []), f"int64_t {units}", *([f"int {lanes}"] if shared else [])]
        given += [f"unsigned char* {workspace}", f"int64_t {bytes}"]
        own = "reinterpret_cast<unsigned char*>(phase_memory)"
        span = f"Span span({lanes});" if shared else f"{'ClusterSpan' if clusters else 'BlockSpan'} span;"
        span = f"GridSpan span = {{Only >= 0, step, {workspace} + {bytes}, {own}}};" if alone else span
        sizes += ["extern __shared__ int64_t phase_memory[];", f"[[maybe_unused]] {'const ' if alone else ''}{span}"]
        head = "template <int Only>\n" if alone else "template <typename Span>\n" if shared else ""
        head += f"__global__ void __launch_bounds__(1024) {name}({', '.join([*parameters, *given])}) {{"
        at = f"{workspace} != nullptr ? {workspace} : {own}" if alone else f"span.memory({own}, {workspace}, {bytes})"
        room = [f"unsigned char* const {memory} = {at};"] if kernel.held else []
        loop = f"for (int64_t {turn} = span.first(); {turn} < {units}; {turn} += span.stride()) {{"
        taken = f"const {text.wide} {unit} = static_cast<{text.wide}>(span.take({turn}, {units}));"
        body = body if alone else [taken, *body]
    looped = body if alone else [loop, *indent(body, 1), "}"]
    if clusters:
        looped = ["meet_in_cluster<0>();", *looped, "leave_cluster<0>();"]
    whole = "\n".join([head, *indent([*sizes, *room, *pointers, *looped], 1), "}", ""])
    return KernelFunction(name, whole, tuple(parameters), tuple(arguments), (), kernel)


def has_teams(kernel: PhasesKernel) -> bool:
    """Whether a team of a warp can have a unit, as phases that threads of a block sort by or search together cannot."""
    kinds = (*SCATTERS, *FOLDS, *SCANS)
    return kernel.units != 1 and all(p.definition.kind in kinds and not _is_rising(p) for p in kernel.phases)


def _is_alone(phase: Phase) -> bool:
    """Whether a block does it although blocks could share others: one reduction or scan."""
    return phase.definition.kind not in (*SCATTERS, *SORTS) and phase.outer_end == 1


def _steps(program: KernelProgram, phase: Phase) -> str:
    """Launches of a phase of one unit."""
    if phase.room:
        return "4"
    if _lies_across(phase):
        return f"scan_parts({in_axes(program, phase.outer_end)}, {in_axes(program, phase.inner_end)}) > 1 ? 2 : 1"
    return "2" if phase.definition.kind in SORTS else "1"


def _scratch(program: KernelProgram, phase: Phase) -> str:
    """Bytes that a phase's launches hand on."""
    if phase.room:
        places = sympy.cancel(phase.definition.outs[0].elements / phase.inner_end)
        return f"bucket_bytes<{phase.room}>({in_axes(program, phase.outer_end)}, {in_axes(program, places)})"
    if phase.definition.kind in SORTS:
        return f"16 * ({in_axes(program, sympy.expand(phase.outer_end * phase.inner_end))})"
    return "kScanScratch" if _lies_across(phase) else "0"


def _lies_across(phase: Phase) -> bool:
    """Whether a scan's columns lie side by side where its results go."""
    own = phase.definition.kind in SCANS and phase.outer.is_Symbol
    return own and all(strides_along(place, [phase.outer])[0] == 1 for _, place, _ in phase.stores)


def _places(program: KernelProgram, phase: Phase) -> str:
    """How many elements it joins, in the entry's names."""
    return in_axes(program, phase.definition.outs[0].elements) if phase.definition.kind in HOW else "0"


def memory_bytes(buffer, count: str) -> str:
    return f"(int64_t({count}) * {buffer.dtype.itemsize} + {LINE - 1}) / {LINE} * {LINE}"


def launch_lines(launch: Launch) -> list[str]:
    """Shared memory where a unit's fits, else memory of the stream's."""
    program, function, sketch = launch.program, launch.function, launch.plan.sketch
    kernel = function.kernel
    assert isinstance(kernel, PhasesKernel) and isinstance(sketch, Phases)
    launch.file.clusters |= sketch.clusters
    bytes = " + ".join(memory_bytes(b, in_axes(program, count)) for b, count in kernel.held.items()) or "0"
    most = dict.fromkeys(in_axes(program, sympy.expand(p.outer_end * p.inner_end)) for p in kernel.phases)
    if kernel.units == 1:
        work = ", ".join(
            f"{{{in_axes(program, sympy.expand(p.outer_end * p.inner_end))}, {str(_is_alone(p)).lower()}, {in_axes(program, p.outer_end) if p.definition.kind in SCANS else '0'}, {_steps(program, p)}, {_places(program, p)}, {_scratch(program, p)}, {str(p.definition.kind in SORTS).lower()}}}"
            for p in kernel.phases
        )
        kernels = ", ".join(f"{function.name}<{only}>" for only in range(-1, len(kernel.phases)))
        return [
            f"launch_one_unit<decltype(&{function.name}<0>)>({', '.join([f'{{{kernels}}}', f'{{{work}}}', bytes, 'stream', *function.arguments])});"
        ]
    given = ", ".join([*function.arguments, in_axes(program, kernel.units)])
    name = function.name
    call = (
        f"launch_units({name}<TeamSpan>, {name}<BlockSpan>"
        if not sketch.clusters and has_teams(kernel)
        else f"launch_phases<{str(sketch.clusters).lower()}>({name}"
    )
    return [
        f"{call}, {in_axes(program, kernel.units)}, most_of({{{', '.join(f'int64_t({one})' for one in most)}}}), {bytes}, stream, {given});",
    ]


def _lambda(parameters: str, lines: list[str], value: str) -> list[str]:
    return [f"[=]({parameters}) {{", *indent(lines, 1), f"    return {value};", "}"] if value else [
        f"[=]({parameters}) {{", *indent(lines, 1), "}"
    ]  # fmt: skip


def _fetched(text: Text, phase: Phase, stored: Callable[[str], str]) -> list[str]:
    """An element in two steps, so that what several are made of is loaded before the first is computed; empty where nothing is."""
    known = {symbol for one in (phase.outer, phase.inner) for symbol in one.free_symbols}
    loads = [e for e in text.always([phase.value]) if e.op in ("load", "load_at") and symbols_of(e) & known]
    inside = {id(e) for load in loads for arg in load.args if isinstance(arg, Expr) for e in loads_of([arg])}
    tops = [load for load in loads if id(load) not in inside]
    if not tops:
        return []
    scope, name = Scope(0), text.fresh("loads")
    printer = Printer(text, scope, tops, {})
    made = ", ".join(_bare(printer.text(load, scope)) for load in tops)
    fields = " ".join(f"{load.type} at_{number};" for number, load in enumerate(tops))
    put_in = {load: make("scalar", f"{name}.at_{number}", type=load.type) for number, load in enumerate(tops)}
    before, value = print_lines(text, put(phase.value, put_in.get))
    fetch = _lambda(_given(text, phase), [f"struct Loads {{ {fields} }};", *scope.lines], f"Loads{{{made}}}")
    element = _lambda(f"{_given(text, phase)}, const auto& {name}", before, stored(value))
    return [f"fetched({fetch[0]}", *fetch[1:-1], f"{fetch[-1]}, {element[0]}", *element[1:-1], f"{element[-1]})"]


def _given(text: Text, phase: Phase) -> str:
    """Parameters of an element: its loops, of which one may be no variable."""
    names = [str(one) if one.is_Symbol else "" for one in (phase.outer, phase.inner)]
    return ", ".join(f"[[maybe_unused]] {text.wide} {name}" if name else text.wide for name in names)


def _call(text: Text, phase: Phase) -> list[str]:
    definition, kind = phase.definition, phase.definition.kind
    out, type = definition.outs[0], definition.type
    ends = f"{index_text(phase.outer_end)}, {index_text(phase.inner_end)}"
    ends = ends if isinstance(text, CpuText) else f"span, {ends}"
    if kind in SCATTERS:
        scope = Scope(0)
        printer = Printer(text, scope, phase.roots, {})
        inner = Scope(1 if phase.when is not None else 0, scope)
        when = None if phase.when is None else _bare(printer.text(phase.when, scope))
        place = f"{text.pointer(out)}[{_where(text, phase, printer, scope)}]"
        value = printer.text(phase.value, inner)
        stored = text.stored_text(out, value)
        if phase.room:
            return _summed(text, phase, ends)
        if not isinstance(text, CpuText) and (kind == "add" or (SCATTERS[kind] and _starts_at_number(text, phase))):
            return _joined(text, phase, ends)
        if not isinstance(text, CpuText) and phase.outer_end == 1 and _is_rising(phase):
            return _ranked(text, phase)
        line = f"{place} = {stored};"
        if kind == "add":
            line = f"phase_add(&{place}, {stored});"
        elif SCATTERS[kind]:
            line = f"phase_join(&{place}, {stored}, []({type} a, {type} b) {{ return {FOLD_OF[SCATTERS[kind]]}; }});"
        lines = [*scope.lines, *inner.lines, line]
        if when is not None:
            lines = [*scope.lines, f"if ({when}) {{", *inner.lines, f"    {line}", "}"]
        plain = kind == "map" and phase.by is None and phase.when is None
        return _ended(f"phase_{'map' if plain else 'scatter'}({ends}, ", [_lambda(_given(text, phase), lines, "")])
    before, value = print_lines(text, phase.value)
    made = text.fresh("made")
    element = _lambda(_given(text, phase), before, f"static_cast<{type}>({value})")
    if kind in SCANS and _is_of_grid(text):
        element = _fetched(text, phase, lambda value: f"static_cast<{type}>({value})") or element
    if kind in SORTS:
        places = zip(definition.outs, phase.places, strict=True)
        outs = ", ".join(f"{text.pointer(one)} + {index_text(place)}" for one, place in places)
        nowhere = "static_cast<int64_t*>(nullptr)" if isinstance(text, CpuText) else "NoPlaces{}"
        outs += f", {nowhere}" if len(definition.outs) == 1 else ""
        few = definition.first if not isinstance(text, CpuText) else 0
        how = f"phase_first<{few}, " if few else "phase_sort<"
        return _ended(f"{how}{str(kind == 'sort_falling').lower()}, {type}>({ends}, {outs}, ", [element])
    if kind in (*NTHS, REACH):
        assert phase.rank is not None
        first, rank = print_lines(text, phase.rank)
        outer = f"{text.wide} {phase.outer}" if phase.outer.is_Symbol else text.wide
        falling = f"nth<{str(kind == 'nth_falling').lower()}, {type}>"
        put = f"{text.pointer(out)}[{text.index(phase.place)}] = static_cast<{STORED[out.dtype]}>({made});"
        given = outer if phase.sum is None else f"{outer}, double {phase.sum}"
        parts = [_lambda(given, first, rank), element, _lambda(f"{outer}, {type} {made}", [put], "")]
        return _ended(f"phase_{'reach' if kind == REACH else falling}({ends}, ", parts)
    if (
        isinstance(text, CpuText)
        and kind == "sum"
        and (found := matrices_of(phase, text.program.lowered.ranges, text.fresh))
    ):
        sides, loops, sizes, outer = found
        goes = [f"const int64_t {phase.outer} = {index_text(outer)};", *_kept(text, phase, made)]
        return multiply_lines(text, sides, loops, sizes, made, goes)
    fold = SCANS.get(kind, kind)
    long = not phase.inner_end.is_Integer or phase.inner_end > SHORT_SCAN
    wide = isinstance(text, CpuText) and kind in SCANS and fold in ("sum", "prod") and type == "float" and long
    held = "double" if wide else type  # one thread adds a whole row there
    quick = fold == "log_add" and not isinstance(text, CpuText)
    join = ["LogAdd{}" if quick else f"[]({held} a, {held} b) {{ return {FOLD_OF[fold]}; }}"]
    names = _given(text, phase) if kind in SCANS else _given(text, phase).rpartition(",")[0]
    finish = _lambda(f"{names}, {held} {made}", _kept(text, phase, made), "")
    along = "" if isinstance(text, CpuText) or kind in SCANS else f", {str(_lies_along(phase)).lower()}"
    along += ", true" if _is_of_grid(text) and _lies_across(phase) else ""
    name = "phase_scan" if kind in SCANS else "phase_fold"
    return _ended(f"{name}<{held}{along}>({ends}, {_start(fold, held)}, ", [element, finish, join])


def _is_of_grid(text: Text) -> bool:
    return not isinstance(text, CpuText) and isinstance(text.kernel, PhasesKernel) and text.kernel.units == 1


def _kept(text: Text, phase: Phase, made: str) -> list[str]:
    """What is stored of a result, and what follows from it."""
    result, lines = f"static_cast<{COMPUTED[phase.definition.outs[0].dtype]}>({made})", []

    def other(expr: Expr) -> Expr | None:
        return make("scalar", result, type=expr.type) if expr.op == "scalar" and expr.args[0] == MADE else None

    for out, place, value in phase.stores:
        first, last = ([], result) if value is phase.value else print_lines(text, put(value, other))
        lines += [*first, f"{text.pointer(out)}[{text.index(place)}] = {text.stored_text(out, last)};"]
    return lines


def _lies_along(phase: Phase) -> bool:
    """Whether what is folded lies side by side in memory."""
    return any(strides_along(load.args[1], [phase.inner])[0] == 1 for load in loads_of([phase.value]))


def _starts_at_number(text: Text, phase: Phase) -> bool:
    """Whether what is there first is one number, not NaN: then a device can raise or lower a float by its bits."""
    assert isinstance(text.kernel, PhasesKernel)
    before = next(p for p in text.kernel.phases if p.definition.outs[0] is phase.definition.outs[0])
    return not isinstance(text, CpuText) and before.definition.kind == "map" and before.value.op == "const"


HOW = {"add": "Sums", "scatter_max": "Highest", "scatter_min": "Lowest"}


def _joined(text: Text, phase: Phase, ends: str) -> list[str]:
    out, scope = phase.definition.outs[0], Scope(0)
    printer = Printer(text, scope, phase.roots[1:], {})
    when = None if phase.when is None else _bare(printer.text(phase.when, scope))
    place = f"static_cast<int64_t>({_where(text, phase, printer, scope)})"
    before, value = print_lines(text, phase.value)
    fetched = (
        _fetched(text, phase, lambda value: text.stored_text(out, value)) if _is_of_grid(text) and when is None else []
    )
    parts = [
        _lambda(_given(text, phase), scope.lines, place if when is None else f"{when} ? {place} : -1"),
        fetched or _lambda(_given(text, phase), before, text.stored_text(out, value)),
    ]
    how = f"{HOW[phase.definition.kind]}, {str(when is None).lower()}"
    return _ended(f"phase_join_all<{how}>({ends}, {text.pointer(out)}, {index_text(out.elements)}, ", parts)


def _summed(text: Text, phase: Phase, ends: str) -> list[str]:
    """Rows that are added to those that numbers name, each found by whoever sums them."""
    out, scope = phase.definition.outs[0], Scope(0)
    printer = Printer(text, scope, phase.roots[1:], {})
    when = None if phase.when is None else _bare(printer.text(phase.when, scope))
    assert phase.by is not None
    place = f"static_cast<int64_t>({_bare(printer.text(phase.by[0], scope))})"
    before, value = print_lines(text, phase.value)
    assert phase.begin is not None
    first, begin = print_lines(text, phase.begin[2])
    named = ", ".join(f"[[maybe_unused]] {text.wide} {one}" for one in phase.begin[:2])
    parts = [
        _lambda(named, first, text.stored_text(out, begin)),
        _lambda(f"{text.wide} {phase.outer}", scope.lines, place if when is None else f"{when} ? {place} : -1"),
        _lambda(_given(text, phase), before, text.stored_text(out, value)),
    ]
    width = 4 if _is_multiple(phase.inner_end, 4) else 1
    how = f"{text.wide}, {phase.room}, {width}"
    places = index_text(sympy.cancel(out.elements / phase.inner_end))
    return _ended(f"phase_add_rows<{how}>({ends}, {text.pointer(out)}, {places}, ", parts)


def _is_rising(phase: Phase) -> bool:
    """Whether it says where, among sorted numbers, each of some that grow stands."""
    if phase.value.op != "halved" or phase.by is not None or phase.when is not None or phase.definition.kind != "map":
        return False
    (_, _, holds), inner = phase.value.args, phase.inner
    if holds.op not in ("le", "lt") or inner in symbols_of(holds.args[0]) or holds.args[1].op != "index":
        return False
    sought = holds.args[1].args[0]
    return sought.free_symbols == {inner} and sought.coeff(inner) > 0


def _ranked(text: Text, phase: Phase) -> list[str]:
    step, end, condition = phase.value.args
    before, holds = print_lines(text, condition)
    out, rank = phase.definition.outs[0], text.fresh("rank")
    put = f"{text.pointer(out)}[{text.index(phase.place)}] = {text.stored_text(out, rank)};"
    parts = [
        _lambda(f"{text.wide} {step}, {text.wide} {phase.inner}", before, holds),
        _lambda(f"{text.wide} {phase.inner}, int64_t {rank}", [put], ""),
    ]
    return _ended(f"phase_ranks(span, {index_text(phase.inner_end)}, {index_text(end)}, ", parts)


def _start(fold: str, type: str) -> str:
    if fold in ("max", "min", "log_add"):
        return _extreme(type, fold != "min")
    return number_text({"sum": 0, "prod": 1, "any": 0, "all": 1}[fold], type)


def _where(text: Text, phase: Phase, printer: Printer, scope: Scope) -> str:
    if phase.by is None:
        return text.index(phase.place)
    place, stride = phase.by
    window = Window(phase.definition.outs[0], phase.place, 1, (place, stride))
    address = text.address(window, scope, printer)
    return address.removeprefix(f"{text.pointer(window.buffer)} + ")


def _ended(head: str, parts: list[list[str]]) -> list[str]:
    """A call over lines, its arguments one behind the other."""
    lines = [head]
    for number, part in enumerate(parts):
        lines[-1] += part[0]
        lines += part[1:]
        lines[-1] += ", " if number < len(parts) - 1 else ");"
    return lines
