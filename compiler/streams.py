"""Keys that stream by: scores of queries and keys, reductions over the keys, values summed by what these make of the scores.

Attention of few queries is found by its form, whatever was written for masks, caches and heads: a sum of products over the
innermost axis (the scores), reductions over all keys that read it, and a sum over the keys of a weight times a value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import sympy

from compiler.draft.expressions import Expr, loads_of, make, symbols_of
from compiler.draft.index import Index, flatten, joined, product, unflatten
from compiler.draft.partition import Member
from compiler.draft.tensors import Buffer, Definition
from compiler.kernel import PackedKernel
from compiler.selects import SelectedProgram

STREAM = "stream"
"""The layout: a cluster of blocks to the queries that read the same keys."""
LEAST_DEPTH = 16
"""Elements of a key from which on it is one that many threads read together."""


@dataclass(eq=False)
class StreamKernel(PackedKernel):
    """`unit` counts groups of queries that read the same keys, `member` the queries of a group."""

    unit: Index = sympy.S.Zero
    member: Index = sympy.S.Zero
    key: Index = sympy.S.Zero
    depth: Index = sympy.S.Zero
    """Element of a query and a key."""
    column: Index = sympy.S.Zero
    """Element of a value."""
    group: Index = sympy.S.One
    """Queries of a group."""
    keys: Index = sympy.S.One
    depths: int = 0
    columns: int = 0
    query: Expr | None = None
    keyed: Expr | None = None
    """Of a key."""
    folds: list[Member] = field(default_factory=list)
    """Over the keys, in order; their values read the score and those before."""
    weight: Expr | None = None
    value: Expr | None = None
    sums: Member | None = None
    """The weighted values' sum."""
    stores: list[Member] = field(default_factory=list)
    """Maps of the sums to outputs, for each element or for each query."""
    masked: Expr | None = None
    """Of which keys the score is not looked at."""
    hidden: bool = True
    """Whether these are minus infinity, if there are any."""
    scores: Buffer | None = None

    @property
    def units(self) -> Index:
        return sympy.cancel(product([self.rows_in_all]) / self.group)

    rows_in_all: Index = sympy.S.One


def streams_of(program: SelectedProgram, outputs: set[Buffer], multiples: list[sympy.Symbol]) -> list[StreamKernel]:
    """Kernels of the form above; their definitions are taken out of the program."""
    found = []
    for definition in [d for d in program.definitions if d.kind == "sum" and len(d.reduced) == 1]:
        kernel = _stream(program, definition, outputs, multiples)
        if kernel is not None:
            found.append(program.take(kernel))
    return found


def _same(one, other) -> bool:
    """Of sizes."""
    return sympy.expand(one - other) == 0


def _stream(program, sums: Definition, outputs: set[Buffer], multiples) -> StreamKernel | None:
    (along,) = sums.reduced
    keys, kept = sums.ranges[along], [axis for axis in range(len(sums.ranges)) if axis != along]
    if len(kept) < 2 or not sums.ranges[kept[-1]].is_Integer or sums.ranges[kept[-1]] < LEAST_DEPTH:
        return None
    made = {d.outs[0]: d for d in program.definitions if len(d.outs) == 1 and d.reduced}
    before = _closed(program, [sums], made)
    scores = [d for d in before if d is not sums and _is_score(d, keys)]
    if len(scores) != 1:
        return None
    (score,) = scores
    readers = [d for d in made.values() if d not in (sums, score) and score in _closed(program, [d], made)]
    folds = sorted({d for d in [*before, *readers] if d not in (sums, score)}, key=lambda d: d.order)
    where = next(axis for axis, size in enumerate(score.ranges[:-1]) if _same(size, keys))
    lead = [size for axis, size in enumerate(score.ranges[:-1]) if axis != where]
    queries = product(lead)
    if not _same(product([sums.ranges[a] for a in kept[:-1]]), queries):
        return None
    for fold in folds:
        over = [axis for axis in fold.reduced if _same(fold.ranges[axis], keys)]
        whole = _same(product(fold.ranges), queries * keys)
        if len(fold.reduced) != 1 or not over or not whole or fold.kind not in ("sum", "max", "min", "prod"):
            return None
    trailing = [product(lead[axis:]) for axis in range(len(lead))]
    candidates = [*(size for size in trailing if size != 1), *multiples, sympy.Integer(1)]
    for group in dict.fromkeys(sympy.expand(size) for size in candidates):
        if sympy.denom(sympy.cancel(queries / group)) != 1:
            continue
        kernel = _placed(program, score, folds, sums, group, queries, keys, along, where, outputs)
        if kernel is not None:
            return kernel
    return None


