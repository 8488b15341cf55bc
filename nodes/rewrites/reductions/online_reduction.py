"""Threads' maxima and the sums below them are joined over the block by `block_shifted_sum`, or by `block_max` and `block_sum`,
whatever joined them before.

    maxs[tid] = m; sums[tid] = s; __syncthreads();            const auto of_block = block_shifted_sum<0>(m, s, expf);
    for (...) { ... both, an exponential each ... }     ->
    loss = logf(sums[0]) + maxs[0] - x;                       loss = logf(of_block.sum) + of_block.shift - x;

Applies behind a loop that keeps such a pair (_online.py). Recognised by what it does: the statements behind the loop
run on numbers for whole blocks, ties, threads without elements, -inf and NaN among them, and where a variable or the
slots hold the row's maximum and sum after them they were that reduction. So it may be a tree, shuffles of two values,
a struct with a function that joins two, or CUB's BlockReduce. Two barriers instead of one a halving, and the other
steps see a reduction that they know. A sum at the largest value stays as it is, so that one of nothing is 0 where all is -inf,
and the source may have made a NaN of -inf - -inf. A single sum meets with its maximum in one exchange,
`block_shifted_sum`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator
from contextlib import suppress

from tree_sitter import Node

from harness.records import Outcome
from nodes.rewrites.analysis.block_arithmetic import UNKNOWN
from nodes.rewrites.analysis.block_shape import whole_warps, width_of
from nodes.rewrites.analysis.device_code import Code, Definition, inside, one_after_another
from nodes.rewrites.analysis.insertions import drop_unused, require
from nodes.rewrites.analysis.kernels import Kernel
from nodes.rewrites.analysis.launches import Launch
from nodes.rewrites.analysis.numbers import FLT_MAX, ONE_MEANING, base_of, close
from nodes.rewrites.prelude.block_reductions import NAMES, brought, next_site
from nodes.rewrites.reductions.idle_threads import without_idle
from nodes.rewrites.reductions.online import Online, declares, recurrence
from nodes.rewrites.reductions.online_runs import Run, Threads
from nodes.rewrites.reductions.uses import is_leaders, keep_apart, outlives_a_round, set_anew, slots_of, start_of
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.insert import free
from nodes.rewrites.syntax.source import Edits, Source, Unsupported
from nodes.rewrites.syntax.tree import LOOPS, children_of, field_of, same, statements, upward

WIDTHS = (32, 64, 256, 1024)
"""Of blocks whose width is only known when it runs. Trees are for powers of two."""
End = tuple[int, int]
"""The place of a statement behind the loop, and of a branch at the end how many of the branch's own statements have run, counted
from their end, 0 for the whole."""
Ends = dict[tuple[End, str, str], bool]
"""Behind which statement which result is where, by the state's own names, and whether every thread may read it there."""
Places = dict[str, dict[str, bool]]
"""Of one end."""
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
    if "exp" not in source.text or not any(word in source.text for word in ("__syncthreads", "sync(", "BlockReduce")):
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
                online = recurrence(code, kernel, statements(body)) if body is not None else None
                if online is not None:
                    return _Joined(code, kernel, node, online).text()
            except Unsupported:
                continue
    return None


def _widths(code: Code, kernel: Kernel, launch: Launch) -> tuple[int, ...]:
    """How many threads a block of the launch may have."""
    width = width_of(code, kernel, launch)
    if width is not None and 32 <= width <= 1024 and width % 32 == 0:
        return (width,)
    if width is not None or not whole_warps(code, kernel, launch.block):
        raise Unsupported("a block that may not be whole warps")
    return WIDTHS


def _numbers_passed(kernel: Kernel, launch: Launch) -> list[str]:
    """The template arguments that are no types."""
    passed = zip(kernel.template_parameters, launch.template_arguments, strict=False)
    return [argument for parameter, argument in passed if parameter.type != "type_parameter_declaration"]


