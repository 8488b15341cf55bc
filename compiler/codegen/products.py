"""Kernels of the sketch `tiles`: what a side brings, and what is made of a sum, as lambdas for cuda/products.cuh."""

from __future__ import annotations

import re

import sympy
import torch

from compiler.codegen.kernels import KernelFunction, in_axes, signature
from compiler.codegen.levels import StoreStatement, indent
from compiler.codegen.printer import Printer
from compiler.codegen.text import Text, element_type
from compiler.cuda import CUDA
from compiler.draft import hopper, tensor_cores
from compiler.draft.expressions import Expr
from compiler.draft.index import FloorDiv, Index, Modulo
from compiler.draft.printing import Scope, _bare, index_text
from compiler.products import ProductKernel
from compiler.program import KernelProgram

WIDTHS = (64, 128, 256)
"""Columns of a tile of 16-bit operands; 128 of two products at once."""
EXACT = ((128, 128), (64, 64))
"""Rows and columns of a tile of float32s."""


def preludes(texts: str) -> list[str]:
    """What stands in front of kernels of tiles, of which `texts` has some."""
    whole = (CUDA / "products.cuh").read_text().partition("\n\n")[2]
    kinds = sorted(set(re.findall(r"multiply_halved_tiles<(\w+), Columns, Split, \d, (\w+), (\w+)>", texts)))
    multiply = [_wgmma(type, left, right, columns) for type, left, right in kinds for columns in WIDTHS]
    tiles = re.sub(r"  // tune: .*", "", tensor_cores.PRELUDE)
    return [
        tensor_cores.ARCHITECTURES, tensor_cores.TILES, tiles, hopper.PRELUDE, whole.replace("// WGMMA\n", "".join(multiply)),
    ]  # fmt: skip


def _wgmma(type: str, left: str, right: str, columns: int) -> str:
    """A warp group's 64 rows of sums += 16 steps of both sides, which lie in shared memory."""
    count, kind = columns // 2, {"__half": "f16", "__nv_bfloat16": "bf16"}[type]
    registers = ", ".join(f"%{i}" for i in range(count))
    sums = ", ".join(f'"+f"(d[{i}])' for i in range(count))
    across = ", ".join("0" if along == "true" else "1" for along in (left, right))
    return (
        f"__device__ __forceinline__ void multiply_sixteen(Operands<{type}, {left}, {right}>, float (&d)[{count}], uint64_t left, uint64_t right, int adds) {{\n"
        "    asm volatile(\n"
        f'        "{{.reg .pred adds; setp.ne.b32 adds, %{count + 2}, 0; wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{kind}.{kind} {{{registers}}}, "\n'
        f'        "%{count}, %{count + 1}, adds, 1, 1, {across};}}"\n'
        f'        : {sums} : "l"(left), "l"(right), "r"(adds));\n'
        "}\n"
    )


