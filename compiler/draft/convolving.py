"""Prints a `convolution` definition, with the chain of elements behind it; planes.py has what it calls."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product as product_of

from .emit import Emitter
from .index import product
from .partition import Kernel, Partition
from .planes import COLUMNS, PUT_BYTES, ROWS
from .printing import Scope, index_text
from .tensors import Buffer, Planes

THREADS, PARTS = 288, 1024
"""Threads of a block; blocks that lay an input out again, which they seldom have to."""


class PlanesEmitter(Emitter):
    def __init__(self, kernel: Kernel, partition: Partition, device: str) -> None:
        super().__init__(kernel, partition, device)
        found = kernel.members[0].definition.planes
        assert found is not None
        self.planes: Planes = found
        self.batch, self.channel, *self.places = map(str, kernel.axes)
        of_image = product(kernel.ranges[1:])
        self.narrow = "int" if of_image.is_Integer and of_image < 2**31 - 2**16 else "int64_t"
        """The type of a place within an image."""

    def _packs(self):
        return {}

    def writes(self) -> list[Buffer]:
        _, *rest = self.kernel.members[0].definition.outs
        return [*rest, *super().writes()]

    # ------------------------------------------------------------------------------------------ its numbers

    @property
    def columns(self) -> int:
        """From the first result's place in the plane to the last one's."""
        *_, sheet, pitch = self._plane
        at = [sheet * pitch, pitch, 1]
        return sum((q - 1) * apart for q, apart in zip(self._three(self.planes.columns), at, strict=True)) + 1

    @property
    def beside(self) -> int:
        """Blocks beside one another that an image takes."""
        return -(-self.columns // COLUMNS)

    @property
    def tiles(self) -> int:
        return -(-self.planes.rows // ROWS)

    @property
    def _plane(self) -> list[int]:
        return self._three(self.planes.plane)

    def _three(self, numbers, fill: int = 1) -> list[int]:
        """Numbers of the places' axes, of which there are at most three."""
        return [fill] * (3 - len(numbers)) + list(numbers)

    def _numbers(self) -> list[str]:
        planes, cut = self.planes, self.planes.stages
        taps, step = self._three(planes.taps), self._three(planes.step)
        axes = {
            "kSize": self._three(planes.size),
            "kBefore": self._three(planes.before, 0),
            "kPlane": self._plane,
            "kStep": step,
        }
        named = [
            {
                "kExact": int(cut.exact),
                "kAway": int(not cut.exact and not planes.ties_to_even),
                "kGroups": planes.groups,
                "kChannels": planes.channels,
                "kRows": planes.rows,
                "kTiles": self.tiles,
            },
            *({f"{name}{axis}": value for axis, value in enumerate(values)} for name, values in axes.items()),
            {"kWindow": taps[0] * taps[1], "kTaps1": taps[1], "kTaps": cut.taps, "kGiven": taps[2]},
            {
                "kEights": cut.eights,
                "kChunk": cut.chunk,
                "kTogether": cut.together,
                "kAtOnce": cut.at_once,
                "kRun": cut.run,
            },
            {"kRuns": cut.runs, "kWeights": cut.weights},
        ]
        rows = (", ".join(f"{name} = {value}" for name, value in row.items()) for row in named)
        return [*(f"    static constexpr int {row};" for row in rows), *self._bits()]

    @property
    def _rows_of_class(self) -> int:
        """Rows of the product that have the same class of the major axes."""
        return self.planes.out_each * math.prod(self.planes.classes[self.planes.major :])

    def _bits(self) -> list[str]:
        """The rows of the window and the taps of a row that a tile has products with."""
        planes = self.planes
        every = [[list(range(taps))] * n for taps, n in zip(planes.taps, planes.classes, strict=True)]
        used = [*([[[0]]] * (3 - len(every))), *planes.used[: planes.major], *every[planes.major :]]
        classes = [1] * (3 - len(every)) + [*planes.classes[: planes.major], *([1] * (len(every) - planes.major))]
        taps1 = self._three(planes.taps)[1]
        rows, taps = [], []
        for c0, c1, c2 in product_of(*map(range, classes)):
            rows.append(sum(1 << t0 * taps1 + t1 for t0 in used[0][c0] for t1 in used[1][c1]))
            taps.append(sum(1 << t for t in used[2][c2]))
        names = zip(("rows_of", "taps_of"), (rows, taps), strict=True)
        skips = int(planes.major > 0)
        each = self._rows_of_class // ROWS
        return [f"    static constexpr int kSkips = {skips};", *(
            f"    __device__ __forceinline__ static uint64_t {name}(int tile) {{ return {_chosen(bits, f'tile / {each}') if skips else 0}; }}"
            for name, bits in names
        )]  # fmt: skip

    @property
    def bytes(self) -> str:
        """Of shared memory: its rings, or what results take on their way out."""
        cut = self.planes.stages
        rings = 1024 + cut.runs * cut.run_bytes + cut.weights * cut.weight_bytes
        single = cut.run_bytes + cut.weight_bytes
        return f"kHopper ? {max(rings, 1024 + PUT_BYTES)} : {max(single, 1024 + PUT_BYTES)}"

    # ------------------------------------------------------------------------------------------ its text

    def text(self, summary: str) -> str:
        name, parameters = self.kernel.name, self.parameters()
        return "\n".join([
            f"// {summary}",
            f"struct {self._struct} {{",
            *self._numbers(),
            "};",
            "",
            *self._again(),
            "",
            f"__global__ void __launch_bounds__({THREADS}, 2) {name}_kernel(",
            f"    {', '.join(self.parameters(restricted=not self.aliased))}) {{",
            *self._body(),
            "}",
            "",
            f'extern "C" void {name}(',
            f"    {', '.join([*parameters, 'cudaStream_t stream'])}) {{",
            *self._launch(),
            "}",
            "",
        ])  # fmt: skip

    @property
    def _struct(self) -> str:
        return f"Planes_{self.kernel.name}"

    def _again(self) -> list[str]:
        """A result by plain multiply-adds, for what is not finite."""
        planes, dims = self.planes, range(len(self.planes.size))
        arguments = ", ".join(f"int64_t {name}" for name in (self.batch, self.channel, *self.places))
        x, weight = planes.buffers["input"], planes.buffers["weight"]
        group = f"{self.channel} / {planes.out_each}"
        lines = [
            f"__device__ __noinline__ float {self.kernel.name}_again(const float* input, const float* weights, {arguments}) {{",
            "    float sum = 0.0f;",
            f"    for (int c = 0; c < {planes.channels}; ++c) {{",
        ]
        inputs = f"{self.batch} * {planes.groups * planes.channels} + {group} * {planes.channels} + c"
        of_weights = f"{self.channel} * {planes.channels} + c"
        if planes.transposed:
            of_weights = f"({group} * {planes.channels} + c) * {planes.out_each} + {self.channel} % {planes.out_each}"
        for axis in dims:
            tab, k, size = "    " * (2 + axis), f"k{axis}", planes.size[axis]
            stride, padding, dilation = planes.given[axis]
            lines.append(f"{tab}#pragma unroll 1")
            lines.append(f"{tab}for (int {k} = 0; {k} < {planes.window[axis]}; ++{k}) {{")
            if planes.transposed:
                lines.append(
                    f"{tab}    const int64_t from{axis} = {self.places[axis]} + {padding} - {k} * {dilation}, at{axis} = from{axis} / {stride};"
                )
                lines.append(
                    f"{tab}    if (from{axis} < 0 || from{axis} % {stride} != 0 || at{axis} >= {size}) continue;"
                )
            else:
                lines.append(
                    f"{tab}    const int64_t at{axis} = {self.places[axis]} * {stride} + {k} * {dilation} - {padding};"
                )
                lines.append(f"{tab}    if (at{axis} < 0 || at{axis} >= {size}) continue;")
            inputs, of_weights = f"({inputs}) * {size} + at{axis}", f"({of_weights}) * {planes.window[axis]} + {k}"
        lines.append(f"{'    ' * (2 + len(dims))}sum += input[{inputs}] * weights[{of_weights}];")
        lines += ["    " * (1 + axis) + "}" for axis in reversed(range(len(dims) + 1))]
        assert x.name != weight.name
        return [*lines, "    return sum;", "}"]

    def _body(self) -> list[str]:
        planes, names, p = self.planes, {use: b.name for use, b in self.planes.buffers.items()}, self._struct
        state = f"reinterpret_cast<const uint32_t*>({names['state']})"
        groups = f" % {planes.groups}" if planes.groups > 1 else " * 0"
        inside = " && ".join(
            f"q{axis} < {size}" for axis, size in enumerate(self._three(planes.columns))
            if size < self._plane[axis] or axis == 0
        )  # fmt: skip
        return [
            "    extern __shared__ __align__(128) char shared[];",
            f"    const int tile = blockIdx.x % {self.tiles}, first_column = static_cast<int>(blockIdx.x / {self.tiles} % {self.beside}) * {COLUMNS};",
            f"    const int64_t image = blockIdx.x / {self.tiles * self.beside};",
            f"    const int group = static_cast<int>(image{groups});",
            "    const int lane = threadIdx.x % 32, first_row = tile * 64 + threadIdx.x / 32 % 4 * 16;",
            f"    const float* of_rows = {names['unscale']} + group * {self.tiles * ROWS} + first_row + lane / 4;",
            f"    const float unscale = 1.0f / scale_of({state}), of_row[2] = {{of_rows[0], of_rows[8]}};  // long before they are needed",
            "    float sums[64] = {};",
            f"    if (!convolve_planes<{p}>(sums, shared, {names['planes']}, {names['halves']}, image, group, tile, first_column)) return;",
            "    float* out_of = reinterpret_cast<float*>(shared + 1024) + threadIdx.x / 32 * (8 * 136);",
            *([f"    const int of_class = tile / {self._rows_of_class // ROWS};"] if planes.major else []),
            f"    const int64_t {self.batch} = image / {planes.groups};",
            "    #pragma unroll",
            "    for (int half = 0; half < 2; ++half) {",
            "        put_planes(sums, out_of, half, unscale, of_row[half]);",
            "        #pragma unroll 1",
            "        for (int part = lane; part < 128; part += 32) {",
            "            const int n = first_column + threadIdx.x / 128 * 128 + part;",
            f"            const int q0 = n / {self._plane[1] * self._plane[2]}, q1 = n / {self._plane[2]} % {self._plane[1]}, q2 = n % {self._plane[2]};",
            f"            if (!({inside})) continue;",
            "            float sums_of[8];",
            "            bool finite = true;",
            "            #pragma unroll",
            "            for (int line = 0; line < 8; ++line) {",
            "                sums_of[line] = out_of[line * 136 + part];",
            "                finite = finite && fabsf(sums_of[line]) < INFINITY;",
            "            }",
            "            if (!finite) {  // rounding an operand may have made it so: these again by plain multiply-adds",
            *self._lines(4, "#pragma unroll 1", self._mended),
            "                #pragma unroll",
            "                for (int line = 0; line < 8; ++line) {",
            "                    sums_of[line] = out_of[line * 136 + part];",
            "                }",
            "            }",
            *self._lines(3, "#pragma unroll", self._chain),
            "        }",
            "    }",
        ]  # fmt: skip

    def _lines(self, indent: int, unroll: str, inside: Callable[[Scope], None]) -> list[str]:
        """A loop over a thread's eight results; `inside` says what is done with the one that lies at the kernel's axes."""
        planes, scope, tab = self.planes, Scope(indent + 1), "    " * indent
        scope.line("const int row = first_row + half * 8 + line;")
        if planes.rows % ROWS:
            scope.line(f"if (row >= {planes.rows}) continue;")
        behind, major = math.prod(planes.classes[planes.major :]), math.prod(planes.classes[: planes.major])
        row = f"(row - of_class * {self._rows_of_class})" if major > 1 else "row"
        row = f"{row} / {behind}" if behind > 1 else row
        scope.line(f"const {self.narrow} {self.channel} = group * {planes.out_each} + {row};")
        for axis, place in enumerate(self.places):
            last, number = (planes.major, "of_class") if axis < planes.major else (None, "row")
            behind = math.prod(planes.classes[axis + 1 : last])
            of_class = f" + {number} / {behind} % {planes.classes[axis]}" if planes.classes[axis] > 1 else ""
            apart = f" * {planes.apart[axis]}" if planes.apart[axis] > 1 else ""
            scope.line(f"const {self.narrow} {place} = q{3 - len(self.places) + axis}{apart}{of_class};")
            if planes.columns[axis] * planes.apart[axis] > planes.out[axis]:
                scope.line(f"if ({place} >= {planes.out[axis]}) continue;")
        inside(scope)
        return [f"{tab}{unroll}", f"{tab}for (int line = 0; line < 8; ++line) {{", *scope.lines, f"{tab}}}"]

    def _mended(self, scope: Scope) -> None:
        given = [self.planes.buffers[use].name for use in ("input", "weight")]
        call = f"{self.kernel.name}_again({', '.join([*given, self.batch, self.channel, *self.places])})"
        scope.line("float& sum = out_of[line * 136 + part];")
        scope.line(f"if (!(fabsf(sum) < INFINITY)) sum = {call};")

    def _chain(self, scope: Scope) -> None:
        """What becomes of a sum."""
        convolution, *others = self.kernel.members
        out = convolution.definition.outs[0]
        self.registers[out] = "sums_of[line]"
        if out in self.stored:
            scope.line(self.store(out, index_text(convolution.places[0]), "sums_of[line]"))
        self._elements(scope, scope, others, {})

    def _launch(self) -> list[str]:
        planes, names, p = self.planes, {use: b.name for use, b in self.planes.buffers.items()}, self._struct
        state, name = f"reinterpret_cast<uint32_t*>({names['state']})", self.kernel.name
        images = f"({index_text(planes.batch)}) * {planes.groups}"
        source = planes.buffers["input"]
        parts = planes.stages.eights * -(-math.prod(planes.plane) // 256)
        laid = f"{names['input']}, {names['planes']}, {state}, images"
        return [
            f"    const int64_t images = {images}, parts = images * {parts};",
            f"    const int bytes = {self.bytes};",
            f"    sample_input<<<1, 1024, 0, stream>>>({names['input']}, {state}, {index_text(source.elements)});",
            f"    lay_out_planes<{p}, false><<<static_cast<unsigned>(parts < INT32_MAX ? parts : INT32_MAX), 256, 0, stream>>>({laid});",
            f"    lay_out_planes<{p}, true><<<static_cast<unsigned>(parts < {PARTS} ? parts : {PARTS}), 256, 0, stream>>>({laid});",
            f"    lay_out_row<{p}><<<dim3({self.tiles * ROWS}, {planes.groups}), 256, 0, stream>>>({names['steps']}, {names['halves']}, {names['unscale']});",
            f"    cudaFuncSetAttribute({name}_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);",
            f"    const unsigned blocks = static_cast<unsigned>(images * {self.beside * self.tiles});",
            f"    {name}_kernel<<<blocks, {THREADS}, bytes, stream>>>({', '.join(self.arguments())});",
        ]  # fmt: skip


def _chosen(numbers: list[int], which: str) -> str:
    """The number at a place, as C."""
    texts = [f"UINT64_C({number})" for number in numbers]
    *others, text = texts
    for place in reversed(range(len(others))):
        text = f"{which} == {place} ? {others[place]} : {text}"
    return text
