"""A float32 product by halves: two kernels that prepare its operands, and one that multiplies what they made (halves.py)."""

from __future__ import annotations

from .expressions import Expr
from .halves import THREADS, TILE
from .tensors import Buffer, Side
from .tiles import TileEmitter


class HalvesEmitter(TileEmitter):
    """Prints a `product` definition whose tiling has `halves`."""

    def _tile(self) -> tuple[int, int]:
        return TILE, TILE

    def kernels(self, name: str, parameters: list[str]) -> list[str]:
        """Definitions of all its kernels."""
        index = ["template <typename Index>"] if self.narrow else []
        passes = ["template <bool LARGEST, typename Index>" if self.narrow else "template <bool LARGEST>"]
        lines = []
        for side, value in self._unprepared():
            along = self.along_k(value)
            lines += [
                *(index if along else passes),
                f"__global__ void __launch_bounds__(kThreads) {name}_{side}(",
                f"    {', '.join(parameters)}) {{",
                *self._prepare(side, value, along),
                "}",
                "",
            ]
        return [
            *lines,
            *index,
            f"__global__ void __launch_bounds__({THREADS}, 1) {name}_kernel(",
            f"    {', '.join(parameters)}) {{",
            *self.cuda(),
            "}",
            "",
        ]

    def reads(self) -> list[Buffer]:
        ready = [side for side in self.kernel.members[0].definition.tiling.halves if side.ready]
        return [*super().reads(), *(buffer for side in ready for buffer in (side.lines, side.largest))]

    def _unprepared(self) -> list[tuple[str, Expr]]:
        """Name and element of the sides that are to be prepared."""
        sides = zip(("left", "right"), self.sides, self.tiling.halves, strict=True)
        return [(name, value) for name, value, prepared in sides if not prepared.ready]

    def _side(self, side: str) -> tuple[Side, str, str]:
        """A side, its batches and its places."""
        at = ("left", "right").index(side)
        found = self.tiling.halves[at]
        return found, self.ends[0] if found.lines_differ else "1", self.ends[1 + at]

    def _of_batch(self, side: str) -> tuple[str, str]:
        """A side's lines and its largest magnitudes in the batch at hand."""
        found, _, places = self._side(side)
        batch, largest = self.names[0], found.largest.name
        lines = f"reinterpret_cast<{'const ' * found.ready}Eight*>({found.lines.name})"
        if found.lines_differ:
            lines = f"{lines} + {batch} * (stages_of({self.ends[3]}) * padded({places}) * 8)"
        return lines, f"{largest} + {batch} * ({places})" if found.largest_differ else largest

    def _prepare(self, side: str, value: Expr, along: bool) -> list[str]:
        _, batches, places = self._side(side)
        batch, place, step = self.names[0], self.names[1 if side == "left" else 2], self.names[3]
        wide, (lines, largest) = self.wide, self._of_batch(side)
        ends = f"static_cast<{wide}>({places}), static_cast<{wide}>({self.ends[3]})"
        body = [f"        prepare_along(value, {ends}, {lines}, {largest});"]
        if not along:
            body = [
                "        if constexpr (LARGEST) {",
                f"            find_largest(value, {ends}, {largest});",
                "        } else {",
                f"            prepare_across(value, {ends}, {lines}, {largest});",
                "        }",
            ]
        return [
            f"    for ({wide} {batch} = blockIdx.z; {batch} < {batches}; {batch} += gridDim.z) {{",
            f"        const auto value = [&]({wide} {place}, {wide} {step}) {{",
            "            float found;",
            *self.value(value, 3, "true", "found"),
            "            return found;",
            "        };",
            *body,
            "    }",
        ]

    def cuda(self) -> list[str]:
        batch, m = self.names[:2]
        batches, rows, columns, depth = self.ends
        wide = self.wide
        (left, left_largest), (right, right_largest) = map(self._of_batch, ("left", "right"))
        batch_loop = f"for ({wide} {batch} = blockIdx.z; {batch} < {batches}; {batch} += gridDim.z) {{"
        tile = (
            f"{left} + first_row * 8, {right} + first_column * 8, padded({rows}), padded({columns}), stages_of({depth})"
        )
        return [
            "    extern __shared__ __align__(1024) float memory[];",
            "    Ring ring(reinterpret_cast<char*>(memory));",
            f"    {wide} first_row, first_column;",
            f"    find_tile<{TILE}, {TILE}>(static_cast<{wide}>({rows}), static_cast<{wide}>({columns}), first_row, first_column);",
            "    if (threadIdx.x >= kThreads) {",
            "        share_registers<false>();",
            f"        {batch_loop}",
            f"            bring_halves(ring, {tile});",
            "        }",
            "        return;",
            "    }",
            "    share_registers<true>();",
            f"    {batch_loop}",
            "        float sums[64] = {};",
            f"        multiply_halves(sums, ring, {tile});",
            f"        const {wide} column = first_column + threadIdx.x % {TILE};",
            f"        const int exponent = column < {columns} ? exponent_of(({right_largest})[column]) : 0;",
            "        bool finite = true;",
            "        #pragma unroll",
            f"        for (int strip = 0; strip < {TILE // 32}; ++strip) {{",
            "            put_halves(sums, ring.strip(), strip);",
            "            meet_with_sums();",
            *self._strip("#pragma unroll 4", [
                f"const float part = ring.strip()[line_of<{TILE}>(round) * {TILE + 8} + threadIdx.x % {TILE}];",
                f"const float sum = scaled(part, exponent + exponent_of(({left_largest})[{m}]));",
                "finite = finite && fabsf(sum) < INFINITY;",
            ], self.store_text(5, "sum")),
            "            meet_with_sums();",
            "        }",
            *self._again(),
            "    }",
        ]  # fmt: skip

    def cuda_launch(self, name: str, arguments: str) -> list[str]:
        """`name` is the product's kernel."""
        _, rows, columns, _ = self.ends
        lines = [
            f"    const dim3 blocks(((({rows}) + {TILE - 1}) / {TILE}) * ((({columns}) + {TILE - 1}) / {TILE}), 1, {_most(self.ends[0])});"
        ]
        index = "Index" if self.narrow else ""
        launches = [*self._prepared(name.removesuffix("_kernel"), arguments, index)]
        named = f"{name}<Index>" if self.narrow else name
        launches += [
            f"cudaFuncSetAttribute({named}, cudaFuncAttributeMaxDynamicSharedMemorySize, kHalvesBytes);",
            f"{named}<<<blocks, kHalvesThreads, kHalvesBytes, stream>>>({arguments});",
        ]
        return self._chosen(lines, launches)

    def _prepared(self, name: str, arguments: str, index: str) -> list[str]:
        lines = []
        for side, value in self._unprepared():
            prepared, batches, places = self._side(side)
            given = [index] if index else []
            if self.along_k(value):
                kernel = f"{name}_{side}{_template(given)}"
                lines.append(
                    f"{kernel}<<<dim3({places}, 1, {_most(batches)}), kThreads, kAlongBytes, stream>>>({arguments});"
                )
                continue
            lines.append(
                f"cudaMemsetAsync({prepared.largest.name}, 0, ({batches}) * ({places}) * sizeof(int32_t), stream);"
            )
            for first, width, steps, bytes in (
                ("true", "kThreads", "kSpan", "0"),
                ("false", "kPlaces", "kLineSteps", "kAcrossBytes"),
            ):
                blocks = f"((({places}) + {width} - 1) / {width}) * ((({self.ends[3]}) + {steps} - 1) / {steps})"
                kernel = f"{name}_{side}{_template([first, *given])}"
                lines.append(
                    f"{kernel}<<<dim3({blocks}, 1, {_most(batches)}), kThreads, {bytes}, stream>>>({arguments});"
                )
        return lines

    def _chosen(self, lines: list[str], launches: list[str]) -> list[str]:
        if not self.narrow:
            return [*lines, *(f"    {line}" for line in launches)]
        sizes = self.fits_narrow()
        return [
            *lines,
            "    // Divisions of 32 bits are several times cheaper; a tile may reach beyond the ends.",
            f"    if ({sizes}) {{",
            "        using Index = int;",
            *(f"        {line}" for line in launches),
            "    } else {",
            "        using Index = int64_t;",
            *(f"        {line}" for line in launches),
            "    }",
        ]


def _template(given: list[str]) -> str:
    return f"<{', '.join(given)}>" if given else ""


def _most(batches: str) -> str:
    return batches if batches.isdigit() and int(batches) < 65536 else f"({batches}) < 65535 ? ({batches}) : 65535"
