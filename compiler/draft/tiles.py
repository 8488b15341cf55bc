"""A product of matrices as a kernel of our own: for modules that are nothing else, where a draft would otherwise be empty.

sum over k of left[batch, m, k] * right[batch, k, n]. A convolution is one too: m counts output channels, n places, k input channels
and the window. On a GPU tiles go through tensor cores, as exact as torch's own default is (tensor_cores.py).
"""

from __future__ import annotations

import sympy
import torch

from .emit import Emitter
from .expressions import Expr, loads_of, runs_along, symbols_of
from .index import FloorDiv, Index, Modulo, divisions_in, index_is_divided
from .interface import indices_of
from .partition import Kernel, Partition
from .printing import Scope, Statements, _bare, branch, index_text
from .printing import indent as indent_lines
from .tensor_cores import DEPTH, THREADS
from .tensors import Buffer, Definition

BUSY_BLOCKS = 100
"""Large tiles below which a device has more to do with more of 64 x 64."""
FEW_STEPS = 64
"""Up to which a product's time is that of its results' stores: two blocks of half a tile then do better than one, each storing while
the other multiplies."""


class TileEmitter(Emitter):
    """Prints a `product` definition; `kernel.inner` is [batch, m, n, k] with their ends."""

    def __init__(self, kernel: Kernel, partition: Partition, device: str) -> None:
        super().__init__(kernel, partition, device)
        (self.member,) = kernel.members
        self.tiling = self.member.definition.tiling
        self.names = [str(variable) for variable, _ in kernel.inner]
        self.ends = [index_text(end) for _, end in kernel.inner]
        self.narrow = device == "cuda" and index_is_divided(self.indices())
        self.wide = "Index" if self.narrow else "int64_t"
        self.sides: tuple[Expr, Expr] = self.member.value.args
        self.exact = not self.tiling.rounded and any(
            load.args[0].dtype == torch.float32 for load in loads_of([self.member.value])
        )
        self.tile_rows, self.tile_columns = self._tile()
        self.step, factors = self._factors()
        self.operands = [Operand(self, value, at) for value, at in zip(factors, (1, 2), strict=True)]

    def writes(self) -> list[Buffer]:
        return self.kernel.members[0].definition.outs

    @property
    def in_stages(self) -> bool:
        """Whether operands are read at (stage, step) instead of k: divisions of k then are ones of the stage, which all threads share."""
        return str(self.step) == "step"

    @property
    def blocks_at_once(self) -> int:
        """Blocks of a multiprocessor that its registers have room for."""
        return 2 if self.tile_rows * self.tile_columns * (1 + self.exact) <= 128 * 128 else 1

    def _factors(self) -> tuple[Index, tuple[Expr, Expr]]:
        """The variable that counts steps, and the two sides as they are brought into the tiles."""
        definition, axes, ranges = self.member.definition, self.kernel.axes, self.partition.program.ranges
        element = self.tiling.factors or definition.element
        k, depth = self.kernel.inner[3]
        plain = element(axes)
        divided = any(k in atom.free_symbols for index in indices_of([plain]) for atom in divisions_in(index))
        if self.exact or not divided:
            return k, plain.args
        stage, step = ranges.named("stage", depth), ranges.named("step", DEPTH)
        return step, element([*axes[:-1], DEPTH * stage + step]).args

    def _tile(self) -> tuple[int, int]:
        """Rows and columns of a block's tile, for the sizes that the problem ships with."""
        batches, rows, columns, depth = (self.partition.program.estimate(end) for _, end in self.kernel.inner)
        down = next((side for side in (32, 64) if rows <= side), 128)
        across = next((side for side in (32, 64) if columns <= side), 128)
        if down < 128 and across == 128:
            across = 256
        if self.exact and depth <= FEW_STEPS:
            across = min(across, 64)
        busy = batches * -(-rows // down) * -(-columns // across) >= BUSY_BLOCKS
        return (down, across) if busy else (64, 64)

    def value(self, expr: Expr, indent: int, guard: str, target: str) -> list[str]:
        """Lines that set `target` to the expression where `guard` holds, everywhere where it is empty."""
        scope, names = self.scope(expr, indent + 1)
        statements = self.statements(scope, [expr], names, self.name, self.read)
        text = _bare(statements.text(expr))
        scope.line(f"{target} = {text};")
        pad = "    " * indent
        return [f"{pad}if ({guard}) {{" if guard else f"{pad}{{", *scope.lines, f"{pad}}}"]

    def scope(self, expr: Expr, indent: int) -> tuple[Scope, dict[Index, str]]:
        """Lines that name the quotients and remainders in the expression's indices, and those names."""
        names: dict[Index, str] = {}
        return Scope(indent, lines=indent_lines(self.divisions(indices_of([expr]), names), indent)), names

    def along_k(self, expr: Expr) -> bool:
        """Whether neighbours in memory differ in k."""
        return runs_along(expr, self.step)

    def store_text(self, indent: int, text: str) -> list[str]:
        out = self.member.definition.outs[0]
        place, inside = self.member.places[0], self.tiling.inside(self.kernel.axes[:-1])
        names: dict[Index, str] = {}
        lines = self.divisions([*(coordinate for coordinate, _ in inside), place], names)
        store = self.store(out, index_text(place, names), text)
        if inside:
            ends = " && ".join(f"{index_text(at, names)} < {index_text(end)}" for at, end in inside)
            store = f"if ({ends}) {{ {store} }}"
        return indent_lines([*lines, store], indent)

    def kernels(self, name: str, parameters: list[str]) -> list[str]:
        """Definitions of the kernels that its entry point launches."""
        return [
            *(["template <typename Index>"] if self.narrow else []),
            f"__global__ void __launch_bounds__({THREADS}, {self.blocks_at_once}) {name}_kernel(",
            f"    {', '.join(parameters)}) {{",
            *self.cuda(),
            "}",
            "",
        ]

    def cuda(self) -> list[str]:
        """The kernel's body: what it brings into the tiles and where their sums go; cuda/tensor_cores.cuh has the rest."""
        batch = self.names[0]
        batches, rows, columns, depth = self.ends
        wide, tile = self.wide, f"{self.tile_rows}, {self.tile_columns}"
        left, right = self.operands
        multiply = f"multiply_tiles<{tile}, {str(self.exact).lower()}, Left, Right>"
        return [
            "    extern __shared__ __align__(16) float ring[];",
            f"    using Left = {left.type};",
            f"    using Right = {right.type};",
            *left.by_four("left"),
            *right.by_four("right"),
            f"    {wide} first_row, first_column;",
            f"    find_tile<{tile}>(blockIdx.x, static_cast<{wide}>({rows}), static_cast<{wide}>({columns}), first_row, first_column);",
            f"    for ({wide} {batch} = blockIdx.z; {batch} < {batches}; {batch} += gridDim.z) {{",
            f"        const auto fetch = [&]({wide} start, float* left, float* right) {{",
            *([f"            const {wide} stage = start / {DEPTH};"] if self.in_stages else []),
            *left.fetch("left", "Left", "first_row"),
            *right.fetch("right", "Right", "first_column"),
            "        };",
            f"        float sums[{self.tile_rows // 32}][{self.tile_columns // 32}][4] = {{}};",
            f"        {multiply}(sums, ring, static_cast<{wide}>({depth}), fetch);",
            "        bool finite = true;",
            "        #pragma unroll",
            f"        for (int strip = 0; strip < {self.tile_rows // 32}; ++strip) {{",
            f"            put_strip<{tile}>(sums, ring, strip);",
            "            __syncthreads();",
            *self._strip("#pragma unroll 4", [
                f"const float sum = ring[line_of<{self.tile_columns}>(round) * {self.tile_columns + 8} + threadIdx.x % {self.tile_columns}];",
                "finite = finite && fabsf(sum) < INFINITY;",
            ], self.store_text(5, "sum")),
            "            __syncthreads();",
            "        }",
            *self._again(),
            "    }",
        ]  # fmt: skip

    def _again(self) -> list[str]:
        """A thread's results by plain multiply-adds, where one of them is not finite."""
        return [
            "        if (!finite) {  // rounding an operand may have made it so: these again by plain multiply-adds",
            f"            for (int strip = 0; strip < {self.tile_rows // 32}; ++strip) {{",
            *(f"    {line}" for line in self._strip("#pragma unroll 1", ["float sum = 0.0f;"], self.plain_sum())),
            "            }",
            "        }",
        ]

    def plain_sum(self) -> list[str]:
        """One result by plain multiply-adds into `sum`, and its store."""
        k, depth = self.names[3], self.ends[3]
        return [
            f"                    for ({self.wide} {k} = 0; {k} < {depth}; ++{k}) {{",
            "                        float down = 0.0f, across = 0.0f;",
            *self.value(self.sides[0], 6, "true", "down"),
            *self.value(self.sides[1], 6, "true", "across"),
            "                        sum += down * across;",
            "                    }",
            *self.store_text(5, "sum"),
        ]

    def _strip(self, unroll: str, first: list[str], then: list[str]) -> list[str]:
        """A loop over a thread's results in a strip, those that are in the product."""
        _, m, n, _ = self.names
        _, rows, columns, _ = self.ends
        return [
            f"            {unroll}",
            f"            for (int round = 0; round < {self.tile_columns // 8}; ++round) {{",
            f"                const {self.wide} {m} = first_row + row_of_line<{self.tile_rows}>(strip, line_of<{self.tile_columns}>(round));",
            f"                const {self.wide} {n} = first_column + threadIdx.x % {self.tile_columns};",
            f"                if ({m} < {rows} && {n} < {columns}) {{",
            *(f"                    {line}" for line in first),
            *then,
            "                }",
            "            }",
        ]

    def cuda_launch(self, name: str, arguments: str) -> list[str]:
        batches, rows, columns, _ = self.ends
        left, right = self.operands
        lines = [
            f"    const int64_t batches = {batches};",
            f"    const dim3 blocks(((({rows}) + {self.tile_rows - 1}) / {self.tile_rows}) * ((({columns}) + {self.tile_columns - 1}) / {self.tile_columns}), 1,",
            "                      batches < 65535 ? batches : 65535);",
            f"    const int bytes = STAGES * ({left.type}::kWords + {right.type}::kWords) * sizeof(float);",
            *self._zeros("    cudaMemsetAsync({out}, 0, {bytes}, stream);"),
        ]
        return self.launched(lines, name, arguments)

    def launched(self, lines: list[str], name: str, arguments: str) -> list[str]:
        """The launch after `lines`, which say `blocks` and `bytes` of shared memory."""
        launch = lambda called: [  # noqa: E731
            f"cudaFuncSetAttribute({called}, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);",
            f"{called}<<<blocks, {THREADS}, bytes, stream>>>({arguments});",
        ]
        if not self.narrow:
            return [*lines, *indent_lines(launch(name))]
        return [*lines, *self.by_width(launch(f"{name}<int>"), launch(f"{name}<int64_t>"))]

    def by_width(self, narrow: list[str], wide: list[str]) -> list[str]:
        """`narrow` where 32 bits hold every index, else `wide`."""
        fits = " && ".join(f"{index_text(size)} < INT32_MAX - 65536" for size in self.largest())
        why = "// Divisions of 32 bits are several times cheaper; a tile may reach beyond the ends."
        return indent_lines([why, *branch([(fits, narrow), ("", wide)])])

    def _zeros(self, line: str) -> list[str]:
        out = self.member.definition.outs[0]
        bytes = f"({index_text(out.elements)}) * sizeof({self.element_type(out.dtype)})"
        return [line.format(out=out.name, bytes=bytes)] if self.tiling.sparse else []

    def cpp(self) -> list[str]:
        """The call of cpu_products.h, with lambdas that say what an operand's element is and where a sum goes."""
        batch, m, n, k = self.names
        batches, rows, columns, depth = self.ends
        _, m_at, n_at, k_at = (variable for variable, _ in self.kernel.inner)
        given = lambda *names: ", ".join(f"[[maybe_unused]] int64_t {name}" for name in names)  # noqa: E731
        head: list[str] = []
        if m_at in symbols_of(self.sides[1]) or n_at in symbols_of(
            self.sides[0]
        ):  # in groups: every row is a product of its own
            apart = self.name("row")
            head = [f"    [[maybe_unused]] const int64_t {batch} = {apart} / ({rows}), {m} = {apart} % ({rows});"]
            batches, rows, first = f"({batches}) * ({rows})", "1", (apart, "")
        else:
            first = (batch, m)
        lambdas = []
        for value, names in zip(self.sides, ((*first, k), (first[0], k, n)), strict=True):
            lines = ["    float value;", *self.value(value, 1, "", "value"), "    return value;"]
            lambdas += [f"[=]({given(*names)}) {{", *head, *lines, "},"]
        lambdas += [f"[=]({given(*first, n)}, float sum) {{", *head, *self.store_text(1, "sum"), "});"]
        along = ", ".join(str(runs_along(value, k_at)).lower() for value in self.sides)
        call = f"multiply_panels<{along}>({batches}, {rows}, {columns}, {depth},"
        return [*self._zeros("    memset({out}, 0, {bytes});"), *indent_lines([call, *indent_lines(lambdas)])]


class Operand:
    """One side of a product on its way into shared memory; `axis` of the kernel's loops numbers its places."""

    def __init__(self, tiles: TileEmitter, value: Expr, axis: int) -> None:
        self.tiles, self.value = tiles, value
        (self.place, self.end), self.step, (_, self.depth) = tiles.kernel.inner[axis], tiles.step, tiles.kernel.inner[3]
        self.along_k = tiles.along_k(value)
        self.side, self.rounded = (tiles.tile_rows, tiles.tile_columns)[axis - 1], tiles.tiling.in_tf32 and axis == 1
        self.fours = self._fours()

    @property
    def type(self) -> str:
        """How the tile lies in shared memory."""
        steps = "kDepth" if self.tiles.exact else DEPTH
        rounded = ", 1" if self.rounded else ", 2" if self.tiles.tiling.ties_to_even else ""
        return f"Side<{self.side}, {steps}, {str(self.along_k).lower()}{rounded}>"

    def load(self) -> tuple[Expr | None, Expr] | None:
        """(condition, load) where it is a float as it lies in memory, or zero; else None."""
        condition, load = None, self.value
        if load.op == "masked":
            condition, load, otherwise = load.args
            if otherwise.op != "const" or otherwise.args[0] != 0 or loads_of([condition]):
                return None
        plain = load.op == "load" and load.args[0].dtype == torch.float32
        return (condition, load) if plain else None

    def _fours(self) -> list[str] | None:
        """Conditions under which four neighbours are one aligned copy, all inside or all outside; None where that never is."""
        found = self.load()
        if found is None:
            return None
        buffer, index = found[1].args[:2]
        fast, end = (self.step, self.depth) if self.along_k else (self.place, self.end)
        if found[0] is not None and any(fast in of.free_symbols for of in indices_of([found[0]])):
            return None
        rest = sympy.expand(index - fast)
        if fast in rest.free_symbols:
            return None
        variables = {variable for variable, _ in self.tiles.kernel.inner} | {
            self.step,
            sympy.Symbol("stage", integer=True, nonnegative=True),
        }
        apart = [end]
        for term in sympy.Add.make_args(rest):
            sizes = [
                f for f in sympy.Mul.make_args(term) if f not in variables and not isinstance(f, (FloorDiv, Modulo))
            ]
            apart.append(sympy.Mul(*sizes) if term != 0 else sympy.Integer(0))
        if any(size.is_Integer and size % 4 for size in apart):
            return None
        open_ones = [
            f"{text} % 4 == 0" for text in dict.fromkeys(index_text(size) for size in apart if not size.is_Integer)
        ]
        ours = isinstance(buffer.written_by, Definition)  # torch.empty, far better aligned than that
        return open_ones if ours else [f"reinterpret_cast<uintptr_t>({buffer.name}) % 16 == 0", *open_ones]

    def by_four(self, name: str) -> list[str]:
        return [] if not self.fours else [f"    const bool {name}_by_four = {' && '.join(self.fours)};"]

    def fetch(self, name: str, type: str, block: str) -> list[str]:
        """Lines of `fetch` for this side."""
        if self.fours is None:
            return self._rounds(name, type, block, 1, 3)
        if not self.fours:
            return self._rounds(name, type, block, 4, 3)
        arms = [
            (condition, self._rounds(name, type, block, width, 0))
            for condition, width in ((f"{name}_by_four", 4), ("", 1))
        ]
        return indent_lines(branch(arms), 3)

    def _rounds(self, name: str, type: str, block: str, width: int, indent: int) -> list[str]:
        tiles, wide, pad = self.tiles, self.tiles.wide, "    " * indent
        step = "start + step" if tiles.in_stages else str(self.step)
        ends = (
            []
            if self.depth.is_Integer and self.depth % DEPTH == 0 and not tiles.exact
            else [f"{step} < {index_text(self.depth)}"]
        )
        guard = " && ".join([*ends, f"{self.place} < {index_text(self.end)}"])
        lines = [
            f"{pad}#pragma unroll{' 4' if width == 1 else ''}",
            f"{pad}for (int round = 0; round < {type}::kRounds<{width}>; ++round) {{",
            f"{pad}    const int step = {type}::step<{width}>(round), place = {type}::place<{width}>(round);",
            f"{pad}    if (!{type}::brings<{width}>()) break;",
            *([] if tiles.in_stages else [f"{pad}    const {wide} {self.step} = start + step;"]),
            f"{pad}    const {wide} {self.place} = {block} + place;",
        ]
        to, found = f"{name} + {type}::at(place, step)", self.load()
        if found is None:
            lines += [
                f"{pad}    float value = 0.0f;",
                *tiles.value(self.value, indent + 1, guard, "value"),
                f"{pad}    *({to}) = value;",
            ]
        else:
            condition, load = found
            buffer, index = load.args[:2]
            scope, names = tiles.scope(self.value, indent + 1)
            if condition is not None:
                statements = Statements(scope, [condition], names, tiles.name, tiles.read)
                guard = f"{guard} && {statements.text(condition)}"
            scope.line(f"const bool inside = {guard};")
            scope.line(f"copy_ahead<{width}>({to}, {buffer.name} + ({index_text(index, names)}), inside);")
            lines += scope.lines
        return [*lines, f"{pad}}}"]