def _is_score(definition: Definition, keys: Index) -> bool:
    last = len(definition.ranges) - 1
    depths = definition.ranges[last]
    summed = definition.kind == "sum" and set(definition.reduced) == {last} and depths.is_Integer
    return summed and depths >= LEAST_DEPTH and any(_same(size, keys) for size in definition.ranges[:last])


def _closed(program, start: list[Definition], made: dict[Buffer, Definition]) -> list[Definition]:
    """Reductions that these read, and theirs."""
    found: dict[Definition, None] = {}
    stack = list(start)
    while stack:
        for buffer in sorted(stack.pop().reads(program.ranges, "seen"), key=lambda b: b.name):
            one = made.get(buffer)
            if one is not None and one not in found:
                found[one] = None
                stack.append(one)
    return list(found)


def _placed(program, score, folds, sums, group, queries, keys, along, where, outputs) -> StreamKernel | None:
    """The definitions at the kernel's variables; None where queries of a group do not read the same keys."""
    ranges, name = program.ranges, program.name
    unit = ranges.variable("unit", sympy.cancel(queries / group))
    member, key = ranges.variable("member", group), ranges.named("key", keys)
    depths, columns = int(score.ranges[-1]), int([n for a, n in enumerate(sums.ranges) if a != along][-1])
    depth, column = ranges.named("depth", depths), ranges.named("column", columns)
    query = sympy.expand(unit * group + member)

    def lead(sizes) -> list[Index]:
        return unflatten(query, sizes, ranges)

    def over(definition: Definition) -> list[Index]:
        (reduced,) = definition.reduced
        at = lead([n for a, n in enumerate(definition.ranges) if a != reduced])
        return [*at[:reduced], key, *at[reduced:]]

    scored_at = lead([size for axis, size in enumerate(score.ranges[:-1]) if axis != where])
    scored_at.insert(where, key)
    product_of = score.element([*scored_at, depth])
    split = _factors(product_of, key)
    kept = [axis for axis in range(len(sums.ranges)) if axis != along]
    at = [*lead([sums.ranges[a] for a in kept[:-1]]), column]
    weighted = _factors(sums.element([*at[:along], key, *at[along:]]), column)
    if split is None or weighted is None:
        return None
    (asked, keyed), (weight, value) = split, weighted
    if member in symbols_of(keyed) | symbols_of(value) or column in symbols_of(weight) or not loads_of([value]):
        return None
    if group != 1 and member.is_Symbol is False:
        return None
    kernel = StreamKernel(
        tuple(sums.ranges), sums.reduced, unit, [], layout=STREAM, order=sums.order, unit=unit, member=member, key=key, depth=depth,
        column=column, group=group, keys=keys, depths=depths, columns=columns, query=asked, keyed=keyed, weight=weight, value=value,
        rows_in_all=queries, scores=score.outs[0],
    )  # fmt: skip
    kernel.name = name("stream")
    places = {score.outs[0]: flatten(scored_at, score.ranges[:-1]), sums.outs[0]: query * columns + column} | {
        d.outs[0]: query for d in folds
    }
    kernel.folds = [Member(d, d.element(over(d)), 0, [query], False) for d in folds]
    kernel.sums = Member(sums, sums.element([*at[:along], key, *at[along:]]), 0, [places[sums.outs[0]]], False)
    scored = Member(score, product_of, 0, [places[score.outs[0]]], False)
    kernel.members = [scored, *kernel.folds, kernel.sums]
    kernel.stores = _stores(program, kernel, places, outputs, query)
    kernel.members += [member for member in kernel.stores if member is not kernel.sums]
    for load in loads_of(kernel.roots):
        place = places.get(load.args[0])
        if place is not None and (load.op != "load" or joined(load.args[1] - place) != 0):
            return None
    used = {load.args[0] for load in loads_of([asked, keyed, value])}
    if used & set(places) or any(score.outs[0] in d.reads(program.ranges, "seen") for d in program.definitions if d not in [m.definition for m in kernel.members]):  # fmt: skip
        return None
    masked, hidden = _masked(kernel.folds[0].value, score.outs[0]) if kernel.folds else (None, True)
    if masked is not None and member not in symbols_of(masked):
        kernel.masked, kernel.hidden = masked, hidden
    return kernel


