"""A float32 product by halves: two kernels that prepare its operands, and one that multiplies what they made (halves.py)."""

from __future__ import annotations

from .expressions import Expr
from .halves import TILE, Side
from .printing import indent
from .tensors import Buffer
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
            f"__global__ void __launch_bounds__(kHalvesThreads, 1) {name}_kernel(",
            f"    {', '.join(parameters)}) {{",
            *self.cuda(),
            "}",
            "",
        ]

    @property
    def halves(self) -> tuple[Side, Side]:
        assert self.tiling.halves is not None
        return self.tiling.halves

    def reads(self) -> list[Buffer]:
        ready = [side for side in self.halves if side.ready]
        return [*super().reads(), *(buffer for side in ready for buffer in (side.lines, side.largest))]

    def _unprepared(self) -> list[tuple[str, Expr]]:
        """Name and element of the sides that are to be prepared."""
        sides = zip(("left", "right"), self.sides, self.halves, strict=True)
        return [(name, value) for name, value, prepared in sides if not prepared.ready]

    def _side(self, side: str) -> tuple[Side, str, str]:
        """A side, its batches and its places."""
        at = ("left", "right").index(side)
        found = self.halves[at]
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
        batch, m, n = self.names[:3]
        batches, rows, columns, depth = self.ends
        wide = self.wide
        (left, left_largest), (right, right_largest) = map(self._of_batch, ("left", "right"))
        outside = {
            "upper": f"first_column + {TILE} <= first_row",
            "lower": f"first_row + {TILE} <= first_column",
        }
        tiles = [
            f"for (int64_t tile = blockIdx.x; tile < tiles * ({batches}); tile += gridDim.x) {{",
            f"    [[maybe_unused]] const {wide} {batch} = tile / tiles;",
            f"    {wide} first_row, first_column;",
            f"    find_tile<{TILE}, {TILE}>(tile % tiles, static_cast<{wide}>({rows}), static_cast<{wide}>({columns}), first_row, first_column);",
            *([f"    if ({outside[self.tiling.triangle]}) continue;"] if self.tiling.triangle else []),
            f"    const Eight* left = {left} + first_row * 8;",
            f"    const Eight* right = {right} + first_column * 8;",
        ]
        given = f"left, right, padded({rows}), padded({columns}), stages_of({depth})"
        return [
            "    extern __shared__ __align__(1024) float memory[];",
            "    Ring ring(reinterpret_cast<char*>(memory));",
            f"    const int64_t tiles = padded({rows}) / {TILE} * (padded({columns}) / {TILE});",
            "    if (threadIdx.x >= kThreads) {",
            "        share_registers<false>();",
            *(f"        {line}" for line in tiles),
            f"            bring_halves(ring, {given});",
            "        }",
            "        return;",
            "    }",
            "    share_registers<true>();",
            *(f"    {line}" for line in tiles),
            "        float sums[64] = {};",
            f"        multiply_halves(sums, ring, {given});",
            "        bool finite = true;",
            "        #pragma unroll",
            f"        for (int strip = 0; strip < {TILE // 32}; ++strip) {{",
            "            put_halves(sums, ring.strip(), strip);",
            "            __syncwarp();",
            f"            const {wide} {n} = first_column + strip * 32 + threadIdx.x % 32;",
            f"            const int exponent = {n} < {columns} ? exponent_of(({right_largest})[{n}]) : 0;",
            *self._strip("#pragma unroll", [
                "const float part = ring.strip()[row * kStripLine + threadIdx.x % 32];",
                f"const float sum = scaled(part, exponent + exponent_of(({left_largest})[{m}]));",
                "finite = finite && fabsf(sum) < INFINITY;",
            ], self.store_text(5, "sum")),
            "            __syncwarp();",
            "        }",
            *self._again(),
            "    }",
        ]  # fmt: skip

    def _strip(self, unroll: str, first: list[str], then: list[str]) -> list[str]:
        """A loop over a thread's results in a strip: a column of 32, and its warp's 16 rows."""
        m, n = self.names[1:3]
        return [
            f"            {unroll}",
            "            for (int row = 0; row < 16; ++row) {",
            f"                const {self.wide} {m} = first_row + threadIdx.x / 32 * 16 + row;",
            *(
                [f"                const {self.wide} {n} = first_column + strip * 32 + threadIdx.x % 32;"]
                if unroll.endswith(" 1")
                else []
            ),
            f"                if ({m} < {self.ends[1]} && {n} < {self.ends[2]}) {{",
            *(f"                    {line}" for line in first),
            *then,
            "                }",
            "            }",
        ]

    def cuda_launch(self, name: str, arguments: str) -> list[str]:
        """`name` is the product's kernel, whose blocks go from tile to tile: while one's results leave, the next one's lines come."""
        batches, rows, columns, _ = self.ends
        lines = [
            "    int device = 0, multiprocessors = 0;",
            "    cudaGetDevice(&device);",
            "    cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);",
            f"    const int64_t tiles = padded({rows}) / {TILE} * (padded({columns}) / {TILE}) * ({batches});",
            "    const int blocks = tiles < multiprocessors ? tiles : multiprocessors;",
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
                blocks = f"blocks_along({places}, {self.ends[3]})"
                lines.append(
                    f"{kernel}<<<dim3({blocks}, 1, {_most(batches)}), kThreads, kAlongBytes, stream>>>({arguments});"
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
            return [*lines, *indent(launches)]
        return [*lines, *self.by_width(*([f"using Index = {type};", *launches] for type in ("int", "int64_t")))]


def _template(given: list[str]) -> str:
    return f"<{', '.join(given)}>" if given else ""


def _most(batches: str) -> str:
    return batches if batches.isdigit() and int(batches) < 65536 else f"({batches}) < 65535 ? ({batches}) : 65535"
