"""Into how many units a reference falls that goes through memory: one to a block, or a single one that the whole grid shares."""

from __future__ import annotations

from collections.abc import Container, Sequence

import sympy

from compiler.apart import BLOCK_ELEMENTS_A_SECOND, ELEMENTS_A_SECOND, LAUNCH_S
from compiler.draft.expressions import symbols_of
from compiler.draft.index import Index, product, unflatten
from compiler.draft.tensors import Buffer, Definition, NoDraft
from compiler.kernel import PHASES, PackedKernel
from compiler.phases import (
    FOLDS,
    SCANS,
    SCATTERS,
    SORTS,
    Phase,
    PhasesKernel,
    follow,
    member_of,
    phase_of,
    place_phases,
)
from compiler.selects import SelectedProgram


def phases_of(
    program: SelectedProgram, outputs: set[Buffer], inout: set[str], sizes: dict[sympy.Symbol, int]
) -> PhasesKernel:
    """All that the outputs need as one kernel; `sizes`: as they are. Raises NoDraft where a tensor is changed in place under its readers, or where a
    phase would be a matrix product or a search for places."""
    definitions = _needed(program, outputs)
    if other := {d.kind for d in definitions} - {*SCATTERS, *FOLDS, *SCANS, *SORTS}:
        raise NoDraft(f"no phase does this: {', '.join(sorted(other))}")
    first = next((d for d in definitions if d.kind != "map"), definitions[0])
    most = min(first.reduced, default=max(0, len(first.ranges) - 1))
    products = [d for d in definitions if d.is_product] if program.multiplies else []
    most = min([most, *(min(d.reduced) - 2 for d in products)])

    def placed(lead: Sequence[Index], repeats: bool = False) -> PhasesKernel | None:
        return place_phases(program, definitions, outputs, inout, lead, repeats)

    leads = [first.ranges[:count] for count in range(most, -1, -1)]
    found = next((one for lead in leads if (product(lead) == 1) == (not lead) and (one := placed(lead))), None)
    if found is None:
        raise NoDraft("a tensor is changed in place, and a phase would read what another one has written")
    if products:
        return found
    units, work = (int(index.subs(sizes)) for index in (found.units, found.work))
    launches = len(definitions) * LAUNCH_S + work / ELEMENTS_A_SECOND
    if units >= BUSY_UNITS or found.holds_little or work / units / BLOCK_ELEMENTS_A_SECOND <= launches:
        return found
    longer = {d.ranges[: min(d.reduced, default=len(d.ranges) - 1)] for d in definitions if d.kind != "map"}
    for lead in sorted(longer, key=len, reverse=True):
        if int(product(lead).subs(sizes)) >= max(FEW_UNITS, 2 * units) and (more := placed(lead, True)) is not None:
            room = sum(int(count.subs(sizes)) * buffer.dtype.itemsize for buffer, count in more.held.items())
            if int(more.work.subs(sizes)) <= 2 * work and room <= UNIT_BYTES:
                return more
    lengths = [int(phase.inner_end.subs(sizes)) for phase in found.phases if phase.definition.kind in SORTS]
    return found if units == 1 or min(lengths, default=LONG_SORT) < LONG_SORT else placed(()) or found


BUSY_UNITS, FEW_UNITS = 264, 64
"""Units that keep a device busy, two blocks to a multiprocessor; and that leave more than half of it idle."""
UNIT_BYTES = 200 << 10
"""Of a block's shared memory."""
LONG_SORT = 2049
"""Elements that a block does not sort in registers."""