class _Side:
    """One operand: `which` of the kernel's loops, m or n, counts its places."""

    def __init__(self, text: Text, kernel: ProductKernel, value: Expr, which: int) -> None:
        self.text, self.kernel, self.value = text, kernel, value
        self.place, self.step = kernel.loops_of[which], kernel.loops_of[3]
        self.ends = kernel.ends[which], kernel.ends[3]
        self.end, self.depth = map(index_text, self.ends)
        self.along = kernel.along(value)

    def apart(self, count: int, dtype: torch.dtype) -> list[str] | None:
        """Conditions under which `count` neighbours are one aligned copy, all inside or all outside; None where that never is."""
        if self.value.op != "load" or self.value.args[0].dtype != dtype:
            return None
        buffer, index = self.value.args
        fast, end = (self.step, self.ends[1]) if self.along else (self.place, self.ends[0])
        rest = sympy.expand(index - fast)
        return (
            None
            if fast in rest.free_symbols
            else whole_packs(buffer.text, rest, [end], count, set(self.kernel.loops_of))
        )

    def element(self, depth: int, at: str = "") -> list[str]:
        """Lines that set `theValue`; `at` is added to the axis along which neighbours lie."""
        lines, printed = print_lines(self.text, self.value)
        wide = self.text.wide
        place, step = (
            f"firstPlace + ofPlace{'' if self.along else at}",
            f"firstStep + ofStep{at if self.along else ''}",
        )
        return indent([
            f"const {wide} {self.place} = {place}, {self.step} = {step};", "float theValue = 0.0f;",
            f"if ({self.place} < {self.end} && {self.step} < {self.depth}) {{", *indent([*lines, f"theValue = {printed};"], 1), "}",
        ], depth)  # fmt: skip

    def copied(self, call: str) -> list[str]:
        buffer, index = self.value.args
        inside = f"{self.place} < {self.end} && {self.step} < {self.depth}"
        return [
            f"const {self.text.wide} {self.place} = firstPlace + ofPlace, {self.step} = firstStep + ofStep;",
            f"{call}({buffer.text} + ({index_text(index)}), {inside});".replace("(", "(toHere, ", 1),
        ]

    def halved(self, name: str, type: str, places: str, dtype: torch.dtype) -> list[str]:
        """A lambda that brings the side's part of a stage: (its first place, its first step, to, thread, threads)."""
        fast, along = self.apart(8, dtype), str(self.along).lower()
        bring = (
            f"bring_side<{places}, {along}>(toStage, ofThread, ofThreads, [&](int ofPlace, int ofStep, char* toHere) {{"
        )
        slow = [
            bring, f"    Pack<{type}, 8> eightOf;", "    #pragma unroll 1", "    for (int ofEight = 0; ofEight < 8; ++ofEight) {", *self.element(2, " + ofEight"),
            f"        eightOf.at[ofEight] = to<{type}>(theValue);", "    }",
            f"    *reinterpret_cast<Pack<{type}, 8>*>(toHere) = eightOf;", "});",
        ]  # fmt: skip
        quick = [] if fast is None else [bring, *indent(self.copied("copy_eight"), 1), "});"]
        return self.bringing(name, "Eight", "char* toStage, int ofThread, int ofThreads", fast, quick, slow)

    def exact(self, name: str, type: str) -> list[str]:
        """A lambda that asks for the side's part of a stage: (its first place, its first step, to)."""
        fast = self.apart(4, torch.float32)

        def rounds(width: int) -> list[str]:
            lines = [
                f"#pragma unroll{' 4' if width == 1 else ''}",
                f"for (int ofRound = 0; ofRound < {type}::template kRounds<{width}>; ++ofRound) {{",
                f"    const int ofStep = {type}::template step<{width}>(ofRound), ofPlace = {type}::template place<{width}>(ofRound);",
                f"    if (!{type}::template brings<{width}>()) break;",
                f"    float* const toHere = toStage + {type}::at(ofPlace, ofStep);",
            ]  # fmt: skip
            if self.value.op == "load" and self.value.args[0].dtype == torch.float32:
                return [*lines, *indent(self.copied(f"copy_ahead<{width}>"), 1), "}"]
            return [*lines, *self.element(1), "    *toHere = theValue;", "}"]

        quick = [] if fast is None else rounds(4)
        return self.bringing(name, "Four", "float* toStage", fast, quick, rounds(1))

    def bringing(
        self, name: str, count: str, more: str, fast: list[str] | None, quick: list[str], slow: list[str]
    ) -> list[str]:
        """The lambda `name`, which brings `quick` where the conditions `fast` hold, `slow` where one does not; None: they never do. `count`: of
        a pack, in words. `more`: its parameters behind the first place and step."""
        wide, batch, flag = self.text.wide, self.kernel.loops_of[0], f"{name}By{count}"
        body = slow if fast is None else quick
        if fast:
            body = [f"if ({flag}) {{", *indent(quick, 1), "} else {", *indent(slow, 1), "}"]
        own = batch_parameter(batch, wide)
        return [
            *([f"const bool {flag} = {' && '.join(fast)};"] if fast else []),
            f"const auto {name} = [&]({own}, {wide} firstPlace, {wide} firstStep, {more}) {{",
            *indent(body, 1),
            "};",
        ]


