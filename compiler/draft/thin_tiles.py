"""CUDA for float32 products of few steps, whose time is that of their results' stores: a warp multiplies what it has in registers.

A warp loads 32 neighbouring columns of all steps, each lane four of them from a quarter of the steps, which is what the instruction reads: its
columns may be any eight, so lane / 4 stands for four neighbours, one for each of four instructions. What a lane gets of the sums are then eight
neighbours of a row, which it stores as they are. The left's rows lie in shared memory as the instruction reads them. Nothing else goes through
shared memory and warps wait for nobody, so that while some load or store others multiply.

How exact: as tensor_cores.py.
"""

from __future__ import annotations

import functools

import sympy
import torch

from .index import Index
from .interface import indices_of
from .printing import Statements, _bare, index_text
from .tensors import Buffer
from .tiles import TileEmitter

ROWS, COLUMNS = 128, 256
"""Of a block: eight tiles of 16 rows, a strip of 32 columns for each of its warps."""
MOST_STRIPS = 4
"""Strips that a warp does one after another: some warps store while others load."""
FEW_BLOCKS = 1056
"""For two blocks on each of an H200's multiprocessors, four times: with fewer a block has fewer strips."""
CACHED_BYTES = 50 << 20
"""What the L2 of an H100 or H200 holds; larger results go past it. On an H200, with four strips (9, 87, 7 of KernelBench's level 1):
1.24, 3.88 and 2.47 ms past it, 1.60, 5.25 and 2.74 through it; with one strip through it 1.46, 5.45 and 2.97."""
MOST_STEPS = 64
"""What a warp's registers hold of 32 columns."""
FEWEST_COLUMNS = 256
FOUR = "values"
"""Four neighbours in the text."""