def phases_alone(
    program: SelectedProgram, outputs: set[Buffer], sizes: dict[sympy.Symbol, int]
) -> dict[Definition, PackedKernel]:
    """What scans, sorts, scatters and seeks places of one large unit, each a kernel of the grid's beside those of the other definitions; with
    what a scatter begins with, if that is one number, which then is no other definition."""
    firsts: dict[Buffer, Definition] = {}
    found: dict[Definition, PackedKernel] = {}
    for definition in sorted(program.definitions, key=lambda d: d.order):
        out, ranges = definition.outs[0], program.ranges
        at = ranges.probe(definition.ranges)
        seeks = definition.kind == "map" and definition.element(at).op == "halved"
        if definition.kind in ("map", *FOLDS) and definition.by is None and not seeks:
            firsts.setdefault(out, definition)
            continue
        before = firsts.pop(out, None)
        number = (
            before is not None and before.kind == "map" and before.element(ranges.probe(before.ranges)).op == "const"
        )
        together = [before, definition] if before is not None and number else [definition]
        phases = [phase_of(program, one, sympy.S.Zero, sympy.S.One) for one in together]
        rows = _rows_of(program, definition, sizes) if before is not None and before.kind == "map" else None
        if rows is not None and rows.begin is not None and before is not None:
            place, along, _ = rows.begin
            at = unflatten(sympy.expand(place * rows.inner_end + along), before.ranges, ranges)
            rows.begin = place, along, before.element(at)
            if not number:
                together = [before, definition]
                phases = [phase_of(program, before, sympy.S.Zero, sympy.S.One), *phases]
        program.definitions = [d for d in program.definitions if d is definition or d not in together]
        own = [phase for phase in phases if phase is not None]
        kernel = PhasesKernel(
            (), frozenset(), sympy.S.Zero, [], layout=PHASES, order=definition.order, phases=own if rows is None else [rows]
        )  # fmt: skip
        kernel.members = [member_of(phase) for phase in own]
        found[definition] = kernel
    for definition, alone in found.items():
        if definition.kind in SCANS and definition.outs[0] not in outputs and isinstance(alone, PhasesKernel):
            _follow_alone(program, definition, alone, found)
    return found


def _follow_alone(
    program: SelectedProgram, definition: Definition, kernel: PhasesKernel, apart: Container[Definition]
) -> None:
    """Maps of one result of a scan each, and of nothing else that is made, are done where that is."""
    (phase,), (out,) = kernel.phases, definition.outs
    readers = [one for one in program.definitions if out in one.reads(program.ranges)]
    alone = [one for one in readers if one not in apart and one.reads(program.ranges) - {out} <= program.given]
    later = {one: found for one in alone if (found := phase_of(program, one, sympy.S.Zero, sympy.S.One)) is not None}
    phases = [phase, *later.values()]
    members = {one: member_of(found) for one, found in later.items()}
    follow(phases, {out: out.elements}, {one.text for one in program.given}, program.ranges, lambda _: None)
    done = [one for one, found in later.items() if found not in phases]
    phase.is_read = len(done) < len(readers)
    kernel.members += [members[one] for one in done]
    program.definitions = [one for one in program.definitions if one not in done]


def _rows_of(program: SelectedProgram, definition: Definition, sizes: dict[sympy.Symbol, int]) -> Phase | None:
    """Rows that are added to those that numbers name, as a phase that finds the rows of each place first; None where that is not worth it: short
    rows, or many to a place on average, go to memory as they come."""
    phase = phase_of(program, definition, sympy.S.Zero, sympy.S.One, first=1) if definition.kind == "add" else None
    if (
        phase is None
        or phase.by is None
        or definition.type != "float"
        or not (phase.outer.is_Symbol and phase.inner.is_Symbol)
    ):
        return None
    place, stride = phase.by
    told = [place, *([phase.when] if phase.when is not None else [])]
    whole = phase.place == phase.inner and sympy.expand(stride - phase.inner_end) == 0
    if not whole or any(phase.inner in symbols_of(one) for one in told):
        return None
    count = lambda index: int(index.subs(sizes))  # noqa: E731
    rows, length, out = count(phase.outer_end), count(phase.inner_end), count(definition.outs[0].elements)
    room = max(8, 1 << (2 * rows * length // out).bit_length())
    if length < LONG_ROW or rows * length < MANY_ADDED or room > MOST_ROOM or 4 * out <= CACHED_BYTES:
        return None
    phase.room = room
    place_at = [
        program.ranges.variable(program.name(word), end)
        for word, end in (
            ("place", sympy.cancel(definition.outs[0].elements / phase.inner_end)),
            ("along", phase.inner_end),
        )
    ]
    phase.begin = (place_at[0], place_at[1], phase.value)
    return phase if all(one.is_Symbol for one in place_at) else None


LONG_ROW, MANY_ADDED, MOST_ROOM = 32, 1 << 20, 64
"""Elements of rows, and of all rows, from which on what goes to one place is found first: memory adds 1.7 TB/s of what comes in any order, and hands
out four times as much (H200). At most so many numbers to a place."""
CACHED_BYTES = 16 << 20
"""Of sums that stay in the level-two cache, which adds twice as fast (200,000 rows of 128 to 10,000 places: 106 us found first, 33 by torch.compile's
atomic additions; H200)."""


def _needed(program: SelectedProgram, outputs: set[Buffer]) -> list[Definition]:
    wanted, found = set(outputs), []
    for definition in sorted(program.definitions, key=lambda d: d.order, reverse=True):
        if wanted & set(definition.outs):
            found.append(definition)
            wanted |= definition.reads(program.ranges)
    return found[::-1]
