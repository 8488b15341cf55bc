"""Kernels of the sketch `stream`: a cluster of blocks to the queries that read the same keys, every key and value loaded once.

Teams of lanes load keys in packs and leave the scores in shared memory; the reductions over the keys go over these, in the block
and across the cluster; what they make of the scores, the weights, takes their place; then the values go by like the keys. What is on its
way comes into shared memory, a place of its own for every thread, and the first values while the scores are reduced.
"""

from __future__ import annotations

from dataclasses import replace

from compiler.codegen.kernels import KernelFunction, Launch, in_axes, signature, wait
from compiler.codegen.rings import THREADS, StreamRing, choose_packs
from compiler.codegen.stream_lines import StreamLines, express_stores, store_lines, store_of
from compiler.codegen.stream_pass import LEAST_QUERIES, StreamSide, goes_in_one_pass, one_pass, ring_bytes, stages_bytes
from compiler.codegen.stream_softmax import has_own_softmax, join_softmax, own_softmax
from compiler.codegen.stream_tiles import (
    LEAST_GROUP,
    MOST_ELEMENTS,
    packs_of,
    queries_in_shared,
    query_of,
    slice_of,
    takes_tiles,
    tile_left,
    tile_queries,
    tile_scores,
    tile_sums,
)
from compiler.codegen.text import Text
from compiler.draft.expressions import by_name, loads_of
from compiler.draft.printing import Scope, branch, indent, index_text
from compiler.draft.tensors import Buffer
from compiler.program import KernelProgram
from compiler.schedule import KernelPlan
from compiler.streams import StreamKernel

MOST_REGISTERS = 64
"""Of a thread for the queries' elements, and later for the sums."""
MOST_GROUP = 8


