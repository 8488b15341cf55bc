"""Definitions one after another in one block: what scans, sorts, counts and scatters hand on stays in memory of the block's own.

Everything that a reference says over the same leading axes is one unit's; a block (on a CPU a thread) does a unit, phase after phase.
Where nothing leads, there is one unit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import sympy
import torch

from compiler.draft.expressions import (
    Expr,
    binary,
    cast,
    compare,
    index_value,
    indices_of,
    loads_of,
    make,
    put,
    replace_indices,
    symbols_of,
)
from compiler.draft.index import Index, Ranges, _split, divide, flatten, index_is_divided, joined, product, unflatten
from compiler.draft.partition import Member
from compiler.draft.tensors import Buffer, Definition
from compiler.kernel import PHASES, PackedKernel

SCANS = {"scan_sum": "sum", "scan_prod": "prod", "scan_max": "max", "scan_min": "min", "scan_log_add": "log_add"}
SCATTERS = {"map": "", "add": "sum", "scatter_max": "max", "scatter_min": "min"}
"""What is stored at places, and how it joins what is there."""
SORTS = ("sort", "sort_falling")
NTHS = ("nth", "nth_falling")
"""What would stand at a place of a row in order: a sort of which nothing else is read."""
REACH = "reach"
"""Of a row in falling order the first value at which the sum so far is enough."""
MADE = "made!"
"""What a follower's value has in place of the result that it follows: no name of an argument."""
FOLDS = ("sum", "prod", "max", "min", "any", "all")
MOST_NTHS = 4


@dataclass(eq=False)
class Phase:
    """A definition at a unit: over `outer` (kept axes; of a map all but the last) and `inner` (folded, scanned or sorted ones)."""

    definition: Definition
    outer: Index
    outer_end: Index
    inner: Index
    inner_end: Index
    value: Expr
    places: list[Index]
    """Where it stores, by output: in the unit's own memory, or in a tensor of the caller's."""
    by: tuple[Expr, Index] | None
    when: Expr | None
    at: list[Index]
    """The position in the definition's ranges."""
    rank: Expr | None = None
    """Of `nth`; of `reach` whether a sum, `sum`, is enough."""
    sum: Index | None = None
    followers: list[tuple[Buffer, Index, Expr]] = field(default_factory=list)
    """Of a scan or a reduction: (what else is stored of each result, where, its value)."""
    room: int = 0
    """Of rows that are added where numbers say: how many that go to one place are summed by whoever writes it; 0: each is added to memory."""
    begin: tuple[Index, Index, Expr] | None = None
    """Of such rows, (a place, an element of its row, what is there before)."""
    is_read: bool = True
    """Whether its result itself is stored."""

    @property
    def place(self) -> Index:
        return self.places[0]

    @property
    def roots(self) -> list[Expr]:
        more = (self.by and self.by[0], self.when, self.rank)
        begin = [] if self.begin is None else [self.begin[2]]
        return [
            self.value,
            *(one for one in more if one is not None),
            *begin,
            *(value for _, _, value in self.followers),
        ]

    @property
    def stores(self) -> list[tuple[Buffer, Index, Expr]]:
        """(what is stored, where, its value) of its own places."""
        own = zip(self.definition.outs, self.places, strict=True)
        return [*((out, place, self.value) for out, place in own if self.is_read), *self.followers]


@dataclass(eq=False)
class PhasesKernel(PackedKernel):
    unit: Index = sympy.S.Zero
    units: Index = sympy.S.One
    phases: list[Phase] = field(default_factory=list)
    held: dict[Buffer, Index] = field(default_factory=dict)
    """Elements of a unit of what only phases read."""

    @property
    def holds_little(self) -> bool:
        """Whether all that is kept of a unit are single numbers, each by a reduction or a search: then blocks can share it."""
        alone = (*FOLDS, *NTHS, REACH, "map")
        whole = all(p.outer_end == 1 and p.definition.kind in alone and p.by is None for p in self.phases)
        return self.unit != 0 and whole and all(count == 1 for count in self.held.values())

    @property
    def work(self) -> Index:
        return sympy.expand(self.units * sympy.Add(*(p.outer_end * p.inner_end for p in self.phases)))


