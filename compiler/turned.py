"""Kernels of elements that read along one axis and write along another: tiles of what they read go through shared memory.

Such a kernel has the axis that its results are contiguous along (`along`), the one that it reads them along (`across`), and a number for
all its other axes, which a block has one of. A tile is loaded in packs across and read in packs along.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import sympy

from compiler.draft.expressions import Expr, make, put, walk
from compiler.draft.index import Index, product, unflatten
from compiler.draft.packing import _is_multiple
from compiler.draft.partition import FLAT
from compiler.draft.tensors import Buffer
from compiler.kernel import Fusion, PackedKernel
from compiler.strides import goes_across, loads_at_once, strides_along

PACK_BYTES = 16
MOST_TILES = 3
"""Of a kernel: each takes shared memory and loads of its own."""


@dataclass(frozen=True)
class TileFill:
    """How a tile comes by its elements: `load` is of the element at `along`, and of the first of `width` at `pack`."""

    load: Expr
    width: int


@dataclass(eq=False)
class TurnedKernel(PackedKernel):
    """`pack` counts packs along."""

    batch: Index = field(default_factory=lambda: sympy.Integer(0))
    batches: Index = field(default_factory=lambda: sympy.Integer(1))
    across: Index = field(default_factory=lambda: sympy.Integer(0))
    along_extent: Index = field(default_factory=lambda: sympy.Integer(1))
    across_extent: Index = field(default_factory=lambda: sympy.Integer(1))
    own_pack: Index = field(default_factory=lambda: sympy.Integer(0))
    """A thread's pack in its tile, and its column there."""
    own_column: Index = field(default_factory=lambda: sympy.Integer(0))
    fill_row: Index = field(default_factory=lambda: sympy.Integer(0))
    """The element along, and the pack across, that a thread brings into a tile."""
    fill_pack: Index = field(default_factory=lambda: sympy.Integer(0))
    tiles: dict[Buffer, TileFill] = field(default_factory=dict)
    pitches: dict[Buffer, sympy.Symbol] = field(default_factory=dict)
    """Of each tile, how far a row of it is from the next, in elements."""


def turn(fusion: Fusion, kernel: PackedKernel, stored: set[Buffer]) -> TurnedKernel | None:
    """The same kernel by tiles; None where it reads along the axis that it writes along, or where it reduces."""
    axes = _axes_of(fusion, kernel, stored)
    if axes is None:
        return None
    along, across = axes
    program, variables, ranges = fusion.program, fusion.program.ranges, kernel.ranges
    rest = [axis for axis in range(len(ranges)) if axis not in (*along, *across)]
    extent = product(ranges[axis] for axis in along)
    width = fusion.vector if _is_multiple(extent, fusion.vector) else 1
    named = lambda word, end: variables.named(program.name(word), end)  # noqa: E731
    pack = named("along_pack", sympy.expand(extent / width))
    element = width * pack + fusion.lane if width > 1 else pack
    made = TurnedKernel(
        ranges, frozenset(), sympy.Integer(0), [], layout=FLAT, order=kernel.order, row_name="row", pack=pack, width=width,
        across=named("across", product(ranges[axis] for axis in across)), along_extent=extent,
        across_extent=product(ranges[axis] for axis in across), batches=product(ranges[axis] for axis in rest),
        own_pack=named("own_pack", 1 << 10), own_column=named("own_column", 1 << 10), fill_row=named("fill_row", extent),
        fill_pack=named("fill_pack", product(ranges[axis] for axis in across)),
    )  # fmt: skip
    made.batch = variables.variable(program.name("batch"), made.batches)
    position: dict[int, Index] = {}
    for which, at in ((along, element), (across, made.across), (rest, made.batch)):
        position |= dict(zip(which, unflatten(at, [ranges[axis] for axis in which], variables), strict=True))
    made.axes = [position[axis] for axis in range(len(ranges))]
    for member in kernel.members:
        again = fusion._member(made, member.definition, len(fusion.steps))
        if again is None:
            return None
        made.members.append(again)
    return made if _take_tiles(fusion, made, stored) else None


