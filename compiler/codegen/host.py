"""The whole file: record, prelude, kernels, and one C entry a dtype that picks a version by guards and launches it."""

from __future__ import annotations

import functools
import re

import torch

from compiler.codegen import columns, elements, phases, products, row_tiles, rows, steps, stream, turned
from compiler.codegen.guards import always, is_gathered
from compiler.codegen.kernels import KernelFunction, Launch, in_axes, packs_of_row
from compiler.codegen.scratch import of_the_pool
from compiler.codegen.text import element_type
from compiler.cuda import CUDA
from compiler.draft.partition import ROW
from compiler.frontend import NoProgram
from compiler.phases import PhasesKernel
from compiler.program import KernelProgram, PackedKernel
from compiler.schedule import KernelPlan, Rows, Schedule, ScheduleVersion
from kernels.spec import Spec

NARROW = 2**31 - 2**20
"""Elements below which indices of 32 bits do; what a block goes beyond the last one fits as well."""

SKETCHES = {
    "elements": elements, "turned": turned, "rows": rows, "row_tiles": row_tiles, "columns": columns, "stream": stream,
    "tiles": products, "steps": steps, "phases": phases,
}  # fmt: skip
"""Files with a function `kernel_function`, the text of a kernel, and a function `launch_lines`, the entry's lines that launch it."""
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
        held = isinstance(plan.sketch, Rows) and plan.sketch.held
        key = (program.dtype, program.vector, at, plan.sketch.sketch, resident, narrow, plan.pdl, plan.ragged, held)
        if key not in self.functions:
            made = self._made(program, program.kernels[at], self._name(key, plan), narrow, plan)
            body = made.text.replace(made.name, "kernel")
            same = next((f for f in self.functions.values() if f.text.replace(f.name, "kernel") == body), None)
            if same is None:
                self.texts.append(made.text)
            self.functions[key] = same or made
        return self.functions[key]

    def _made(
        self, program: KernelProgram, kernel: PackedKernel, name: str, narrow: bool, plan: KernelPlan
    ) -> KernelFunction:
        return SKETCHES[plan.sketch.sketch].kernel_function(program, kernel, name, narrow, plan)

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
            while plans and elements.are_independent(together, plans[0]):
                together.append(plans.pop(0))
            launch = self._launch(Launch(self, program, at, together, version.narrow))
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
                guards.append(f"{packs_of_row(program, kernel, plan)} <= {most}")
            guards += [f"{in_axes(program, kernel.rows)} < {version.most_rows}"] if version.most_rows else []
        return list(dict.fromkeys(g for g in guards if not always(g)))

    def _launch(self, launch: Launch) -> list[str]:
        return SKETCHES[launch.plan.sketch.sketch].launch_lines(launch)

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