def batch_parameter(batch: Index, wide: str) -> str:
    """Of a lambda; it has no name where there is one product alone."""
    return f"[[maybe_unused]] {wide} {batch}" if batch.is_Symbol else wide


def whole_packs(buffer: str, rest: Index, ends: list[Index], count: int, variables: set[Index]) -> list[str] | None:
    """Conditions under which `rest` counts in packs of `count`, and so do the ends; None where they never hold."""
    sizes = list(ends)
    for term in sympy.Add.make_args(rest):
        if term.has(FloorDiv, Modulo):
            return None
        sizes.append(
            sympy.Mul(*(f for f in sympy.Mul.make_args(term) if f not in variables)) if term != 0 else sympy.S.Zero
        )
    if any(size.is_Integer and size % count for size in sizes):
        return None
    asked = dict.fromkeys(index_text(size) for size in sizes if not size.is_Integer)
    return [f"reinterpret_cast<uintptr_t>({buffer}) % 16 == 0", *(f"({text}) % {count} == 0" for text in asked)]


def print_lines(text: Text, expr: Expr) -> tuple[list[str], str]:
    """(lines before, the value)."""
    scope = Scope(0)
    value = Printer(text, scope, [expr], {}).text(expr, scope)
    return scope.lines, _bare(value)


def product_function(program: KernelProgram, kernel: ProductKernel, name: str, narrow: bool) -> KernelFunction:
    """`template <int Rows, int Columns, int Split>`; Rows are 128 of 16-bit operands."""
    text = Text(program, kernel, "int" if narrow else "int64_t", program.dtype in ("float16", "bfloat16"))
    text.levels = [set(), set()]
    batch, m, n, _ = kernel.loops_of
    stores = [StoreStatement(s.definition.outs[0], s.places[0], kernel.leaf(s.value), 0, False) for s in kernel.stores]
    roots = [side for pair in kernel.sides for side in pair] + [s.value for s in stores]
    parameters, arguments = signature(text, stores, roots, list(kernel.ends), plain=True)
    keep = [at for at, p in enumerate(parameters) if not re.fullmatch(r"float sumOf\d", p)]
    parameters, arguments = [parameters[at] for at in keep], [arguments[at] for at in keep]
    wide, count = text.wide, len(kernel.sides)
    of_batch = batch_parameter(batch, wide)
    given = ", ".join(f"float sumOf{at}" for at in range(count))
    made, put = [], []
    for at, store in enumerate(stores):
        lines, value = print_lines(text, store.value)
        kept = text.stored_text(store.buffer, value)
        place, out = index_text(store.place), store.buffer.text
        made += [
            f"const auto madeOf{at} = [&]({of_batch}, [[maybe_unused]] {wide} {m}, [[maybe_unused]] {wide} {n}, [[maybe_unused]] {given.replace(', ', ', [[maybe_unused]] ')}) {{",
            *indent([*lines, f"return {kept};"], 1), "};",
            f"const auto placeOf{at} = [&]({of_batch}, [[maybe_unused]] {wide} {m}, [[maybe_unused]] {wide} {n}) -> {wide} {{ return {place}; }};",
        ]  # fmt: skip
        rest = sympy.expand(store.place - n)
        two = None if n in rest.free_symbols else whole_packs(out, rest, [], 2, set(kernel.loops_of))
        where = f"{batch if batch.is_Symbol else 0}, {m}, {n}"
        one, other = (
            f"madeOf{at}({w}, {', '.join(f'{s}[{p}]' for p in range(count))})"
            for w, s in ((where, "theseSums"), (f"{where} + 1", "thoseSums"))
        )
        type = element_type(store.buffer.dtype)
        apart = [
            f"{out}[placeOf{at}({where})] = {one};",
            f"if ({n} + 1 < {index_text(kernel.ends[2])}) {out}[placeOf{at}({where} + 1)] = {other};",
        ]
        if two is None:
            put += apart
            continue
        made.append(f"const bool byTwo{at} = {' && '.join(two)};")
        put += [
            f"if (byTwo{at} && {n} + 1 < {index_text(kernel.ends[2])}) {{",
            f"    *reinterpret_cast<Pack<{type}, 2>*>({out} + placeOf{at}({where})) = {{{{{one}, {other}}}}};", "} else {", *indent(apart, 1), "}",
        ]  # fmt: skip
    sizes = ", ".join(f"static_cast<{wide}>({index_text(end)})" for end in kernel.ends)
    putting = [
        f"const auto putTwo = [&]({of_batch}, {wide} {m}, {wide} {n}, const float (&theseSums)[{count}], const float (&thoseSums)[{count}]) {{",
        f"    if ({m} >= {index_text(kernel.ends[1])} || {n} >= {index_text(kernel.ends[2])}) return;", *indent(put, 1), "};",
    ]  # fmt: skip
    sides = [(_Side(text, kernel, left, 1), _Side(text, kernel, right, 2)) for left, right in kernel.sides]
    kind = kernel.narrow
    if kind is not None:
        brings, call = _halved(kernel, sides, element_type(kind), kind, wide, sizes)
        bound = "kTileThreads, 1"
    else:
        brings, call = _exact(text, kernel, sides[0], wide, sizes)
        bound = "kThreads, Rows == 128 ? 1 : 2"
    body = ["extern __shared__ __align__(1024) float tileMemory[];", *brings, *made, *putting, *call]
    whole = [
        "template <int Rows, int Columns, int Split>", f"__global__ void __launch_bounds__({bound}) {name}({', '.join(parameters)}) {{",
        *indent(body, 1), "}", "",
    ]  # fmt: skip
    return KernelFunction(name, "\n".join(whole), tuple(parameters), tuple(arguments), (), kernel)