def divides(kernel: PhasesKernel) -> bool:
    """Whether places of its elements are divided: of 64 bits that is some hundred instructions."""
    indices = [
        *indices_of([root for p in kernel.phases for root in p.roots]),
        *(at for p in kernel.phases for at in p.places),
    ]
    return index_is_divided(indices)


def member_of(phase: Phase) -> Member:
    """The phase as a kernel's member."""
    return Member(phase.definition, phase.value, 0, list(phase.places), False, phase.by, phase.when)


def place_phases(
    program, definitions, outputs: set[Buffer], inout: set[str], lead: Sequence[Index], repeats: bool
) -> PhasesKernel | None:
    """The kernel whose units are the elements of the axes `lead`; None where one would need what another makes. `repeats`: what lacks some of
    these axes each unit makes for itself."""
    units = product(lead)
    unit = program.ranges.variable(program.name("unit"), units)
    phases = []
    owners: dict[Buffer, Index] = {}
    for definition in definitions:
        own = _own_lead(definition, lead) if repeats else None
        own = None if own is None or outputs & set(definition.outs) else own
        owner = unit if own is None else divide(unit, product(lead[own:]), program.ranges) if own else sympy.S.Zero
        owners |= dict.fromkeys(definition.outs, owner)
        phase = phase_of(program, definition, owner, units if own is None else product(lead[:own]))
        if phase is None:
            return None
        phases.append(phase)
    each = {
        out: sympy.cancel(out.elements / (units if owners[out] == unit else product(lead[: _own_lead(d, lead)])))
        for d in definitions
        for out in d.outs
    }
    made = {out for d in definitions for out in d.outs}
    for phase in phases:
        stores = [(phase.place, *([phase.by] if phase.by else []))]
        loads = [
            (load.args[1], *([(load.args[3], load.args[2])] if load.op == "load_at" else []), load.args[0])
            for load in loads_of(phase.roots) if load.args[0] in made or load.args[0].text in inout
        ]  # fmt: skip
        for place, *by, buffer in [*((*s, phase.definition.outs[0]) for s in stores), *loads]:
            whole = each.get(buffer, sympy.cancel(buffer.elements / units))
            if unit != 0 and not _is_of_unit(place, by, unit, owners.get(buffer, unit), sympy.expand(whole)):
                return None
    if not _in_place_is_safe(phases, outputs, inout):
        return None
    held = {out: count for out, count in each.items() if out not in outputs}
    begins = {out: sympy.expand(owners[out] * count) for out, count in each.items()}
    for buffer in held:  # as computed, not as an input is stored
        buffer.dtype = torch.float32 if buffer.dtype.is_floating_point and buffer.dtype.itemsize < 4 else buffer.dtype
    members = [member_of(phase) for phase in phases]
    if unit != 0:
        for phase in phases:
            _in_own_memory(phase, held, begins)
    for sort in [phase for phase in phases if phase.definition.kind in SORTS and phase.outer_end == 1]:
        if not _reach(program, sort, phases, held):
            _select(program, sort, phases, held, unit)
    read = {load.args[0] for phase in phases for load in loads_of(phase.roots)}
    for sort in [phase for phase in phases if phase.definition.kind in SORTS]:
        values, places = sort.definition.outs
        if places in held and places not in read:
            sort.definition, sort.places = replace(sort.definition, outs=[values]), sort.places[:1]
            del held[places]
    follow(phases, held, inout, program.ranges, lambda p: _in_own_memory(p, held, begins) if unit != 0 else None)
    kernel = PhasesKernel(
        (), frozenset(), sympy.S.Zero, [], layout=PHASES, order=definitions[-1].order, unit=unit, units=units, phases=phases, held=held
    )  # fmt: skip
    kernel.members = members
    return kernel


def _own_lead(definition: Definition, lead: Sequence[Index]) -> int | None:
    """How many of the leading axes a definition has, in their order; None where it has all of them."""
    most = min(definition.reduced, default=len(definition.ranges))
    return next((n for n, size in enumerate(lead) if n >= most or definition.ranges[n] != size), None)


