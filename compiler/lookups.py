"""Rows that read at places which are computed or named: what follows for who reads what."""

from __future__ import annotations

import sympy

from compiler.codegen.text import MOST_STAGED
from compiler.draft.expressions import Expr, loads_of, symbols_of
from compiler.draft.index import FloorDiv
from compiler.draft.partition import FLAT, ROW
from compiler.kernel import PackedKernel


def lookups_of(kernel: PackedKernel) -> list[Expr]:
    """Places at which a row's elements read, each its own, in what is no small table; of packs of one element."""
    loads = [
        load for load in loads_of(kernel.roots) if load.op == "load_at" and kernel.pack in symbols_of(load.args[3])
    ]
    small = lambda count: count.is_Integer and count <= MOST_STAGED  # noqa: E731
    return [load.args[3] for load in loads if kernel.layout == ROW and not small(load.args[0].elements)]


def seeks(kernel: PackedKernel) -> bool:
    """Whether such a place is computed of where the element stands, as that of a bias by distance. Neighbours read lines that lie close
    by, and a multiprocessor looks up one line a cycle: threads should take neighbours, not packs."""
    return any(not loads_of([place]) for place in lookups_of(kernel))


GATHER_THREADS = 256
"""Of a block of short rows that lie where numbers name them: 81 -> 70 us for products of a million pairs of rows (H200)."""


def gathers(kernel: PackedKernel) -> bool:
    """Whether rows lie where numbers name them, in no small table."""
    return kernel.layout == ROW and any(
        load.op == "load_at" and load.args[0].elements.free_symbols for load in loads_of(kernel.roots)
    )


FETCHED, FETCH_THREADS = 4, 128
"""Packs of a thread, and threads of a block, that copies elements from where numbers name them. One pack a thread, a number and what it names one behind
the other: 41.7 us for 8,192 rows of 8 KB, 51.7 for 511,000 of 256 bytes; four, loaded before any is stored: 38.9 and 46.0 (H200, cold)."""


def fetches(kernel: PackedKernel) -> bool:
    """Whether runs of elements lie where a number names each, in no small table."""
    return kernel.layout == FLAT and not kernel.inner and any(_named(kernel, load) for load in loads_of(kernel.roots))


def _named(kernel: PackedKernel, load: Expr) -> bool:
    numbers = loads_of([load.args[3]]) if load.op == "load_at" else []
    count = load.args[0].elements
    if not numbers or (count.is_Integer and count <= MOST_STAGED):
        return False
    places = [one.args[1] for one in numbers if one.op == "load"]
    outer = [place.xreplace(dict.fromkeys(place.atoms(FloorDiv), sympy.Integer(0))) for place in places]
    return len(places) == len(numbers) and not any(kernel.pack in place.free_symbols for place in outer)