def _halved(
    kernel: ProductKernel, sides, type: str, kind: torch.dtype, wide: str, sizes: str
) -> tuple[list[str], list[str]]:
    lines, calls = [], []
    for at, (left, right) in enumerate(sides):
        lines += [
            *left.halved(f"leftOf{at}", type, "kTileRows", kind),
            *right.halved(f"rightOf{at}", type, "Columns", kind),
        ]
        calls += [
            f"if (product == {at}) {{", f"    leftOf{at}(batch, first_row, start, to, thread, threads);",
            f"    rightOf{at}(batch, first_column, start, to + kTileRows * kTileSteps * 2, thread, threads);", "}",
        ]  # fmt: skip
    lines += [
        f"const auto bringStage = [&](int product, {wide} batch, {wide} first_row, {wide} first_column, {wide} start, char* to, int thread, int threads) {{",
        *indent(calls, 1), "};",
    ]  # fmt: skip
    along = ", ".join(str(side.along).lower() for side in sides[0])
    return lines, [
        f"multiply_halved_tiles<{type}, Columns, Split, {len(sides)}, {along}>(tileMemory, {sizes}, bringStage, putTwo);"
    ]


def _exact(text: Text, kernel: ProductKernel, sides, wide: str, sizes: str) -> tuple[list[str], list[str]]:
    batch, m, n, k = kernel.loops_of
    left, right = sides
    lines = [
        f"using {word} = Side<{of}, kDepth, {str(side.along).lower()}>;"
        for word, of, side in (("Left", "Rows", left), ("Right", "Columns", right))
    ]
    lines += [*left.exact("bringLeft", "Left"), *right.exact("bringRight", "Right")]
    summed = []
    for word, side in (("fromLeft", left), ("fromRight", right)):
        before, value = print_lines(text, side.value)
        summed += ["{", *indent([*before, f"{word} = {value};"], 1), "}"]
    own = batch_parameter(batch, wide)
    lines += [
        f"const auto bringStage = [&]({wide} batch, {wide} first_row, {wide} first_column, {wide} start, float* left, float* right) {{",
        "    bringLeft(batch, first_row, start, left);", "    bringRight(batch, first_column, start, right);", "};",
        f"const auto sumAgain = [&]({own}, {wide} {m}, {wide} {n}) {{", "    float theSum = 0.0f;",
        f"    if ({m} < {index_text(kernel.ends[1])} && {n} < {index_text(kernel.ends[2])}) {{",
        f"        for ({wide} {k} = 0; {k} < {index_text(kernel.ends[3])}; ++{k}) {{", "            float fromLeft, fromRight;", *indent(summed, 3),
        "            theSum += fromLeft * fromRight;", "        }", "    }", "    return theSum;", "};",
    ]  # fmt: skip
    sizes = sizes.partition(", ")[2]
    return lines, [
        f"multiply_exact_tile<Rows, Columns, Split, Left, Right>(tileMemory, {sizes}, bringStage, putTwo, sumAgain);"
    ]