def phase_of(program, definition: Definition, unit: Index, units: Index, first: int | None = None) -> Phase | None:
    """What a unit does of a definition; None where units do not divide it. `first`: the axis from which on all are inner ones."""
    ranges, kind, sizes = program.ranges, definition.kind, definition.ranges
    lead = next((n for n in range(len(sizes) + 1) if sympy.expand(product(sizes[:n]) - units) == 0), None)
    if lead is not None and any(axis < lead for axis in definition.reduced):
        lead = None
    name = program.name
    if lead is None:
        rest = sympy.cancel(product(sizes) / units)
        if kind not in SCATTERS or sympy.denom(rest) != 1:
            return None
        inner = ranges.variable(name("at"), rest)
        at = unflatten(sympy.expand(unit * rest + inner), sizes, ranges)
        outer, outer_end, inner_end = sympy.S.Zero, sympy.S.One, rest
    else:
        own = list(range(lead, len(sizes)))
        apart = sorted(definition.reduced) if definition.reduced else own[-1:] if first is None else own[first:]
        kept = [axis for axis in own if axis not in apart]
        outer_end, inner_end = (product(sizes[axis] for axis in axes) for axes in (kept, apart))
        outer, inner = ranges.variable(name("outer"), outer_end), ranges.variable(name("at"), inner_end)
        position = dict(enumerate(unflatten(unit, sizes[:lead], ranges)))
        for axes, index in ((kept, outer), (apart, inner)):
            position |= dict(zip(axes, unflatten(index, [sizes[axis] for axis in axes], ranges), strict=True))
        at = [position[axis] for axis in range(len(sizes))]
    of_unit = sympy.expand(unit * sympy.cancel(product(sizes) / units))
    place = of_unit if kind in SORTS else definition.place_at(at)
    by = None if definition.by is None else definition.by(at)
    when = None if definition.when is None else definition.when(at)
    return Phase(
        definition,
        outer,
        outer_end,
        inner,
        inner_end,
        definition.element(at),
        [joined(place)] * len(definition.outs),
        by,
        when,
        at,
    )


def _is_of_unit(place: Index, by: list[tuple[Expr, Index]], unit: Index, owner: Index, each: Index) -> bool:
    """Whether an element lies among the `each` of its unit, or of what several units have in common, `owner`."""
    rest = sympy.expand(joined(place) - owner * each)
    turned = sympy.expand(each - 1 - rest)  # counted from the other end
    beyond = all(_split(one, each)[0] != 0 for one in (rest, turned)) and each != 1
    along = any(sympy.denom(sympy.cancel(stride / each)) == 1 for _, stride in by)
    return unit not in rest.free_symbols and not beyond and not along and (each != 1 or rest == 0)


def _in_own_memory(phase: Phase, held: dict[Buffer, Index], begins: dict[Buffer, Index]) -> None:
    """`begins`: where a unit's memory would begin, were it one behind the other."""

    def other(one: Expr) -> Expr | None:
        begin = begins[one.args[0]] if one.op in ("load", "load_at") and one.args[0] in held else sympy.S.Zero
        if begin.free_symbols & symbols_of(one):
            base = sympy.expand(joined(one.args[1]) - begin)
            more = [put(arg, other) if isinstance(arg, Expr) else arg for arg in one.args[2:]]
            return make(one.op, one.args[0], base, *more, type=one.type)
        return None

    phase.value = put(phase.value, other)
    phase.by = None if phase.by is None else (put(phase.by[0], other), phase.by[1])
    phase.when = None if phase.when is None else put(phase.when, other)
    outs = zip(phase.definition.outs, phase.places, strict=True)
    phase.places = [sympy.expand(place - begins[out]) if out in held else place for out, place in outs]


