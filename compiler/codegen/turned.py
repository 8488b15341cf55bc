"""Kernels of the sketch `turned`: a tile of what goes across is brought into shared memory, and read from there along."""

from __future__ import annotations

from dataclasses import replace

import sympy

from compiler.codegen.kernels import KernelFunction, Launch, TileText, finish_function, in_axes, signature, wait
from compiler.codegen.levels import hoist, parts_of, run_pass
from compiler.draft.printing import Scope, indent, index_text
from compiler.program import KernelProgram, PackedKernel
from compiler.schedule import WARP, KernelPlan, Turned
from compiler.turned import TurnedKernel

PADDING = {1: 5, 2: 3}
"""Elements, by their bytes, between a tile's rows: a warp that writes four rows in packs, and one that reads packs of eight rows by four
columns, then meet each bank once, or twice at most; one element for any other."""
LEAST_RUN = 8
"""Packs along that a warp writes beside each other at least."""


def kernel_function(
    program: KernelProgram, packed: PackedKernel, name: str, narrow: bool, plan: KernelPlan
) -> KernelFunction:
    """`template <int Threads, int Along, int Across>`: a block to a tile."""
    kernel = packed.turned
    assert kernel is not None, "only kernels that have tiles are planned so"
    text = TileText(program, kernel, "int" if narrow else "int64_t", kernel.tiles)
    text.levels[0] |= kernel.batch.free_symbols
    text.levels[1] |= {kernel.across, kernel.own_pack, kernel.own_column}
    stores, _, roots = parts_of(text)
    fills = [fill.load for fill in kernel.tiles.values()]
    parameters, arguments = signature(
        text, stores, [*roots, *fills], [kernel.along_extent, kernel.across_extent, kernel.batches]
    )
    text.begin(roots)
    wide, width = text.wide, kernel.width
    along, across = (index_text(extent, text.index_names) for extent in (kernel.along_extent, kernel.across_extent))
    packs = index_text(sympy.expand(kernel.along_extent / width), text.index_names)
    top = Scope(1)
    top.lines += indent(
        [
            f"const unsigned along_tiles = ({along} + Along - 1) / Along, across_tiles = ({across} + Across - 1) / Across;",
            "const unsigned along_tile = blockIdx.x % along_tiles, across_tile = blockIdx.x / along_tiles % across_tiles;",
            *([f"const {wide} {kernel.batch} = blockIdx.x / along_tiles / across_tiles;"] if kernel.batch.is_Symbol else []),
        ],
        1,
    )  # fmt: skip
    wait(top, plan.pdl, "1")
    mark = len(top.lines)
    top.lines += indent(_fill(text, kernel, along, across), 1)
    top.line("__syncthreads();")
    hoist(text, roots, 0, top, {})
    body = Scope(3, top)
    made = run_pass(text, body, [], stores)
    run = max(LEAST_RUN, WARP // width)
    own, column = kernel.own_pack, kernel.own_column
    top.lines += indent(
        [
            f"constexpr int kPacks = Along / {width}, kRun = kPacks < {run} ? kPacks : {run};",
            "#pragma unroll",
            "for (int at = threadIdx.x; at < kPacks * Across; at += Threads) {",
            f"    const int {own} = at % kRun + at / (kRun * Across) * kRun, {column} = at / kRun % Across;",
            f"    const {wide} {kernel.pack} = static_cast<{wide}>(along_tile) * kPacks + {own};",
            f"    const {wide} {kernel.across} = static_cast<{wide}>(across_tile) * Across + {column};",
            f"    if ({kernel.pack} < {packs} && {kernel.across} < {across}) {{",
        ],
        1,
    )
    top.lines += [*body.lines, *made.lines(3), "        }", "    }"]
    head = ("template <int Threads, int Along, int Across>", "__global__ void __launch_bounds__(Threads)")
    function = finish_function(text, name, head, parameters, arguments, top, mark, roots, stores)
    brought = [fill.load.args[0] for fill in kernel.tiles.values() if fill.width > 1]
    return replace(function, packed=tuple(dict.fromkeys([*function.packed, *brought])))


def _fill(text: TileText, kernel: TurnedKernel, along: str, across: str) -> list[str]:
    """All of a thread's packs are on their way before the first is put into its tile."""
    wide, row, pack = text.wide, kernel.fill_row, kernel.fill_pack
    declared, loads, puts = [], [], []
    for tile, fill in kernel.tiles.items():
        buffer, place = fill.load.args
        type, by, pitch = text.element(buffer.dtype), fill.width, kernel.pitches[tile]
        packs = f"Along * Across / {by}"
        declared += [
            f"constexpr int {pitch} = Across + {PADDING.get(buffer.dtype.itemsize, 1)};",
            f"__shared__ {type} {tile.text}[Along * {pitch}];",
            f"Pack<{type}, {by}> {tile.text}_packs[({packs} + Threads - 1) / Threads];",
        ]

        def steps(body: list[str], packs: str = packs, by: int = by) -> list[str]:
            return [
                "#pragma unroll",
                f"for (int item = 0; item < ({packs} + Threads - 1) / Threads; ++item) {{",
                f"    const int at = item * Threads + threadIdx.x, tile_row = at / (Across / {by}), tile_column = at % (Across / {by}) * {by};",
                f"    const {wide} {row} = static_cast<{wide}>(along_tile) * Along + tile_row;",
                f"    const {wide} {pack} = (static_cast<{wide}>(across_tile) * Across + tile_column) / {by};",
                f"    if (at < {packs} && {row} < {along} && {pack} * {by} < {across}) {{",
                *indent(body, 2),
                "    }",
                "}",
            ]

        loads += steps([f"{tile.text}_packs[item] = load_pack<{by}>({buffer.text} + {text.index(place)});"])
        puts += steps(
            [
                "#pragma unroll",
                f"for (int part = 0; part < {by}; ++part) {{",
                f"    {tile.text}[tile_row * {pitch} + tile_column + part] = {tile.text}_packs[item].at[part];",
                "}",
            ]
        )
    return [*declared, *loads, *puts]


def launch_lines(launch: Launch) -> list[str]:
    """A block to a tile."""
    program, function, sketch = launch.program, launch.function, launch.plan.sketch
    kernel = function.kernel
    assert isinstance(kernel, TurnedKernel) and isinstance(sketch, Turned)
    threads, along = sketch.texts(launch.searched)
    tiles = [
        f"((({in_axes(program, extent)}) + {by} - 1) / {by})"
        for extent, by in ((kernel.along_extent, along), (kernel.across_extent, sketch.across))
    ]
    blocks = f"static_cast<unsigned>(({in_axes(program, kernel.batches)}) * {' * '.join(tiles)})"
    return [launch.by(f"{function.name}<{threads}, {along}, {sketch.across}>", blocks, threads, function.arguments)]
