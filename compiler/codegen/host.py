"""The whole file: record, prelude, kernels, and one C entry a dtype that picks a version by guards and launches it."""

from __future__ import annotations

import functools
import re

import sympy
import torch

from compiler.codegen import products, row_tiles, steps
from compiler.codegen.columns import columns_function
from compiler.codegen.guards import always, is_gathered
from compiler.codegen.kernels import KernelFunction, elements_function, in_axes, rows_function
from compiler.codegen.ragged import extent_of
from compiler.codegen.scratch import of_the_pool
from compiler.codegen.text import _factor, element_type
from compiler.codegen.turned import launch_of, tile_function
from compiler.cuda import CUDA
from compiler.draft.index import Index
from compiler.draft.partition import ROW
from compiler.draft.printing import branch, indent
from compiler.frontend import NoProgram
from compiler.lookups import fetches
from compiler.phases import PhasesKernel
from compiler.products import ProductKernel
from compiler.program import KernelProgram, PackedKernel
from compiler.schedule import (
    ALONE,
    TILES,
    WARP,
    Columns,
    Elements,
    KernelPlan,
    Phases,
    Rows,
    RowTiles,
    Schedule,
    ScheduleVersion,
    Turned,
    row_team,
)
from compiler.steps import StepsKernel
from compiler.streams import StreamKernel
from kernels.spec import Spec

NARROW = 2**31 - 2**20
"""Elements below which indices of 32 bits do; what a block goes beyond the last one fits as well."""


FEW_BLOCKS = 264
"""Blocks of elements, two to each multiprocessor of an H100, of which twice as many of half the width are sooner done."""

MANY_BLOCKS = 16384
"""Blocks that each begin with a table in shared memory, from which on a thread takes four times as many packs: 57 -> 52 us for MXFP4 (H200)."""


CALLED = {"stream_tiles": "multiply_halves<", "below": "reduce_below<", "cluster_places": "ClusterPlaces"}
"""Files that few kernels call something of, and the call."""


@functools.cache
def _prelude() -> str:
    """With the files that it includes by quotes in their places."""
    whole = lambda found: (CUDA / found[1]).read_text().partition("\n\n")[2]  # noqa: E731 -- without its head
    return re.sub(r'#include "(.+)"\n', whole, (CUDA / "prelude.cuh").read_text())


