"""The C++ file of a schedule: functions of ranges, each called by `in_parallel`."""

from __future__ import annotations

from pathlib import Path

import sympy

from compiler.codegen import steps
from compiler.codegen.cpu import STRIP, columns_function, element_type, elements_function, rows_function
from compiler.codegen.cpu_products import product_function
from compiler.codegen.cpu_streams import cpu_stream_function
from compiler.codegen.host import HostFile
from compiler.codegen.kernels import KernelFunction, Launch, in_axes
from compiler.codegen.phases import phases_function
from compiler.codegen.scratch import of_the_heap
from compiler.draft.cuda import whole
from compiler.phases import PhasesKernel
from compiler.products import ProductKernel
from compiler.program import KernelProgram, PackedKernel
from compiler.schedule import Columns, KernelPlan, Rows, Schedule
from compiler.steps import StepsKernel
from compiler.streams import StreamKernel

FOLDER = Path(__file__).resolve().parents[1] / "cpu"
PHASES = FOLDER / "phases.h"


def cpu_prelude() -> str:
    """What every text begins with."""
    return whole("vector_math.h") + (FOLDER / "prelude.h").read_text()


class CpuFile(HostFile):
    """One file under construction."""

    last = ()
    element = staticmethod(element_type)
    with_scratch = staticmethod(of_the_heap)

    def _made(
        self, program: KernelProgram, kernel: PackedKernel, name: str, narrow: bool, plan: KernelPlan
    ) -> KernelFunction:
        if isinstance(plan.sketch, Rows):
            return rows_function(program, kernel, name)
        if isinstance(plan.sketch, Columns):
            return columns_function(program, kernel, name, plan.sketch.lanes)
        if isinstance(kernel, ProductKernel):
            return product_function(program, kernel, name)
        if isinstance(kernel, StreamKernel):
            return cpu_stream_function(program, kernel, name)
        if isinstance(kernel, StepsKernel):
            return steps.cpu_function(program, kernel, name)
        if isinstance(kernel, PhasesKernel):
            return phases_function(program, kernel, name, cpu=True)
        return elements_function(program, kernel, name)

    def _launch(self, launch: Launch) -> list[str]:
        return [line for function, plan in launch.together for line in self._call(launch.program, function, plan)]

    def _call(self, program: KernelProgram, function: KernelFunction, plan: KernelPlan) -> list[str]:
        kernel = function.kernel
        if isinstance(kernel, ProductKernel):
            return [f"{function.name}({', '.join(function.arguments)});"]
        count, work = kernel.rows, sympy.expand(kernel.rows * kernel.length)
        ranges = in_axes(program, count)
        if isinstance(kernel, StreamKernel):
            ranges = in_axes(program, kernel.units)
        elif isinstance(kernel, PhasesKernel):
            ranges, work = in_axes(program, kernel.units), kernel.work
        elif isinstance(kernel, StepsKernel) and kernel.loop is not None:
            work = sympy.expand(count * kernel.loop.count)
        elif not isinstance(plan.sketch, Rows):
            ranges = in_axes(program, sympy.expand(count / kernel.width))
        if isinstance(plan.sketch, Columns):
            packs = plan.sketch.lanes * (1 if kernel.width > 1 else STRIP)
            ranges = f"({ranges} + {packs - 1}) / {packs}"
        taken = {*program.spec.axes, *(argument.name for argument in program.spec.arguments)}
        begin, end = (name + "_" * (name in taken) for name in ("begin", "end"))
        given = ", ".join([*function.arguments, begin, end])
        body = f"[&](int64_t {begin}, int64_t {end}) {{ {function.name}({given}); }}"
        return [f"in_parallel({ranges}, {in_axes(program, work)}, {body});"]

    def text(self, schedule: Schedule) -> str:
        defined = [
            f"#define {name} {schedule.numbers.get(name, numbers[0])}"
            + (f"  // tune: {' '.join(map(str, sorted(numbers)))}" if self.open else "")
            for name, numbers in (self.open or CPU_NUMBERS).items()
        ]
        with_vectors = any("std::vector" in text for text in self.texts)
        in_phases = any("phase_" in text for text in self.texts)
        multiplies = any("multiply_panels" in text for text in self.texts)
        headers = ["#include <algorithm>", "#include <vector>", ""] if with_vectors else []
        return "\n".join([
            schedule.head(), *defined, "", *headers, cpu_prelude(), *([PHASES.read_text()] if in_phases else []), *([whole("cpu_products.h")] if multiplies else []), "namespace {\n", *self.texts, "}  // namespace\n", *self.entries,
        ])  # fmt: skip


CPU_NUMBERS = {"PARALLEL_FROM": (32768, 8192, 262144), "STREAM": (0, 1)}
"""Elements from which threads share the work; whether results go past the caches. The default first."""
