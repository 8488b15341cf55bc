"""Neighbouring elements by one load or store of up to 16 bytes, where neighbours in a loop are neighbours in memory (CUDA)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import sympy

from .expressions import loads_of, walk
from .index import FloorDiv, Index, Modulo
from .partition import FLAT, ROW, Kernel, Member
from .tensors import Buffer

PACK_BYTES = 16
LANES = 32


@dataclass(frozen=True)
class Place:
    """An element of a buffer, `base` further than the loop's variable, which may be in it where a pack is within one quotient."""

    buffer: Buffer
    index: Index
    base: Index


@dataclass(frozen=True)
class Packs:
    """What one loop loads and stores `items` elements at a time."""

    variable: Index
    end: Index
    items: int
    loads: tuple[Place, ...]
    stores: tuple[Place, ...]


def packs_of(
    kernel: Kernel, members: list[Member], stored: set[Buffer], made: set[Buffer], single: bool = False
) -> Packs | None:
    """Of the loop over `members`: a kernel's elements, or the columns of its rows. None where nothing lies side by side.

    `stored`: what reaches memory; `made`: what the loop itself makes, which stays in registers. `single`: packs of one element.
    """
    guarded = any(
        e.op in ("masked", "only_if") for e in walk(m.value for m in members)
    )  # it may lie out of bounds there
    if guarded or (kernel.scan is not None and kernel.scan.backwards):
        return None
    if kernel.layout == FLAT and not kernel.inner:
        variable, end = kernel.row, kernel.rows
    elif kernel.layout == ROW and len(kernel.inner) == 1:
        variable, end = kernel.inner[0]
    else:
        return None
    if not variable.is_Symbol:
        return None
    loads = {(load.args[0], load.args[1]) for load in loads_of([m.value for m in members]) if load.op == "load"}
    stores = {
        (out, m.places[0])
        for m in members
        if m.definition is kernel.scan or not m.definition.reduced
        for out in m.definition.outs
        if out in stored
    }
    found = [
        [Place(b, at, at - variable) for b, at in places if b not in without]
        for places, without in ((loads, made), (stores, set()))
    ]
    largest = max((place.buffer.dtype.itemsize for places in found for place in places), default=PACK_BYTES)
    items = 1 if single else PACK_BYTES // largest
    if (
        (items < 2 and not single)
        or not _is_multiple(end, items)
        or (kernel.layout == ROW and end.is_Integer and end < LANES * items)
    ):
        return None
    fitting = [
        tuple(replace(p, base=base) for p in places if (base := _base(p.index, variable, items)) is not None)
        for places in found
    ]
    gathered = any(_base(p.index, variable, 1) is None and not _is_shared(p.index, variable, items) for p in found[0])
    if single:  # all that a row keeps lies side by side
        fitting = [tuple(place for place in places if variable not in place.base.free_symbols) for places in fitting]
        gathered = any(variable in place.base.free_symbols for place in found[0])
    if not any(fitting) or (gathered and all(variable in place.base.free_symbols for place in fitting[0])):
        return None  # nothing, or what is gathered would be spread over fewer threads
    by_name = lambda place: (place.buffer.name, str(place.base))  # noqa: E731, sets have no order of their own
    return Packs(variable, end, items, *(tuple(sorted(places, key=by_name)) for places in fitting))


def _base(index: Index, variable: sympy.Symbol, items: int) -> Index | None:
    """index - variable, if that is the same multiple of `items` for all of a pack; x % n is x - n * (x // n) in it."""
    remainders = {
        atom: variable - atom.args[1] * FloorDiv(*atom.args)
        for term in sympy.Add.make_args(index)
        for atom in sympy.Mul.make_args(term)
        if isinstance(atom, Modulo) and atom.args[0] == variable and _is_multiple(atom.args[1], items)
    }
    base = sympy.expand(index.xreplace(remainders) - variable)
    return base if _is_shared(base, variable, items) and _is_multiple(base, items) else None


def _is_shared(index: Index, variable: sympy.Symbol, items: int) -> bool:
    """Whether it is the same for all of a pack: the variable is in quotients only, by multiples of `items`."""
    if index == variable:
        return False
    if isinstance(index, FloorDiv) and index.args[0] == variable and _is_multiple(index.args[1], items):
        return True
    return all(_is_shared(part, variable, items) for part in index.args)


def _is_multiple(size: Index, items: int) -> bool:
    """Whether it is a multiple of `items` whatever its sizes are."""
    terms = sympy.Add.make_args(sympy.expand(size))
    return all((factor := term.as_coeff_Mul()[0]).is_Integer and int(factor) % items == 0 for term in terms)
