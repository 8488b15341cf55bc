"""Kernels of the sketch `steps`: a thread to each element of what a loop carries, through all steps."""

from __future__ import annotations

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


def kernel_function(
    program: KernelProgram, kernel: StepsKernel, name: str, narrow: bool, _plan: KernelPlan
) -> KernelFunction:
    text = Text(program, kernel, "int" if narrow else "int64_t", program.rounds_to_halves)
    text.levels = [set(), set()]
    loop = kernel.loop
    assert loop is not None
    stores = [StoreStatement(b, place, value, 0, False) for b, place, value in [*kernel.each, *kernel.once]]
    roots = [*kernel.start, *kernel.now, *(store.value for store in stores)]
    carried = [f"carriedOf{at}" for at in range(len(kernel.now))]
    parameters, arguments = signature(text, stores, roots, [kernel.rows, loop.count], plain=True, leaves=carried)
    wide, row = text.wide, str(kernel.row) if kernel.row.is_Symbol else text.fresh("element")
    top = [
        f"const {wide} {row} = static_cast<{wide}>(blockIdx.x) * blockDim.x + threadIdx.x;",
        f"if ({row} >= {index_text(kernel.rows)}) return;",
    ]

    def lines(values, stored) -> list[str]:
        scope = Scope(0)
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

    begin = lines(kernel.start, [])
    top += [f"{value.type} carriedOf{at};" for at, value in enumerate(kernel.start)]
    top += [
        "{",
        *indent([*begin, *(f"carriedOf{at} = nextOf{at};" for at in range(len(kernel.start)))], 1),
        "}",
        "#pragma unroll 4",
    ]
    each = lines(kernel.now, stores[: len(kernel.each)])
    top += [
        f"for ({wide} {loop_name(kernel)} = 0; {loop_name(kernel)} < {index_text(loop.count)}; ++{loop_name(kernel)}) {{",
        *indent([*each, *(f"carriedOf{at} = nextOf{at};" for at in range(len(kernel.now)))], 1), "}", *lines([], stores[len(kernel.each) :]),
    ]  # fmt: skip
    whole = [
        f"__global__ void __launch_bounds__({THREADS}) {name}({', '.join(parameters)}) {{",
        *indent(top, 1),
        "}",
        "",
    ]
    return KernelFunction(name, "\n".join(whole), tuple(parameters), tuple(arguments), (), kernel)


def loop_name(kernel: StepsKernel) -> str:
    assert kernel.loop is not None
    return str(kernel.loop.variable)


def launch_lines(launch: Launch) -> list[str]:
    function = launch.function
    blocks = f"static_cast<unsigned>(({in_axes(launch.program, function.kernel.rows)} + {THREADS - 1}) / {THREADS})"
    return [f"{function.name}<<<{blocks}, {THREADS}, 0, stream>>>({', '.join(function.arguments)});"]