def _select(program, sort: Phase, phases: list[Phase], held: dict[Buffer, Index], unit: Index) -> None:
    """Of a sort of which only values at places are read that are the same for all of a unit: these alone, found without the order."""
    at, (values, places) = phases.index(sort), sort.definition.outs
    reading = [
        n for n, phase in enumerate(phases) if {load.args[0] for load in loads_of(phase.roots)} & {values, places}
    ]
    loads = {load: None for n in reading for load in loads_of(phases[n].roots) if load.args[0] in (values, places)}
    known = {unit, *program.hints}
    apart = any(
        load.args[0] is places or symbols_of(load) - known or load.args[2:3] not in ((), (1,)) for load in loads
    )
    if {values, places} - held.keys() or apart or not reading or len(loads) > MOST_NTHS:
        return
    if any(phase.definition.outs[0] not in held for phase in phases[at : min(reading)]):
        return
    found: dict[Expr, Expr] = {}
    for load in loads:
        buffer = program.allocate((1,), values.dtype, f"{values.name}_nth")
        rank = index_value(load.args[1])
        rank = rank if load.op == "load" else binary("add", rank, cast(load.args[3], "int64_t"))
        kind = sort.definition.kind.replace("sort", "nth")
        phases.insert(min(reading), replace(
            sort, definition=replace(sort.definition, kind=kind, outs=[buffer]), rank=rank, places=[sympy.S.Zero]
        ))  # fmt: skip
        found[load] = make("load", buffer, sympy.S.Zero, type=load.type)
        held[buffer] = sympy.S.One
    phases.remove(sort)
    del held[values], held[places]
    _read_instead(phases, found)


def _reach(program, sort: Phase, phases: list[Phase], held: dict[Buffer, Index]) -> bool:
    """Puts one search in place of a sort in falling order, its running sum, the first place where that is enough, and the value there.

    Sums of falling values rise until these are below zero, so the first such place is found by sums over whole ranges of values."""
    values, places = sort.definition.outs

    def readers(buffer: Buffer) -> list[Phase]:
        return [p for p in phases if any(load.args[0] is buffer for load in loads_of(p.roots))]

    total, *taking = readers(values) or [sort]
    most, *more = readers(total.definition.outs[0]) or [sort]
    place = more[0] if len(more) == 1 else sort
    gone = [sort, total, most, place]
    kinds = [phase.definition.kind for phase in gone]
    if kinds != ["sort_falling", "scan_sum", "max", "min"] or sort.definition.type != "float" or not taking:
        return False
    sums, best, at = (phase.definition.outs[0] for phase in gone[1:])
    taken = make(
        "load_at", values, sympy.S.Zero, sympy.S.One, make("load", at, sympy.S.Zero, type="int64_t"), type="float"
    )
    enough = most.value
    while enough.op == "cast":
        enough = enough.args[0]
    same = replace_indices(most.value, lambda index: index.subs(most.inner, place.inner))
    hit = compare("eq", same, make("load", best, sympy.S.Zero, type=same.type))
    if (
        any(phase.outer_end != 1 or set(phase.definition.outs) - held.keys() for phase in gone)
        or any(phase.definition.outs[0] not in held for phase in phases[: min(map(phases.index, taking))])
        or (readers(places), readers(best), readers(at)) != ([], [place], taking)
        or {load for phase in taking for load in loads_of(phase.roots) if load.args[0] in (values, at)} != {taken, taken.args[3]}
        or total.value is not make("load", values, total.inner, type="float")
        or enough.op not in ("ge", "gt") or enough.args[0] is not make("load", sums, most.inner, type="float")
        or most.inner in symbols_of(enough.args[1]) or {load.args[0] for load in loads_of(enough.args[1:])} & {values, sums}
        or place.value.op != "where" or place.value.args[:2] != (hit, index_value(place.inner))
    ):  # fmt: skip
        return False
    buffer = program.allocate((1,), values.dtype, f"{values.name}_reached")
    sum = program.ranges.named(program.name("sum"), 1)
    definition = replace(sort.definition, kind=REACH, outs=[buffer])
    rank = make(enough.op, index_value(sum, "float"), enough.args[1], type="bool")
    search = replace(sort, definition=definition, rank=rank, sum=sum, places=[sympy.S.Zero])
    phases.insert(min(map(phases.index, taking)), search)
    held[buffer] = sympy.S.One
    _read_instead(phases, {taken: make("load", buffer, sympy.S.Zero, type="float")})
    for phase in gone:
        phases.remove(phase)
    for out in (values, places, sums, best, at):
        del held[out]
    return True