class ThinEmitter(TileEmitter):
    """Prints a `product` definition of few steps."""

    @property
    def suits(self) -> bool:
        """Whether it can: results are neighbours along a row, four of them on 16 bytes, and so is the right, or its steps are neighbours."""
        _, _, columns, depth = (end for _, end in self.kernel.inner)
        tiling, (right_side, out) = self.tiling, (self.operands[1], self.member.definition.outs[0])
        plain = not (
            tiling.halves or tiling.place or tiling.triangle or tiling.sparse or tiling.in_tf32 or self.in_stages
        )
        if self.device != "cuda" or not plain or tiling.inside(self.kernel.axes[:-1]):
            return False
        if not depth.is_Integer or depth > MOST_STEPS or not columns.is_Integer or columns < FEWEST_COLUMNS:
            return False
        if self.shipped[1] < 16 or out.dtype != torch.float32:
            return False
        place, n = self.member.places[0], self.kernel.inner[2][0]
        rest = sympy.expand(place - n)
        if right_side.along_k:
            found = self._apart is not None
        else:
            found = right_side.fours is not None and len(right_side.fours) <= 1
        return found and n not in rest.free_symbols and all(
            any(factor.is_Integer and factor % 4 == 0 for factor in sympy.Mul.make_args(term))
            for term in sympy.Add.make_args(rest)
        )  # fmt: skip

    @property
    def _apart(self) -> Index | None:
        """Elements between the right's neighbouring columns, where its steps are neighbours; None where that depends on the place."""
        found, n = self.operands[1].load(), self.kernel.inner[2][0]
        if found is None or any(
            n in index.free_symbols for index in indices_of([found[0]] if found[0] is not None else [])
        ):
            return None
        index = sympy.expand(found[1].args[1])
        apart = index.coeff(n)
        return None if n in (index - apart * n).expand().free_symbols else apart

    @functools.cached_property
    def shipped(self) -> list[int]:
        """Batches, rows, columns and steps as the problem ships."""
        return [self.partition.program.estimate(end) for _, end in self.kernel.inner]

    @functools.cached_property
    def strips(self) -> int:
        batches, rows, columns, _ = self.shipped
        blocks = batches * -(-rows // ROWS) * -(-columns // COLUMNS)
        return max(1, min(MOST_STRIPS, columns // COLUMNS, blocks // FEW_BLOCKS))

    @property
    def past_the_cache(self) -> bool:
        batches, rows, columns, _ = self.shipped
        return 4 * batches * rows * columns > CACHED_BYTES

    @property
    def steps(self) -> int:
        return -(-int(self.kernel.inner[3][1]) // 8)

    @property
    def blocks_at_once(self) -> int:
        return 1 if self.exact and self.steps > 4 else 2

    @property
    def template(self) -> str:
        return f"{self.steps}, {str(self.exact).lower()}, {2 if self.tiling.ties_to_even else 0}"

    def cuda(self) -> list[str]:
        """The kernel's body; cuda/thin_tiles.cuh has the rest."""
        batch, m, n, k = self.names
        batches, rows, columns, depth = self.ends
        wide, right, width = self.wide, self.operands[1], COLUMNS * self.strips
        return [
            "    extern __shared__ float4 lines[];",
            *([] if right.along_k else right.by_four("right")),
            f"    const {wide} across = ({columns} + {width - 1}) / {width};",
            f"    const {wide} first_row = blockIdx.x / across * {ROWS}, first_column = blockIdx.x % across * {width} + threadIdx.x / 32 * 32;",
            "    const int lane = threadIdx.x % 32;",
            f"    for ({wide} {batch} = blockIdx.z; {batch} < {batches}; {batch} += gridDim.z) {{",
            "        __syncthreads();  // nobody reads the batch before any more",
            f"        lay_left<{self.template}>(lines, [&](int row, int step) {{",
            f"            const {wide} {m} = first_row + row, {k} = step;",
            "            float value = 0.0f;",
            *self.value(self.sides[0], 3, f"{m} < {rows} && {k} < {depth}", "value"),
            "            return value;",
            "        });",
            "        __syncthreads();",
            f"        for (int strip = 0; strip < {self.strips}; ++strip) {{",
            f"            const {wide} column = first_column + strip * {COLUMNS};",
            f"            if (column >= {columns}) break;",
            f"            float right[{2 * self.steps}][4];",
            *self._load_right(),
            f"            const bool finite = multiply_thin<{self.template}>(lines, right, [&](int row, int at, const float (&values)[4]) {{",
            f"                const {wide} {m} = first_row + row, {n} = column + at;",
            f"                if ({m} < {rows} && {n} < {columns}) {{",
            *self.store_text(5, FOUR),
            "                }",
            "            });",
            *self._again(),
            "        }",
            "    }",
        ]  # fmt: skip

    def store(self, out: Buffer, place: str, text: str) -> str:
        if text != FOUR:
            return super().store(out, place, text)
        values = ", ".join(f"{FOUR}[{at}]" for at in range(4))
        to = f"reinterpret_cast<float4*>({out.name} + ({_bare(place)}))"
        return f"__stcs({to}, make_float4({values}));" if self.past_the_cache else f"*{to} = make_float4({values});"

    def _load_right(self) -> list[str]:
        """Lines that load a lane's columns of its steps."""
        _, _, n, k = self.names
        _, _, columns, depth = self.ends
        right = self.operands[1]
        found = right.load()
        assert found is not None
        condition, load = found
        buffer, index = load.args[:2]
        scope, names = self.scope(right.value, 5)
        guard = f"{n} < {columns}" + ("" if self.kernel.inner[3][1] % 8 == 0 else f" && {k} < {depth}")
        if condition is not None:
            guard = f"{guard} && {Statements(scope, [condition], names, self.name, self.read).text(condition)}"
        scope.line(f"const bool inside = {guard};")
        scope.line(f"const float* const from = {buffer.name} + ({_bare(index_text(index, names))});")
        four = (
            "const float4 four = inside ? *reinterpret_cast<const float4*>(from) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);"
        )
        by_four = [four, *(f"right[at][{at}] = four.{name};" for at, name in enumerate("xyzw"))]
        at = f"j * {index_text(self._apart)}" if right.along_k else "j"
        one_by_one = ["for (int j = 0; j < 4; ++j) {", f"    right[at][j] = inside ? from[{at}] : 0.0f;", "}"]

        def loop(lines: list[str], pad: str) -> list[str]:
            return [
                f"{pad}#pragma unroll",
                f"{pad}for (int at = 0; at < {2 * self.steps}; ++at) {{",
                f"{pad}    const {self.wide} {n} = column + column_of_lane(), {k} = at * 4 + lane % 4;",
                *scope.lines,
                *(f"{pad}    {line}" for line in lines),
                f"{pad}}}",
            ]

        if right.along_k:
            return loop(one_by_one, "            ")
        if not right.fours:
            return loop(by_four, "            ")
        return [  # no branch between two loads
            "            if (right_by_four) {",
            *loop(by_four, "                "),
            "            } else {",
            *loop(one_by_one, "                "),
            "            }",
        ]

    def _again(self) -> list[str]:
        """A thread's results by plain multiply-adds, where one of them is not finite."""
        _, m, n, _ = self.names
        _, rows, columns, _ = self.ends
        return [
            "            if (!finite) {  // rounding an operand may have made it so: these again by plain multiply-adds",
            f"                for (int result = 0; result < {ROWS // 8 * 8}; ++result) {{",
            f"                    const {self.wide} {m} = first_row + result / 8 * 8 + lane / 4, {n} = column + lane % 4 * 4 + result % 8 / 4 * 16 + result % 4;",
            f"                    if ({m} >= {rows} || {n} >= {columns}) continue;",
            "                    float sum = 0.0f;",
            *self.plain_sum(),
            "                }",
            "            }",
        ]

    def cuda_launch(self, name: str, arguments: str) -> list[str]:
        batches, rows, columns, _ = self.ends
        width, bytes = COLUMNS * self.strips, (1 + self.exact) * ROWS // 16 * self.steps * 512
        lines = [
            f"    const int64_t batches = {batches};",
            f"    const dim3 blocks(((({rows}) + {ROWS - 1}) / {ROWS}) * (({columns} + {width - 1}) / {width}), 1,",
            "                      batches < 65535 ? batches : 65535);",
            f"    const int bytes = {bytes};",
        ]
        return self.launched(lines, name, arguments)