class _Joined:
    """One reduction behind a loop."""

    def __init__(self, code: Code, kernel: Kernel, loop: Node, online: Online) -> None:
        self.code, self.source, self.kernel, self.online = code, code.source, kernel, online
        self.totals = [total for total, _ in online.sums]
        outer = self._outermost(loop)
        after = [s for s in statements(outer.parent) if s.start_byte >= outer.end_byte]
        while after and not self._takes_part(after[0]):
            after.pop(0)
        ours = brought(self.source)
        calls = (c for s in after for c in self.source.walk(s, "call_expression"))
        known = [c.start_byte for c in calls if self.source.of(c, "function").split("<")[0] in ours]
        after = [s for s in after if s.end_byte <= min(known, default=s.end_byte)]
        if outer.parent.type != "compound_statement" or not after:
            raise Unsupported("nothing behind the loop")
        scale = online.scale_node
        if scale is not None and (found := code.definition(scale)) is not None and inside(found.declaration, outer):
            raise Unsupported("a scale of the loop's own")
        self.after, self.loop = after, loop

    def _outermost(self, loop: Node) -> Node:
        """The loop around it that the state outlives."""
        uses = self.source.walk(loop, "identifier")
        name = next(n for n in uses if self.source.of(n) == self.online.maximum.partition(".")[0])
        found = self.code.definition(name)
        around = [here for here in upward(loop) if found is None or not inside(found.declaration, here)]
        if around[-1].type not in LOOPS:
            raise Unsupported("a loop that may be skipped")
        return around[-1]

    def _takes_part(self, statement: Node) -> bool:
        names = {path.partition(".")[0] for path in (self.online.maximum, *self.totals)}
        return any(self.source.of(n) in names for n in self.source.walk(statement, "identifier"))

    def text(self) -> str:
        numbers = random.Random(11)
        possible: Ends | None = None
        shapes = {
            (width, *_numbers_passed(self.kernel, launch)): (launch, width)
            for launch in self.kernel.launches
            for width in _widths(self.code, self.kernel, launch)
        }
        for launch, width in shapes.values():
            for threads in self._draws(numbers, width):
                mine = self._run(launch, width, threads)
                both = mine if possible is None else possible
                possible = {at: everywhere and mine[at] for at, everywhere in both.items() if at in mine}
            if not possible:
                break
        for end in sorted({end for end, _, _ in possible or {}}, reverse=True):
            results: Places = {path: {} for path in (self.online.maximum, *self.totals)}
            for (_, path, place), everywhere in ((at, all_) for at, all_ in possible.items() if at[0] == end):
                results[path][place] = everywhere
            with suppress(Unsupported):
                if all(results.values()):
                    self._check_extremes(end, results)
                    return self._written(end, results)
        raise Unsupported("no reduction")

    # What the statements do.

    def _draws(self, numbers: random.Random, width: int) -> Iterator[Threads]:
        everyone = range(width)
        yield self._threads([numbers.gauss(0.0, 2.0) for _ in everyone], numbers)
        yield self._threads([float(numbers.randrange(3)) for _ in everyone], numbers)  # ties
        yield self._threads([numbers.gauss(0.0, 2.0) if t < 5 else -FLT_MAX for t in everyone], numbers)

    def _threads(self, maxima: list[float], numbers: random.Random) -> Threads:
        """Nothing is in the sum of a thread that has had no element."""
        sums = {t: [numbers.uniform(0.5, 9.0) if m > -FLT_MAX else 0.0 for m in maxima] for t in self.totals}
        return {self.online.maximum: maxima, **sums}

    def _expected(self, run: Run, threads: Threads) -> dict[str, float]:
        maxima = threads[self.online.maximum]
        largest, scale = max(maxima), base_of(self.code, self.online.function)
        if self.online.scale_node is not None:
            scale *= run.number(self.online.scale_node)
        below = [1.0 if m == largest else math.exp((m - largest) * scale) for m in maxima]
        return {
            self.online.maximum: largest,
            **{t: math.fsum(s * b for s, b in zip(threads[t], below, strict=True)) for t in self.totals},
        }

    def _run(self, launch: Launch, width: int, threads: Threads) -> Ends:
        """Where the results are after which of the statements, up to the first that is something else."""
        run, found = Run(self.code, self.kernel, launch, width, threads), Ends({})
        expected = self._expected(run, threads)
        with suppress(Unsupported):
            for end in self._steps(run, (len(self.after), 0)):
                found |= {(end, *at): everywhere for at, everywhere in run.found(expected).items()}
        return found

    def _steps(self, run: Run, last: tuple[int, int]) -> Iterator[tuple[int, int]]:
        """Runs the statements, and behind each says which it was: its place, and of a branch at the end, how many of the
        branch's own statements have run, 0 for the whole."""
        for at, statement in enumerate(self.after):
            inner = self._branch(statement)
            if not inner:
                run.step(statement)
            else:
                run.enter(statement)
                for count, own in enumerate(inner, 1):
                    run.step(own)
                    if count < len(inner):
                        yield at, count - len(inner)
                    if (at, count - len(inner)) == last:
                        return
                run.leave()
            yield at, 0
            if (at, 0) == last:
                return

    def _branch(self, statement: Node) -> list[Node]:
        """The statements of a branch without another."""
        if statement.type != "if_statement" or field_of(statement, "alternative") is not None:
            return []
        body = field_of(statement, "consequence")
        return statements(body) if body is not None and body.type == "compound_statement" else []

    def _check_extremes(self, end: End, results: Places) -> None:
        """Infinities and NaN come to the same as by ours. Only where the source makes a NaN of -inf - -inf, or of inf - inf, may
        ours be the number that is right."""
        launch = self.kernel.launches[0]
        width = _widths(self.code, self.kernel, launch)[-1]
        for threads, lost in self._extremes(width):
            run = Run(self.code, self.kernel, launch, width, threads)
            want = self._expected(run, threads)
            for _ in self._steps(run, end):
                pass
            places = run.places()
            for path, held in results.items():
                seen, _ = places.get(next(iter(held)), (UNKNOWN, False))
                own_nan = path in self.totals and not lost and close(seen, math.nan)
                if not (own_nan or close(seen, want[path])):
                    raise Unsupported("another result for infinities or NaN")

    def _extremes(self, width: int) -> Iterator[tuple[Threads, bool]]:
        """Threads among which some have nothing, a NaN or +inf, and whether a NaN is in their sums, which must not get lost."""
        numbers, online, inf = random.Random(13), self.online, math.inf
        some = [1.5 if t in {0, 3, width - 1} else -inf for t in range(width)]
        normal = [numbers.gauss(0.0, 2.0) for _ in range(width)]
        of_least = 1.0 if online.keeps_least else 0.0  # as the loop may have left it
        of_largest = 1.0 if online.keeps_largest else math.nan
        weighted = [total for total, weight in online.sums if weight]  # -inf times nothing is a NaN in their sums
        for maxima, place, value, totals in (
            ([-inf] * width, -inf, of_least, self.totals),
            (some, -inf, of_least, self.totals),
            (some, -inf, math.nan, weighted),
            (normal, normal[width // 2 - 1], math.nan, self.totals),
            ([inf if t == 7 else 0.5 for t in range(width)], inf, of_largest, self.totals),
        ):
            threads = self._threads(maxima, numbers)
            for total in totals:
                threads[total] = [value if m == place else v for m, v in zip(maxima, threads[total], strict=True)]
            yield threads, bool(totals) and math.isnan(value)

    # What is written.

    def _written(self, end: End, results: Places) -> str:
        source, code, online = self.source, self.code, self.online
        at, left = end
        whole, inner = self.after[: at + (not left)], self._branch(self.after[at]) if left else []
        taken = [*whole, *inner[:left]]
        first, edits = self.after[0], Edits(source)
        if any(s.has_error for s in taken):
            raise Unsupported("the parser did not understand a statement")
        taken_names = code.names()
        named = {}
        for path in (online.maximum, *self.totals):
            stem = f"{path.replace('.', '_')}_of_block"
            named[path] = free(stem, taken_names)
            taken_names.add(named[path])
        together = len(self.totals) == 1 and not online.scale and online.function in ONE_MEANING
        if together:
            (total,), pair = self.totals, code.fresh("of_block")
            kept = self._replace_uses(edits, taken, results, {online.maximum: f"{pair}.shift", total: f"{pair}.sum"})
            call = f"block_shifted_sum<{next_site(source)}>({online.maximum}, {total}, {online.function})"
            lines = [*kept, f"const ShiftedSum<float> {pair} = {call};"]
        else:
            kept = self._replace_uses(edits, taken, results, named)
            lines = [*kept, *self._one_after_another(named, taken_names)]
        keep_apart(edits, code, self.kernel, first, taken[-1])
        text = f"\n{source.indent(first)}".join(lines)
        if whole:
            start, lost = start_of(source, first)
            edits.changes.append((start, whole[-1].end_byte, lost + text))
        else:
            edits.insert(first.start_byte, f"{text}\n{source.indent(first)}")
        for statement in inner[:left]:
            edits.remove(statement, comment=True)
        require(edits, code, *NAMES)
        names = {source.of(n) for s in taken for n in source.walk(s, "identifier")}
        return drop_unused(source, edits.apply(), names)

    def _one_after_another(self, named: dict[str, str], taken_names: set[str]) -> list[str]:
        """As `block_shifted_sum` has it, a sum at the largest value stays as it is."""
        online, site = self.online, next_site(self.source)
        largest, scale = named[online.maximum], free(f"{online.maximum.replace('.', '_')}_scale", taken_names)
        below = online.below(online.maximum, largest)
        return [
            f"const float {largest} = block_max<{site}>({online.maximum});",
            f"const float {scale} = {online.maximum} < {largest} ? {below} : 1.0f;",
            *(
                f"const float {named[total]} = block_sum<{number}>({total} * {scale});"
                for number, total in enumerate(self.totals, site + 1)
            ),
        ]

    def _replace_uses(self, edits: Edits, taken: list[Node], results: Places, named: dict[str, str]) -> list[str]:
        """Who reads a result reads our name; the declarations among the statements that somebody needs still.
        Raises Unsupported where something else that the statements leave behind is read."""
        code, source, kernel, first = self.code, self.source, self.kernel, taken[0]
        made = [found for s in taken for node in source.walk(s, "declaration") for found in code.declared(node)]
        changed = [found for s in taken for found in self._changed(s)]
        if any(outlives_a_round(kernel, f.where, first) for f in changed if not slots_of(code, f)):
            raise Unsupported("a variable of the rounds around")
        touched = {found.where: found for found in (*made, *changed)}
        places = {place: (path, all_) for path, held in results.items() for place, all_ in held.items()}
        behind = [s for s in self.after if s.start_byte >= taken[-1].end_byte]
        kept: dict[int, Node] = {}
        for found in touched.values():
            over = set_anew(code, kernel, found.name, behind)
            declared = next((s for s in taken if inside(found.declaration, s)), None)
            unchanged = not any(other.name == found.name for other in changed)
            for use in code.uses(found, kernel.body):
                if declares(use) or any(inside(use, s) for s in taken):
                    continue
                if use.start_byte < first.start_byte:
                    rounds = (here for here in upward(first.parent, kernel.body) if here.type in LOOPS)
                    if slots_of(code, found) and any(inside(use, here) for here in rounds):
                        raise Unsupported("slots that an earlier round reads")
                    continue
                node = self._node_of(use)
                place = "".join(source.of(node).split())
                if place in places and inside(use, self.after[0].parent) and use.start_byte < over:
                    path, everywhere = places[place]
                    if self._is_changed(node) or not (everywhere or is_leaders(code, use)):
                        raise Unsupported("a result that others read, or that changes")
                    edits.replace(node, named[path])
                elif declared is not None and unchanged and self._is_plain(declared, touched.values()):
                    kept[declared.start_byte] = declared
                elif use.start_byte < over:
                    raise Unsupported("something else that is read later")
        return [source.of(node) for _, node in sorted(kept.items())]

    def _changed(self, statement: Node) -> Iterator[Definition]:
        """What a statement sets, wholly or in part, and what it hands to a function that may: variables and slots."""
        code, source = self.code, self.source
        for node in source.walk(statement, "assignment_expression", "update_expression"):
            target = field_of(node, "left") or field_of(node, "argument")
            found = code.variable(next(source.walk(target, "identifier"), None))
            if found is None:
                raise Unsupported("a variable of unknown origin")
            yield found
        for call in source.walk(statement, "call_expression"):
            for argument in children_of(call, "arguments"):
                for name in source.walk(argument, "identifier"):
                    found = code.definition(name)
                    mine = found is not None and found.kind == "local"
                    if mine and (code.lends(call, argument)[0] or slots_of(code, found)):
                        yield found

    def _is_plain(self, statement: Node, touched: Iterable[Definition]) -> bool:
        """A declaration of something that the reduction takes no part in, and does not change."""
        own = {found.where for found in self.code.declared(statement)}
        names = {path.partition(".")[0] for path in (self.online.maximum, *self.totals)}
        names |= {found.name for found in touched if found.where not in own}
        takes_part = any(self.source.of(n) in names for n in self.source.walk(statement, "identifier"))
        looks_up = self.source.has(statement, "subscript_expression", "pointer_expression")
        return statement.type == "declaration" and not takes_part and not looks_up

    def _node_of(self, use: Node) -> Node:
        """The whole of `maxs[0]`, `total.m`, `slots[0].m`."""
        here = use
        while here.parent is not None and here.parent.type in {"field_expression", "subscript_expression"}:
            if not same(field_of(here.parent, "argument"), here):
                break
            here = here.parent
        return here

    def _is_changed(self, node: Node) -> bool:
        return node.parent is None or node.parent.type == "pointer_expression" or self.source.set_by(node) != ""