class HostFile:
    """One file under construction; of C++ see cpu.py."""

    last: tuple[str, ...] = ("cudaStream_t stream",)
    """Parameters of an entry behind the spec's."""
    element = staticmethod(element_type)
    with_scratch = staticmethod(of_the_pool)

    def __init__(self, spec: Spec, programs, open: dict[str, tuple[int, ...]] | None = None) -> None:
        """`programs`: (dtype, vector) -> Program. `open`: numbers that the tune gate may choose, each with its choices."""
        self.spec, self.programs, self.open = spec, programs, open or {}
        self.functions: dict[tuple, KernelFunction] = {}
        self.texts: list[str] = []
        self.entries: list[str] = []
        self.clusters = False

    def function(self, program: KernelProgram, at: int, plan: KernelPlan, narrow: bool) -> KernelFunction:
        resident = isinstance(plan.sketch, Rows) and plan.sketch.items > 0
        return self._function(program, at, plan, narrow, resident)

    def _function(
        self, program: KernelProgram, at: int, plan: KernelPlan, narrow: bool, resident: bool
    ) -> KernelFunction:
        held = isinstance(plan.sketch, Rows) and plan.sketch.held
        key = (program.dtype, program.vector, at, plan.sketch.sketch, resident, narrow, plan.pdl, _ragged(plan), held)
        if key not in self.functions:
            made = self._made(program, program.kernels[at], plan, narrow, resident, self._name(key, plan))
            body = made.text.replace(made.name, "kernel")
            same = next((f for f in self.functions.values() if f.text.replace(f.name, "kernel") == body), None)
            if same is None:
                self.texts.append(made.text)
            self.functions[key] = same or made
        return self.functions[key]

    def _made(
        self, program: KernelProgram, kernel: PackedKernel, plan: KernelPlan, narrow: bool, resident: bool, name: str
    ) -> KernelFunction:
        if isinstance(plan.sketch, Rows):
            return rows_function(program, kernel, name, narrow, resident, plan.pdl, _ragged(plan), plan.sketch.held)
        if isinstance(plan.sketch, Turned):
            return tile_function(program, kernel.turned, name, narrow, plan.pdl)
        if isinstance(plan.sketch, RowTiles):
            return row_tiles.tiles_function(program, kernel.tiled, name, narrow, plan.pdl)
        if isinstance(plan.sketch, Columns):
            return columns_function(program, kernel, name, narrow, plan.pdl)
        if isinstance(kernel, StreamKernel):
            from compiler.codegen.stream import stream_function

            return stream_function(program, kernel, name, narrow, program.vector, plan.pdl)
        if isinstance(kernel, ProductKernel):
            return products.product_function(program, kernel, name, narrow)
        if isinstance(kernel, StepsKernel):
            return steps.steps_function(program, kernel, name, narrow)
        if isinstance(kernel, PhasesKernel):
            from compiler.codegen.phases import phases_function

            return phases_function(program, kernel, name, cpu=False, narrow=narrow, clusters=_shares(plan))
        return elements_function(program, kernel, name, narrow, _ragged(plan))

    def _name(self, key: tuple, plan: KernelPlan) -> str:
        _, vector, at, sketch, resident, narrow, _, ragged, _ = key
        word = re.sub(r"\W", "_", f"{self.spec.name}_{plan.members[-1]}")[:60]
        number = f"_{at + 1}" if at else ""
        how = f"{sketch}{'_kept' if resident else ''}{'' if narrow else '_wide'}"
        name = f"{word}{number}_{how}_by_{ragged or vector}{'_ragged' if ragged else ''}"
        taken = {f.name for f in self.functions.values()}
        return next(n for n in (name, *(f"{name}_{k}" for k in range(2, 99))) if n not in taken)

    def entry(self, dtype: str, versions: tuple[ScheduleVersion, ...]) -> None:
        spec = self.spec
        kinds = {t.name: getattr(torch, dtype if t.dtype == "T" else t.dtype) for t in spec.tensors}
        types = {name: self.element(kind) for name, kind in kinds.items()}
        parameters = []
        for argument in spec.arguments:
            if argument.kind == "tensor":
                const = "const " if argument.role == "input" else ""
                parameters.append(f"{const}{types[argument.name]}* {argument.name}")
            else:
                parameters.append(f"{argument.ctype if argument.kind == 'scalar' else 'int64_t'} {argument.name}")
        lines = []
        before: list[frozenset[str]] = []
        for version in versions:
            known = len(self.texts), dict(self.functions)
            guards, made = self._version(dtype, version)
            if any(one <= guards for one in before):  # a version before it takes each of its calls
                del self.texts[known[0] :]
                self.functions = known[1]
                continue
            lines += made
            before.append(guards)
        given = {argument.name: argument.kind for argument in spec.arguments}
        for axis in spec.axes:
            if (
                given.get(axis) == "tensor"
            ):  # called like it: what a launch is handed is that, what a guard asks for is the size
                asked = [line for line in lines if line.lstrip().startswith("if (")]
            else:
                asked = [] if axis in given else lines
            if any(re.search(rf"\b{axis}\b", line) for line in asked):
                raise NoProgram(f"the size {axis} is no argument of the entry")
        head = f'extern "C" void {spec.entry_name}_{dtype}({", ".join([*parameters, *self.last])}) {{'
        self.entries.append("\n".join([head, *lines, "}", ""]))

    def _version(self, dtype: str, version: ScheduleVersion) -> tuple[frozenset[str], list[str]]:
        """(what must hold, the lines that then run)."""
        program = self.programs(dtype, version.vector)
        if len(version.kernels) != len(program.kernels):
            raise NoProgram(f"a version has {len(version.kernels)} kernels, the program {len(program.kernels)}")
        functions = [self.function(program, at, plan, version.narrow) for at, plan in enumerate(version.kernels)]
        guards = self._guards(program, version, functions)
        calls: list[str] = []
        plans = list(zip(functions, version.kernels, strict=True))
        while plans:
            at = len(functions) - len(plans)
            together = [plans.pop(0)]
            while plans and _independent(together, plans[0]):
                together.append(plans.pop(0))
            launch = self._launch(program, at, together, version.narrow)
            calls += ["{", *(f"    {line}" for line in launch), "}"] if calls or plans else launch
        if program.scratch:
            calls = self.with_scratch(program, calls)
        if not guards:
            return frozenset(), [f"    {line}" for line in calls]
        return frozenset(guards), [
            f"    if ({' && '.join(guards)}) {{",
            *(f"        {line}" for line in calls),
            "        return;",
            "    }",
        ]

    def _guards(self, program: KernelProgram, version: ScheduleVersion, functions: list[KernelFunction]) -> list[str]:
        guards = program.guards()
        packed = dict.fromkeys(b.text for f in functions for b in f.packed if b not in program.scratch)
        guards += [f"aligned({name})" for name in packed]
        if version.narrow:
            buffers = [*program.inputs.values(), *program.outputs.values(), *program.scratch]
            counts = [b.elements for b in buffers if not is_gathered(program, b)]
            counts += [f.kernel.work if isinstance(f.kernel, PhasesKernel) else f.kernel.rows for f in functions]
            for text in dict.fromkeys(in_axes(program, count) for count in counts):
                if not text.isdigit() or int(text) >= NARROW:
                    guards.append(f"{text} < INT64_C({NARROW})")
        plans = zip(functions, version.kernels, strict=True)
        rows = [(f.kernel, plan) for f, plan in plans if f.kernel.layout == ROW]
        rows = [(k, plan) for k, plan in rows if not (isinstance(plan.sketch, Rows) and plan.sketch.by_size)] or rows
        for kernel, plan in rows:
            if version.longest is not None:
                most = min(version.longest, getattr(plan.sketch, "longest", None) or version.longest)
                guards.append(f"{_packs(program, kernel.length, kernel.width, _ragged(plan))} <= {most}")
            guards += [f"{in_axes(program, kernel.rows)} < {version.most_rows}"] if version.most_rows else []
        return list(dict.fromkeys(g for g in guards if not always(g)))

    def _launch(self, program: KernelProgram, at: int, together, narrow: bool) -> list[str]:
        function, plan = together[0]
        kernel, sketch = function.kernel, plan.sketch
        if isinstance(sketch, Rows):
            if sketch.by_size:
                loops = self._function(program, at, plan, narrow, False)
                return self._launch_rows_by_size(program, function, loops, plan)
            return self._launch_rows(program, function, plan)
        if isinstance(sketch, Columns):
            return self._launch_columns(program, function, plan)
        if isinstance(sketch, RowTiles):
            self.clusters |= plan.pdl
            return row_tiles.launch_tiles(program, function, sketch, plan.pdl)
        if isinstance(sketch, Turned):
            call, grid, threads = launch_of(program, function, sketch, bool(self.open))
            return [self._launched(call, grid, threads, function.arguments, plan.pdl)]
        if isinstance(kernel, StreamKernel):
            from compiler.codegen.stream import launch_stream

            self.clusters |= plan.pdl
            return launch_stream(program, function, plan.pdl)
        if isinstance(kernel, StepsKernel):
            return steps.launch_steps(program, function)
        if isinstance(kernel, ProductKernel):
            self.clusters |= plan.pdl
            return products.launch_product(program, function, clusters=plan.pdl)
        if isinstance(kernel, PhasesKernel):
            from compiler.codegen.phases import launch_phases

            self.clusters |= _shares(plan)
            return launch_phases(program, function, _shares(plan))
        return self._launch_elements(program, together, narrow)

    def _launch_columns(self, program: KernelProgram, function: KernelFunction, plan: KernelPlan) -> list[str]:
        """The host asks `plan_columns` what suits the size at hand."""
        kernel, sketch = function.kernel, plan.sketch
        assert isinstance(sketch, Columns)
        packs, rows = in_axes(program, sympy.expand(kernel.rows / kernel.width)), in_axes(program, kernel.inner[0][1])
        clusters = sketch.split != 1
        threads, lanes, split, unroll = sketch.texts(bool(self.open))
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
            launched = self._launched(call, "grid_blocks", width, function.arguments, plan.pdl, in_parts)
            arms.append((f"tile_plan.lanes == {across} && tile_plan.split {'==' if parts else '>'} 1", [launched]))
        return [*lines, *branch(arms)]

    def _launch_rows_by_size(
        self, program: KernelProgram, function: KernelFunction, loops: KernelFunction, plan: KernelPlan
    ) -> list[str]:
        """The host asks `plan_rows` what suits the size at hand; `loops` takes the rows that no register holds."""
        kernel, sketch, pdl = function.kernel, plan.sketch, plan.pdl
        assert isinstance(sketch, Rows)
        rows, packs = in_axes(program, kernel.rows), _packs(program, kernel.length, kernel.width, _ragged(plan))
        kept = f"{function.name}<row_width({{0}}, {function.kept}), 0, {{1}}, {{0}}>"
        counts = [sketch.unit << choice for choice in range(4)]
        asked = ", ".join(f"registers_of({kept.format(items, 1)})" for items in counts)
        wanted, split, resident = sketch.texts(bool(self.open))
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
            by_warps = self._launched(
                f"{loops.name}<128, {WARP}, 1>", f"static_cast<unsigned>(({rows} + 3) / 4)", "128", loops.arguments, pdl
            )
            arms.append(("row_plan.items == kByWarps", [by_warps]))
        for parts, items in cuts:
            call = kept.format(items, parts) if items else f"{loops.name}<{sketch.threads}, 0, {parts}>"
            launched = self._launched(
                call,
                "grid_blocks",
                "row_plan.threads",
                function.arguments if items else loops.arguments,
                pdl,
                "1" if parts else "row_plan.split",
            )
            arms.append((f"row_plan.split {'==' if parts else '>'} 1 && row_plan.items == {items}", [launched]))
        return [*lines, *branch(arms)]

    def _launch_rows(self, program: KernelProgram, function: KernelFunction, plan: KernelPlan) -> list[str]:
        kernel, sketch = function.kernel, plan.sketch
        assert isinstance(sketch, Rows)
        rows, packs = in_axes(program, kernel.rows), _packs(program, kernel.length, kernel.width, _ragged(plan))
        lines: list[str] = []
        numbers: list[int | str] = [sketch.threads, sketch.team, 1]
        threads, longest = str(sketch.threads), sketch.longest
        each = str(sketch.threads // sketch.team if sketch.team else 1)
        if sketch.items and self.open and not sketch.few:
            assert longest is not None
            least = 2 * sketch.vector if sketch.ragged else 1
            teams = {items: row_team(longest, items, sketch.unit, 0, least) for items in self.open.get("ITEMS", (0,))}

            def picked(part: int) -> str:
                """What `row_team` says for the number that ITEMS is."""
                said = {
                    items: str(found[part]) if part < 2 or found[1] == 0 else "THREADS"
                    for items, found in teams.items()
                }
                default = said.pop(0)
                return (
                    "".join(f"ITEMS == {items} ? {text} : " for items, text in said.items() if text != default)
                    + default
                )

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
        return [*lines, self._launched(call, grid, threads, function.arguments, plan.pdl)]

    def _launch_elements(self, program: KernelProgram, together, narrow: bool) -> list[str]:
        """Independent kernels of elements share a launch: their blocks stand side by side."""
        name = "launch_" + "_and_".join(function.name for function, _ in together)
        given: dict[str, tuple[str, str]] = {}
        """Of a parameter's name."""
        counts: list[str] = []
        blocks: list[tuple[str, list[str]]] = []
        body = ["    wait_for_predecessor<1>();"] if together[0][1].pdl else []
        sketch, pdl = together[0][1].sketch, together[0][1].pdl
        assert isinstance(sketch, Elements)
        threads, items = sketch.texts(bool(self.open))
        each, totals = f"({threads} * {items})", []
        for number, (function, _) in enumerate(together):
            kernel = function.kernel
            packs = in_axes(program, sympy.expand(kernel.rows / kernel.width))
            if sketch.ragged:
                rows, length = extent_of(kernel)
                packs = f"{in_axes(program, rows)} * (({in_axes(program, length)} + {2 * sketch.vector - 2}) / {sketch.vector})"
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
        if text not in self.texts:
            self.texts.append(text)
        total = f"({' + '.join(totals)}) / {each}"
        arms = [("", threads, items)]
        if narrow and any(function.staged for function, _ in together):
            arms.insert(0, (f"{total} >= {MANY_BLOCKS}", threads, f"{items} * 4"))
        if narrow and sketch.threads >= 2 * WARP:
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
            made.append(self._launched(f"{name}<{width}, {most}>", " + ".join(counts), width, all_given, pdl))
            launches.append((condition, made))
        return branch(launches) if len(launches) > 1 else launches[0][1]

    def _launched(self, call: str, grid: str, threads: str, arguments, pdl: bool, cluster: str = "1") -> str:
        """The statement that launches a kernel; attributes of a launch need the longer form."""
        given = ", ".join(arguments)
        if cluster == "1" and not pdl:
            return f"{call}<<<{grid}, {threads}, 0, stream>>>({given});"
        self.clusters |= cluster != "1"
        return f"launch_with<{str(pdl).lower()}>({call}, {grid}, {cluster}, {threads}, stream, {given});"

    def text(self, schedule: Schedule) -> str:
        body = "\n".join([*self.texts, *self.entries])
        without = [] if "__nv_fp8" in body or "float8_e4m3fn" in body else ["#define WITHOUT_FP8"]
        without += [] if "_part<" in body or "_run<" in body else ["#define WITHOUT_RAGGED"]
        without += [] if self.clusters else ["#define WITHOUT_CLUSTERS"]
        without += [] if "launch_with_shared<" in body else ["#define WITHOUT_STREAMS"]
        without += [] if "team_first<" in body else ["#define WITHOUT_FIRSTS"]
        in_phases = any(f"launch_{how}" in body for how in ("phases<", "units(", "one_unit<"))
        without += [] if in_phases else ["#define WITHOUT_PHASES"]
        without += [] if "launch_with" in body or in_phases else ["#define WITHOUT_ATTRIBUTES"]
        without += [] if "wait_for_predecessor" in body else ["#define WITHOUT_PDL"]
        without += [] if "plan_rows<" in body else ["#define WITHOUT_ROW_PLANS"]
        without += [] if "plan_columns(" in body else ["#define WITHOUT_COLUMN_PLANS"]
        without += (
            [f"#define TRIGGER_WHEN {schedule.numbers.get('TRIGGER_WHEN', 1)}"]
            if "wait_for_predecessor" in body and not self.open
            else []
        )
        for name, numbers in self.open.items():
            if len(numbers) == 1 and name != "TRIGGER_WHEN":
                without += [f"#define {name} {numbers[0]}"] if re.search(rf"\b{name}\b", body) else []
            elif re.search(rf"\b{name}\b", body) or (name == "TRIGGER_WHEN" and "wait_for_predecessor" in body):
                choices = " ".join(map(str, sorted(numbers)))
                without.append(f"#define {name} {numbers[0]}  // tune: {choices}")
        called = [(CUDA / f"{name}.cuh").read_text() for name, call in CALLED.items() if call in body]
        called += products.preludes(body) if "kTileBytes" in body or "kExactBytes" in body else []
        return "\n".join(
            [
                schedule.head(),
                *without,
                *(["#include <cuda.h>"] if any("CUtensorMap" in one for one in called) else []),
                "",
                _prelude(),
                "namespace {\n",
                *called,
                *self.texts,
                "}  // namespace\n",
                *self.entries,
            ]
        )


def _shares(plan: KernelPlan) -> bool:
    return isinstance(plan.sketch, Phases) and plan.sketch.clusters


def _ragged(plan: KernelPlan) -> int:
    """Elements of a pack where the program's packs are of one; 0: they are as the program says."""
    return plan.sketch.vector if isinstance(plan.sketch, Elements | Rows) and plan.sketch.ragged else 0


def _packs(program: KernelProgram, length: Index, width: int, ragged: int) -> str:
    """Whole packs of a row of `length` elements at most, in the entry's names."""
    return (
        f"{_factor(in_axes(program, length))} / {ragged}" if ragged else in_axes(program, sympy.expand(length / width))
    )


def _independent(together, following) -> bool:
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
