"""The sketch `steps`, of CUDA a thread to each element of what a loop carries, through all steps; of C++ some beside each other."""

from __future__ import annotations

from compiler.codegen.cpu import STRIP, CpuText, make_function
from compiler.codegen.kernels import KernelFunction, Launch, in_axes, signature
from compiler.codegen.levels import StoreStatement
from compiler.codegen.printer import Printer
from compiler.codegen.text import Text
from compiler.draft.printing import Scope, _bare, indent, index_text
from compiler.program import KernelProgram
from compiler.schedule import KernelPlan
from compiler.steps import StepsKernel

THREADS = 64
"""Of a block: there are rarely many elements, and all multiprocessors should have some."""


class _Parts:
    """What both languages print: what is carried at first, a step, what is stored behind the last one."""

    def __init__(self, text: Text, kernel: StepsKernel) -> None:
        loop = kernel.loop
        assert loop is not None
        self.text, self.kernel = text, kernel
        text.levels = [set(), set()]
        stores = [StoreStatement(b, place, value, 0, False) for b, place, value in [*kernel.each, *kernel.once]]
        roots = [*kernel.start, *kernel.now, *(store.value for store in stores)]
        self.carried = [(f"carriedOf{at}", value.type) for at, value in enumerate(kernel.now)]
        leaves = [name for name, _ in self.carried]
        self.parameters, self.arguments = signature(
            text, stores, roots, [kernel.rows, loop.count], plain=True, leaves=leaves
        )
        self.row = str(kernel.row) if kernel.row.is_Symbol else text.fresh("element")
        self.begin, self.step = self._lines(kernel.start, []), self._lines(kernel.now, stores[: len(kernel.each)])
        self.end = self._lines([], stores[len(kernel.each) :])
        step = str(loop.variable)
        self.loop = f"for ({text.wide} {step} = 0; {step} < {index_text(loop.count)}; ++{step}) {{"

    def _lines(self, values, stored) -> list[str]:
        scope, text = Scope(0), self.text
        printer = Printer(text, scope, [*values, *(store.value for store in stored)], {})
        printed = [_bare(printer.text(value, scope)) for value in values]
        kept = [
            f"const auto keptOf{at} = {text.stored_text(s.buffer, printer.text(s.value, scope))};"
            for at, s in enumerate(stored)
        ]
        nexts = [
            f"const {value.type} nextOf{at} = {one};"
            for at, (value, one) in enumerate(zip(values, printed, strict=True))
        ]
        puts = [f"{text.pointer(s.buffer)}[{index_text(s.place)}] = keptOf{at};" for at, s in enumerate(stored)]
        return [*scope.lines, *nexts, *kept, *puts]


def kernel_function(
    program: KernelProgram, kernel: StepsKernel, name: str, narrow: bool, _plan: KernelPlan
) -> KernelFunction:
    text = Text(program, kernel, "int" if narrow else "int64_t", program.rounds_to_halves)
    parts = _Parts(text, kernel)
    moved = [f"{name} = nextOf{at};" for at, (name, _) in enumerate(parts.carried)]
    lines = [
        f"const {text.wide} {parts.row} = static_cast<{text.wide}>(blockIdx.x) * blockDim.x + threadIdx.x;",
        f"if ({parts.row} >= {index_text(kernel.rows)}) return;", *(f"{type} {name};" for name, type in parts.carried),
        "{", *indent([*parts.begin, *moved], 1), "}", "#pragma unroll 4", parts.loop, *indent([*parts.step, *moved], 1), "}", *parts.end,
    ]  # fmt: skip
    head = f"__global__ void __launch_bounds__({THREADS}) {name}({', '.join(parts.parameters)}) {{"
    whole = "\n".join([head, *indent(lines, 1), "}", ""])
    return KernelFunction(name, whole, tuple(parts.parameters), tuple(parts.arguments), (), kernel)


def cpu_function(program: KernelProgram, kernel: StepsKernel, name: str) -> KernelFunction:
    """Elements from `begin` to `end`, some beside each other through all steps."""
    text = CpuText(program, kernel)
    parts = _Parts(text, kernel)
    begin, end = text.units[0].split()[-1], text.units[1].split()[-1]
    own = [f"[[maybe_unused]] const {type} {name} = heldOf{at}[lane];" for at, (name, type) in enumerate(parts.carried)]
    moved = [f"heldOf{at}[lane] = nextOf{at};" for at in range(len(parts.carried))]

    def each(lines: list[str]) -> list[str]:
        here = f"[[maybe_unused]] const int64_t {parts.row} = firstOf + lane;"
        return ["for (int64_t lane = 0; lane < lanesOf; ++lane) {", *indent([here, *lines], 1), "}"]

    lines = [
        f"for (int64_t firstOf = {begin}; firstOf < {end}; firstOf += {STRIP}) {{",
        f"    const int64_t lanesOf = {end} - firstOf < {STRIP} ? {end} - firstOf : {STRIP};",
        *(f"    {type} heldOf{at}[{STRIP}];" for at, (_, type) in enumerate(parts.carried)),
        *indent([*each([*parts.begin, *moved]), parts.loop, *indent(each([*own, *parts.step, *moved]), 1), "}"], 1),
        *(indent(each([*own, *parts.end]), 1) if parts.end else []), "}",
    ]  # fmt: skip
    return make_function(text, kernel, name, indent(lines, 1), parts.parameters, parts.arguments)


def launch_lines(launch: Launch) -> list[str]:
    function = launch.function
    blocks = f"static_cast<unsigned>(({in_axes(launch.program, function.kernel.rows)} + {THREADS - 1}) / {THREADS})"
    return [f"{function.name}<<<{blocks}, {THREADS}, 0, stream>>>({', '.join(function.arguments)});"]
