"""Attention of few queries in one pass: keys and values of a warp go by together, and what was summed is scaled where a larger score comes.

A warp takes 16 keys at a time by itself, nobody waits for another until all keys have gone by, and no score is ever in memory: sixteen keys are
the rows of a tile and eight queries its columns; its shares, turned, are the right of the next one, whose rows are elements of the values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from compiler.codegen.rings import StreamLoad
from compiler.codegen.stream_softmax import has_own_softmax
from compiler.codegen.stream_tiles import MOST_ELEMENTS, RING, SCALE, slice_of, tile_left
from compiler.draft.expressions import Expr
from compiler.draft.index import Index
from compiler.draft.printing import indent
from compiler.streams import StreamKernel

WARPS, TILE_KEYS = 8, 16
MOST_STAGES = 6
LEAST_QUERIES = 3
"""Of a group, which eight columns of a tile are for: a cache of 32 x 2048 keys with four queries each took 88 us without, 77 so; a paged one 120 and 63 (H200)."""


def goes_in_one_pass(kernel: StreamKernel) -> bool:
    """Of what tensor cores take: a softmax, and keys and values whose elements lie side by side."""
    pairs = ((kernel.keyed, kernel.depth), (kernel.value, kernel.column))
    return has_own_softmax(kernel) and all(expr is not None and _lies_along(expr, at) for expr, at in pairs)


def _lies_along(expr: Expr, variable: Index) -> bool:
    while expr.op == "cast":
        expr = expr.args[0]
    return expr.args[1].coeff(variable) == 1 and variable not in (expr.args[1] - variable).free_symbols


@dataclass(frozen=True)
class StreamSide:
    """What is loaded of a key: its pack, lines in front of its address, lines that say of a key whether it is wanted, as `is_one`."""

    load: StreamLoad
    before: list[str]
    wanted: list[str]
    elements: int

    @property
    def packs(self) -> int:
        return self.elements // 8

    def place(self, row: str, chunk: str, turn: str) -> str:
        """Where a pack lies, so that eight neighbouring lanes find theirs in banks of their own."""
        return f"({row}) * {self.packs} + (({chunk}) ^ ({turn}))"

    @property
    def from_name(self) -> str:
        return f"from_{self.load.name}"

    def find(self, wide: str) -> list[str]:
        """Lines of a lambda's: where the lane's key begins, and which of the sixteen are wanted."""
        return [
            *self.wanted, f"const auto* {self.from_name} = reinterpret_cast<const unsigned char*>(stream_ring);", "if (is_one) {",
            f"    [[maybe_unused]] const {wide} chunk = 0;", *indent(self.before, 1),
            f"    {self.from_name} = reinterpret_cast<const unsigned char*>({self.load.address});", "}",
            f"const unsigned {self.load.name}_wanted = __ballot_sync(0xffffffffu, is_one);",
        ]  # fmt: skip

    def bring(self, turn: Callable[[str], str]) -> list[str]:
        """Whole keys to a load, zeros for those that are not wanted."""
        return [
            "#pragma unroll" if self.elements <= MOST_ELEMENTS else "#pragma unroll 4  // else each place takes a register for good",
            f"for (int at = 0; at < {TILE_KEYS * self.packs // 32}; ++at) {{",
            f"    const int row = (at * 32 + warp_lane) / {self.packs}, chunk = (at * 32 + warp_lane) % {self.packs};",
            f"    const auto* from = reinterpret_cast<const unsigned char*>(__shfl_sync(0xffffffffu, reinterpret_cast<unsigned long long>({self.from_name}), row));",
            f"    bring_or_zero({self.load.name}_ring + slot * kStagePacks + {self.place('row', 'chunk', turn('row'))}, from + chunk * 16, {self.load.name}_wanted >> row & 1);",
            "}",
        ]  # fmt: skip


def one_pass(
    kernel: StreamKernel, wide: str, keys: StreamSide, values: StreamSide, types: Sequence[str], count: str,
    factor: tuple[list[str], str], at_member: list[str], score: tuple[list[str], str], power: str, skips: bool,
) -> list[str]:  # fmt: skip
    """Lines from the queries in registers (`asked`) to a block's sums in `scores` and its softmax in `own`. `count`: of the keys; `factor`: lines
    before and what a product is multiplied by; `score`: lines before and what a score becomes before its power is taken;
    `skips`: masked keys are not read."""
    by_row = lambda row: f"({row}) % 2 * 4" if keys.packs % 8 == 0 else "0"  # noqa: E731
    by_pair = lambda row: f"({row}) / 2 % 4 * 2"  # noqa: E731
    key_packs, value_packs = keys.elements // 32, values.elements // 64
    begins = slice_of(kernel)
    key_at = lambda row: keys.place(row, "step * 4 + warp_lane % 4", by_row("warp_lane / 4"))  # noqa: E731
    value_at = values.place("row", "step * 8 + warp_lane / 4", by_pair("row"))
    held, turn = values, by_row
    sides: tuple[StreamSide, ...] = (keys, values)
    if begins is not None:
        # What was read as a key is the value as well: its packs are turned for both, and places differ by numbers alone, which take no registers.
        held, sides, turn = keys, (keys,), lambda row: f"({by_row(row)} ^ {by_pair(row)})"
        at_step = f"step / 2 * 8 + ((step % 2 * 4 + warp_lane % 4) ^ {turn('warp_lane / 4')})"
        key_at = lambda row: f"({row}) * {keys.packs} + {at_step}"  # noqa: E731
        value_at = f"row * {keys.packs} + {begins // 8} + step * 8 + (warp_lane / 4 ^ {turn('row')})"
    noted: list[str] = []
    passes_by: list[str] = []
    if begins is not None and skips:
        noted = [f"any = (any & ~(1u << slot)) | static_cast<unsigned>({keys.load.name}_wanted != 0) << slot;"]
        passes_by = ["if (!(any >> slot & 1)) {", "    ask(tile + kStages, slot);", "    continue;", "}"]
    stage = TILE_KEYS * sum(side.packs for side in sides)
    stages = min(MOST_STAGES, RING // (WARPS * stage * 16))
    words = [f"asked[step][{at}]" for at in range(4)]
    lines: list[str] = []
    if keys.elements > MOST_ELEMENTS:
        words, lines = (
            [f"asked[{at}]" for at in range(4)],
            ["    unsigned asked[4];", "    words_of(asked_packs[step * 32 + warp_lane], asked);"],
        )
    at_key = lambda row: f"const {wide} {kernel.key} = first + {row};"  # noqa: E731
    k, v = keys.load.name, held.load.name
    before, by = factor
    return [
        f"constexpr int kStages = {stages}, kStagePacks = {stage};",
        f"{keys.load.type}* const {k}_ring = reinterpret_cast<{keys.load.type}*>(stream_ring) + warp * kStages * kStagePacks;",
        *([] if held is keys else [f"{values.load.type}* const {v}_ring = reinterpret_cast<{values.load.type}*>(stream_ring) + warp * kStages * kStagePacks + {TILE_KEYS * keys.packs};"]),
        f"const int stream_tiles = ({count} + stream_parts * {WARPS * TILE_KEYS} - 1) / (stream_parts * {WARPS * TILE_KEYS});",
        f"const auto first_of = [&](int tile) {{ return static_cast<{wide}>(((tile * stream_parts + stream_part) * {WARPS} + warp) * {TILE_KEYS}); }};",
        *(["unsigned any = 0;  // of a slot: whether a key there is wanted"] if passes_by else []),
        "const auto ask = [&](int tile, int slot) {", "    if (tile < stream_tiles) {", f"        const {wide} first = first_of(tile);",
        f"        {at_key(f'warp_lane % {TILE_KEYS}')}",
        *[line for side in sides for line in ("        {", *indent([*side.find(wide), *noted, *side.bring(turn if side is keys else by_pair)], 3), "        }")],
        "    }", "    __pipeline_commit();", "};",
        "for (int tile = 0; tile < kStages; ++tile) {", "    ask(tile, tile);", "}",
        f"float sums[{value_packs}][4][4] = {{}}, largest[2] = {{-INFINITY, -INFINITY}}, total[2] = {{}};",
        "for (int tile = 0, slot = 0; tile < stream_tiles; ++tile, slot = slot + 1 == kStages ? 0 : slot + 1) {",
        *indent([
            f"const {wide} first = first_of(tile);", "__pipeline_wait_prior(kStages - 1);", "__syncwarp();", *passes_by,
            "float dots[2][4] = {};", "#pragma unroll", f"for (int step = 0; step < {key_packs}; ++step) {{",
            *lines, "    unsigned upper[4], lower[4];",
            f"    words_of({k}_ring[slot * kStagePacks + {key_at('warp_lane / 4')}], upper);",
            f"    words_of({k}_ring[slot * kStagePacks + {key_at('warp_lane / 4 + 8')}], lower);",
            f"    multiply_halves<{types[0]}>(dots[0], upper[0], lower[0], upper[1], lower[1], {words[0]}, {words[1]});",
            f"    multiply_halves<{types[0]}>(dots[1], upper[2], lower[2], upper[3], lower[3], {words[2]}, {words[3]});", "}",
            *before,
            "float weights[4];", "#pragma unroll", "for (int one = 0; one < 4; ++one) {",
            "    [[maybe_unused]] const int member_at = warp_lane % 4 * 2 + one % 2;",
            *indent([*at_member, at_key("warp_lane / 4 + one / 2 * 8")], 1), "    weights[one] = -INFINITY;",
            f"    if ({kernel.key} < {count}) {{",
            f"        [[maybe_unused]] const float score = (dots[0][one] + dots[1][one]){f' * ({by})' if by else ''};",
            *indent(score[0], 2), f"        weights[one] = {score[1]};", "    }", "}",
            "float scales[2];", "#pragma unroll", "for (int one = 0; one < 2; ++one) {",
            "    float most = maximum(weights[one], weights[one + 2]);",
            "    #pragma unroll", "    for (int step = 4; step < 32; step *= 2) {",
            "        most = maximum(most, __shfl_xor_sync(0xffffffffu, most, step));", "    }",
            "    most = maximum(most, largest[one]);",
            f"    scales[one] = most == largest[one] ? 1.0f : {power}(largest[one] - shift_below(most));",
            "    largest[one] = most;", "    total[one] *= scales[one];", "}",
            "if (__ballot_sync(0xffffffffu, scales[0] != 1.0f || scales[1] != 1.0f) != 0) {", "    #pragma unroll",
            f"    for (int at = 0; at < {value_packs * 16}; ++at) {{",
            "        sums[at / 16][at / 4 % 4][at % 4] *= scales[at % 2];", "    }", "}",
            "#pragma unroll", "for (int one = 0; one < 4; ++one) {",
            f"    weights[one] = {power}(weights[one] - shift_below(largest[one % 2]));",
            "    total[one % 2] += weights[one];", "}", "unsigned high[2], low[2];", "#pragma unroll",
            "for (int two = 0; two < 2; ++two) {",
            f"    split_weights<{types[1]}>(weights[2 * two] * {SCALE}f, weights[2 * two + 1] * {SCALE}f, high[two], low[two]);",
            "    high[two] = turned_halves(high[two]);", "    low[two] = turned_halves(low[two]);", "}",
            "#pragma unroll", f"for (int step = 0; step < {value_packs}; ++step) {{", "    unsigned words[4][4];", "    #pragma unroll",
            "    for (int one = 0; one < 4; ++one) {", "        const int row = warp_lane % 4 * 2 + one % 2 + one / 2 * 8;",
            f"        words_of({v}_ring[slot * kStagePacks + {value_at}], words[one]);",
            "    }",
            "    #pragma unroll", "    for (int two = 0; two < 4; ++two) {",
            "        const unsigned a0 = lower_halves(words[0][two], words[1][two]), a1 = upper_halves(words[0][two], words[1][two]);",
            "        const unsigned a2 = lower_halves(words[2][two], words[3][two]), a3 = upper_halves(words[2][two], words[3][two]);",
            f"        multiply_halves<{types[1]}>(sums[step][two], a0, a1, a2, a3, high[0], high[1]);",
            f"        multiply_halves<{types[1]}>(sums[step][two], a0, a1, a2, a3, low[0], low[1]);", "    }", "}",
            "__syncwarp();", "ask(tile + kStages, slot);",
        ], 1), "}",
        "__pipeline_wait_prior(0);", "#pragma unroll", "for (int one = 0; one < 2; ++one) {", "    #pragma unroll",
        "    for (int step = 4; step < 32; step *= 2) {",
        "        total[one] += __shfl_xor_sync(0xffffffffu, total[one], step);", "    }", "    if (warp_lane < 4) {",
        "        of_warps[0][warp][warp_lane * 2 + one] = largest[one];", "        of_warps[1][warp][warp_lane * 2 + one] = total[one];",
        "    }", "}",
        "__syncthreads();  // nobody reads the ring any more", *tile_left(kernel.columns),
        "if (threadIdx.x < Group) {", "    float most = -INFINITY, all = 0.0f;", "    #pragma unroll",
        f"    for (int other = 0; other < {WARPS}; ++other) {{",
        "        most = maximum(most, of_warps[0][other][threadIdx.x]);", "    }", "    #pragma unroll",
        f"    for (int other = 0; other < {WARPS}; ++other) {{",
        f"        const float share = {power}(of_warps[0][other][threadIdx.x] - shift_below(most));",
        "        all += share * of_warps[1][other][threadIdx.x];",
        "        of_warps[0][other][threadIdx.x] = share;", "    }", "    own[0][threadIdx.x] = most;", "    own[1][threadIdx.x] = all;",
        "}", "__syncthreads();",
    ]  # fmt: skip


def ring_bytes(kernel: StreamKernel) -> int:
    """Of a block for what is on its way, and for the sums behind it."""
    stage = WARPS * TILE_KEYS * (kernel.depths + (kernel.columns if slice_of(kernel) is None else 0)) * 2
    return max(min(MOST_STAGES, RING // stage) * stage, WARPS * 8 * kernel.columns * 4)


def stages_bytes(kernel: StreamKernel) -> int:
    """Of a block in all, queries in shared memory included."""
    return ring_bytes(kernel) + (8 * kernel.depths * 2 if kernel.depths > MOST_ELEMENTS else 0)