def _read_instead(phases: list[Phase], found: dict[Expr, Expr]) -> None:
    for phase in phases:
        phase.value = put(phase.value, found.get)
        phase.by = None if phase.by is None else (put(phase.by[0], found.get), phase.by[1])
        phase.when = None if phase.when is None else put(phase.when, found.get)


def _in_place_is_safe(phases: list[Phase], outputs: set[Buffer], inout: set[str]) -> bool:
    """Whether nobody reads a tensor of the call after it was written, but for the element that he writes himself."""
    written: set[str] = set()
    for phase in phases:
        out = phase.definition.outs[0]
        for load in loads_of(phase.roots):
            buffer = load.args[0]
            if buffer.text not in inout or buffer in outputs:
                continue
            own = load.op == "load" and phase.by is None and joined(load.args[1] - phase.place) == 0
            if buffer.text in written or (out in outputs and out.text == buffer.text and not own):
                return False
        written |= {out.text for out in phase.definition.outs if out in outputs}
    return True


def follow(
    phases: list[Phase], held: dict[Buffer, Index], kept: set[str], ranges: Ranges, own: Callable[[Phase], None]
) -> None:
    """Moves such maps into the phases that they follow, which then need not be kept. `kept`: tensors that are changed in place.
    `own`: puts a phase's places in a unit's memory."""
    for phase in list(phases):
        if phase.definition.kind not in (*SCANS, *FOLDS):
            continue
        (out,) = phase.definition.outs
        if out not in held:
            continue
        readers = [p for p in phases if any(load.args[0] is out for load in loads_of(p.roots))]
        for reader in readers:
            later = phases[phases.index(phase) :]
            made = {one for p in later if p is not reader for one in p.definition.outs}
            others = {load.args[0] for load in loads_of(reader.roots)} - {out}
            named = reader.definition.outs[0].text in kept
            if named or others & made or set(reader.definition.outs) & made:
                continue
            if (found := _followed(phase, reader, out, ranges, own)) is not None:
                phase.followers.append(found)
                phases.remove(reader)
        if not any(load.args[0] is out for p in phases for load in loads_of(p.roots)):
            phase.is_read = False
            del held[out]


def _followed(
    phase: Phase, reader: Phase, out: Buffer, ranges: Ranges, own: Callable[[Phase], None]
) -> tuple[Buffer, Index, Expr] | None:
    """(what is stored, where, its value) of a map at each result, in the places of the phase; None where it is none of such."""
    one, other = phase.definition, reader.definition
    if other.kind != "map" or reader.by is not None or reader.when is not None or other.reduced:
        return None
    scans = one.kind in SCANS
    at = list(phase.at) if scans else [phase.at[axis] for axis in one.kept]
    sizes = list(one.ranges) if scans else [one.ranges[axis] for axis in one.kept]
    if sympy.expand(product(sizes) - product(other.ranges)) != 0:
        return None
    position = unflatten(flatten(at, sizes), other.ranges, ranges)
    value, place = other.element(position), joined(other.place_at(position))
    loads = [load for load in loads_of([value]) if load.args[0] is out]
    axis = next(iter(one.reduced), None)
    turned = [one.ranges[n] - 1 - p if n == axis else p for n, p in enumerate(at)]
    for standing in (at, turned) if scans else (at,):
        here = flatten(standing, sizes)
        if all(load.op == "load" and joined(load.args[1] - here) == 0 for load in loads):
            break
    else:
        return None
    found = Phase(
        other, phase.outer, phase.outer_end, phase.inner, phase.inner_end,
        put(value, lambda e: make("scalar", MADE, type=e.type) if e in loads else None), [place], None, None, phase.at,
    )  # fmt: skip
    own(found)
    if standing is turned and axis is not None and phase.inner.is_Symbol:
        swap = {phase.inner: phase.inner_end - 1 - phase.inner}
        change = lambda index: sympy.expand(index.xreplace(swap))  # noqa: E731
        found.value, found.places = put(found.value, lambda _: None, None, change), [change(found.place)]
    return other.outs[0], found.place, found.value
