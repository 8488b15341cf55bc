"""Folds with few rows become two: many blocks fold a chunk each, a second, small fold joins what they found.

sum and product of a whole are the sum and product of those of its parts, and so for extremes; means with squared deviations join by
Chan's formula, shifted sums of exponentials by shifting both to the larger maximum.
"""

from __future__ import annotations

import sympy

from .expressions import all_of, compare, constant, index_value, make, masked
from .index import FloorDiv, product, unflatten
from .partition import CHUNK, SMALL_WINDOW, SPLIT_BELOW, SPLIT_BLOCKS
from .tensors import Definition, Program

JOINED = {"welford": "join_welford", "softmax": "join_softmax"}
"""Folds whose parts are joined by another rule than their elements."""
IDENTITY = {"sum": 0, "prod": 1, "max": float("-inf"), "min": float("inf"), "any": False, "all": True}
BUSY_THREADS = 65536
"""Threads below which a device is not busy with a column each."""


def split_folds(program: Program) -> None:
    definitions: list[Definition] = []
    for definition in program.definitions:
        definitions += split_fold(program, definition) or [definition]
    program.definitions = definitions


def split_fold(program: Program, whole: Definition) -> list[Definition] | None:
    """The folds of its parts and of what they found; None where it stays one."""
    if not whole.reduced or whole.kind not in (*IDENTITY, *JOINED):
        return None
    if whole.kind in ("max", "min") and whole.type not in ("float", "double"):
        return None
    rows = program.estimate(product(whole.ranges[axis] for axis in whole.kept))
    folded = [whole.ranges[axis] for axis in sorted(whole.reduced)]
    length = program.estimate(product(folded))
    last = max((axis for axis, size in enumerate(whole.ranges) if size != 1), default=0)
    trailing = program.estimate(product(whole.ranges[max(whole.reduced) + 1 :]))
    if last in whole.reduced or trailing < SMALL_WINDOW // 2:
        if rows >= SPLIT_BELOW or length < 2 * CHUNK:
            return None
        wanted = max(CHUNK, length * max(rows, 1) // SPLIT_BLOCKS)
    else:
        if rows >= BUSY_THREADS or length < 2 * SMALL_WINDOW:
            return None
        wanted = max(SMALL_WINDOW, length * rows // (2 * BUSY_THREADS))
    natural = _natural(program, folded, wanted, rows)
    return _natural_parts(program, whole, natural) if natural else _chunks(program, whole, folded, wanted)


def _natural(program: Program, folded, wanted: int, rows: int) -> int | None:
    """How many of the folded axes, from the first, number the parts: so that a part is a chunk of about the wanted size.

    Rather more parts than few, as long as one block joins them in no time: an open leading size may be a fraction of what it is here.
    """
    counts = range(1, len(folded))
    found = [(n, program.estimate(product(folded[:n])), program.estimate(product(folded[n:]))) for n in counts]
    many = (n for n, parts, chunk in found if SPLIT_BELOW <= parts * rows <= 16 * SPLIT_BLOCKS and chunk >= CHUNK)
    few = (
        n for n, parts, chunk in found if chunk >= wanted // 4 and parts > 1 and parts * rows >= SPLIT_BELOW // 4
    )  # fmt: skip
    return next(many, next(few, None))


def _natural_parts(program: Program, whole: Definition, count: int) -> list[Definition]:
    """The first `count` folded axes are kept by the parts and folded by the join."""
    numbering = sorted(whole.reduced)[:count]
    reduced = frozenset(whole.reduced - set(numbering))
    kept = [axis for axis in range(len(whole.ranges)) if axis not in reduced]
    shape = [whole.ranges[axis] for axis in kept]
    return _two(program, whole, whole.ranges, reduced, whole.element, shape, [kept.index(axis) for axis in numbering])


def _chunks(program: Program, whole: Definition, folded, chunk: int) -> list[Definition]:
    """The folded axes flattened and cut: element number = part * chunk + step, none past the end."""
    length = product(folded)
    parts = -(-length // chunk) if length.is_Integer else FloorDiv(length + chunk - 1, sympy.Integer(chunk))
    kept, kept_sizes = whole.kept, [whole.ranges[axis] for axis in whole.kept]
    ranges = list(kept_sizes)
    lead = sum(axis < max(whole.reduced) for axis in kept)
    ranges[lead:lead] = [parts, sympy.Integer(chunk)]
    even = length.is_Integer and length % chunk == 0
    identity = IDENTITY.get(whole.kind)

    def number_at(position):
        return sympy.expand(position[lead] * chunk + position[lead + 1])

    def own(position):
        inner = iter(unflatten(number_at(position), folded, program.ranges))
        outer = iter([*position[:lead], *position[lead + 2 :]])
        return whole.element(
            [next(inner) if axis in whole.reduced else next(outer) for axis in range(len(whole.ranges))]
        )

    def element(position):
        number, value = number_at(position), own(position)
        if even:
            return value
        inside = all_of([compare("lt", index_value(number), index_value(length))])
        if identity is None:
            return make("only_if", inside, value, type=value.type)
        return masked(inside, value, constant(identity, value.type))

    shape = [size for axis, size in enumerate(ranges) if axis != lead + 1]
    found = _two(program, whole, tuple(ranges), frozenset({lead + 1}), element, shape, [lead])
    found[0].chunked = (length, own) if not even and product(kept_sizes) == 1 else None
    return found


def _two(program: Program, whole: Definition, ranges, reduced, element, shape, joined_axes) -> list[Definition]:
    kinds = JOINED.get(whole.kind)
    dtypes = [out.dtype for out in whole.outs]
    outs = [program.allocate(shape, dtype, f"{whole.origin}_part") for dtype in dtypes]
    counts = [program.allocate(shape, dtypes[0], f"{whole.origin}_count")] if whole.kind == "welford" else []
    part = Definition(whole.order, whole.kind, tuple(ranges), reduced, element, outs + counts, whole.origin, whole.type)
    reads = [program.whole(out, whole.order, whole.origin) for out in outs + counts]

    def found(position):
        values = [read.at(position) for read in reads]
        return make("parts", *values, type=whole.type) if kinds else values[0]

    join = Definition(
        whole.order, kinds or whole.kind, tuple(shape), frozenset(joined_axes), found, whole.outs, whole.origin, whole.type
    )  # fmt: skip
    for definition in (part, join):
        for out in definition.outs:
            out.written_by = definition
    return [part, join]