def launch_product(program: KernelProgram, function: KernelFunction, clusters: bool) -> list[str]:
    """The host asks `plan_tiles` how large tiles are and how many blocks share a depth."""
    kernel = function.kernel
    assert isinstance(kernel, ProductKernel)
    sizes = [in_axes(program, end) for end in kernel.ends]
    given = ", ".join(function.arguments)
    if kernel.narrow is not None:
        widths = WIDTHS if len(kernel.sides) == 1 else (128,)
        cuts = [(128, columns, 1 if columns == 256 or not clusters else 8) for columns in widths]
        steps, cycles, threads, bytes = "kTileSteps", "halved_cycles", "kTileThreads", "kTileBytes<{1}>"
    else:
        cuts = [(*cut, 8 if clusters else 1) for cut in EXACT]
        steps, cycles, threads = "kDepth", "exact_cycles", "kThreads"
        bytes = (
            "kExactBytes<{0}, {1}>(STAGES * ("
            + " + ".join(
                f"Side<{{{at}}}, kDepth, {str(kernel.along(side)).lower()}>::kWords"
                for at, side in enumerate(kernel.sides[0])
            )
            + ") * 4)"
        )
    lines = [
        f"constexpr TilePlan cuts[] = {{{', '.join('{' + ', '.join(map(str, cut)) + '}' for cut in cuts)}}};",
        f"const TilePlan tile_plan = plan_tiles(cuts, {len(cuts)}, {', '.join(sizes)}, {steps}, {cycles});",
        f"const int64_t all_tiles = ({sizes[0]}) * ((({sizes[1]}) + tile_plan.rows - 1) / tile_plan.rows) * ((({sizes[2]}) + tile_plan.columns - 1) / tile_plan.columns);",
    ]  # fmt: skip
    blocks = "all_tiles * tile_plan.split"
    if kernel.narrow is not None:
        lines.append("static const Multiprocessors machine;")
        blocks = "tile_plan.split == 1 && all_tiles > machine.count ? machine.count : all_tiles * tile_plan.split"
    lines.append(f"const unsigned grid_blocks = static_cast<unsigned>({blocks});")
    arms = [(rows, columns, split) for rows, columns, most in cuts for split in ((1,) if most == 1 else (1, 0))]
    for number, (rows, columns, split) in enumerate(arms):
        call, room = f"{function.name}<{rows}, {columns}, {split}>", bytes.format(rows, columns)
        condition = (
            f"tile_plan.rows == {rows} && tile_plan.columns == {columns} && tile_plan.split {'==' if split else '>'} 1"
        )
        head = "} else {" if number == len(arms) - 1 else f"{'} else ' if number else ''}if ({condition}) {{"
        lines += [
            head, f"    static const int room = cudaFuncSetAttribute({call}, cudaFuncAttributeMaxDynamicSharedMemorySize, {room});",
            "    static_cast<void>(room);",
            f"    launch_with_shared<false>({call}, grid_blocks, {'1' if split else 'tile_plan.split'}, {threads}, {room}, stream, {given});",
        ]  # fmt: skip
    return [*lines, "}"]
