"""Queries of a group, eight at a time, by tensor cores: what of a stream's text is another one then.

Sixteen keys of a warp are the rows of a tile and eight queries its columns; of the values, sixteen elements are the rows, keys are summed. Where
an element of a key stands in a tile's depth is free as long as the query's stands there too, so that a thread's packs are whole words of
a tile as they come, and values need only their halves sorted. A weight is two halves, what rounding leaves of it the second: as exact as floats.
"""

from __future__ import annotations

import sympy

from compiler.codegen.rings import THREADS, TILE_KEYS, WARP, StreamPacks, StreamRing
from compiler.codegen.stream_softmax import has_own_softmax
from compiler.draft.expressions import Expr, loads_of, symbols_of, walk
from compiler.draft.printing import indent
from compiler.streams import StreamKernel

LEAST_GROUP = 8
"""Queries from which on a block goes so: fewer are done beside the loads by plain multiply-adds (four: 94 us so, 107 by tiles; eight: 183 and 131; H200)."""
MOST_ELEMENTS = 128
"""Of a key and of a value, so that two blocks share a multiprocessor."""
MOST_SUMS = 512
"""Elements of a value that is a slice of its key: 128 registers of a thread hold its sums."""
RING = 192 << 10
"""Bytes of a block for what is on its way in one pass: one block has a multiprocessor."""
SCALE = 1024.0
"""Of weights, which are at most one: what is left of small ones lies above the smallest halves."""


