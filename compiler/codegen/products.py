"""Kernels of the sketch `tiles`: what a side brings, and what is made of a sum, as lambdas for cuda/products.cuh."""

from __future__ import annotations

import re

from compiler.codegen.halved import HALVED, launch_halved, sides_apart, stage_lines
from compiler.codegen.kernels import KernelFunction, Launch, in_axes, signature
from compiler.codegen.levels import StoreStatement
from compiler.codegen.printer import print_lines
from compiler.codegen.product_parts import OperandSide, batch_parameter, by_plan, plan_lines, put_eight
from compiler.codegen.shifted_sides import elements_of_windows, line_lengths
from compiler.codegen.text import Text, element_type
from compiler.cuda import CUDA
from compiler.draft import hopper
from compiler.draft.cuda import pieces, whole
from compiler.draft.index import estimate
from compiler.draft.printing import indent, index_text
from compiler.products import ProductKernel
from compiler.program import KernelProgram
from compiler.schedule import KernelPlan

EXACT, NARROW = ((128, 128), (64, 64)), (32, 128)
"""Rows and columns of a tile of float32s; the last of products of few rows."""


def preludes(texts: str) -> list[str]:
    """What stands in front of kernels of tiles, of which `texts` has some."""
    kinds = sorted(
        set(re.findall(r"multiply_halved_tiles<(\w+), Rows, Columns, Split, \d, \d, \d, (\w+), (\w+),", texts))
    )
    widths = sorted({columns for cuts in HALVED.values() for _, columns, _ in cuts})
    multiply = [_multiply(type, left, right, columns) for type, left, right in kinds for columns in widths]
    tiles = re.sub(r"  // tune: .*", "", whole("tensor_cores.cuh"))
    halved = [_cuda("halved_stages") + _cuda("halved_tiles").replace("// WGMMA\n", "".join(multiply))] if kinds else []
    exact = [_cuda("exact_tiles")] if "multiply_exact_tile<" in texts else []
    return [
        pieces("cuda")["architectures"], whole("tiles.cuh"), tiles, whole("hopper.cuh"), _cuda("products"), *halved, *exact,
    ]  # fmt: skip


def _multiply(type: str, left: str, right: str, columns: int) -> str:
    function = f"multiply_sixteen(Operands<{type}, {left}, {right}>, float (&d)[{columns // 2}], uint64_t left, uint64_t right, int adds)"
    across = ", ".join("0" if along == "true" else "1" for along in (left, right))
    return hopper.wgmma(function, columns, {"__half": "f16", "__nv_bfloat16": "bf16"}[type], across)


def _cuda(name: str) -> str:
    return (CUDA / f"{name}.cuh").read_text()


def kernel_function(
    program: KernelProgram, kernel: ProductKernel, name: str, narrow: bool, _plan: KernelPlan
) -> KernelFunction:
    """`template <int Rows, int Columns, int Split>`, of 16-bit operands also `bool Mapped`: boxes are asked for."""
    text = Text(program, kernel, "int" if narrow else "int64_t", program.rounds_to_halves)
    text.levels = [set(), set()]
    stores = [StoreStatement(s.definition.outs[0], s.places[0], kernel.leaf(s.value), 0, False) for s in kernel.stores]
    roots = kernel.read + [s.value for s in stores]
    wide, kind = text.wide, kernel.narrow
    sizes = ", ".join(f"static_cast<{wide}>({index_text(end)})" for end in kernel.ends)
    sides = [(OperandSide(text, kernel, left, 1), OperandSide(text, kernel, right, 2)) for left, right in kernel.sides]
    elements = elements_of_windows([side for pair in sides for side in pair], kind)
    parameters, arguments = signature(
        text, stores, roots, [*kernel.ends, *elements], plain=not narrow, leaves=kernel.names.values()
    )
    template = "int Rows, int Columns, int Split"
    maps: list[str] = []
    if kind is not None:
        brings, call, maps = stage_lines(kernel, sides, element_type(kind), kind, wide, sizes)
        asks = len(maps) == sum(map(len, sides_apart(kernel)))
        threads = "Mapped ? kAskingThreads : kBringingThreads" if asks else "kBringingThreads"
        bound = f"{threads}, Rows == 64 ? 2 : 1" if asks else f"{threads}, 1"
        template += ", bool Mapped" + (
            ", bool Lines" if line_lengths([side for pair in sides for side in pair], kind) else ""
        )
    else:
        brings, call = _exact(text, kernel, sides[0], wide, sizes)
        bound = "kThreads, Rows == 128 ? 1 : 2"
    body = ["extern __shared__ __align__(1024) float tileMemory[];", *brings, *put_eight(text, kernel, stores), *call]
    whole = [
        f"template <{template}>", f"__global__ void __launch_bounds__({bound}) {name}({', '.join([*parameters, *maps])}) {{",
        *indent(body, 1), "}", "",
    ]  # fmt: skip
    return KernelFunction(name, "\n".join(whole), tuple(parameters), tuple(arguments), (), kernel)


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
        f"multiply_exact_tile<Rows, Columns, Split, Left, Right>(tileMemory, {sizes}, bringStage, putEight, sumAgain);"
    ]


def launch_lines(launch: Launch) -> list[str]:
    """The host asks `plan_tiles` how large tiles are and how many blocks share a depth."""
    program, function, clusters = launch.program, launch.function, launch.plan.pdl
    kernel = function.kernel
    assert isinstance(kernel, ProductKernel)
    launch.file.clusters |= clusters
    sizes = ", ".join(in_axes(program, end) for end in kernel.ends)
    return (_launch_exact if kernel.narrow is None else launch_halved)(program, function, kernel, sizes, clusters)


def _launch_exact(
    program: KernelProgram, function: KernelFunction, kernel: ProductKernel, sizes: str, clusters: bool
) -> list[str]:
    words = " + ".join(
        f"Side<{{{at}}}, kDepth, {str(kernel.along(side)).lower()}>::kWords" for at, side in enumerate(kernel.sides[0])
    )
    arms = []
    few = estimate(kernel.ends[1], program.lowered.hints) <= NARROW[0]
    tiles = (*EXACT, NARROW) if few else EXACT
    for rows, columns in tiles:
        room = f"kExactBytes<{rows}, {columns}>(STAGES * ({words.format(rows, columns)}) * 4)"
        for split in (1, 0) if clusters else (1,):
            condition = f"tile_plan.rows == {rows} && tile_plan.split {'==' if split else '>'} 1"
            arms.append((condition, f"{function.name}<{rows}, {columns}, {split}>", "kThreads", room, ""))
    grid = "static_cast<unsigned>(count_tiles(tile_plan, {}) * tile_plan.split)".format(sizes.rpartition(", ")[0])
    return [
        "static const ClusterPlaces places;",
        *plan_lines([(*cut, 8 if clusters else 1) for cut in tiles], sizes, "kDepth, exact_cycles"),
        *by_plan(arms, grid, "tile_plan.split", ", ".join(function.arguments)),
    ]
