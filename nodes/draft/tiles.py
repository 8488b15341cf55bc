"""A product of matrices as a kernel of our own: for modules that are nothing else, where a draft would otherwise be empty.

sum over k of left[batch, m, k] * right[batch, k, n]. A convolution is one too: m counts output channels, n places, k input channels
and the window. Plain tiles in shared memory, 8 x 8 results a thread, true FP32: readable and right, not what a library reaches.
"""

from __future__ import annotations

from .emit import Emitter
from .expressions import Expr
from .index import FloorDiv, Modulo
from .partition import Kernel, Partition
from .printing import Scope, Statements, _bare, index_text

TILE, DEPTH, SIDE = 128, 16, 8
"""A block makes TILE x TILE results, DEPTH products of each at a time; a thread makes SIDE x SIDE."""
CHUNK = 256
"""Products that the CPU adds up in float before they go to double."""


class TileEmitter(Emitter):
    """Prints a `product` definition; `kernel.inner` is [batch, m, n, k] with their ends."""

    def __init__(self, kernel: Kernel, partition: Partition, device: str) -> None:
        super().__init__(kernel, partition, device)
        (self.member,) = kernel.members
        self.sides: tuple[Expr, Expr] = self.member.value.args
        self.names = [str(variable) for variable, _ in kernel.inner]
        self.ends = [index_text(end) for _, end in kernel.inner]

    def value(self, expr: Expr, indent: int, guard: str, target: str) -> list[str]:
        """Lines that set `target` to the expression where `guard` holds."""
        scope = Scope(indent + 1)
        names = {}
        for index in self._divided(expr):
            if index not in names:
                name = self.name("i")
                scope.line(f"const int64_t {name} = {_bare(index_text(index, names))};")
                names[index] = name
        statements = Statements(scope, [expr], names, self.name, self.read)
        text = _bare(statements.text(expr))
        scope.line(f"{target} = {text};")
        pad = "    " * indent
        return [f"{pad}if ({guard}) {{", *scope.lines, f"{pad}}}"]

    def _divided(self, expr: Expr):
        import sympy

        from .emit import _indices

        for index in _indices([expr]):
            for atom in sympy.postorder_traversal(index):
                if isinstance(atom, (FloorDiv, Modulo)):
                    yield atom

    def along_k(self, expr: Expr) -> bool:
        """Whether neighbours in memory differ in k."""
        from .expressions import loads_of

        k = self.kernel.inner[3][0]
        return any(load.op == "load" and load.args[1].coeff(k) == 1 for load in loads_of([expr]))

    def store_text(self, indent: int, text: str) -> list[str]:
        out = self.member.definition.outs[0]
        place, names, lines = self.member.places[0], {}, []
        import sympy

        for atom in sympy.postorder_traversal(place):
            if isinstance(atom, (FloorDiv, Modulo)) and atom not in names:
                name = self.name("i")
                lines.append("    " * indent + f"const int64_t {name} = {_bare(index_text(atom, names))};")
                names[atom] = name
        return [*lines, "    " * indent + self.store(out, index_text(place, names), text)]

    def cuda(self) -> list[str]:
        """The kernel's body."""
        batch, m, n, k = self.names
        batches, rows, columns, depth = self.ends
        left, right = self.sides
        step_first = f"const int step = at % {DEPTH}, place = at / {DEPTH};"
        place_first = f"const int step = at / {TILE}, place = at % {TILE};"
        return [
            f"    __shared__ float left[{DEPTH}][{TILE} + 4], right[{DEPTH}][{TILE} + 4];",
            f"    const int first_row = threadIdx.x / 16 * {SIDE}, first_column = threadIdx.x % 16;",
            f"    for (int64_t {batch} = blockIdx.z; {batch} < {batches}; {batch} += gridDim.z) {{",
            f"        float sums[{SIDE}][{SIDE}] = {{}};",
            f"        for (int64_t start = 0; start < {depth}; start += {DEPTH}) {{",
            f"            for (int at = threadIdx.x; at < {TILE * DEPTH}; at += blockDim.x) {{",
            f"                {step_first if self.along_k(left) else place_first}",
            f"                const int64_t {k} = start + step, {m} = static_cast<int64_t>(blockIdx.y) * {TILE} + place;",
            "                float value = 0.0f;",
            *self.value(left, 4, f"{k} < {depth} && {m} < {rows}", "value"),
            "                left[step][place] = value;",
            "            }",
            f"            for (int at = threadIdx.x; at < {TILE * DEPTH}; at += blockDim.x) {{",
            f"                {step_first if self.along_k(right) else place_first}",
            f"                const int64_t {k} = start + step, {n} = static_cast<int64_t>(blockIdx.x) * {TILE} + place;",
            "                float value = 0.0f;",
            *self.value(right, 4, f"{k} < {depth} && {n} < {columns}", "value"),
            "                right[step][place] = value;",
            "            }",
            "            __syncthreads();",
            f"            for (int step = 0; step < {DEPTH}; ++step) {{",
            f"                float across[{SIDE}];",
            "                #pragma unroll",
            f"                for (int j = 0; j < {SIDE}; ++j) {{",
            "                    across[j] = right[step][first_column + j * 16];",
            "                }",
            "                #pragma unroll",
            f"                for (int i = 0; i < {SIDE}; ++i) {{",
            "                    const float down = left[step][first_row + i];",
            "                    #pragma unroll",
            f"                    for (int j = 0; j < {SIDE}; ++j) {{",
            "                        sums[i][j] += down * across[j];",
            "                    }",
            "                }",
            "            }",
            "            __syncthreads();",
            "        }",
            "        #pragma unroll",
            f"        for (int i = 0; i < {SIDE}; ++i) {{",
            "            #pragma unroll",
            f"            for (int j = 0; j < {SIDE}; ++j) {{",
            f"                const int64_t {m} = static_cast<int64_t>(blockIdx.y) * {TILE} + first_row + i;",
            f"                const int64_t {n} = static_cast<int64_t>(blockIdx.x) * {TILE} + first_column + j * 16;",
            f"                if ({m} < {rows} && {n} < {columns}) {{",
            *self.store_text(5, "sums[i][j]"),
            "                }",
            "            }",
            "        }",
            "    }",
        ]

    def cuda_launch(self, name: str, arguments: str) -> list[str]:
        batches, rows, columns, _ = self.ends
        return [
            f"    const int64_t batches = {batches};",
            f"    const dim3 blocks((({columns}) + {TILE - 1}) / {TILE}, (({rows}) + {TILE - 1}) / {TILE},",
            "                      batches < 65535 ? batches : 65535);",
            f"    {name}<<<blocks, {(TILE // SIDE) ** 2}, 0, stream>>>({arguments});",
        ]

    def cpp(self) -> list[str]:
        """Rows of results in parallel, a few columns of a row at a time."""
        batch, m, n, k = self.names
        batches, rows, columns, depth = self.ends
        left, right = self.sides
        width = 64
        return [
            "#pragma omp parallel for collapse(2)",
            f"    for (int64_t {batch} = 0; {batch} < {batches}; ++{batch}) {{",
            f"        for (int64_t {m} = 0; {m} < {rows}; ++{m}) {{",
            f"            for (int64_t first = 0; first < {columns}; first += {width}) {{",
            f"                const int64_t end = first + {width} < {columns} ? first + {width} : {columns};",
            f"                double sums[{width}] = {{}};",
            f"                for (int64_t start = 0; start < {depth}; start += {CHUNK}) {{",
            f"                    const int64_t stop = start + {CHUNK} < {depth} ? start + {CHUNK} : {depth};",
            f"                    float part[{width}] = {{}};",
            f"                    for (int64_t {k} = start; {k} < stop; ++{k}) {{",
            "                        float down = 0.0f;",
            *self.value(left, 6, "true", "down"),
            f"                        for (int64_t {n} = first; {n} < end; ++{n}) {{",
            "                            float across = 0.0f;",
            *self.value(right, 7, "true", "across"),
            f"                            part[{n} - first] += down * across;",
            "                        }",
            "                    }",
            "                    for (int64_t at = 0; at < end - first; ++at) {",
            "                        sums[at] += part[at];",
            "                    }",
            "                }",
            f"                for (int64_t {n} = first; {n} < end; ++{n}) {{",
            *self.store_text(5, f"static_cast<float>(sums[{n} - first])"),
            "                }",
            "            }",
            "        }",
            "    }",
        ]
