"""Threads' maxima and the sums below them are joined over the block by `block_shifted_sum`, or by `block_max` and `block_sum`,
whatever joined them before.

    maxs[tid] = m; sums[tid] = s; __syncthreads();            const auto of_block = block_shifted_sum<0>(m, s, expf);
    for (...) { ... both, an exponential each ... }     ->
    loss = logf(sums[0]) + maxs[0] - x;                       loss = logf(of_block.sum) + of_block.shift - x;

Applies behind a loop that keeps such a pair (online.py), where the statements behind it do that (joined.py), for ties, threads without
elements, -inf and NaN too. Two barriers instead of one a halving, and the other steps see a reduction that they know. A sum at
the largest value stays as it is, so that one of nothing is 0 where all is -inf, and the source may have made a NaN of
-inf - -inf. A single sum meets with its maximum in one exchange, `block_shifted_sum`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

from tree_sitter import Node

from harness.records import Outcome
from nodes.rewrites.analysis.block_arithmetic import UNKNOWN
from nodes.rewrites.analysis.device_code import Code, inside, one_after_another
from nodes.rewrites.analysis.kernels import Kernel
from nodes.rewrites.analysis.numbers import FLT_MAX, ONE_MEANING, base_of, close
from nodes.rewrites.prelude import brought, next_site
from nodes.rewrites.reductions.idle_threads import without_idle
from nodes.rewrites.reductions.joined import End, Joined, Places, shapes_of
from nodes.rewrites.reductions.online import Online, recurrence
from nodes.rewrites.reductions.runs import Run, Threads
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.insert import free
from nodes.rewrites.syntax.source import Edits, Source, Unsupported
from nodes.rewrites.syntax.tree import LOOPS, field_of, statements, upward

MOST = 8
"""Reductions of one file."""


@rule(
    "cuda",
    expected="one or two barriers a row instead of one for every halving, and one exponential a thread instead of two a halving",
    speedup=1.1,
    helps={"memory", "latency", "compute"},
    after=("restrict_pointers",),
    risks=(Outcome.INCORRECT,),
)
def rewrite(source: Source, facts: Facts) -> str | None:
    if "exp" not in source.text or not any(word in source.text for word in ("__syncthreads", "sync(")):
        return None
    text = one_after_another(source, _next, MOST)
    return without_idle(source.reparsed(text)) if text is not None else None


def _next(code: Code) -> str | None:
    for kernel in code.kernels:
        if not kernel.synchronises or not kernel.launches:
            continue
        for node in code.source.walk(kernel.body, *LOOPS):
            body = field_of(node, "body")
            try:
                if body is not None:
                    return _Pairs(code, kernel, node, recurrence(code, kernel, statements(body))).text()
            except Unsupported:
                continue
    return None


class _Pairs(Joined):
    """The largest value, and the sums below it, of what a loop keeps."""

    def __init__(self, code: Code, kernel: Kernel, loop: Node, online: Online) -> None:
        source, self.online, self.totals = code.source, online, [total for total, _ in online.sums]
        state = [online.maximum, *self.totals]
        names = {path.partition(".")[0] for path in state}
        outer = self._outermost(code, loop, names)
        after = [s for s in statements(outer.parent) if s.start_byte >= outer.end_byte]
        while after and not any(source.of(n) in names for n in source.walk(after[0], "identifier")):
            after.pop(0)
        ours = brought(source)
        calls = [[source.called(c) for c in source.walk(s, "call_expression")] for s in after]
        after = after[: next((at for at, names_called in enumerate(calls) if ours & {*names_called}), len(after))]
        if outer.parent.type != "compound_statement" or not after:
            raise Unsupported("nothing behind the loop")
        super().__init__(code, kernel, shapes_of(code, kernel), after, state)

    def _outermost(self, code: Code, loop: Node, names: set[str]) -> Node:
        """The loop around it that the state outlives."""
        found = code.definition(next(n for n in code.source.walk(loop, "identifier") if code.source.of(n) in names))
        around = [here for here in upward(loop) if found is None or not inside(found.declaration, here)]
        if around[-1].type not in LOOPS:
            raise Unsupported("a loop that may be skipped")
        return around[-1]

    def draws(self, width: int) -> Iterator[Threads]:
        numbers, everyone = random.Random(width), range(width)
        yield self._threads(sorted(numbers.gauss(0.0, 2.0) for _ in everyone), numbers)  # the last has the largest
        yield self._threads([float(numbers.randrange(3)) for _ in everyone], numbers)  # ties
        yield self._threads([numbers.gauss(0.0, 2.0) if t < 5 else -FLT_MAX for t in everyone], numbers)

    def _threads(self, maxima: list[float], numbers: random.Random) -> Threads:
        """Nothing is in the sum of a thread that has had no element."""
        sums = {t: [numbers.uniform(0.5, 9.0) if m > -FLT_MAX else 0.0 for m in maxima] for t in self.totals}
        return {self.online.maximum: maxima, **sums}

    def expected(self, run: Run, threads: Threads) -> dict[str, float]:
        maxima = threads[self.online.maximum]
        largest, scale = max(maxima), base_of(self.code, self.online.function)
        if self.online.scale_node is not None:
            scale *= run.number(self.online.scale_node)
        below = [1.0 if m == largest else math.exp((m - largest) * scale) for m in maxima]
        return {
            self.online.maximum: largest,
            **{t: math.fsum(s * b for s, b in zip(threads[t], below, strict=True)) for t in self.totals},
        }

    def check(self, end: End, results: Places) -> None:
        """Infinities and NaN come to the same as by ours. Only where the source makes a NaN of -inf - -inf, or of inf - inf, may
        ours be the number that is right."""
        if len(results) < len(self.state):
            raise Unsupported("not every result")
        _, width = self.shapes[-1]
        for threads, lost in self._extremes(width):
            run = self.left_by(threads, end)
            want = self.expected(run, threads)
            places = run.places()
            for path, held in results.items():
                seen, _ = places.get(next(iter(held)), (UNKNOWN, False))
                nothing = path == self.online.maximum and {seen, want[path]} == {-FLT_MAX, -math.inf}  # of no element
                own_nan = path in self.totals and not lost and close(seen, math.nan)
                if not (own_nan or nothing or close(seen, want[path])):
                    raise Unsupported("another result for infinities or NaN")

    def _extremes(self, width: int) -> Iterator[tuple[Threads, bool]]:
        """Threads among which some have nothing, a NaN or +inf, and whether a NaN is in their sums, which must not get lost."""
        numbers, online, inf = random.Random(13), self.online, math.inf
        some = [1.5 if t in {0, 3, width - 1} else -inf for t in range(width)]
        normal = [numbers.gauss(0.0, 2.0) for _ in range(width)]
        of_largest = 1.0 if online.keeps_largest else math.nan
        weighted = [total for total, weight in online.sums if weight]  # -inf times nothing is a NaN in their sums
        for maxima, place, value, totals in (
            ([-inf] * width, -inf, 0.0, self.totals),
            (some, -inf, 0.0, self.totals),
            (some, -inf, math.nan, weighted),
            (normal, normal[width // 2 - 1], math.nan, self.totals),
            ([inf if t == 7 else 0.5 for t in range(width)], inf, of_largest, self.totals),
        ):
            threads = self._threads(maxima, numbers)
            for total in totals:
                threads[total] = [value if m == place else v for m, v in zip(maxima, threads[total], strict=True)]
            yield threads, bool(totals) and math.isnan(value)

    def lines(self, edits: Edits, taken: list[Node], results: Places) -> tuple[dict[str, str], list[str]]:
        code, online, taken_names, named = self.code, self.online, self.code.names(), dict[str, str]()
        if len(self.totals) == 1 and not online.scale and online.function in ONE_MEANING:
            (total,), pair = self.totals, code.fresh("of_block")
            call = f"block_shifted_sum<{next_site(self.source)}>({online.maximum}, {total}, {online.function})"
            names = {online.maximum: f"{pair}.shift", total: f"{pair}.sum"}
            return names, [f"const ShiftedSum<float> {pair} = {call};"]
        for path in self.state:
            named[path] = free(f"{path.replace('.', '_')}_of_block", taken_names)
            taken_names.add(named[path])
        largest, site = named[online.maximum], next_site(self.source)
        scale = free(f"{online.maximum.replace('.', '_')}_scale", taken_names)
        below = online.below(online.maximum, largest)
        return named, [
            f"const float {largest} = block_max<{site}>({online.maximum});",
            f"const float {scale} = {online.maximum} < {largest} ? {below} : 1.0f;",  # at the largest it stays as it is
            *(
                f"const float {named[total]} = block_sum<{number}>({total} * {scale});"
                for number, total in enumerate(self.totals, site + 1)
            ),
        ]