def _factors(expr: Expr, variable: sympy.Symbol) -> tuple[Expr, Expr] | None:
    """A product as (what does not depend on the variable's place in memory, what does)."""
    if expr.op == "cast":
        return _factors(expr.args[0], variable)
    if expr.op != "mul":
        return None
    told = [any(variable in symbols_of(load) for load in loads_of([part])) for part in expr.args]
    if told == [True, True] or told == [False, False]:
        return None
    return (expr.args[1], expr.args[0]) if told[0] else (expr.args[0], expr.args[1])


def _masked(value: Expr, scores: Buffer) -> tuple[Expr | None, bool]:
    """Where a score is not looked at: the condition of a choice between it and a number; and whether what is reduced is minus infinity there."""
    reads = lambda e: any(load.args[0] is scores for load in loads_of([e]))  # noqa: E731
    stays = True
    while value.op in ("cast", "mul", "add", "sub"):
        parts = [arg for arg in value.args if isinstance(arg, Expr) and reads(arg)]
        if len(parts) != 1:
            return None, True
        others = [arg for arg in value.args if isinstance(arg, Expr) and arg is not parts[0]]
        stays &= value.op == "add" or value.args[0] is parts[0]
        stays &= value.op != "mul" or all(other.op == "const" and other.args[0] > 0 for other in others)
        value = parts[0]
    if value.op not in ("where", "masked"):
        return None, True
    condition, one, other = value.args
    if reads(condition) or reads(one) == reads(other):
        return None, True
    fill = other if reads(one) else one
    return make("not", condition, type="bool") if reads(one) else condition, stays and fill.op == "const" and fill.args[
        0
    ] == -math.inf


def _stores(program, kernel: StreamKernel, places, outputs: set[Buffer], query: Index) -> list[Member]:
    """What of it reaches memory: the sums themselves, or maps of them and of the reductions."""
    found = []
    sums = kernel.sums
    assert sums is not None
    if sums.definition.outs[0] in outputs:
        found.append(sums)
    for definition in program.definitions:
        if definition.kind != "map" or definition.outs[0] not in outputs or definition.by is not None:
            continue
        if not definition.reads(program.ranges, "seen") & set(places):
            continue
        elements = product(definition.ranges)
        per_query = sympy.expand(elements - kernel.rows_in_all) == 0
        if not per_query and sympy.expand(elements - kernel.rows_in_all * kernel.columns) != 0:
            continue
        flat = query if per_query else query * kernel.columns + kernel.column
        at = unflatten(sympy.expand(flat), definition.ranges, program.ranges)
        place = definition.place(at) if definition.place else sympy.expand(flat)
        found.append(Member(definition, definition.element(at), 0, [place], per_query))
    return found
