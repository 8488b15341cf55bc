"""A softmax over keys that stream by, each block's by itself: weights are powers below the block's own largest score, not yet divided.

What blocks of a cluster have differs by one factor a query then, and the sum that all is divided by is needed at the end alone: so they
meet once, when their sums are there (flash decoding, https://pytorch.org/blog/flash-decoding).
"""

from __future__ import annotations

from compiler.codegen.levels import indent
from compiler.codegen.text import Text
from compiler.draft.expressions import make
from compiler.streams import StreamKernel


def has_own_softmax(kernel: StreamKernel) -> bool:
    """Whether the weights are a softmax of the scores, of which masked ones are minus infinity: with another number there, a block whose keys
    are all masked would have weights for them."""
    if [fold.definition.kind for fold in kernel.folds] != ["max", "sum"] or kernel.weight is None:
        return False
    most, total = kernel.folds
    largest, sum = (make("load", m.definition.outs[0], m.places[0], type="float") for m in kernel.folds)
    power = make("exp", make("sub", most.value, largest, type="float"), type="float")
    return kernel.hidden and total.value is power and kernel.weight in (power, make("div", power, sum, type="float"))


def own_softmax(
    text: Text, at_member: list[str], at_key: list[str], inside: str, score: tuple[list[str], str]
) -> list[str]:
    """Lines behind the scores: `scores` become weights, `own` holds a block's largest score and sum of each query. `score`: (lines before, what
    a score becomes before its power is taken); `inside`: whether there is such a key."""
    before, value = score
    power = "fast_exp" if text.fast else "expf"
    over = "for (int place = warp / Group * 32 + warp_lane; place < stream_span; place += kWarps / Group * 32) {"
    across = lambda join: [  # noqa: E731
        "    #pragma unroll", "    for (int step = 16; step > 0; step /= 2) {",
        f"        held = {join('__shfl_xor_sync(0xffffffffu, held, step)')};", "    }",
    ]  # fmt: skip
    return [
        "{", "    const int member_at = warp % Group;", *indent(at_member, 1), "    float held = -INFINITY;", f"    {over}", *indent(at_key, 2),
        "        float& kept = scores[member_at * stream_row + place];", "        float seen = -INFINITY;", f"        if ({inside}) {{",
        "            [[maybe_unused]] const float score = kept;", *indent(before, 3), f"            seen = {value};", "        }", "        kept = seen;",
        "        held = maximum(held, seen);", "    }", *across(lambda other: f"maximum(held, {other})"), "    if (warp_lane == 0) {",
        "        partial[0][warp] = held;", "    }", "}", "__syncthreads();",
        "{", "    const int member_at = warp % Group;", "    float largest = partial[0][member_at], held = 0.0f;", "    #pragma unroll",
        "    for (int other = Group; other < kWarps; other += Group) {", "        largest = maximum(largest, partial[0][member_at + other]);", "    }",
        f"    {over}", "        float& kept = scores[member_at * stream_row + place];",
        f"        kept = {power}(kept - shift_below(largest));", "        held += kept;", "    }", *across(lambda other: f"held + {other}"),
        "    if (warp_lane == 0) {", "        partial[1][warp] = held;", "        if (warp < Group) {", "            own[0][warp] = largest;", "        }", "    }", "}",
        "__syncthreads();", "if (threadIdx.x < Group) {", "    float all = partial[1][threadIdx.x];", "    #pragma unroll",
        "    for (int other = Group; other < kWarps; other += Group) {", "        all += partial[1][threadIdx.x + other];", "    }",
        "    own[1][threadIdx.x] = all;", "}",
    ]  # fmt: skip


def join_softmax(text: Text, kernel: StreamKernel) -> list[str]:
    """Lines behind the cluster's meeting: what a block's sums of each query count (`shares`), and the reductions over all keys (`folded`)."""
    power = "fast_exp" if text.fast else "expf"
    assert kernel.weight
    divided = " / total" if kernel.weight.op == "div" else ""
    each = lambda lines: ["#pragma unroll", "for (int other = 0; other < kMostParts; ++other) {", "    if (other < stream_parts) {", *indent(lines, 2), "    }", "}"]  # noqa: E731  # fmt: skip
    return ["if (threadIdx.x < Group) {", *indent([
        "float largest[kMostParts], most = -INFINITY, total = 0.0f;",
        *each(["largest[other] = of_block<Split>(own[0], other)[threadIdx.x];", "most = maximum(most, largest[other]);"]),
        *each([f"largest[other] = {power}(largest[other] - shift_below(most));", "total += largest[other] * of_block<Split>(own[1], other)[threadIdx.x];"]),
        "if (most == -INFINITY) total = NAN;  // all keys are masked: a power of the difference of two infinities is no number",
        *each([f"shares[other][threadIdx.x] = largest[other]{divided};"]),
        "folded[0][threadIdx.x] = most;", "folded[1][threadIdx.x] = total;",
    ], 1), "}", "__syncthreads();"]  # fmt: skip
