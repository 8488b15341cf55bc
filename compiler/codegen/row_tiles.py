"""Kernels of the sketch `row_tiles`: rows that lie apart are brought into shared memory, side by side, and taken from there by teams."""

from __future__ import annotations

from compiler.codegen.kernels import KernelFunction, Launch, TileText, in_axes
from compiler.codegen.product_parts import launch_shared
from compiler.codegen.rows import rows_function
from compiler.draft.printing import branch, index_text
from compiler.program import KernelProgram, PackedKernel
from compiler.row_tiles import TiledRows
from compiler.schedule import KernelPlan, RowTiles

ROWS = (32, 16, 8)
"""Of a block: as many as shared memory holds; fewer take less of each line that is read."""
IN_FLIGHT = 16
"""Elements that a thread loads before it puts the first into its tile."""


def kernel_function(
    program: KernelProgram, packed: PackedKernel, name: str, narrow: bool, plan: KernelPlan
) -> KernelFunction:
    """`template <int Threads, int Team, int Split>`: `Threads / Team` rows to a block."""
    kernel = packed.tiled
    assert kernel is not None, "only kernels that have tiles are planned so"
    text = TileText(program, kernel, "int" if narrow else "int64_t", kernel.tiles)
    text.levels[0] |= {kernel.own_row}
    fills = list(kernel.tiles.values())
    return rows_function(
        program, kernel, name, narrow, False, plan.pdl, text=text, brought=fills, fill=lambda: _fill(text, kernel)
    )


def _fill(text: TileText, kernel: TiledRows) -> list[str]:
    wide, row, at = text.wide, kernel.fill_row, kernel.fill_at
    length, rows = (index_text(size, text.index_names) for size in (kernel.length, kernel.rows))
    lines = [
        "constexpr int kRows = Threads / Team, kAtOnce = Threads / kRows;",
        f"constexpr int {kernel.pitch} = kRows + 1;",
        "extern __shared__ unsigned char row_tiles[];",
        f"const int {kernel.own_row} = threadIdx.x / Team;",
        f"const {wide} fill_wanted = static_cast<{wide}>(blockIdx.x) * kRows + threadIdx.x % kRows;",
        f"const {wide} {row} = fill_wanted < {rows} ? fill_wanted : 0;",
    ]
    before = "0"
    for tile, load in kernel.tiles.items():
        buffer, place = load.args
        type = text.element(buffer.dtype)
        lines += [
            f"{type}* const {tile.text} = reinterpret_cast<{type}*>(row_tiles + {before});",
            f"for ({wide} first = threadIdx.x / kRows; first < {length}; first += kAtOnce * {IN_FLIGHT}) {{",
            f"    {type} brought[{IN_FLIGHT}];",
            "    #pragma unroll",
            f"    for (int item = 0; item < {IN_FLIGHT}; ++item) {{",
            f"        const {wide} {at} = first + item * kAtOnce;",
            f"        if ({at} < {length}) {{ brought[item] = {buffer.text}[{text.index(place)}]; }}",
            "    }",
            "    #pragma unroll",
            f"    for (int item = 0; item < {IN_FLIGHT}; ++item) {{",
            f"        const {wide} {at} = first + item * kAtOnce;",
            f"        if ({at} < {length}) {{ {tile.text}[{at} * {kernel.pitch} + threadIdx.x % kRows] = brought[item]; }}",
            "    }",
            "}",
        ]
        before += f" + (static_cast<int64_t>({length}) * {kernel.pitch} * {buffer.dtype.itemsize} + 15) / 16 * 16"
    return [*lines, "__syncthreads();"]


def launch_lines(launch: Launch) -> list[str]:
    """As many rows to a block as shared memory holds."""
    program, function, sketch = launch.program, launch.function, launch.plan.sketch
    kernel, pdl = function.kernel, launch.plan.pdl
    assert isinstance(kernel, TiledRows) and isinstance(sketch, RowTiles)
    launch.file.clusters |= pdl
    rows, length = in_axes(program, kernel.rows), in_axes(program, kernel.length)
    arms = []
    for number, count in enumerate(ROWS):
        each = " + ".join(
            f"(INT64_C(1) * ({length}) * {count + 1} * {tile.dtype.itemsize} + 15) / 16 * 16" for tile in kernel.tiles
        )
        call = f"{function.name}<{sketch.threads}, {sketch.threads // count}, 1>"
        grid = f"static_cast<unsigned>((({rows}) + {count - 1}) / {count})"
        most, bytes, given = str(MOST_BYTES), f"static_cast<int>({each})", ", ".join(function.arguments)
        launched = launch_shared(call, grid, "1", str(sketch.threads), most, bytes, given, pdl)
        arms.append((f"{each} <= {ROOM[number]}", launched))
    return branch(arms)


MOST_BYTES = 220 << 10
"""Of a block's shared memory on sm_90."""
ROOM = (72 << 10, 112 << 10, MOST_BYTES)
"""What tiles of so many rows may take: three blocks, two and one to a multiprocessor."""


def longest_row(kernel: TiledRows) -> int:
    """Elements of a row of which a tile of the fewest rows still has room."""
    return (MOST_BYTES - 16 * len(kernel.tiles)) // (sum(tile.dtype.itemsize for tile in kernel.tiles) * (ROWS[-1] + 1))