def most_group(kernel: StreamKernel, vector: int, tiles: bool) -> int:
    """Queries that a block takes at once."""
    if tiles and kernel.depths <= MOST_ELEMENTS:
        return MOST_GROUP
    keys, values = choose_packs(kernel.depths, vector), choose_packs(kernel.columns, vector)
    most = min(MOST_GROUP, keys.lanes, max(1, MOST_REGISTERS // max(keys.each, values.each)))
    return 1 << (most.bit_length() - 1)


def kernel_function(
    program: KernelProgram, kernel: StreamKernel, name: str, narrow: bool, plan: KernelPlan
) -> KernelFunction:
    """`template <int Split, int Group>`: `Group` queries of the same keys to a cluster of `Split` blocks (0: as the launch says)."""
    made = _function(program, kernel, name, narrow, plan.pdl, tiles=False)
    if not takes_tiles(kernel, program.vector, plan.pdl):
        return made
    tiled = _function(program, kernel, f"{name}_tiles", narrow, plan.pdl, tiles=True)
    assert tiled.parameters == made.parameters
    return replace(made, text=made.text + "\n" + tiled.text, ring_of_tiles=tiled.ring)


def _function(
    program: KernelProgram, kernel: StreamKernel, name: str, narrow: bool, pdl: bool, tiles: bool
) -> KernelFunction:
    text = Text(program, kernel, "int" if narrow else "int64_t", program.rounds_to_halves)
    text.levels = [set(), set()]
    vector, wide, lines = program.vector, text.wide, StreamLines(text, kernel)
    how, out = (
        packs_of(kernel) if tiles else (choose_packs(kernel.depths, vector), choose_packs(kernel.columns, vector))
    )
    assert kernel.scores and kernel.sums and kernel.query and kernel.keyed and kernel.weight and kernel.value
    known = {kernel.scores: "score"} | {
        m.definition.outs[0]: f"folded[{n}][member_at]" for n, m in enumerate(kernel.folds)
    }
    leaf = lambda expr: by_name(expr, known)  # noqa: E731
    stores = [store_of(member) for member in kernel.stores]
    roots = [kernel.query, kernel.keyed, kernel.value, *(leaf(m.value) for m in kernel.folds), leaf(kernel.weight)]
    roots += [kernel.masked] if kernel.masked else []
    summed = known | {kernel.sums.definition.outs[0]: "sum"}
    values = express_stores(kernel, summed)
    counts = [kernel.units, kernel.group, kernel.keys]
    parameters, arguments = signature(text, stores, [*roots, *values], counts, plain=True, leaves=summed.values())
    group, keys = index_text(kernel.group), index_text(kernel.keys)
    member = str(kernel.member) if kernel.member.is_Symbol else ""
    unit = str(kernel.unit) if kernel.unit.is_Symbol else ""
    moved: set[Buffer] = set()

    # The query that `member_at` of the group is; the last one again where there are no more.
    at_member = [f"const {wide} {member} = group_first + member_at < {group} ? group_first + member_at : {group} - 1;"] if member else []  # fmt: skip
    at_key = [f"const {wide} {kernel.key} = (place / 32 * stream_parts + stream_part) * 32 + place % 32;"]

    folds = max(1, len(kernel.folds))
    passes = tiles and goes_in_one_pass(kernel)
    ring_at = (
        f"scores + Group * ((stream_span > 8 * {kernel.columns} ? stream_span : 8 * {kernel.columns}) + kStreamGap)"
    )
    top = Scope(1)
    top.lines += indent([
        "constexpr int kWarps = 8, kMostParts = Split == 1 ? 1 : 8;",
        "extern __shared__ float scores[];",
        f"[[maybe_unused]] unsigned char* const stream_ring = reinterpret_cast<unsigned char*>({'scores' if passes else ring_at});",
        "[[maybe_unused]] const int stream_row = stream_span + kStreamGap;",
        f"__shared__ float partial[{folds}][kWarps], folded[{folds}][Group];",
        *(["__shared__ float own[2][Group], shares[kMostParts][Group];"] if has_own_softmax(kernel) else []),
        *(["__shared__ float of_warps[2][kWarps][Group];"] if passes else []),
        "const int stream_parts = blocks_of_cluster<Split>(), stream_part = blockIdx.x % stream_parts;",
        f"const {wide} group_blocks = ({group} + Group - 1) / Group;",
        *([f"const {wide} {unit} = blockIdx.x / stream_parts / group_blocks;"] if unit else []),
        f"const {wide} group_first = (blockIdx.x / stream_parts) % group_blocks * Group;",
        "const int warp = threadIdx.x / 32, warp_lane = threadIdx.x % 32;",
    ], 1)  # fmt: skip
    wait(top, pdl, "Split")
    top.lines += lines.read_once(
        [leaf(root) for root in (kernel.masked, kernel.weight, *(m.value for m in kernel.folds)) if root is not None]
    )

    # Queries, in registers.
    query, factor = query_of(kernel) if tiles else (kernel.query, None)
    asked, loads, buffers = lines.pack(query, kernel.depth, how, "query_pack")
    moved |= buffers
    before, value = lines.printed(asked, 0)
    longer = tiles and kernel.depths > MOST_ELEMENTS
    top.lines += indent(queries_in_shared(
        how.packs, wide, at_member, lines.before, loads[0].name, loads[0].type, loads[0].address, ring_bytes(kernel),
    ) if longer else tile_queries(how.packs, wide, at_member, lines.before, loads[0].name, loads[0].address) if tiles else [
        f"float queries[Group][{how.each}];", "#pragma unroll", "for (int member_at = 0; member_at < Group; ++member_at) {",
        *indent(at_member, 1), "    #pragma unroll", f"    for (int step = 0; step < {how.packs}; ++step) {{",
        f"        const {wide} chunk = step * {how.lanes} + threadIdx.x % {how.lanes};", *indent(lines.before, 2),
        *[f"        const auto {load.name}_now = load_pack<{how.width}>({load.address});" for load in loads],
        "        #pragma unroll", f"        for (int lane = 0; lane < {how.width}; ++lane) {{", *indent(before, 3),
        f"            queries[member_at][step * {how.width} + lane] = {value};", "        }", "    }", "}",
    ], 1)  # fmt: skip

    # Keys go by; scores stay.
    keyed, loads, buffers = lines.pack(kernel.keyed, kernel.depth, how, "key_pack")
    moved |= buffers
    key_ring, key_before = StreamRing(how, loads, "keys" if tiles else ""), lines.before

    def wanted(skips: bool, inside: str = "place < stream_span && ") -> list[str]:
        first, is_masked = lines.printed(leaf(kernel.masked), 0) if kernel.masked and skips else ([], "")
        more = ["if (is_one) {", *indent(first, 1), f"    is_one = !({is_masked});", "}"] if is_masked else []
        return [f"bool is_one = {inside}{kernel.key} < {keys};", *more]

    seen, loads, buffers = lines.pack(kernel.value, kernel.column, out, "value_pack")
    moved |= buffers
    value_ring, value_before = StreamRing(out, loads, "values" if tiles else ""), lines.before
    skips = kernel.masked is not None and not program.spec.nans
    apart, wide_sums = has_own_softmax(kernel), f"Group * {kernel.columns}"
    sides = (kernel.keyed, kernel.value) if tiles else ()
    types = [text.element(loads_of([side])[0].args[0].dtype) for side in sides]
    if passes:
        key_side = StreamSide(
            key_ring.loads[0], key_before, wanted(skips or slice_of(kernel) is None, ""), kernel.depths
        )
        value_side = StreamSide(value_ring.loads[0], value_before, wanted(skips, ""), kernel.columns)
        by, score = lines.printed(factor, 0) if factor else ([], ""), lines.printed(leaf(kernel.folds[0].value), 0)
        top.lines += indent([
            *one_pass(kernel, wide, key_side, value_side, types, keys, by, at_member, score, "fast_exp" if text.fast else "expf", skips),
            f"for (int at = threadIdx.x; at < {wide_sums}; at += {THREADS}) {{", f"    const int member_at = at / {kernel.columns};",
            "    float sum = 0.0f;",
            "    for (int other = 0; other < kWarps; ++other) {",
            f"        sum += scores[other * {wide_sums} + at] * of_warps[0][other][member_at];", "    }", "    scores[at] = sum;", "}",
        ], 1)  # fmt: skip
    else:
        # Keys go by; scores stay.
        before, value = lines.printed(keyed, 0)
        top.lines += indent([
            "{", *indent(key_ring.lines(wide, at_key, key_before, wanted(True)), 1),
            *indent(tile_scores(key_ring, types[0], lines.printed(factor, 0) if factor else ([], "")) if tiles else key_ring.loop([
                "float dots[Group] = {};", "if (taken >> slot & 1) {", *indent(at_key, 1),
                "    #pragma unroll", f"    for (int step = 0; step < {how.packs}; ++step) {{",
                f"        [[maybe_unused]] const {wide} chunk = step * {how.lanes} + team_lane;", *indent(key_ring.now(), 2),
                "        #pragma unroll", f"        for (int lane = 0; lane < {how.width}; ++lane) {{", *indent(before, 3),
                f"            const float element = {value};", "            #pragma unroll",
                "            for (int member_at = 0; member_at < Group; ++member_at) {",
                f"                dots[member_at] += queries[member_at][step * {how.width} + lane] * element;",
                "            }", "        }", "    }", "}",
                f"const float score = sum_of_lanes<{how.lanes}>(dots, team_lane);",
                f"constexpr int kSame = {how.lanes} / Group;",
                "if (place < stream_span && team_lane % kSame == 0) {",
                "    scores[team_lane / kSame * stream_row + place] = score;", "}",
            ]), 1), "}", "__syncthreads();",
        ], 1)  # fmt: skip

        # The first values are on their way while the scores are reduced.
        top.lines += indent(value_ring.lines(wide, at_key, value_before, wanted(skips)), 1)

        # Reductions over the keys, of the block's and then of the cluster's; or what a softmax is of the block's alone.
        if apart:
            score = lines.printed(leaf(kernel.folds[0].value), 0)
            top.lines += indent(own_softmax(text, at_member, at_key, f"{kernel.key} < {keys}", score), 1)
        for number, fold in enumerate(() if apart else kernel.folds):
            before, value = lines.printed(leaf(fold.value), 0)
            held = f"partial[{number}]"
            top.lines += indent([
                *(["__syncthreads();"] if number else []), "{", "    const int member_at = warp % Group;", *indent(at_member, 1),
                f"    float held = {text.identity(fold)};", f"    const auto join = {text.join(fold)};",
                "    for (int place = warp / Group * 32 + warp_lane; place < stream_span; place += kWarps / Group * 32) {",
                *indent(at_key, 2), f"        if ({kernel.key} < {keys}) {{",
                "            const float score = scores[member_at * stream_row + place];", *indent(before, 3),
                f"            held = join(held, {value});", "        }", "    }", "    #pragma unroll",
                "    for (int step = 16; step > 0; step /= 2) {", "        held = join(held, __shfl_xor_sync(0xffffffffu, held, step));",
                "    }",
                "    if (warp_lane == 0) {", f"        {held}[warp] = held;", "    }", "    meet_in_cluster<Split>();",
                "    if (threadIdx.x < Group) {", f"        float all = {text.identity(fold)};",
                "        #pragma unroll", "        for (int other = 0; other < kMostParts; ++other) {",
                "            if (other < stream_parts) {",
                f"                const float* of_other = of_block<Split>({held}, other);", "                #pragma unroll",
                "                for (int one = 0; one < kWarps; one += Group) {",
                "                    all = join(all, of_other[one + threadIdx.x]);",
                "                }", "            }", "        }", f"        folded[{number}][threadIdx.x] = all;", "    }", "}",
            ], 1)  # fmt: skip

        # Weights take the scores' place.
        before, value = lines.printed(leaf(kernel.weight), 0)
        top.lines += [] if apart else indent([
            "__syncthreads();", "{", "    const int member_at = warp % Group;", *indent(at_member, 1),
            "    for (int place = warp / Group * 32 + warp_lane; place < stream_span; place += kWarps / Group * 32) {", *indent(at_key, 2),
            "        float& held = scores[member_at * stream_row + place];", "        [[maybe_unused]] const float score = held;",
            "        float weight = 0.0f;",
            f"        if ({kernel.key} < {keys}) {{", *indent(before, 3), f"            weight = {value};", "        }",
            "        held = weight;", "    }", "}",
            "__syncthreads();",
        ], 1)  # fmt: skip

        # Values go by; what was not asked for since it is masked is brought where a weight says otherwise: that of a row that is masked whole.
        before, value = lines.printed(seen, 0)
        late = [
            "bool is_any = false;", "#pragma unroll", "for (int member_at = 0; member_at < Group; ++member_at) {",
            "    is_any |= weights[member_at] != 0.0f;", "}", "if (is_any && !(taken >> slot & 1)) {", "    fetch(place, slot);",
            "    __pipeline_commit();", "    __pipeline_wait_prior(0);", "}", "if (is_any) {",
        ]  # fmt: skip
        top.lines += indent(tile_sums(value_ring, types[1], skips) if tiles else [
            f"float sums[Group][{out.each}] = {{}};", *value_ring.loop([
                f"if (place < stream_span{'' if skips else ' && (taken >> slot & 1)'}) {{", *indent(at_key, 1),
                "    float weights[Group];", "    #pragma unroll", "    for (int member_at = 0; member_at < Group; ++member_at) {",
                "        weights[member_at] = scores[member_at * stream_row + place];", "    }", *indent(late if skips else ["{"], 1),
                "        #pragma unroll", f"        for (int step = 0; step < {out.packs}; ++step) {{",
                f"            [[maybe_unused]] const {wide} chunk = step * {out.lanes} + team_lane;", *indent(value_ring.now(), 3),
                "            #pragma unroll", f"            for (int lane = 0; lane < {out.width}; ++lane) {{", *indent(before, 4),
                f"                const float element = {value};", "                #pragma unroll",
                "                for (int member_at = 0; member_at < Group; ++member_at) {",
                f"                    sums[member_at][step * {out.width} + lane] += weights[member_at] * element;",
                "                }", "            }", "        }", "    }", "}",
            ]),
        ], 1)  # fmt: skip

        # What the warps have, and then the blocks, is added.
        left = ["__syncthreads();", *tile_left(kernel.columns)] if tiles else [
            "#pragma unroll", "for (int member_at = 0; member_at < Group; ++member_at) {", "    #pragma unroll",
            f"    for (int one = 0; one < {out.each}; ++one) {{", "        #pragma unroll",
            f"        for (int step = {out.lanes}; step < 32; step *= 2) {{",
            "            sums[member_at][one] += __shfl_xor_sync(0xffffffffu, sums[member_at][one], step);", "        }", "    }", "}",
            "__syncthreads();", f"if (warp_lane < {out.lanes}) {{", "    #pragma unroll",
            "    for (int member_at = 0; member_at < Group; ++member_at) {",
            "        #pragma unroll", f"        for (int one = 0; one < {out.each}; ++one) {{",
            f"            const int at = (one / {out.width} * {out.lanes} + warp_lane) * {out.width} + one % {out.width};",
            f"            scores[warp * {wide_sums} + member_at * {kernel.columns} + at] = sums[member_at][one];", "        }", "    }",
            "}",
        ]  # fmt: skip
        top.lines += indent([
            *left, "__syncthreads();", f"for (int at = threadIdx.x; at < {wide_sums}; at += {THREADS}) {{", "    float sum = scores[at];",
            "    for (int other = 1; other < kWarps; ++other) {", f"        sum += scores[other * {wide_sums} + at];", "    }",
            "    scores[at] = sum;",
            "}",
        ], 1)  # fmt: skip

    top.lines += indent(["meet_in_cluster<Split>();", *(join_softmax(text, kernel) if apart else [])], 1)
    each, once = store_lines(text, kernel, stores, values)
    top.lines += indent([
        f"for (int at = stream_part * {THREADS} + threadIdx.x; at < {wide_sums}; at += stream_parts * {THREADS}) {{",
        f"    [[maybe_unused]] const int member_at = at / {kernel.columns}, {kernel.column} = at % {kernel.columns};",
        f"    if (group_first + member_at < {group}) {{", "        float sum = 0.0f;", "        #pragma unroll",
        "        for (int other = 0; other < kMostParts; ++other) {", "            if (other < stream_parts) {",
        f"                sum += of_block<Split>(scores, other)[at]{' * shares[other][member_at]' if apart else ''};", "            }",
        "        }", *indent([*at_member, *each], 2), "    }", "}",
    ], 1)  # fmt: skip
    if once:
        top.lines += indent([
            f"if (stream_part == 0 && threadIdx.x < Group && group_first + threadIdx.x < {group}) {{",
            "    const int member_at = threadIdx.x;", *indent([*at_member, *once], 1), "}",
        ], 1)  # fmt: skip
    top.line("leave_cluster<Split>();")
    parameters.append("int stream_span")
    body = [
        "template <int Split, int Group>", f"__global__ void __launch_bounds__({THREADS}) {name}({', '.join(parameters)}) {{",
        *top.lines, "}", "",
    ]  # fmt: skip
    arguments.append("stream_plan.span")
    return KernelFunction(
        name,
        "\n".join(body),
        tuple(parameters),
        tuple(arguments),
        tuple(sorted(moved, key=lambda buffer: buffer.text)),
        kernel,
        ring=stages_bytes(kernel) if passes else max(key_ring.bytes, value_ring.bytes),
    )


def launch_lines(launch: Launch) -> list[str]:
    """The host asks `plan_stream` how many queries a block takes, and how many blocks share the keys."""
    program, function, clusters = launch.program, launch.function, launch.plan.pdl
    kernel = function.kernel
    assert isinstance(kernel, StreamKernel)
    launch.file.clusters |= clusters
    tiles = function.ring_of_tiles > 0
    most = most_group(kernel, program.vector, tiles)
    group = in_axes(program, kernel.group)
    units, keys = in_axes(program, kernel.units), in_axes(program, kernel.keys)
    plan = f"plan_stream({units}, {group}, {keys}, {most}, {kernel.columns}, {function.ring}, {function.ring_of_tiles}, {str(clusters).lower()})"
    places = []
    if tiles and goes_in_one_pass(kernel):
        asked = f"({function.name}_tiles<0, {MOST_GROUP}>, {THREADS}, {function.ring_of_tiles})" if clusters else ""
        places = [f"static const ClusterPlaces places{asked};"]
        by_pass = f"plan_pass(places, {units}, {group}, {keys}, {function.ring_of_tiles}, {str(clusters).lower()})"
        plan = f"{group} >= {LEAST_QUERIES} ? {by_pass} : {plan}"
    lines = [
        *places,
        f"const StreamPlan stream_plan = {plan};",
        f"const unsigned grid_blocks = static_cast<unsigned>(({units}) * (({group} + stream_plan.group - 1) / stream_plan.group)) * stream_plan.split;",
    ]
    arms = []
    sizes = [s for s in (1, 2, 4, 8) if s <= most or (tiles and s == MOST_GROUP)]
    for size, parts in [(s, p) for s in sizes for p in ((1, 0) if clusters else (1,))]:
        call = f"{function.name}{'_tiles' if tiles and size >= LEAST_GROUP else ''}<{parts}, {size}>"
        given = ", ".join(function.arguments)
        split = "1" if parts else "stream_plan.split"
        launched = f"launch_with_shared<{str(clusters).lower()}>({call}, grid_blocks, {split}, 256, stream_plan.bytes, stream, {given});"
        room = f"static const int room = ask_for_shared({call});"
        condition = f"stream_plan.group == {size} && stream_plan.split {'==' if parts else '>'} 1"
        arms.append((condition, [room, "static_cast<void>(room);", launched]))
    return [*lines, *branch(arms)]
