"""Kernels of rows whose elements lie apart, and beside those of the next row: a block brings some rows whole into shared memory."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import sympy

from compiler.draft.expressions import Expr, make, put
from compiler.draft.index import Index, Modulo
from compiler.draft.partition import ROW
from compiler.draft.tensors import Buffer
from compiler.kernel import Fusion, PackedKernel
from compiler.strides import loads_at_once, strides_along

MOST_TILES = 2


@dataclass(eq=False)
class TiledRows(PackedKernel):
    """Loads of tiles stand for those of memory that lie apart."""

    tiles: dict[Buffer, Expr] = field(default_factory=dict)
    """The load of the element `fill_at` of the row `fill_row`."""
    own_row: Index = field(default_factory=lambda: sympy.Integer(0))
    """A thread's row in its block."""
    fill_row: Index = field(default_factory=lambda: sympy.Integer(0))
    fill_at: Index = field(default_factory=lambda: sympy.Integer(0))
    pitch: Index = field(default_factory=lambda: sympy.Integer(1))
    """From an element of a row to its next."""


def tile_rows(fusion: Fusion, kernel: PackedKernel, stored: set[Buffer]) -> TiledRows | None:
    """The same kernel by tiles; None where rows lie together."""
    if kernel.layout != ROW or kernel.parts or not kernel.row.is_Symbol or not kernel.pack.is_Symbol:
        return None
    program, width = fusion.program, kernel.width
    lane = fusion.lane if width > 1 else kernel.pack
    at = [lane, kernel.pack] if width > 1 else [lane]
    written = {buffer.text for buffer in stored}
    found: list[Expr] = []
    for load in loads_at_once([member.value for member in kernel.members]):
        buffer, place = load.args
        steps = [step for step in strides_along(place, at) if step is not None and step != 0]
        apart = len(steps) == len(at) and steps[0] != 1 and sympy.expand(steps[-1] - width * steps[0]) == 0
        if apart and buffer not in kernel.made and buffer.text not in written and _goes_with_rows(place, kernel.row):
            found.append(load)
    if not 0 < len(found) <= MOST_TILES:
        return None
    named = lambda word, end: program.ranges.named(program.name(word), end)  # noqa: E731
    own, row, element = named("own_row", 1 << 10), named("fill_row", kernel.rows), named("fill_at", kernel.length)
    pitch = sympy.Symbol("tile_pitch", integer=True, positive=True)
    made = TiledRows(
        **{**kernel.__dict__, "members": [], "own_row": own, "fill_row": row, "fill_at": element, "pitch": pitch}
    )
    new: dict[Expr, Expr] = {}
    for load in found:
        buffer, place = load.args
        tile = Buffer(program.name(f"{buffer.name}_tile"), buffer.shape, buffer.dtype)
        tile.text = tile.name
        first = {kernel.row: row, lane: element} | ({kernel.pack: sympy.Integer(0)} if width > 1 else {})
        made.tiles[tile] = make("load", buffer, sympy.expand(place.xreplace(first)), type=load.type)
        within = (width * kernel.pack + lane if width > 1 else kernel.pack) * pitch + own
        new[load] = make("load", tile, sympy.expand(within), type=load.type)
    made.members = [replace(member, value=put(member.value, new.get)) for member in kernel.members]
    return made


def _goes_with_rows(place: Index, row: Index) -> bool:
    """Whether an element lies beside the next row's but where an axis before the last one begins anew."""
    place = sympy.expand(place)
    return place.coeff(row) == 1 or any(place.coeff(atom) == 1 for atom in place.atoms(Modulo) if atom.args[0] == row)