def packs_of(kernel: StreamKernel) -> tuple[StreamPacks, StreamPacks]:
    """How a tile's lanes share a key: four take it, and eight a value."""
    return StreamPacks(4, kernel.depths // 32, 8), StreamPacks(8, kernel.columns // 64, 8)


def takes_tiles(kernel: StreamKernel, vector: int, clusters: bool) -> bool:
    """Whether keys and values are halves as they lie in memory, and weights shares of the largest."""
    assert kernel.query and kernel.keyed and kernel.value and kernel.weight
    halves = [_half(one) for one in (query_of(kernel)[0], kernel.keyed, kernel.value)]
    whole = kernel.depths % 32 == 0 and kernel.columns % 64 == 0
    small = max(kernel.depths, kernel.columns) <= MOST_ELEMENTS or (
        has_own_softmax(kernel) and slice_of(kernel) is not None
    )
    most = {m.definition.outs[0] for m in kernel.folds if m.definition.kind == "max"}
    shares = any(
        e.op == "exp" and any(load.args[0] in most for load in loads_of([e])) for e in walk([kernel.weight])
    )  # fmt: skip
    return vector == 8 and clusters and whole and small and shares and None not in halves and halves[0] == halves[1]


def slice_of(kernel: StreamKernel) -> int | None:
    """The element of a key at which its value begins; None where the value is no slice of its key, or not of whole lines (a latent cache has one)."""
    assert kernel.keyed and kernel.value
    key, value = (_uncast(one) for one in (kernel.keyed, kernel.value))
    if (
        key.op != value.op
        or key.op not in ("load", "load_at")
        or (key.args[0], *key.args[2:]) != (value.args[0], *value.args[2:])
    ):
        return None
    first = sympy.expand(value.args[1] - key.args[1].subs(kernel.depth, kernel.column))
    lies_along = sympy.expand(key.args[1] - kernel.depth).has(kernel.depth) is False
    fits = lies_along and first.is_Integer and 0 <= first <= kernel.depths - kernel.columns and first % 64 == 0
    fits = fits and kernel.depths % 64 == 0 and kernel.columns <= MOST_SUMS
    return int(first) if fits and THREADS // WARP * TILE_KEYS * kernel.depths * 2 <= RING else None


def query_of(kernel: StreamKernel) -> tuple[Expr, Expr | None]:
    """(what of the query differs by element, what all of its elements are multiplied by)."""
    query = kernel.query
    assert query is not None
    if query.op == "mul":
        for one, other in (query.args, query.args[::-1]):
            if not {kernel.depth, kernel.member} & symbols_of(other):
                return one, other
    return query, None


def _uncast(expr: Expr) -> Expr:
    while expr.op == "cast":
        expr = expr.args[0]
    return expr


def _half(expr: Expr):
    """The type of halves that are loaded and nothing else; None where it is anything else."""
    expr = _uncast(expr)
    if expr.op not in ("load", "load_at"):
        return None
    name = str(expr.args[0].dtype).removeprefix("torch.")
    return name if name in ("float16", "bfloat16") else None


def tile_scores(ring: StreamRing, type: str, factor: tuple[list[str], str]) -> list[str]:
    """Keys go by; scores stay. `factor`: lines in front of what a score is multiplied by, and that, if any."""
    name, packs = ring.loads[0].name, ring.how.packs
    before, by = factor
    return ring.loop([
        "float dots[4] = {};", "#pragma unroll", f"for (int step = 0; step < {packs}; ++step) {{", "    unsigned first[4], second[4];",
        f"    words_of({name}_ring[(2 * stage * {packs} + step) * 256], first);",
        f"    words_of({name}_ring[((2 * stage + 1) * {packs} + step) * 256], second);",
        f"    multiply_halves<{type}>(dots, first[0], second[0], first[1], second[1], asked[step][0], asked[step][1]);",
        f"    multiply_halves<{type}>(dots, first[2], second[2], first[3], second[3], asked[step][2], asked[step][3]);", "}", *before,
        "#pragma unroll", "for (int one = 0; one < 4; ++one) {",
        "    const int place = from + one / 2 * kTeams + team, member_at = team_lane * 2 + one % 2;",
        "    if (place < stream_span && member_at < Group) {",
        f"        scores[member_at * stream_row + place] = taken >> (2 * stage + one / 2) & 1 ? dots[one]{f' * ({by})' if by else ''} : 0.0f;",
        "    }", "}",
    ])  # fmt: skip


def tile_sums(ring: StreamRing, type: str, skips: bool) -> list[str]:
    """Values go by. `skips`: what was not asked for, since it is masked, is brought where a weight says otherwise."""
    name, packs = ring.loads[0].name, ring.how.packs
    late = [
        "unsigned late = 0;", "#pragma unroll", "for (int one = 0; one < 4; ++one) {",
        "    late |= static_cast<unsigned>(weights[one] != 0.0f) << one;", "}", "late &= ~(taken >> (4 * stage));",
        "if (__ballot_sync(0xffffffffu, late != 0) != 0) {", "    #pragma unroll", "    for (int step = 4; step < 32; step *= 2) {",
        "        late |= __shfl_xor_sync(0xffffffffu, late, step);", "    }", "    #pragma unroll", "    for (int one = 0; one < 4; ++one) {",
        "        if (late >> one & 1) {", "            fetch(from + one * kTeams + team, 4 * stage + one);",
        "            taken |= 1u << (4 * stage + one);", "        }", "    }", "    __pipeline_commit();", "    __pipeline_wait_prior(0);", "}",
    ]  # fmt: skip
    return [f"float sums[{packs}][4][4] = {{}};", *ring.loop([
        "float weights[4];", "#pragma unroll", "for (int one = 0; one < 4; ++one) {", "    const int place = from + one * kTeams + team;",
        "    weights[one] = place < stream_span && team_lane < Group ? scores[team_lane * stream_row + place] : 0.0f;", "}",
        *(late if skips else []), "unsigned upper[2], lower[2];",
        f"split_weights<{type}>(weights[0] * {SCALE}f, weights[1] * {SCALE}f, upper[0], lower[0]);",
        f"split_weights<{type}>(weights[2] * {SCALE}f, weights[3] * {SCALE}f, upper[1], lower[1]);",
        "#pragma unroll", f"for (int step = 0; step < {packs}; ++step) {{", "    unsigned words[4][4];", "    #pragma unroll",
        "    for (int one = 0; one < 4; ++one) {",
        f"        words_of({name}_ring[((4 * stage + one) * {packs} + step) * 256], words[one], taken >> (4 * stage + one) & 1);", "    }",
        "    #pragma unroll", "    for (int two = 0; two < 4; ++two) {",
        "        const unsigned a0 = lower_halves(words[0][two], words[1][two]), a1 = upper_halves(words[0][two], words[1][two]);",
        "        const unsigned a2 = lower_halves(words[2][two], words[3][two]), a3 = upper_halves(words[2][two], words[3][two]);",
        f"        multiply_halves<{type}>(sums[step][two], a0, a1, a2, a3, upper[0], upper[1]);",
        f"        multiply_halves<{type}>(sums[step][two], a0, a1, a2, a3, lower[0], lower[1]);", "    }", "}",
    ])]  # fmt: skip


def tile_left(columns: int) -> list[str]:
    """A warp's sums go where those of all warps are added."""
    return [
        "#pragma unroll", f"for (int step = 0; step < {columns // 64}; ++step) {{", "    #pragma unroll", "    for (int one = 0; one < 16; ++one) {",
        "        const int at = (step * 8 + warp_lane / 4) * 8 + one / 4 * 2 + one % 4 / 2, member_at = warp_lane % 4 * 2 + one % 2;",
        "        if (member_at < Group) {",
        f"            scores[(warp * Group + member_at) * {columns} + at] = sums[step][one / 4][one % 4] * {1 / SCALE!r}f;", "        }", "    }", "}",
    ]  # fmt: skip


def tile_queries(packs: int, wide: str, at_member: list[str], before: list[str], name: str, address: str) -> list[str]:
    """Queries, in registers, as words of a tile."""
    return [
        f"unsigned asked[{packs}][4];", "{", "    const int member_at = warp_lane / 4;", *indent(at_member, 1), "    #pragma unroll",
        f"    for (int step = 0; step < {packs}; ++step) {{", f"        const {wide} chunk = step * 4 + warp_lane % 4;", *indent(before, 2),
        f"        const auto {name}_now = load_pack<8>({address});", f"        words_of({name}_now, asked[step]);", "    }", "}",
    ]  # fmt: skip


def queries_in_shared(
    packs: int, wide: str, at_member: list[str], before: list[str], name: str, type: str, address: str, at: int
) -> list[str]:
    """The same in shared memory, `at` bytes behind the ring, where long queries and the sums of long values have no room in registers together."""
    return [
        f"auto* const asked_packs = reinterpret_cast<{type}*>(stream_ring + {at});", "{", "    const int member_at = warp_lane / 4;",
        *indent(at_member, 1), f"    for (int step = warp; step < {packs}; step += kWarps) {{",
        f"        const {wide} chunk = step * 4 + warp_lane % 4;", *indent(before, 2),
        f"        const auto {name}_now = load_pack<8>({address});", f"        asked_packs[step * {WARP} + warp_lane] = {name}_now;", "    }", "}",
        "__syncthreads();",
    ]  # fmt: skip