def _axes_of(
    fusion: Fusion, kernel: PackedKernel, stored: set[Buffer]
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """(axes along, axes across): neighbours that all loads take for one axis are together."""
    shapes = {m.definition.ranges for m in kernel.members}
    plain = all(m.by is None and m.when is None and not m.definition.reduced for m in kernel.members)
    if kernel.layout != FLAT or kernel.reduced or not plain or shapes != {kernel.ranges}:
        return None
    ranges = kernel.ranges
    long = [axis for axis, size in enumerate(ranges) if size != 1]
    if len(long) < 2:
        return None
    at = fusion.program.ranges.probe(ranges)
    values = [member.definition.element(at) for member in kernel.members]
    steps = {load: strides_along(load.args[1], at) for load in walk(values) if load.op == "load"}
    last, weights = long[-1], dict[int, int]()
    turned = _turnable(loads_at_once(values), kernel, stored)
    for load in turned:
        stride = steps[load]
        unit = next((axis for axis in long[:-1] if goes_across(stride, axis, last)), None)
        if unit is not None:
            weights[unit] = max(weights.get(unit, 0), fusion.program.estimate(load.args[0].elements))
    if not weights:
        return None
    unit = max(weights, key=lambda axis: weights[axis])

    def group(first: int, taken: set[int]) -> tuple[int, ...]:
        found = [first]
        for axis in reversed([one for one in long if one < first]):
            near = found[0]
            one_axis = all(
                s[axis] is not None and s[near] is not None and sympy.expand(s[axis] - s[near] * ranges[near]) == 0
                for s in steps.values()
            )
            if axis in taken or not one_axis:
                break
            found.insert(0, axis)
        return tuple(found)

    across = group(unit, {last})
    return group(last, set(across)), across


def _turnable(loads: list[Expr], kernel: PackedKernel, stored: set[Buffer]) -> list[Expr]:
    """Of what others made and this kernel leaves as it is."""
    written = {buffer.text for buffer in stored}
    return [load for load in loads if load.args[0] not in kernel.made and load.args[0].text not in written]


def _take_tiles(fusion: Fusion, kernel: TurnedKernel, stored: set[Buffer]) -> bool:
    """Puts loads of tiles for those of memory that go across; whether there are any."""
    lane = fusion.lane if kernel.width > 1 else kernel.pack
    at = [kernel.across, lane, *([kernel.pack] if kernel.width > 1 else [])]
    new: dict[Expr, Expr] = {}
    for load in _turnable(loads_at_once([member.value for member in kernel.members]), kernel, stored):
        strides = strides_along(load.args[1], at)
        steps = [step for step in strides if step is not None and step != 0]
        if len(steps) < len(at) or steps[0] != 1 or steps[1] == 1:
            continue
        if sympy.expand(steps[-1] - kernel.width * steps[1]) != 0:
            continue
        buffer, program = load.args[0], fusion.program
        tile = Buffer(program.name(f"{buffer.name}_tile"), buffer.shape, buffer.dtype)
        tile.text = tile.name
        kernel.pitches[tile] = pitch = sympy.Symbol(f"{tile.name}_pitch", integer=True, positive=True)
        kernel.tiles[tile] = _fill(kernel, load, lane)
        place = (kernel.width * kernel.own_pack + (lane if kernel.width > 1 else 0)) * pitch + kernel.own_column
        new[load] = make("load", tile, sympy.expand(place), type=load.type)
    if not 0 < len(new) <= MOST_TILES:
        return False
    for member in kernel.members:
        member.value = put(member.value, new.get)
    return True


def _fill(kernel: TurnedKernel, load: Expr, lane: Index) -> TileFill:
    buffer, place = load.args
    row = {lane: kernel.fill_row} | ({kernel.pack: sympy.Integer(0)} if kernel.width > 1 else {})
    width = PACK_BYTES // buffer.dtype.itemsize
    while True:
        first = sympy.expand(place.xreplace(row | {kernel.across: width * kernel.fill_pack}))
        if width == 1 or (_is_multiple(first, width) and _is_multiple(kernel.across_extent, width)):
            return TileFill(make("load", buffer, first, type=load.type), width)
        width //= 2
